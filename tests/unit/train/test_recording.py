"""Where a run's Records and files are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raysuite.parallel.base import World
from raysuite.parallel.comm import NoComm
from raysuite.records import Record, Results, RunStopped
from raysuite.records.live import live_file
from raysuite.train import recording
from raysuite.train.stop_together import never
from tests.unit.train.conftest import plan_of


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_writes_a_record_before_it_is_yielded(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, world = plan_of(), World(rank, 2, rank, torch.device("cpu"))
    results, given = Results(tmp_path / "results"), list[Any]()
    stopped = RunStopped(run_id=plan.run_id, reason="interval", epoch=1, step=6)

    def execute(*arguments: Any) -> Iterator[Record]:
        given.extend(arguments)
        yield stopped

    monkeypatch.setattr(recording, "execute", execute)
    kept, old = tmp_path / "kept", tmp_path / "old"
    records = recording.recorded(plan, world, results, kept, old, "damaged", never, 3)
    for record in records:
        assert record == stopped
        assert results.records(plan.run_id) == ([] if rank else [stopped])
    file = results.journal_file(plan.run_id)
    files = [file.with_name(name) for name in ("model.pt", "trace.json.gz")]
    assert given[:3] == [plan, world, old]
    assert given[4:] == [*files, never, 3, live_file(file), "damaged"]
    loop = SimpleNamespace(
        save=lambda folder: (folder / "engine.pt").touch(), engine=SimpleNamespace(comm=NoComm())
    )
    given[3](loop)
    assert (kept / "engine.pt").exists() == (rank == 0)  # which gives it its name
