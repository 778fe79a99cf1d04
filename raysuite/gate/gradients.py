"""A lossy strategy's mean gradients beside the ranks' own, held to bounds of its options."""

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
    """A lossy strategy's mean gradients beside the true ones; the same on all ranks."""

    ranks_equal: bool = False
    error: float = math.inf
    """Largest error of a parameter's gradient, relative to the mean of the ranks' absolute ones."""
    beyond: float = math.inf
    """Largest error over its bound."""


def compare_gradients(
    strategy: Strategy,
    world: World,
    settings: StepSettings,
    lossy: Lossy,
    batch_norm: bool = False,
    pause_s: float = 0.0,
) -> Gradients:
    """Take steps of plain SGD by a lossy strategy, and compare each parameter's mean gradient in
    each step with the ranks' own ones, which one process computes in fp32 with the same weights.

    The mean gradient is what the step moved the weights by, over its rate. In the first steps all
    ranks have samples, and then one part of them after the other: where that part is lost, nothing
    is left of the gradient. All ranks must call it.

    Bounds: with u the unit roundoff of `lossy.reduced`, a mean of n terms is off by (n + 1) u times
    the mean of absolute values at most, as each term, its division and n - 1 additions are rounded
    (Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 4.2). Two roundings more
    are allowed for sums in two levels, and half of the smallest number for each.

    `lossy.projected`: with m the mean gradient plus what was left out before, a step of PowerSGD is
    s = P P' m, where P' P = 1 (Vogels et al. 2019, arXiv:1905.13727, algorithms 1 and 2). So
    s' (m - s) = 0, whatever P is, and m - s is what is left out. With c s in its place this is
    c (1 - c) s' s, and without rank k it is s' g_k / n.

    Passes in 16 bits turn the sign of values before a ReLU. So an error beyond the bound then has
    to be found three times, each time with other samples.
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
"""Steps in which all ranks have samples; the first two of PowerSGD are not compressed."""
_GRADIENT_BATCH = 16
"""Samples of a micro-batch: of four, one in twelve draws had an error above the bound of passes in
bf16; of 16 the largest was half of it."""
_PARTS = 64
"""Parts of the ranks at most, each of which has all samples of a step."""


def _shares(draw: int, active: set[int], count: int, world: World) -> list[list[Batch]]:
    """[ranks][micro-batches] of a step in which the `active` ranks have samples."""
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
    net: nn.Module,
    weights: dict[str, Tensor],
    shares: list[list[Batch]],
    settings: StepSettings,
) -> dict[str, tuple[Tensor, Tensor]]:
    """By name: the mean of the ranks' gradients with `weights`, and of their absolute values."""
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
    """Holds every step's gradients to the bounds of `compare_gradients`."""

    def __init__(self, net: nn.Module, lossy: Lossy, replicas: int, precision: str) -> None:
        self.worst = torch.zeros(2, dtype=torch.float64)
        """`Gradients`' error and beyond, so far."""
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
        """Judge a step, from the weights on both sides of it."""
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
                # the errors of passes stay in what is left out
                allowed = self._allowed[name] = self._allowed[name] + allowed
                rows, rest = step.flatten(1), self._left[name].flatten(1)
                error = (rows.T @ rest).norm() / rows.norm()
                if rows.norm() < _LEAST_KEPT * whole.norm():
                    error, allowed = rest.norm(), torch.zeros(())
            found = torch.stack([error / size, error / allowed]).nan_to_num(math.inf, math.inf)
            self.worst = torch.maximum(self.worst, found)


_MOST_LOST = 0.4
"""Largest relative bound, however many ranks: a factor of two is an error of 0.5 at least."""
_LEAST_KEPT = 0.01
"""Of a matrix: how much of it a projection keeps at least; with a random P, all but never less."""
_ROUNDING = 1e-4
"""Relative error of fp32, and of what torch.compile reorders."""
