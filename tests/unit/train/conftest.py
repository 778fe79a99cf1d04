from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from raysuite.parallel.base import World
from raysuite.plan import RunPlan, make_plans
from raysuite.records import Record
from raysuite.spec import Document
from raysuite.train.loop import TrainingLoop
from raysuite.train.run import execute
from tests.digit_arrays import DATA


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of our own, and torch's threads and draws as they were."""
    monkeypatch.setenv("RAYSUITE_CACHE", str(cache))
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)


def plan_of(**changes: Any) -> RunPlan:
    """A plan of two epochs of six steps; `training_epochs=3` sets `training.epochs`."""
    data: dict[str, Any] = {
        "name": "unit",
        "model": {
            "name": "tests.tiny_model:Tiny",
            "options": {"batch_norm": True, "dropout": 0.2},
        },
        "data": DATA,
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        "schedule": {"name": "cosine", "warmup_epochs": 1},
        "training": {"epochs": 2, "global_batch": 240},
        "resources": {"device": "cpu"},
        "measure": {"warmup_steps": 2},
    }
    for key, value in changes.items():
        block, _, name = key.partition("_")
        data[block] = {**data[block], name: value} if name else value
    return make_plans(Document(data, "test"), gpus=0)[0]


Run = Callable[..., list[Record]]


def run(plan: RunPlan, **options: Any) -> list[Record]:
    """Every Record of a run in this process."""
    return list(execute(plan, World(0, 1, 0, torch.device("cpu")), **options))


def keep(folder: Path) -> Callable[[TrainingLoop], None]:
    """A checkpoint callback: one folder an epoch."""

    def checkpoint(loop: TrainingLoop) -> None:
        own = folder / str(loop.epoch)
        own.mkdir(parents=True)
        loop.save(own)

    return checkpoint
