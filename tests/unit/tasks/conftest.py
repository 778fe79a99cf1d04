from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from raysuite.parallel.base import World
from raysuite.plan import RunPlan, make_plans
from raysuite.records import Record
from raysuite.spec import Document
from raysuite.train.run import execute
from tests.task_sets import spec_of


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of our own, and torch's threads and draws as they were."""
    monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)


def plan_of(case: str, folder: Path, **changes: Any) -> RunPlan:
    """The plan of a case of `tests.task_sets`; `changes` replace whole blocks of its spec."""
    return make_plans(Document(spec_of(case, folder, **changes), "test"), gpus=0)[0]


def run(plan: RunPlan, **options: Any) -> list[Record]:
    return list(execute(plan, World(0, 1, 0, torch.device("cpu")), **options))
