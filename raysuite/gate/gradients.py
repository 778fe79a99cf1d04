"""Compare a lossy strategy's mean gradients with exact gradients; the strategy's options determine
how large an error may be."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysuite.data.base import Batch
from raysuite.gate.small_network import (
    DRAWS,
    RATES,
    make_engine,
    make_samples,
    overflowing,
    same_on_all_ranks,
    small_net,
    without_tf32,
)
from raysuite.parallel.base import StepSettings, Strategy, World
from raysuite.parallel.precision import DTYPES
from raysuite.spec.optimizers import SgdOptions
from raysuite.spec.strategies import COMPUTED_IN_16_BITS, Lossy


@dataclass(frozen=True)
class Gradients:
    """Errors of a lossy strategy's mean gradients; equal on all ranks."""

    ranks_equal: bool = False
    error: float = math.inf
    """Largest error of a parameter's gradient, relative to the mean of the ranks' absolute
    gradients."""
    beyond: float = math.inf
    """Largest ratio of an error to its bound."""


def compare_gradients(
    strategy: Strategy,
    world: World,
    settings: StepSettings,
    lossy: Lossy,
    batch_norm: bool = False,
    pause_s: float = 0.0,
) -> Gradients:
    """Take steps of plain SGD with a lossy strategy. In each step, compare each parameter's mean
    gradient with the exact mean over the ranks, which one process computes in fp32 with the same
    weights.

    The mean gradient is the weights before the step minus the weights after it, divided by the
    learning rate. In the first steps all ranks have samples. In each later step only one part of
    the ranks has samples: if their gradients are lost, the mean gradient is 0. All ranks must call
    this function.

    Bounds: with u the unit roundoff of `lossy.reduced`, the error of a mean of n terms is at most
    (n + 1) u times the mean of absolute values, because each term, its division and n - 1 additions
    are rounded (Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 4.2). Two
    more roundings are allowed for sums in two levels. Each rounding may also add an error of half
    of the format's smallest positive number.

    If `lossy.projected` is True, the error of a matrix is computed from a product that is 0 for a
    correct step: let m be the mean gradient plus the remainder of the steps before. A step of
    PowerSGD is s = P P' m, where P' P = 1 (Vogels et al. 2019, arXiv:1905.13727, algorithms 1 and
    2), and its remainder is m - s. So s' (m - s) = 0 for any P. If the step is c s instead, this
    product is c (1 - c) s' s; if the gradient g_k of rank k is missing, it is s' g_k / n.

    Passes in 16 bits can change the sign of values before a ReLU. In 16 bits, an error beyond the
    bound counts only if it is found three times, each time with other samples.
    """
    noisy = lossy.within > 0 or settings.precision != "fp32"
    for draw in range(DRAWS if noisy else 1):
        found = _gradients(strategy, world, settings, lossy, batch_norm, pause_s, draw)
        if not found.ranks_equal or not 1 < found.beyond < math.inf:
            break
    return found


def _gradients(
    strategy: Strategy,
    world: World,
    settings: StepSettings,
    lossy: Lossy,
    batch_norm: bool,
    pause_s: float,
    draw: int,
) -> Gradients:
    """`compare_gradients` with one draw of samples."""
    settings = replace(settings, clip_norm=None)
    replicas = world.size
    everyone = np.arange(replicas)
    turns = [everyone] * _ALL_TURNS + np.array_split(everyone, min(replicas, _PARTS))
    with without_tf32():
        net = small_net(world, batch_norm)
        errors = _WorstErrors(net, lossy, replicas, settings.precision)
        plain = SgdOptions(momentum=0.0)
        engine = make_engine(
            strategy, world, settings, batch_norm, plain, _GRADIENT_BATCH, pause_s=pause_s
        )
        try:
            engine.train()
            weights = engine.weights()
            for turn, active in enumerate(turns):
                before, rate = weights, RATES[turn % len(RATES)]
                seed = 1 + turn + len(turns) * draw
                shares = _shares(seed, set(active.tolist()), settings.accumulate, world)
                own = shares[world.rank]
                if turn == 0 and settings.precision == "fp16":
                    engine.step([overflowing(batch, engine) for batch in own], rate)
                engine.step(own, rate)
                weights = engine.weights()
                errors.take(before, weights, rate, _true_gradients(net, before, shares, settings))
            worst = engine.comm.all_reduce(errors.worst, "max").tolist()
            return Gradients(same_on_all_ranks(engine.comm, weights), *worst)
        finally:
            engine.close()


_ALL_TURNS = 4
"""Number of steps in which all ranks have samples; PowerSGD does not compress the first two."""
_GRADIENT_BATCH = 16
"""Samples of a micro-batch. With four samples, one in twelve draws had an error above the bound for
passes in bf16; with 16, the largest error was half of the bound."""
_PARTS = 64
"""Largest number of parts into which the ranks are divided. Each part in turn has all samples of a
step."""


def _shares(draw: int, active: set[int], count: int, world: World) -> list[list[Batch]]:
    """Batches [ranks][micro-batches] of a step in which only the `active` ranks have samples."""
    data = make_samples(world.size * count * _GRADIENT_BATCH, world.device, draw)
    batches = zip(*(each.split(_GRADIENT_BATCH) for each in data), strict=True)
    of_global = len(active) * count * _GRADIENT_BATCH
    return [
        [
            Batch(images, labels, _GRADIENT_BATCH if rank in active else 0, of_global)
            for images, labels in islice(batches, count)
        ]
        for rank in range(world.size)
    ]


def _true_gradients(
    net: nn.Module, weights: dict[str, Tensor], shares: list[list[Batch]], settings: StepSettings
) -> dict[str, tuple[Tensor, Tensor]]:
    """Parameter name -> (mean of the ranks' gradients with `weights`, mean of the absolute values
    of these gradients)."""
    net.load_state_dict(weights, strict=False)
    found = {name: torch.zeros(2, *each.shape).double() for name, each in net.named_parameters()}
    for batches in shares:
        net.zero_grad()
        for batch in batches:
            logits, labels = net(batch.images)[: batch.real], batch.labels[: batch.real]
            total = functional.cross_entropy(
                logits, labels, reduction="sum", label_smoothing=settings.label_smoothing
            )
            (total / batch.of_global).backward()
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None
            own = parameter.grad.double().cpu()
            found[name] += torch.stack([own, own.abs()])
    return {name: (mean, absolute) for name, (mean, absolute) in found.items()}


class _WorstErrors:
    """The largest errors over all steps, compared with the bounds of `compare_gradients`."""

    def __init__(self, net: nn.Module, lossy: Lossy, replicas: int, precision: str) -> None:
        self.worst = torch.zeros(2, dtype=torch.float64)
        """Largest values of `Gradients.error` and `Gradients.beyond` in the steps so far."""
        reduced = torch.finfo(DTYPES[lossy.reduced or "fp32"])
        roundings = replicas + 3
        relative = lossy.within + roundings * reduced.eps / 2
        relative += COMPUTED_IN_16_BITS * (precision != "fp32")
        self._relative = min(relative, _MOST_LOST) + _ROUNDING
        self._smallest = roundings * reduced.smallest_normal * reduced.eps / 2
        self._projected = lossy.projected
        self._left = {name: torch.zeros(each.shape) for name, each in net.named_parameters()}
        self._allowed: dict[str, float | Tensor] = dict.fromkeys(self._left, 0.0)

    def take(
        self,
        before: dict[str, Tensor],
        after: dict[str, Tensor],
        rate: float,
        true: dict[str, tuple[Tensor, Tensor]],
    ) -> None:
        """Compare a step's gradients, computed from the weights before and after it."""
        if after.keys() != true.keys():
            self.worst.fill_(math.inf)
            return
        for name, (mean, absolute) in true.items():
            step = (before[name].double() - after[name].double()) / rate
            size = absolute.norm()
            allowed = self._relative * size + self._smallest * math.sqrt(step.numel())
            allowed += torch.finfo(torch.float32).eps * before[name].norm() / rate
            error = (step - mean).norm()
            if self._projected and step.dim() > 1:
                whole = mean + self._left[name]
                self._left[name] = whole - step
                # with error feedback, errors of the passes add up
                allowed = self._allowed[name] = self._allowed[name] + allowed
                rows, rest = step.flatten(1), self._left[name].flatten(1)
                error = (rows.T @ rest).norm() / rows.norm()
                if rows.norm() < _LEAST_KEPT * whole.norm():
                    error, allowed = rest.norm(), torch.zeros(())
            found = torch.stack([error / size, error / allowed]).nan_to_num(math.inf, math.inf)
            self.worst = torch.maximum(self.worst, found)


_MOST_LOST = 0.4
"""Upper limit of the relative error that is allowed for a gradient, for any number of ranks. It
must stay below 0.5, the error of a gradient that is wrong by a factor of two."""
_LEAST_KEPT = 0.01
"""Lower bound of the share of a matrix's norm that a projection keeps; a random projection almost
always keeps more."""
_ROUNDING = 1e-4
"""Relative error that is allowed for rounding in fp32, also of sums that torch.compile reorders."""
