"""The gate: no speed is reported before the arithmetic is right.

A small network is trained for a few steps by the strategy under test, with the run's own
accumulation and clipping, in fp32. Afterwards

1. all ranks must hold bit-equal weights, and
2. they must equal, to a relative error of 1e-5 per weight tensor, the weights of one process
   that trained on the same global batches.

BatchNorm makes (2) false for every data-parallel strategy: each rank normalises its own slice of
the batch. So there are two networks. The one without BatchNorm is held against one process that
sees the whole global batch at once; the one with it, against one process that passes the ranks'
slices one by one and steps on their sum. The data hold a last batch of a single sample, so that
the weighting of partial batches and the padding are checked as well.

Options that change the arithmetic on purpose (compression, Adasum) are checked twice: without
them by both rules, and with them by the first; how far they lead away is reported, not judged.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysuite.data import cache_dir
from raysuite.data.base import Batch, Slice
from raysuite.data.order import permutation, rank_slices
from raysuite.measure.environment import fingerprint
from raysuite.parallel import make_strategy
from raysuite.parallel.base import Engine, Strategy, StepSettings, World
from raysuite.parallel.single import Single
from raysuite.plan import RunPlan
from raysuite.records import GateVerdict
from raysuite.spec.strategies import StrategyOptions

TOLERANCE = 1e-5
"""Largest relative error of a weight tensor: some 100 roundings of fp32."""

_STEPS, _LR, _SEED = 4, 0.1, 2023
_MICRO_BATCH, _CHANNELS, _SIZE, _CLASSES = 4, 8, 8, 10


def check(plan: RunPlan, world: World, strategy: Strategy, facts: dict[str, Any]) -> GateVerdict:
    """The verdict on the plan's strategy at this world size, from the cache if it is known there.

    `facts` are `measure.environment()`'s: a verdict holds for the versions and the machine on
    which it was reached. Only passes are kept. All ranks must call it; rank 0's answer counts.
    """
    settings = StepSettings(_MICRO_BATCH, plan.accumulate, plan.spec.training.clip_norm)
    file = _cache_file(plan.spec.strategy, world, settings, facts)
    known = _known(file) if world.rank == 0 else None
    engine = _engine(strategy, world, settings, batch_norm=False)
    found = engine.comm.all_reduce(torch.tensor([0.0 if known is None else 1.0]), "max").item()
    engine.close()
    if found:
        verdict = known or GateVerdict(
            run_id=plan.run_id,
            strategy=plan.spec.strategy.name,
            workers=world.size,
            passed=True,
            ranks_equal=True,
            error=0.0,
            error_batchnorm=0.0,
            tolerance=TOLERANCE,
            rule="known to rank 0",
            steps=_STEPS,
        )
        return verdict.model_copy(
            update={"run_id": plan.run_id, "cached": True, "time": time.time()}
        )
    verdict = examine(plan.spec.strategy, world, strategy, settings, plan.run_id)
    if verdict.passed and world.rank == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(verdict.model_dump_json())
        partial.replace(file)
    return verdict


def examine(
    options: StrategyOptions,
    world: World,
    strategy: Strategy,
    settings: StepSettings | None = None,
    run_id: str = "",
) -> GateVerdict:
    """Train the two networks and judge. All ranks must call it, and get the same verdict."""
    settings = settings or StepSettings(_MICRO_BATCH)
    exact, judged = strategy, True
    if strategy.lossy:
        plain_options = without_loss(options)
        judged = plain_options is not None
        if plain_options is not None:
            exact = make_strategy(plain_options)
            exact.start(world)
    plain = _compare(exact, world, settings, batch_norm=False)
    batch_norm = _compare(exact, world, settings, batch_norm=True)
    equal = plain.ranks_equal and batch_norm.ranks_equal
    rule = "ranks bit-equal; equal to one process on the same global batch"
    remarks = []
    if strategy.lossy and judged:
        lossy = _compare(strategy, world, settings, batch_norm=False)
        equal = equal and lossy.ranks_equal
        rule += "; lossy options: ranks bit-equal, distance reported and not judged"
        remarks.append(f"with its lossy options the weights differ by {lossy.error:.1e}")
    if not judged:
        rule = "ranks bit-equal; lossy throughout, so the distance is reported and not judged"
    if not equal:
        remarks.insert(0, "the ranks hold different weights: gradients are not synchronised")
    worst = max(plain.error, batch_norm.error)
    exceeds = judged and not worst <= TOLERANCE  # a NaN exceeds too
    if exceeds:
        remarks.insert(
            0,
            f"the weights differ by {worst:.1e} from one process on the same global batch; "
            f"at most {TOLERANCE:.0e} is rounding",
        )
    return GateVerdict(
        run_id=run_id,
        strategy=options.name,
        workers=world.size,
        passed=equal and not exceeds,
        ranks_equal=equal,
        error=plain.error,
        error_batchnorm=batch_norm.error,
        tolerance=TOLERANCE if judged else None,
        rule=rule,
        steps=_STEPS,
        message="; ".join(remarks),
    )


def without_loss(options: StrategyOptions) -> StrategyOptions | None:
    """The same options without those that change the arithmetic; None where there are no such."""
    if options.name == "ddp":
        return options.model_copy(update={"compression": "none"})
    if options.name == "horovod":
        return options.model_copy(update={"compression": "none", "adasum": False})
    return None


@dataclass(frozen=True)
class _Comparison:
    ranks_equal: bool
    error: float


def _compare(
    strategy: Strategy, world: World, settings: StepSettings, batch_norm: bool
) -> _Comparison:
    """Train by `strategy` on all ranks and by one process on each, and compare the weights."""
    slices = world.size * settings.accumulate
    samples = (_STEPS - 1) * slices * _MICRO_BATCH + 1
    data = _data(samples, world.device)
    order = permutation(samples, _SEED, 0)
    global_batch = slices * _MICRO_BATCH

    engine = _engine(strategy, world, settings, batch_norm)
    for step in rank_slices(order, global_batch, world.size, world.rank, settings.accumulate):
        engine.step([_batch(data, part) for part in step], _LR)
    weights = engine.weights()

    alone = Single()
    alone.start(World(0, 1, 0, world.device))
    # without BatchNorm the whole global batch in one pass; with it, slice after slice
    passes = slices if batch_norm else 1
    reference = _engine(
        alone,
        World(0, 1, 0, world.device),
        StepSettings(global_batch // passes, passes, settings.clip_norm),
        batch_norm,
    )
    for step in rank_slices(order, global_batch, 1, 0, passes):
        reference.step([_batch(data, part) for part in step], _LR)

    error = _relative_error(weights, reference.weights())
    result = _agree(engine, world, weights, error)
    engine.close()
    return result


def _agree(engine: Engine, world: World, weights: dict[str, Tensor], error: float) -> _Comparison:
    """The same judgement on all ranks: bit-equality, and the largest error."""
    flat = torch.cat([tensor.reshape(-1) for _, tensor in sorted(weights.items())])
    everyone = engine.comm.all_gather(flat)
    equal = len(everyone) == world.size and all(torch.equal(row, everyone[0]) for row in everyone)
    worst = engine.comm.all_reduce(torch.tensor([error], dtype=torch.float64), "max").item()
    own_equal = engine.comm.all_reduce(torch.tensor([float(equal)]), "min").item()
    return _Comparison(ranks_equal=own_equal == 1.0, error=worst)


def _relative_error(weights: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """max over tensors of |w - r| / |r|, in L2 norms; infinite if any value is not finite."""
    worst = 0.0
    for name, expected in reference.items():
        distance = ((weights[name].double() - expected.double()).norm() / expected.norm()).item()
        worst = max(worst, distance if math.isfinite(distance) else math.inf)
    return worst


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


def _engine(strategy: Strategy, world: World, settings: StepSettings, batch_norm: bool) -> Engine:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        net = _Net(batch_norm).to(world.device)
    return strategy.prepare(
        net,
        lambda parameters: torch.optim.SGD(parameters, lr=_LR, momentum=0.9, weight_decay=1e-4),
        settings,
    )


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


def _cache_file(
    options: StrategyOptions, world: World, settings: StepSettings, facts: dict[str, Any]
) -> Path:
    content = [
        options.model_dump(mode="json"),
        world.size,
        world.device.type,
        settings.accumulate,
        settings.clip_norm,
        fingerprint(facts),
        hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
    ]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "gate" / f"{options.name}-w{world.size}-{digest}.json"


def _known(file: Path) -> GateVerdict | None:
    try:
        return GateVerdict.model_validate_json(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
