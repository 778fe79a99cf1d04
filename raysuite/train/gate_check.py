"""The gate's check: a small network, trained by a strategy and by one process, and compared.

BatchNorm makes "equal to one process on the global batch" false for every data-parallel strategy:
each rank normalises its own slice of the batch. So there are two networks. The one without
BatchNorm is compared with one process that computes the whole global batch in one pass; the one
with it, with one process that computes a pass for each rank's slice and adds the gradients.

Some settings are chosen to expose errors: the last batch holds a single sample, so that all ranks
but one have padding only; the learning rate changes at every step; and gradients are clipped only
where clipping is what is checked, as it would hide a wrong scale.

The one process always trains in fp32: the same rounding or the same wrong loss scale on both sides
would not be noticed. In fp16 the strategy makes one more step, whose gradients overflow on the
last rank only, so that all ranks must skip it.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysuite.data.base import Batch, Slice
from raysuite.data.order import permutation, rank_slices
from raysuite.optim import build_optimizer
from raysuite.parallel.base import (
    BaseStrategy,
    Engine,
    MakeOptimizer,
    StepSettings,
    Strategy,
    World,
    set_lr,
)
from raysuite.parallel.comm import Comm
from raysuite.parallel.pipeline.blocks import blocks_of
from raysuite.parallel.pipeline.partition import stage_sizes
from raysuite.parallel.precision import DTYPES, MEMORY_FORMATS
from raysuite.parallel.single import Single, SingleEngine
from raysuite.spec.optimizers import OptimizerOptions, SgdOptions
from raysuite.spec.strategies import COMPUTED_IN_16_BITS, Lossy, PipelineOptions

# The small network on which the gate checks a strategy, and its samples.

SEED = 2023
TOLERANCE_REBUILT = 1e-4
"""Largest relative error after one step of a network that another framework builds anew."""
_CHANNELS, _SIZE, _CLASSES = 8, 8, 10


class SmallNet(nn.Module):
    """Convolution, optional BatchNorm, and a classifier: enough for every kind of gradient.

    `layers`: how many there are; beyond three, there are more convolutions. `pause_s`: how long a
    backward pass pauses between two layers.
    """

    IMAGE = (1, _SIZE, _SIZE)
    CLASSES = _CLASSES

    def __init__(self, batch_norm: bool, layers: int = 3, pause_s: float = 0.0) -> None:
        super().__init__()
        self._pause_s = pause_s
        self.first = nn.Conv2d(1, _CHANNELS, 3, padding=1, bias=not batch_norm)
        self.norm = nn.BatchNorm2d(_CHANNELS) if batch_norm else nn.Identity()
        self.second = nn.Conv2d(_CHANNELS, _CHANNELS, 3, stride=2, padding=1)
        self.more = nn.ModuleList(
            nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1) for _ in range(layers - 3)
        )
        self.classify = nn.Linear(_CHANNELS * (_SIZE // 2) ** 2, _CLASSES)
        if batch_norm:  # a bias of zero has no relative error
            nn.init.uniform_(self.norm.bias, 0.1, 0.5)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """Logits [b, 10] for images [b, 1, 8, 8]."""
        x = images
        for layer in self.layers():
            if self._pause_s and x.requires_grad:
                x.register_hook(lambda _: time.sleep(self._pause_s))
            for part in layer:
                x = part(x)
        return x

    def layers(self) -> list[list[Callable[[Tensor], Tensor]]]:
        """The parts of each layer, called in this order; pipelines are cut between layers."""
        more: list[list[Callable[[Tensor], Tensor]]] = [[each, torch.relu] for each in self.more]
        return [
            [self.first, self.norm, torch.relu],
            [self.second, torch.relu],
            *more,
            [partial(torch.flatten, start_dim=1), self.classify],
        ]


def make_samples(count: int, device: torch.device, draw: int = 0) -> tuple[Tensor, Tensor]:
    """Images [count, 1, 8, 8] and labels [count], the same on every rank."""
    generator = np.random.Generator(np.random.Philox(key=SEED + draw))
    images = generator.standard_normal((count, 1, _SIZE, _SIZE), dtype=np.float32)
    labels = generator.integers(0, _CLASSES, count)
    return torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device)


def batch_of(data: tuple[Tensor, Tensor], part: Slice) -> Batch:
    """The samples of `data` that `part` names."""
    images, labels = data
    ids = torch.from_numpy(part.ids).to(images.device)
    return Batch(images[ids], labels[ids], part.real, part.of_global)


RATES = (0.1, 0.05, 0.2, 0.1)
"""The learning rate of each step."""
_RATE_AT_START = 0.7
"""What the optimiser is made with: an engine that ignores a step's rate is found out."""
PLAIN = SgdOptions(momentum=0.9, weight_decay=1e-4)
"""The optimiser with which every strategy is checked."""
_MICRO_BATCH = 4
_LOOKED_AT = 10
"""Samples whose logits are compared after the training."""
_OVERFLOW_BEFORE = 2
"""Index of the step before which an additional one is made in fp16, which overflows."""
_TOO_LARGE = 1e30
"""A pixel that fp16 cannot hold."""


@dataclass(frozen=True)
class Comparison:
    """A strategy beside one process; the same on all ranks.

    Errors are relative L2 distances: of the worst weight tensor, of the logits of the trained
    network, and of the worst step's loss. They are infinite where anything is not finite.
    """

    ranks_equal: bool = False
    weights: float = math.inf
    logits: float = math.inf
    losses: float = math.inf
    updates: float = math.inf
    """|w - r| / |r - w0| over the whole network, with w0 before the training."""
    worst_update: float = math.inf
    """|w - r| / |r - w0| of the tensor where it is largest."""
    fault: str = ""
    """Why nothing could be compared."""

    @property
    def error(self) -> float:
        """The largest of the errors."""
        return max(self.weights, self.logits, self.losses)

    @property
    def loose_error(self) -> float:
        """The largest of the errors, with `updates` in the place of `weights`."""
        return max(self.updates, self.logits, self.losses)

    @property
    def subject(self) -> str:
        """What has the largest error."""
        return {self.losses: "losses", self.logits: "logits", self.weights: "weights"}[self.error]


def compare(
    strategy: Strategy,
    world: World,
    settings: StepSettings,
    batch_norm: bool = False,
    optimizer: OptimizerOptions = PLAIN,
    layers: int = 3,
    pause_s: float = 0.0,
    delays: PipelineOptions | None = None,
) -> Comparison:
    """Train by `strategy` on all ranks and in fp32 by one process on each, and compare.

    `settings.micro_batch` and the optimiser's rates are replaced by the small network's own. All
    ranks must call it. `layers`: of the small network, at least one for each stage of a pipeline.
    The strategy's backward passes pause for `pause_s` between two layers. `delays`: the options of
    an asynchronous pipeline; the one process then applies gradients as late as the pipeline does.
    """
    alone = World(0, 1, 0, world.device)
    single = Single() if delays is None else Delayed(delays)
    fill = 0 if delays is None else delays.pipeline(settings.accumulate).steps_to_fill
    all_rates = (*RATES, *RATES[:1] * fill)  # more steps than the pipeline takes to fill
    single.start(alone)
    with without_tf32():
        engine = make_engine(
            strategy, world, settings, batch_norm, optimizer, layers=layers, pause_s=pause_s
        )
        slices = engine.replicas * settings.accumulate
        global_batch = slices * _MICRO_BATCH
        data = make_samples((len(all_rates) - 1) * global_batch + 1, world.device)
        # without BatchNorm the whole global batch in one pass; with it, slice after slice
        passes = slices if batch_norm or delays is not None else 1
        try:
            fault = comm_fault(engine.comm, world)
            if fault:
                return Comparison(fault=fault)
            rates = [rate * _pace(optimizer) for rate in all_rates]
            found = _train(engine, data, rates, global_batch, settings.accumulate)
            exact = replace(settings, precision="fp32", memory_format="contiguous", compile="off")
            reference = make_engine(
                single, alone, exact, batch_norm, optimizer, global_batch, passes, layers
            )
            before = reference.weights()
            expected = _train(reference, data, rates, global_batch, passes)
            if batch_norm and engine.own_statistics:  # the running statistics are each rank's own
                found.logits = expected.logits
            return _judge(engine.comm, found, expected, before)
        finally:
            engine.close()


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
    for draw in range(_DRAWS if noisy else 1):
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
        judge = _Judge(net, lossy, replicas, settings.precision)
        plain = SgdOptions(momentum=0.0)
        engine = make_engine(
            strategy, world, settings, batch_norm, plain, _GRADIENT_BATCH, pause_s=pause_s
        )
        try:
            engine.model.train()
            weights = engine.weights()
            for turn, active in enumerate(turns):
                before, rate = weights, RATES[turn % len(RATES)]
                seed = 1 + turn + len(turns) * draw
                shares = _shares(seed, set(active.tolist()), settings.accumulate, world)
                own = shares[world.rank]
                if turn == 0 and settings.precision == "fp16":
                    engine.step([_overflowing(batch, engine) for batch in own], rate)
                engine.step(own, rate)
                weights = engine.weights()
                judge.take(before, weights, rate, _true_gradients(net, before, shares, settings))
            worst = engine.comm.all_reduce(judge.worst, "max").tolist()
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


class _Judge:
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


def compare_rebuilt(
    strategy: Strategy, world: World, model: nn.Module, image: tuple[int, int, int], classes: int
) -> Comparison:
    """One fp32 step of `model` by a framework that builds it anew, and by torch in one process.

    All ranks train on the same samples, so that running statistics are equal too. All weights are
    compared as one tensor, and so are the statistics: a gradient near zero, such as that of a bias
    before BatchNorm, is nothing but rounding. Without dropout, whose draws are each framework's
    own. All ranks must call it.

    Where a value before a ReLU is so near zero that rounding gives it another sign, one derivative
    is 1 instead of 0: the distance was 1e-5 to 4e-4 in 14 of 84 draws of samples with correct
    ResNet-20s (14 seeds, 3 draws, TensorFlow and JAX) and at most 7e-7 in the others. A wrong layer
    shows with any samples, so a distance beyond `TOLERANCE_REBUILT` has to be found three times,
    each time with other samples. Ranks that differ and values that are not finite count at once: no
    rounding explains them.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for draw in range(_DRAWS):
        found = _rebuilt(strategy, world, model, image, classes, draw)
        if not found.ranks_equal or not TOLERANCE_REBUILT < found.error < math.inf:
            break
    return found


def _rebuilt(
    strategy: Strategy,
    world: World,
    model: nn.Module,
    image: tuple[int, int, int],
    classes: int,
    draw: int,
) -> Comparison:
    """`compare_rebuilt` with one draw of samples; `model` stays as it is."""
    generator = np.random.Generator(np.random.Philox(key=SEED + draw))
    images = torch.from_numpy(
        generator.standard_normal((2 * _REBUILT_SAMPLES, *image), dtype=np.float32)
    )
    labels = torch.from_numpy(generator.integers(0, classes, _REBUILT_SAMPLES))
    seen, unseen = images[:_REBUILT_SAMPLES].to(world.device), images[_REBUILT_SAMPLES:]
    alone = World(0, 1, 0, world.device)
    single = Single()
    single.start(alone)

    def outcome(engine: Engine) -> _Outcome:
        samples = len(seen)
        engine.model.train()
        batch = Batch(seen, labels.to(world.device), samples, samples * engine.replicas)
        loss = engine.step([batch], _REBUILT_RATE)
        engine.average_buffers()
        engine.model.eval()
        with torch.no_grad():
            logits = engine.forward(unseen.to(world.device)).float().cpu()
        return _Outcome(held(engine), logits, loss.double().cpu().reshape(1))

    def held(engine: Engine) -> dict[str, Tensor]:
        weights = [each for _, each in sorted(engine.weights().items())]
        buffers = [each.cpu() for each in engine.model.buffers() if each.is_floating_point()]
        parts = {"weights": weights, "statistics": buffers}
        return {
            name: torch.cat([*map(torch.flatten, each)]) for name, each in parts.items() if each
        }

    def made(strategy: Strategy) -> Engine:
        return strategy.prepare(
            copy.deepcopy(model),
            lambda parameters: build_optimizer(PLAIN, parameters, _RATE_AT_START),
            StepSettings(len(seen)),
        )

    reference = made(single)
    before = held(reference)
    engine = made(strategy)
    try:
        expected = outcome(reference)
        expected.losses *= engine.replicas
        return _judge(engine.comm, outcome(engine), expected, before)
    finally:
        engine.close()


_REBUILT_SAMPLES, _REBUILT_RATE, _DRAWS = 8, 0.01, 3


def comm_fault(comm: Comm, world: World) -> str:
    """What is wrong with a strategy's collectives; empty if they reach all ranks.

    Everything else that the gate finds depends on them.
    """
    last = world.size - 1
    own = torch.tensor([float(world.rank)])
    ranks = comm.all_gather(own).flatten().tolist()
    reduced = [comm.all_reduce(own, how).item() for how in ("sum", "max", "min")]
    expected = [float(rank) for rank in range(world.size)]
    if comm.size == world.size and ranks == expected and reduced == [sum(expected), last, 0]:
        return ""
    return (
        f"the strategy's comm does not reach all ranks: there are {world.size}, its size is "
        f"{comm.size}, and all_gather of the ranks' numbers gives {[int(rank) for rank in ranks]}"
    )


def same_on_all_ranks(comm: Comm, weights: dict[str, Tensor]) -> bool:
    """Whether all ranks hold bit-equal weights [name -> CPU tensor]. All ranks must call it."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    own = torch.tensor([int.from_bytes(digest.digest(), "big", signed=True)])
    return len(set(comm.all_gather(own).flatten().tolist())) == 1


def make_engine(
    strategy: Strategy,
    world: World,
    settings: StepSettings,
    batch_norm: bool = False,
    optimizer: OptimizerOptions = PLAIN,
    micro_batch: int = _MICRO_BATCH,
    accumulate: int | None = None,
    layers: int = 3,
    pause_s: float = 0.0,
) -> Engine:
    """An engine for the small network, whose first weights are the same everywhere."""
    net = small_net(world, batch_norm, layers, pause_s)
    net.to(memory_format=MEMORY_FORMATS[settings.memory_format])
    return strategy.prepare(
        net,
        lambda parameters: build_optimizer(optimizer, parameters, _RATE_AT_START),
        replace(settings, micro_batch=micro_batch, accumulate=accumulate or settings.accumulate),
    )


def small_net(
    world: World, batch_norm: bool = False, layers: int = 3, pause_s: float = 0.0
) -> SmallNet:
    """The small network, with the same weights everywhere."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return SmallNet(batch_norm, layers, pause_s).to(world.device)


def _pace(optimizer: OptimizerOptions) -> float:
    """What the rates are multiplied by, so that each optimiser moves the weights about as far."""
    if optimizer.name == "lars":
        return 0.1 / optimizer.trust_coefficient
    return {"sgd": 1.0, "lamb": 0.1, "adamw": 0.01}[optimizer.name]


@dataclass
class _Outcome:
    weights: dict[str, Tensor]
    logits: Tensor
    losses: Tensor
    """[steps] summed loss of this rank's samples."""


def _train(
    engine: Engine,
    data: tuple[Tensor, Tensor],
    rates: Sequence[float],
    global_batch: int,
    accumulate: int,
) -> _Outcome:
    images, _ = data
    order = permutation(len(images), SEED, 0)
    steps = rank_slices(order, global_batch, engine.replicas, engine.replica, accumulate)
    engine.model.train()
    losses = []
    for index, (step, rate) in enumerate(zip(steps, rates, strict=True)):
        batches = [batch_of(data, part) for part in step]
        if index == _OVERFLOW_BEFORE and engine.settings.precision == "fp16":
            engine.step([_overflowing(batch, engine) for batch in batches], rate)
        losses.append(engine.step(batches, rate))
    engine.drain()
    engine.model.eval()
    with torch.no_grad():
        logits = engine.forward(images[:_LOOKED_AT])
    return _Outcome(engine.weights(), logits.float().cpu(), torch.stack(losses).double().cpu())


def _overflowing(batch: Batch, engine: Engine) -> Batch:
    """`batch`, with pixels on the last replica that fp16 cannot hold."""
    if engine.replica < engine.replicas - 1:
        return batch
    return replace(batch, images=torch.full_like(batch.images, _TOO_LARGE))


def _judge(
    comm: Comm, found: _Outcome, expected: _Outcome, before: dict[str, Tensor]
) -> Comparison:
    """Compare the strategy's outcome with the expected one. All ranks return the same."""
    losses = comm.all_reduce(found.losses, "sum")
    errors = [
        _worst_tensor(found.weights, expected.weights),
        _distance(found.logits, expected.logits),
        max(map(_distance, losses, expected.losses)),
        *_updates(found.weights, expected.weights, before),
    ]
    worst = comm.all_reduce(torch.tensor(errors, dtype=torch.float64), "max").tolist()
    return Comparison(same_on_all_ranks(comm, found.weights), *worst)


def _worst_tensor(weights: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """max over tensors of |w - r| / |r|; infinite if they are not the network's."""
    if weights.keys() != reference.keys():
        return math.inf
    return max(_distance(weights[name], expected) for name, expected in reference.items())


def _updates(
    weights: dict[str, Tensor], reference: dict[str, Tensor], before: dict[str, Tensor]
) -> tuple[float, float]:
    """`Comparison`'s updates and worst_update."""
    if weights.keys() != reference.keys():
        return math.inf, math.inf

    def norms(one: dict[str, Tensor], other: dict[str, Tensor]) -> Tensor:
        return torch.stack([(one[name] - other[name]).double().norm() for name in reference])

    way, error = norms(reference, before), norms(weights, reference)
    found = torch.stack([error.norm() / way.norm(), (error / way).max()])
    updates, worst = found.nan_to_num(math.inf, math.inf).tolist()
    return updates, worst


def _distance(value: Tensor, reference: Tensor) -> float:
    """|v - r| / |r| in L2 norms."""
    if value.shape != reference.shape:
        return math.inf
    distance = ((value.double() - reference.double()).norm() / reference.double().norm()).item()
    return distance if math.isfinite(distance) else math.inf


@contextmanager
def without_tf32() -> Iterator[None]:
    """Disable TF32 within the context: it rounds to 10 bits, far above the differences that matter
    here, and cuDNN uses it by default."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


# One process that applies gradients as late as an asynchronous pipeline does: a reference.
#
# It holds every version of every stage's weights, and has for each micro-batch the ones that the
# schedule names: forward and backward passes of the whole network, one micro-batch after the other.
# It shares the schedule and the partition with the pipeline, and none of its code for execution.


class DelayedEngine(SingleEngine):
    """A step takes the micro-batches of all copies, one copy after the other."""

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        world: World,
        settings: StepSettings,
        options: PipelineOptions,
    ) -> None:
        super().__init__(model, make_optimizer, world, settings)
        self.schedule = options.pipeline()
        blocks = blocks_of(model)
        sizes = stage_sizes(options, blocks)
        self._stages = [
            list(
                dict.fromkeys(
                    each for block in blocks[end - size : end] for each in block.parameters
                )
            )
            for end, size in zip(accumulate(sizes), sizes, strict=True)
        ]
        self._steps = 0
        self._versions: list[list[list[Tensor]]] = []
        """[updates][stages][parameters], since the pipeline was empty."""
        self.drain()

    def drain(self) -> None:
        self._steps, self._versions = 0, [self._copied()]

    def load(self, folder: Path) -> None:
        super().load(folder)
        self.drain()

    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        set_lr(self.optimizer, lr)
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.world.device)
        count = self.schedule.micro_batches
        for place, batch in enumerate(micro_batches):
            self._take(self._steps * count + place % count)
            loss, summed = self.loss(batch, self.autocast(batch.images))
            loss.backward()
            total += summed
        self._put(self._versions[-1])
        self.take_step()
        self._steps += 1
        self._versions.append(self._copied())
        return total

    def _copied(self) -> list[list[Tensor]]:
        return [[each.detach().clone() for each in stage] for stage in self._stages]

    def _take(self, micro_batch: int) -> None:
        """Give each stage the weights with which a micro-batch passes through it."""
        versions = [self.schedule.version(stage, micro_batch) for stage in range(len(self._stages))]
        self._put([self._versions[version][stage] for stage, version in enumerate(versions)])

    @torch.no_grad()
    def _put(self, values: list[list[Tensor]]) -> None:
        for stage, held in zip(self._stages, values, strict=True):
            for parameter, value in zip(stage, held, strict=True):
                parameter.copy_(value)


class Delayed(BaseStrategy):
    """The reference for pipelines with `options`, for any number of copies of the network."""

    engine = DelayedEngine
