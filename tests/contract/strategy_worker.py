"""What test_strategies.py asks of the ranks of one world: every figure, for every variant."""

from __future__ import annotations

import gc
import json
import shutil
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from raysuite.data.base import Batch
from raysuite.data.order import permutation, rank_slices
from raysuite.measure.transport import Transport
from raysuite.parallel import horovod, make_strategy
from raysuite.parallel.base import Engine, StepSettings, Strategy, World
from raysuite.parallel.comm import Reduction, average_buffers
from raysuite.parallel.single import Single
from raysuite.spec.strategies import StrategyOptions
from raysuite.train.world import world_from_environment
from tests.contract.launches import write
from tests.contract.variants import EXACT, FP32

GLOBAL_BATCH = 16
EPOCHS = (45, 33)
"""Samples. The last batches hold 13, which no number of ranks divides, and 1."""
BASE = StepSettings(GLOBAL_BATCH)
RECIPES = {
    "plain": BASE,
    "accumulate": replace(BASE, accumulate=2, label_smoothing=0.1, figures=("gradient_norm",)),
    "clip": replace(BASE, accumulate=2, clip_norm=0.3),
}


class Net(nn.Module):
    """Two convolutions and a classifier, of sizes that shards and buckets do not divide."""

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 7, 3, padding=1),
            nn.BatchNorm2d(7) if batch_norm else nn.Identity(),
            nn.ReLU(),
            nn.Conv2d(7, 5, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(45, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(max(EPOCHS), 1, 8, 8, generator=generator),
        torch.randint(0, 10, (max(EPOCHS),), generator=generator),
    )


IMAGES, LABELS = data()


MOMENTUM = 0.9


def engine_of(
    strategy: Strategy,
    settings: StepSettings,
    seed: int = 0,
    batch_norm: bool = False,
    momentum: float = MOMENTUM,
) -> Engine:
    torch.manual_seed(seed)
    return strategy.prepare(
        Net(batch_norm),
        lambda parameters: torch.optim.SGD(parameters, 9.0, momentum, weight_decay=1e-4),
        settings,
    )


def train(
    engine: Engine, world: World, epochs: Sequence[int] = (0, 1), norms: list[float] | None = None
) -> list[float]:
    """Train; the loss of each step, over all ranks. `norms` gets those of this rank."""
    losses = []
    engine.model.train()
    for epoch in epochs:
        order = permutation(EPOCHS[epoch], 7, epoch)
        accumulate = engine.settings.accumulate
        for step in rank_slices(order, GLOBAL_BATCH, world.size, world.rank, accumulate):
            batches = [
                Batch(IMAGES[part.ids], LABELS[part.ids], part.real, part.of_global)
                for part in step
            ]
            losses.append(engine.step(batches, 0.1 / (1 + len(losses))))
            if norms is not None:
                norms.append(float(engine.figures.pop("gradient_norm", torch.nan)))
    return engine.comm.all_reduce(torch.stack(losses), "sum").tolist()


def alone(settings: StepSettings) -> Engine:
    strategy = Single()
    strategy.start(World(0, 1, 0, torch.device("cpu")))
    return engine_of(strategy, replace(settings, accumulate=1))


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Largest relative error of a tensor."""
    return max(
        ((found[name] - tensor).norm() / tensor.norm()).item() for name, tensor in expected.items()
    )


def flat(engine: Engine) -> Tensor:
    return torch.cat([tensor.flatten() for _, tensor in sorted(engine.weights().items())])


def equal_on_all(engine: Engine) -> bool:
    everyone = engine.comm.all_gather(flat(engine))
    return len(everyone) == engine.world.size and bool((everyone == everyone[0]).all())


def takes_no_accumulation(strategy: Strategy) -> bool:
    """torch's DDP with a static graph cannot leave out an all-reduce."""
    return getattr(getattr(strategy, "options", None), "static_graph", False)


def compared(strategy: Strategy, world: World, settings: StepSettings) -> dict[str, Any]:
    """Beside one process on the same global batches, which rank 0 is too."""
    if takes_no_accumulation(strategy):
        settings = replace(settings, accumulate=1)
    own = replace(settings, micro_batch=GLOBAL_BATCH // (world.size * settings.accumulate))
    engine = engine_of(strategy, own)
    norms: list[float] = []
    losses, weights = train(engine, world, norms=norms), engine.weights()
    found: dict[str, Any] = {"ranks_equal": equal_on_all(engine)}
    if world.rank == 0:
        reference, own_norms = alone(settings), []
        expected = np.array(train(reference, reference.world, norms=own_norms))
        found["weights"] = distance(weights, reference.weights())
        found["losses"] = float(np.max(np.abs(np.array(losses) / expected - 1)))
        found["norms"] = float(np.max(np.abs(np.array(norms) / np.array(own_norms) - 1)))
    engine.close()
    if settings.figures and settings.precision == "fp32":
        unmeasured = engine_of(strategy, replace(own, figures=()))
        train(unmeasured, world)
        found["measuring"] = distance(unmeasured.weights(), weights)
        unmeasured.close()
    return found


def resumed(
    strategy: Strategy,
    world: World,
    shared: bool,
    precision: str,
    folder: Path,
    momentum: float = MOMENTUM,
) -> float:
    """How far training on from a checkpoint is from training through, with another momentum in its
    second half: what an engine was made with holds, not what the checkpoint's was."""
    accumulate = 1 if takes_no_accumulation(strategy) else 2
    micro_batch = GLOBAL_BATCH // (accumulate * world.size)
    settings = replace(BASE, accumulate=accumulate, micro_batch=micro_batch, precision=precision)
    engine = engine_of(strategy, settings)
    train(engine, world, [0])
    own = folder if shared else folder / f"rank{world.rank}"
    own.mkdir(parents=True, exist_ok=True)
    engine.save(own)
    optimizer: Any = vars(engine).get("optimizer") or vars(engine)["_optimizer"]
    for group in optimizer.param_groups:
        group["momentum"] = momentum
    losses, weights = train(engine, world, [1]), flat(engine)
    engine.close()
    if not shared:  # as Ray Train does: every rank's files into one folder
        whole = folder / f"whole{world.rank}"
        for rank in range(world.size):
            shutil.copytree(folder / f"rank{rank}", whole, dirs_exist_ok=True)
        own = whole
    fresh = engine_of(strategy, settings, seed=1, momentum=momentum)
    fresh.load(own)
    again = {"losses": torch.tensor(train(fresh, world, [1])), "weights": flat(fresh)}
    fresh.close()
    return distance(again, {"losses": torch.tensor(losses), "weights": weights})


def overflow(strategy: Strategy, world: World) -> dict[str, Any]:
    """A step whose gradient overflows on one rank alone, and a good one after it."""
    settings = replace(BASE, precision="fp16", micro_batch=GLOBAL_BATCH // world.size)
    engine = engine_of(strategy, settings)
    train(engine, world, [0])
    before, factor = flat(engine), engine.scale.factor

    def step(worst: float) -> None:
        ids = np.array_split(np.arange(GLOBAL_BATCH), world.size)[world.rank]
        images = IMAGES[ids].clone()
        if world.rank == world.size - 1:
            images[0] *= worst
        engine.step([Batch(images, LABELS[ids], len(ids), GLOBAL_BATCH)], 0.01)

    step(1e30)
    skipped, halved = torch.equal(flat(engine), before), engine.scale.factor == factor / 2
    step(1.0)
    found = {
        "skipped": skipped,
        "halved": halved,
        "goes_on": not torch.equal(flat(engine), before),
        "ranks_equal": equal_on_all(engine),
    }
    engine.close()
    return found


def diverged(strategy: Strategy, world: World, clip_norm: float | None, folder: Path) -> list[bool]:
    """Whether a weight is finite after a step whose gradient is NaN on one rank, after the next
    one, and in an engine that loads a checkpoint of the first."""
    settings = replace(BASE, clip_norm=clip_norm, micro_batch=GLOBAL_BATCH // world.size)
    engine = engine_of(strategy, settings)
    ids = np.array_split(np.arange(GLOBAL_BATCH), world.size)[world.rank]
    finite = []
    folder.mkdir(parents=True, exist_ok=True)
    for spoilt in (True, False):
        images = IMAGES[ids].clone()
        if spoilt and world.rank == world.size - 1:
            images[0] = float("nan")
        engine.step([Batch(images, LABELS[ids], len(ids), GLOBAL_BATCH)], 0.01)
        finite.append(bool(flat(engine).isfinite().any()))
        if spoilt:  # the step after it waits for all ranks' files
            engine.save(folder)
    engine.close()
    fresh = engine_of(strategy, settings, seed=1)
    fresh.load(folder)
    finite.append(bool(flat(fresh).isfinite().any()))
    fresh.close()
    return finite


def buffers_averaged(strategy: Strategy, world: World) -> bool:
    """After `average_buffers`, BatchNorm's statistics are the mean of what they were, on all ranks
    to the bit."""
    settings = replace(BASE, micro_batch=GLOBAL_BATCH // world.size)
    engine = engine_of(strategy, settings, batch_norm=True)
    train(engine, world, [0])

    def gathered() -> Tensor:
        own = torch.cat([buffer.flatten().float() for buffer in engine.model.buffers()])
        return engine.comm.all_gather(own)

    before = gathered()
    average_buffers(engine.model, engine.comm)
    after = gathered()
    engine.close()
    return bool((after == after[0]).all()) and torch.allclose(after[0], before.mean(0))


def parts_of(engine: Engine) -> dict[str, weakref.ref[Any]]:
    """What must not be in memory after the engine's end."""
    own = vars(engine)
    parts = {
        "engine": engine,
        "model": engine.model,
        "weight": next(engine.model.parameters()),
        "optimizer": own.get("optimizer") or own["_optimizer"],
        **({"network": own["_network"]} if "_network" in own else {}),
    }
    return {name: weakref.ref(part) for name, part in parts.items()}


def left_of(parts: dict[str, weakref.ref[Any]]) -> list[str]:
    """Those that are still in memory, a while later.

    A thread of Gloo's lets go of a bucket and its weights a moment after the result is there.
    """
    deadline = time.monotonic() + 5
    while True:
        gc.collect()
        left = [name for name, part in parts.items() if part() is not None]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def left_behind(strategy: Strategy, world: World) -> list[str]:
    """What of an engine is still in memory after its end."""
    engine = engine_of(strategy, replace(BASE, micro_batch=GLOBAL_BATCH // world.size))
    train(engine, world, [0])
    parts = parts_of(engine)
    engine.close()
    del engine
    return left_of(parts)


def wrong_reductions(strategy: Strategy, world: World) -> list[str]:
    """Which kinds of tensors the strategy's comm reduces wrongly: ranks + 1 from every rank."""
    engine = engine_of(strategy, replace(BASE, micro_batch=GLOBAL_BATCH // world.size))
    ranks = range(1, world.size + 1)
    answers: dict[Reduction, int] = {"sum": sum(ranks), "max": max(ranks), "min": 1}
    wrong = []
    for dtype in (torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64):
        for shape in ((), (3,), (2, 2)):
            for how, answer in answers.items():
                value = torch.full(shape, world.rank + 1, dtype=dtype)
                found = engine.comm.all_reduce(value, how)
                if not torch.equal(found, torch.full(shape, answer, dtype=dtype)):
                    wrong.append(f"{how} of {dtype} {shape}")
    many = torch.arange(7, dtype=torch.uint8) + world.rank
    with patch.object(horovod, "_CHUNK", 3):
        if engine.comm.all_reduce(many, "max").tolist() != [n + world.size - 1 for n in range(7)]:
            wrong.append("max in parts")
    pending = engine.comm.begin_max(torch.tensor([world.rank, -world.rank]))
    if pending().tolist() != [world.size - 1, 0]:
        wrong.append("begin_max")
    engine.close()
    return wrong


def examine(options: StrategyOptions, world: World, kind: str, folder: Path) -> dict[str, Any]:
    strategy, before = make_strategy(options), Transport(on_gpu=False)
    strategy.start(world)
    connected = before.names()
    # the first rank to exchange would connect to those that have not looked yet
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"looked{world.rank}").touch()
    while len(list(folder.glob("looked*"))) < world.size:
        time.sleep(0.01)
    found: dict[str, Any] = {
        name: compared(strategy, world, settings) for name, settings in RECIPES.items()
    }
    if kind == FP32:
        found["buffers"] = buffers_averaged(strategy, world)
        found["resumed"] = resumed(strategy, world, True, "fp32", folder / "shared")
        found["changed"] = resumed(strategy, world, True, "fp32", folder / "changed", 0.3)
    if kind == EXACT:
        for precision in ("bf16", "fp16"):
            settings = replace(BASE, accumulate=2, precision=precision, figures=("gradient_norm",))
            found[precision] = compared(strategy, world, settings)
        found["overflow"] = overflow(strategy, world)
        found["diverged"] = [
            diverged(strategy, world, norm, folder / f"diverged-{norm}") for norm in (None, 0.3)
        ]
        found["buffers"] = buffers_averaged(strategy, world)
        found["resumed_fp16"] = resumed(strategy, world, False, "fp16", folder / "own")
        found["resumed"] = resumed(strategy, world, True, "fp32", folder / "shared")
        found["changed"] = resumed(strategy, world, True, "fp32", folder / "changed", 0.3)
    found["comm"] = wrong_reductions(strategy, world)
    found["transports"] = [connected, before.names()]
    found["left"] = left_behind(strategy, world)
    strategy.stop()
    return found


def main(request: dict[str, Any], file: Path) -> None:
    world = world_from_environment("cpu")
    adapter: TypeAdapter[StrategyOptions] = TypeAdapter(StrategyOptions)
    found: dict[str, Any] = {}
    for name, (options, kind) in request.items():
        folder = file.parent / f"{file.name}-{name}"
        chosen = adapter.validate_python(options)
        found[name] = examine(chosen, world, kind, folder)
    write(found, file, world.rank)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
