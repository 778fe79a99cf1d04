"""What the gate looks at: a small network, trained by a strategy and by one process.

BatchNorm makes "equal to one process on the global batch" false for every data-parallel strategy:
each rank normalises its own slice of the batch. So there are two networks. The one without
BatchNorm is held against one process that sees the whole global batch at once; the one with it,
against one process that passes the ranks' slices one by one and steps on their sum.

What else a wrong strategy could hide behind is varied on purpose: the last batch holds a single
sample, so that all ranks but one have padding alone; the learning rate changes at every step; and
no gradient is clipped unless clipping itself is looked at, as it would undo a wrong scale.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from raysuite.data.base import Batch, Slice
from raysuite.data.order import permutation, rank_slices
from raysuite.parallel.base import Engine, StepSettings, Strategy, World
from raysuite.parallel.comm import Comm
from raysuite.parallel.single import Single

RATES = (0.1, 0.05, 0.2, 0.1)
"""The learning rate of each step."""
_RATE_AT_START = 0.7
"""What the optimiser is made with: an engine that ignores a step's rate is found out."""
_SEED, _MICRO_BATCH, _CHANNELS, _SIZE, _CLASSES = 2023, 4, 8, 8, 10


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
    fault: str = ""
    """Why nothing could be compared."""

    @property
    def error(self) -> float:
        """The largest of the errors."""
        return max(self.weights, self.logits, self.losses)

    @property
    def subject(self) -> str:
        """What has the largest error."""
        return {self.losses: "losses", self.logits: "logits", self.weights: "weights"}[self.error]


def compare(
    strategy: Strategy, world: World, settings: StepSettings, batch_norm: bool = False
) -> Comparison:
    """Train by `strategy` on all ranks and by one process on each, and compare.

    `settings.micro_batch` is replaced by the small network's own. All ranks must call it.
    """
    slices = world.size * settings.accumulate
    global_batch = slices * _MICRO_BATCH
    data = _data((len(RATES) - 1) * global_batch + 1, world.device)
    # without BatchNorm the whole global batch in one pass; with it, slice after slice
    passes = slices if batch_norm else 1
    alone = World(0, 1, 0, world.device)
    single = Single()
    single.start(alone)
    with _without_tf32():
        engine = make_engine(strategy, world, settings, batch_norm)
        try:
            fault = comm_fault(engine.comm, world)
            if fault:
                return Comparison(fault=fault)
            found = _train(engine, data, global_batch, world, settings.accumulate)
            reference = make_engine(single, alone, settings, batch_norm, global_batch, passes)
            expected = _train(reference, data, global_batch, alone, passes)
            if batch_norm:  # the running statistics are each rank's own
                found.logits = expected.logits
            return _judge(engine.comm, found, expected)
        finally:
            engine.close()


def comm_fault(comm: Comm, world: World) -> str:
    """What is wrong with a strategy's collectives; empty if they reach all ranks.

    Everything else the gate says rests on them.
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
    micro_batch: int = _MICRO_BATCH,
    accumulate: int | None = None,
) -> Engine:
    """An engine for the small network, whose first weights are the same everywhere."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        net = _Net(batch_norm).to(world.device)
    return strategy.prepare(
        net,
        lambda parameters: torch.optim.SGD(
            parameters, lr=_RATE_AT_START, momentum=0.9, weight_decay=1e-4
        ),
        StepSettings(
            micro_batch=micro_batch,
            accumulate=accumulate or settings.accumulate,
            clip_norm=settings.clip_norm,
            precision=settings.precision,
            label_smoothing=settings.label_smoothing,
        ),
    )


@dataclass
class _Outcome:
    weights: dict[str, Tensor]
    logits: Tensor
    losses: Tensor
    """[steps] summed loss of this rank's samples."""


def _train(
    engine: Engine, data: tuple[Tensor, Tensor], global_batch: int, world: World, accumulate: int
) -> _Outcome:
    images, _ = data
    order = permutation(len(images), _SEED, 0)
    steps = rank_slices(order, global_batch, world.size, world.rank, accumulate)
    engine.model.train()
    losses = [
        engine.step([_batch(data, part) for part in step], rate)
        for step, rate in zip(steps, RATES, strict=True)
    ]
    engine.model.eval()
    with torch.no_grad():
        logits = engine.forward(images[:_CLASSES])
    return _Outcome(engine.weights(), logits.float().cpu(), torch.stack(losses).double().cpu())


def _judge(comm: Comm, found: _Outcome, expected: _Outcome) -> Comparison:
    """The same on all ranks."""
    losses = comm.all_reduce(found.losses, "sum")
    errors = [
        _worst_tensor(found.weights, expected.weights),
        _distance(found.logits, expected.logits),
        max(map(_distance, losses, expected.losses)),
    ]
    worst = comm.all_reduce(torch.tensor(errors, dtype=torch.float64), "max").tolist()
    return Comparison(same_on_all_ranks(comm, found.weights), *worst)


def _worst_tensor(weights: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """max over tensors of |w - r| / |r|; infinite if they are not the network's."""
    if weights.keys() != reference.keys():
        return math.inf
    return max(_distance(weights[name], expected) for name, expected in reference.items())


def _distance(value: Tensor, reference: Tensor) -> float:
    """|v - r| / |r| in L2 norms."""
    if value.shape != reference.shape:
        return math.inf
    distance = ((value.double() - reference.double()).norm() / reference.double().norm()).item()
    return distance if math.isfinite(distance) else math.inf


class _Net(nn.Module):
    """Convolution, optional BatchNorm, and a classifier: enough for every kind of gradient."""

    def __init__(self, batch_norm: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, _CHANNELS, 3, padding=1, bias=not batch_norm)
        self.norm = nn.BatchNorm2d(_CHANNELS) if batch_norm else nn.Identity()
        self.second = nn.Conv2d(_CHANNELS, _CHANNELS, 3, stride=2, padding=1)
        self.classify = nn.Linear(_CHANNELS * (_SIZE // 2) ** 2, _CLASSES)
        if batch_norm:  # a bias of zero has no relative error
            nn.init.uniform_(self.norm.bias, 0.1, 0.5)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """Logits [b, 10] for images [b, 1, 8, 8]."""
        hidden = torch.relu(self.norm(self.first(images)))
        logits: Tensor = self.classify(torch.relu(self.second(hidden)).flatten(1))
        return logits


def _data(samples: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images [samples, 1, 8, 8] and labels [samples], the same on every rank."""
    generator = np.random.Generator(np.random.Philox(key=_SEED))
    images = generator.standard_normal((samples, 1, _SIZE, _SIZE), dtype=np.float32)
    labels = generator.integers(0, _CLASSES, samples)
    return torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device)


def _batch(data: tuple[Tensor, Tensor], part: Slice) -> Batch:
    images, labels = data
    ids = torch.from_numpy(part.ids).to(images.device)
    return Batch(images[ids], labels[ids], part.real, part.of_global)


@contextmanager
def _without_tf32() -> Iterator[None]:
    """TF32, which cuDNN uses by itself, rounds to 10 bits: far above what is told apart here."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
