"""What test_pipelines.py asks of the ranks of one pipeline: every parameter and buffer beside those
of one process that accumulates over the same micro-batches, or that applies gradients as late as an
asynchronous schedule does; and the gate's answer to defects."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysuite import models
from raysuite.data.base import Batch, Slice
from raysuite.data.order import permutation, rank_slices
from raysuite.gate import strategy_check
from raysuite.gate.delayed import Delayed
from raysuite.gate.small_network import batch_of, make_engine, make_samples
from raysuite.parallel.base import Engine, StepSettings, World
from raysuite.parallel.ddp import Ddp
from raysuite.parallel.pipeline.asynchronous import AsynchronousEngine
from raysuite.parallel.pipeline.engine import Pipeline, PipelineEngine
from raysuite.parallel.single import Single
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.experiment import ModelOptions
from raysuite.spec.schedules import Operation, Schedule
from raysuite.spec.strategies import DdpOptions, PipelineOptions
from raysuite.train.world import world_from_environment
from tests.contract.launches import write
from tests.contract.strategy_worker import left_of, parts_of

BATCH, SAMPLES, MICRO_BATCHES = 16, 37, 4
"""The last batch holds 5 samples: micro-batches of 2, and of 1 with 1 of padding."""
FULL_STEPS = SAMPLES // BATCH
"""Of an epoch. The small micro-batches after them enlarge a rounding: on some processors a sign
before a ReLU changes, and a weight by 3e-4."""
FACTS = DatasetFacts(train_samples=SAMPLES, val_samples=1, classes=10, channels=3, image_size=16)
STEPS = StepSettings(BATCH // MICRO_BATCHES, MICRO_BATCHES, label_smoothing=0.1, image=(3, 16, 16))
ALONE = World(0, 1, 0, torch.device("cpu"))


def engine_of(strategy: Any, network: str, settings: StepSettings, seed: int = 3) -> Engine:
    torch.manual_seed(seed)
    options = ModelOptions(name=network, options={"dropout": 0.0} if "mobile" in network else {})
    engine: Engine = strategy.prepare(
        models.build(options, FACTS),
        _optimizer,
        settings,
    )
    return engine


def _optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Vectors decay by another factor, so that groups have another order than the network."""
    vectors, others = [], []
    for each in parameters:
        (vectors if each.ndim == 1 else others).append(each)
    groups = [{"params": vectors, "weight_decay": 1e-3}, {"params": others}]
    return torch.optim.SGD(groups, 9.0, 0.9, weight_decay=1e-4)


def train(
    engine: Engine,
    passes: int,
    epochs: Sequence[int] = (0, 1),
    steps: int | None = None,
    norms: list[float] | None = None,
) -> list[float]:
    """The loss of each step, or of the first `steps`, over all ranks. `passes`: micro-batches of a
    rank's step. `norms` gets the gradients'. Rates differ from step to step, and from those of
    other epochs."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(SAMPLES, 3, 16, 16, generator=generator)
    labels = torch.randint(0, 10, (SAMPLES,), generator=generator)
    engine.model.train()
    losses = []
    for epoch in epochs:
        order = permutation(SAMPLES, 7, epoch)
        for step in rank_slices(order, BATCH, engine.replicas, engine.replica, passes):
            if len(losses) == steps:
                break
            batches = [Batch(images[s.ids], labels[s.ids], s.real, s.of_global) for s in step]
            losses.append(engine.step(batches, 0.02 / (1 + epochs[0] + len(losses))))
            if norms is not None:
                norms += map(float, engine.figures.values())
    engine.drain()
    found: list[float] = engine.comm.all_reduce(torch.stack(losses), "sum").tolist()
    return found


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert list(found) == list(expected)
    return max(
        float((found[key] - each).double().norm() / each.double().norm().clamp(min=1e-30))
        for key, each in expected.items()
    )


def compared(options: PipelineOptions, network: str, world: World, folder: Path) -> dict[str, Any]:
    """Beside one process in fp32; a checkpoint resumed by the pipeline and by one process."""
    strategy = Pipeline(options)
    strategy.start(world)
    schedule = options.pipeline()
    replicas = world.size // schedule.workers
    # MobileNetV2's BatchNorm on micro-batches of two alike samples enlarges a rounding of the norm
    clip_norm = None if network == "mobilenet_v2" or schedule.asynchronous else 0.5
    settings = replace(STEPS, clip_norm=clip_norm, accumulate=options.micro_batches)
    engine = engine_of(strategy, network, settings)
    single = Delayed(options) if schedule.asynchronous else Single()
    single.start(ALONE)
    passes = settings.accumulate * replicas
    reference = engine_of(single, network, replace(settings, accumulate=passes))
    # BatchNorm over micro-batches of four values enlarges a rounding by 10^7 in three steps of
    # MobileNetV2: in one process alone, the order in which four gradients are added does the same
    steps = 1 if network == "mobilenet_v2" and has_copies(schedule, world.size) else None
    # after the five samples of an epoch's last step, whose micro-batches hold one or two, the same
    # takes 8e-7 of ResNet-20 to 8e-5 in three steps more
    steps = 3 if max(schedule.replicas) > 1 else steps
    norms: tuple[list[float], list[float]] = ([], [])
    losses = train(engine, settings.accumulate, steps=steps, norms=norms[0])
    expected = train(reference, passes, steps=steps, norms=norms[1])
    state = engine.whole_state(engine.weights())
    right = {key: each.clone() for key, each in reference.model.state_dict().items()}
    own_statistics = engine.own_statistics
    if own_statistics:  # the running statistics are each copy's own
        names = dict(reference.model.named_parameters())
        state, right = ({key: each[key] for key in names} for each in (state, right))
    engine.model.eval()
    reference.model.eval()
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        logits = {"logits": engine.forward(images)}
        right_logits = {"logits": reference.forward(images)}
    folder.mkdir(parents=True, exist_ok=True)
    engine.save(folder)
    engine.comm.all_reduce(torch.zeros(1), "max")
    again, alone = (
        engine_of(strategy, network, settings, seed=9),
        engine_of(single, network, replace(settings, accumulate=passes), seed=9),
    )
    again.load(folder)
    alone.load(folder)
    train(engine, settings.accumulate, [1], FULL_STEPS)
    train(again, settings.accumulate, [1], FULL_STEPS)
    train(alone, passes, [1], FULL_STEPS)
    through = engine.weights()
    found = {
        "state": distance(state, right),
        "logits": 0.0 if own_statistics else distance(logits, right_logits),
        "losses": max(abs(a / b - 1) for a, b in zip(losses, expected, strict=True)),
        "norms": max((abs(a / b - 1) for a, b in zip(*norms, strict=True)), default=0.0),
        "resumed": distance(again.weights(), through),
        "resumed alone": 0.0 if own_statistics else distance(alone.weights(), through),
        "versions": engine.stash.most if isinstance(engine, AsynchronousEngine) else 1,
        "own parameters": sum(each.numel() for each in engine.model.parameters()),
        "parameters": sum(each.numel() for each in reference.model.parameters()),
    }
    if options.stages == world.size == 4 and not schedule.asynchronous:
        two = PipelineOptions(schedule="gpipe", stages=2, micro_batches=2)
        found["resumed on 2 stages"] = elsewhere(Pipeline(two), 2, network, world, folder, through)
        found["resumed by ddp"] = elsewhere(Ddp(DdpOptions()), 1, network, world, folder, through)
    parts = parts_of(engine)
    engine.close()
    del engine
    found["left"] = left_of(parts)
    strategy.stop()
    return found


def elsewhere(
    strategy: Any, passes: int, network: str, world: World, folder: Path, through: dict[str, Tensor]
) -> float:
    """How far the weights are from `through`, after full steps from a checkpoint."""
    strategy.start(world)
    settings = replace(STEPS, accumulate=passes, clip_norm=0.5)
    engine = engine_of(strategy, network, settings, seed=9)
    engine.load(folder)
    train(engine, passes, [1], FULL_STEPS)
    found = distance(engine.weights(), through)
    engine.close()
    strategy.stop()
    return found


class Defect(Pipeline):
    """A pipeline with one flaw, which the gate must refuse."""

    def __init__(self, options: PipelineOptions, flaw: str) -> None:
        super().__init__(options)
        self.flaw = flaw

    def prepare(self, *arguments: Any) -> Engine:
        engine: Any = super().prepare(*arguments)
        assert isinstance(engine, PipelineEngine)
        ALL_FLAWS[self.flaw](engine)
        return engine


def _divided_twice(engine: Any) -> None:
    right = engine.loss

    def loss(batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor]:
        mean, total = right(batch, logits)
        return mean / engine.settings.accumulate, total

    engine.loss = loss


def _last_micro_batch_only(engine: Any) -> None:
    right = engine.loss
    calls = [0]

    def loss(batch: Batch, logits: Tensor) -> tuple[Tensor, Tensor]:
        mean, total = right(batch, logits)
        calls[0] += 1
        return mean * float(calls[0] % engine.settings.accumulate == 0), total

    engine.loss = loss


def _stage_not_updated(engine: Any) -> None:
    if engine.stage == 0:
        engine.take_step = lambda: None


def _padding_counted(engine: Any) -> None:
    right = engine.loss
    engine.loss = lambda batch, logits: right(replace(batch, real=len(batch.labels)), logits)


def _batch_norm_frozen(engine: Any) -> None:
    right = engine._through

    def through(stage: int, x: Tensor) -> Tensor:
        kept = copy.deepcopy(dict(engine.model.named_buffers()))
        result: Tensor = right(stage, x)
        for name, buffer in engine.model.named_buffers():
            buffer.data.copy_(kept[name])  # as saved for the backward pass, it keeps its version
        return result

    if engine.stage == 0:
        engine._through = through


def _copies_not_averaged(engine: Any) -> None:
    engine._reduce = lambda tensors, divisor: None


def _no_stashing(engine: Any) -> None:
    engine.stash.of = lambda version: [each.data for each in engine.stash._weights]


def _stale_activations(engine: Any) -> None:
    """Each stage but the first is given those of the micro-batch before."""
    right = engine._given
    before: list[Tensor] = []

    def given(images: Tensor, operation: Operation) -> Tensor:
        before.append(right(images, operation))
        stale: Tensor = before[-2:][0]
        return stale.detach() if len(stale) == len(before[-1]) else before[-1]

    if engine.stage:
        engine._given = given


def _late_rate(engine: Any) -> None:
    """An update takes the rate of the newest step, not of its own."""
    right = engine.update

    def update(operation: Operation) -> None:
        engine._rates[operation.version] = engine._rates[-1]
        right(operation)

    engine.update = update


def _newest_weights(engine: Any) -> None:
    """The newest version in both passes, whatever the schedule says."""
    right = engine.stash.used
    engine.stash.used = lambda version: right(engine.stash._version)


FLAWS = {
    "none": lambda engine: None,
    "divided twice": _divided_twice,
    "last micro-batch only": _last_micro_batch_only,
    "stage not updated": _stage_not_updated,
    "padding counted": _padding_counted,
    "BatchNorm frozen": _batch_norm_frozen,
}
FLAWS_OF_COPIES = {"copies not averaged": _copies_not_averaged}
FLAWS_OF_DELAYS = {
    "no stashing": _no_stashing,
    "stale activations": _stale_activations,
    "late rate": _late_rate,
}
FLAWS_OF_VERSIONS = {"newest weights": _newest_weights}


_OF_SEVERAL = ("divided twice", "last micro-batch only")
ALL_FLAWS = {**FLAWS, **FLAWS_OF_COPIES, **FLAWS_OF_DELAYS, **FLAWS_OF_VERSIONS}


def has_copies(schedule: Schedule, workers: int) -> bool:
    """Whether several of so many workers hold the same layers."""
    return workers > schedule.workers or max(schedule.replicas) > 1


def flaws(options: PipelineOptions, workers: int) -> list[str]:
    """Those that a pipeline on so many workers can have."""
    schedule = options.pipeline()
    found = [*FLAWS]
    if has_copies(schedule, workers):
        found += FLAWS_OF_COPIES
    if schedule.asynchronous:
        # with one micro-batch, no gradient is divided, and the last micro-batch is all
        if schedule.micro_batches == 1:
            found = [each for each in found if each not in _OF_SEVERAL]
        found += FLAWS_OF_DELAYS
        if not any(map(schedule.delay, range(schedule.workers))):  # such as 3 and 1 workers
            found = [each for each in found if each not in ("no stashing", "late rate")]
        if schedule.name == "pipedream_2bw":
            found += FLAWS_OF_VERSIONS
    return found


def refused(options: PipelineOptions, world: World, seeded: list[str]) -> dict[str, bool]:
    """Flaw -> whether the gate lets it pass."""
    found = {}
    options = options.examined()  # the gate would start a strategy of its own, without the flaw
    for flaw in seeded:
        strategy = Defect(options, flaw)
        strategy.start(world)
        found[flaw] = strategy_check.examine(options, world, strategy).passed
        strategy.stop()
    return found


def in_16_bits(options: PipelineOptions, world: World) -> dict[str, str]:
    """Precision -> why the gate refuses it; empty where it does not."""
    late = options.pipeline().asynchronous
    found = {}
    for precision in ("bf16",) if late else ("bf16", "fp16"):
        strategy = Pipeline(options)
        strategy.start(world)
        clip_norm = None if late else 1.0
        settings = StepSettings(1, options.micro_batches, clip_norm, precision)
        verdict = strategy_check.examine(options, world, strategy, settings)
        found[precision] = "" if verdict.passed else verdict.message
        strategy.stop()
    return found


def many_steps(options: PipelineOptions, world: World, steps: int) -> float:
    """The last loss, summed over the ranks' samples, of consecutive steps of the small network with
    micro-batches of changing sizes."""
    strategy = Pipeline(options.examined())
    strategy.start(world)
    settings = StepSettings(4, options.micro_batches)
    engine = make_engine(strategy, world, settings, batch_norm=True, layers=8)
    engine.model.train()
    data = make_samples(4 * options.micro_batches, world.device)
    loss = torch.zeros(())
    for step in range(steps):
        sizes = [1 + (step + place) % 4 for place in range(options.micro_batches)]
        ids = [np.arange(2) if size == 1 else np.arange(size) for size in sizes]
        slices = [Slice(i, size, sum(sizes)) for i, size in zip(ids, sizes, strict=True)]
        loss = engine.step([batch_of(data, each) for each in slices], 0.01)
    engine.drain()
    strategy.stop()
    return float(loss)


def main(request: dict[str, Any], file: Path) -> None:
    world = world_from_environment("cpu")
    found: dict[str, Any] = {}
    if "steps" in request:
        for name, given in request["pipelines"].items():
            options = PipelineOptions.model_validate(given)
            found[name] = [
                many_steps(options, world, request["steps"]) for _ in range(request["rounds"])
            ]
        write(found, file, world.rank)
        return
    for name, given in request["pipelines"].items():
        options = PipelineOptions.model_validate(given)
        for network in request["networks"]:
            folder = file.parent / f"{file.name}-{name}-{network}"
            found[f"{name} {network}"] = compared(options, network, world, folder)
        if name in request["gate"]:
            found[f"{name} gate"] = refused(options, world, request["gate"][name])
            found[f"{name} 16 bits"] = in_16_bits(options, world)
    write(found, file, world.rank)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
