"""Train a small network with a strategy and in one process, and compare the two.

docs/explanation/gate.md explains the variations. With BatchNorm, or if the strategy is an
asynchronous pipeline, the one process computes one pass for each micro-batch of each rank and adds
the gradients; otherwise it computes one pass for the whole global batch.
The one process always trains in fp32: in 16 bits it could have the strategy's own error, such as a
wrong loss scale. In fp16 the strategy takes one more step, whose gradients overflow on the last
rank only, so that all ranks must skip it.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from raysuite.data.base import Batch, Slice
from raysuite.data.order import permutation, rank_slices
from raysuite.gate.delayed import Delayed
from raysuite.optim import build_optimizer
from raysuite.parallel.base import Engine, StepSettings, Strategy, World
from raysuite.parallel.comm import Comm
from raysuite.parallel.precision import MEMORY_FORMATS
from raysuite.parallel.single import Single
from raysuite.spec.optimizers import OptimizerOptions, SgdOptions
from raysuite.spec.strategies import PipelineOptions

# The small network on which the gate checks a strategy, and its samples.

SEED = 2023
TOLERANCE = 1e-5
"""Largest allowed relative error in fp32: about 100 rounding errors of fp32."""
DRAWS = 3
"""Number of draws of samples. If rounding can change the sign of a value before a ReLU, an error
counts only if it exceeds its bound with each draw."""
_CHANNELS, _SIZE, _CLASSES = 8, 8, 10


class SmallNet(nn.Module):
    """Convolutions, optional BatchNorm, and a linear classifier.

    `layers`: number of layers, at least 3; additional layers are convolutions. `pause_s`: seconds
    for which a backward pass pauses between two layers.
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
        if batch_norm:  # a bias of zero would have no relative error
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
        """The modules and functions of each layer, in order; pipelines are cut between layers."""
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
    """The samples of `data` with the indices in `part`."""
    images, labels = data
    ids = torch.from_numpy(part.ids).to(images.device)
    return Batch(images[ids], labels[ids], part.real, part.of_global)


RATES = (0.1, 0.05, 0.2, 0.1)
"""The learning rate of each step."""
RATE_AT_START = 0.7
"""The learning rate with which the optimiser is constructed. It differs from the rates of the
steps, so that an engine that ignores a step's rate fails."""
PLAIN = SgdOptions(momentum=0.9, weight_decay=1e-4)
"""The optimiser with which every strategy is checked."""
_MICRO_BATCH = 4
_LOOKED_AT = 10
"""Number of samples whose logits are compared after the training."""
_OVERFLOW_BEFORE = 2
"""In fp16, the additional step that overflows is taken before the step with this index."""
_TOO_LARGE = 1e30
"""A pixel's value that is too large for fp16."""


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a strategy with one process; equal on all ranks.

    Errors are relative L2 distances: of the worst weight tensor, of the logits of the trained
    network, and of the worst step's loss. They are infinite if any value is not finite.
    """

    ranks_equal: bool = False
    weights: float = math.inf
    logits: float = math.inf
    losses: float = math.inf
    updates: float = math.inf
    """|w - r| / |r - w0| over the whole network, where w are the strategy's weights, r those of one
    process, and w0 those before the training."""
    worst_update: float = math.inf
    """Largest |w - r| / |r - w0| of a single tensor."""
    fault: str = ""
    """Why nothing could be compared; empty if the results were compared."""

    @property
    def error(self) -> float:
        """The largest of `weights`, `logits` and `losses`."""
        return max(self.weights, self.logits, self.losses)

    @property
    def loose_error(self) -> float:
        """The largest of `updates`, `logits` and `losses`."""
        return max(self.updates, self.logits, self.losses)

    @property
    def subject(self) -> str:
        """The quantity with the largest error."""
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
    """Train with `strategy` on all ranks, and in fp32 in one process on each rank; compare the two.

    `settings.micro_batch` and the optimiser's rates are replaced by those of the small network. All
    ranks must call this function. `layers` is the number of layers, at least one for each stage of
    a pipeline. The strategy's backward passes pause for `pause_s` seconds between two layers.
    `delays` are the options of an asynchronous pipeline; if given, the one process applies
    gradients with this pipeline's delay.
    """
    single = Single() if delays is None else Delayed(delays)
    fill = 0 if delays is None else delays.pipeline(settings.accumulate).steps_to_fill
    all_rates = (*RATES, *RATES[:1] * fill)  # more steps than the pipeline takes to fill
    single.start(World.alone(world.device))
    with without_tf32():
        engine = make_engine(
            strategy, world, settings, batch_norm, optimizer, layers=layers, pause_s=pause_s
        )
        slices = engine.replicas * settings.accumulate
        global_batch = slices * _MICRO_BATCH
        data = make_samples((len(all_rates) - 1) * global_batch + 1, world.device)
        # without BatchNorm, the global batch is one pass; with BatchNorm, each slice is a pass
        passes = slices if batch_norm or delays is not None else 1
        try:
            fault = comm_fault(engine.comm, world)
            if fault:
                return Comparison(fault=fault)
            rates = [rate * _pace(optimizer) for rate in all_rates]
            found = _train(engine, data, rates, global_batch, settings.accumulate)
            exact = replace(settings, precision="fp32", memory_format="contiguous", compile="off")
            reference = make_engine(
                single, world, exact, batch_norm, optimizer, global_batch, passes, layers
            )
            before = reference.weights()
            expected = _train(reference, data, rates, global_batch, passes)
            if batch_norm and engine.own_statistics:  # each rank has its own running statistics
                found.logits = expected.logits
            return outcomes_compared(engine.comm, found, expected, before)
        finally:
            engine.close()


def comm_fault(comm: Comm, world: World) -> str:
    """The fault of a strategy's collectives, as text; empty if they reach all ranks. All other
    results of the gate depend on these collectives."""
    last = world.size - 1
    own = torch.tensor([float(world.rank)])
    ranks = [int(rank) for rank in comm.all_gather(own).flatten().tolist()]
    reduced = {how: comm.all_reduce(own, how).item() for how in ("sum", "max", "min")}
    expected = [*range(world.size)]
    right = {"sum": sum(expected), "max": last, "min": 0}
    if comm.size == world.size and ranks == expected and reduced == right:
        return ""
    return (
        f"the strategy's comm does not reach all ranks: there are {world.size} ranks, the comm's "
        f"size is {comm.size}; applied to the rank numbers, all_gather gives {ranks}, and "
        f"all_reduce gives {', '.join(f'{value:g} ({how})' for how, value in reduced.items())}"
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
    """An engine for the small network, with equal initial weights on all ranks."""
    net = small_net(world, batch_norm, layers, pause_s)
    net.to(memory_format=MEMORY_FORMATS[settings.memory_format])
    return strategy.prepare(
        net,
        lambda parameters: build_optimizer(optimizer, parameters, RATE_AT_START),
        replace(settings, micro_batch=micro_batch, accumulate=accumulate or settings.accumulate),
    )


def small_net(
    world: World, batch_norm: bool = False, layers: int = 3, pause_s: float = 0.0
) -> SmallNet:
    """The small network, with equal weights on all ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return SmallNet(batch_norm, layers, pause_s).to(world.device)


def _pace(optimizer: OptimizerOptions) -> float:
    """Factor for the learning rates: with it, all optimisers change the weights by about the same
    amount."""
    if optimizer.name == "lars":
        return 0.1 / optimizer.trust_coefficient
    return {"sgd": 1.0, "lamb": 0.1}.get(optimizer.name, 0.01)


@dataclass
class Outcome:
    weights: dict[str, Tensor]
    logits: Tensor
    losses: Tensor
    """[steps] loss, summed over this rank's samples."""


def _train(
    engine: Engine,
    data: tuple[Tensor, Tensor],
    rates: Sequence[float],
    global_batch: int,
    accumulate: int,
) -> Outcome:
    images, _ = data
    order = permutation(len(images), SEED, 0)
    steps = rank_slices(order, global_batch, engine.replicas, engine.replica, accumulate)
    engine.train()
    losses = []
    for index, (step, rate) in enumerate(zip(steps, rates, strict=True)):
        batches = [batch_of(data, part) for part in step]
        if index == _OVERFLOW_BEFORE and engine.settings.precision == "fp16":
            engine.step([overflowing(batch, engine) for batch in batches], rate)
        losses.append(engine.step(batches, rate))
    engine.drain()
    engine.train(False)
    with torch.no_grad():
        logits = engine.forward(images[:_LOOKED_AT])
    return Outcome(engine.weights(), logits.float().cpu(), torch.stack(losses).double().cpu())


def overflowing(batch: Batch, engine: Engine) -> Batch:
    """Return `batch`; on the last replica, all its pixels are too large for fp16."""
    if engine.replica < engine.replicas - 1:
        return batch
    return replace(batch, images=torch.full_like(batch.images, _TOO_LARGE))


def outcomes_compared(
    comm: Comm, found: Outcome, expected: Outcome, before: dict[str, Tensor]
) -> Comparison:
    """Compare the strategy's outcome with the expected outcome; all ranks get the same result."""
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
    """Largest |w - r| / |r| of a tensor; infinite if the names of the tensors differ."""
    if weights.keys() != reference.keys():
        return math.inf
    return max(_distance(weights[name], expected) for name, expected in reference.items())


def _updates(
    weights: dict[str, Tensor], reference: dict[str, Tensor], before: dict[str, Tensor]
) -> tuple[float, float]:
    """`updates` and `worst_update` of a Comparison."""
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
    """Disable TF32 within the context. cuDNN uses TF32 by default. TF32 rounds the mantissa to 10
    bits, so its errors are far larger than the differences that matter here."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
