"""Which checkpoint of a run is taken, also after workers were killed while they wrote one."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.train.checkpoint import LoopState, latest_checkpoint


def keep(folder: Path, run_id: str = "mine") -> None:
    folder.mkdir()
    values = {"epoch": 1, "step": 9, "elapsed_seconds": 1.0, "time_to_accuracy": None}
    LoopState.model_validate({"run_id": run_id, **values}).write(folder)


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        ([], None),
        (["x.partial"], None),
        (["x", "x.partial"], "x"),
        (["x.old", "x.partial"], "x.old"),  # killed between two renames
        (["x", "x.old"], "x"),  # killed before the older one was removed
    ],
)
def test_the_newest_whole_one(tmp_path: Path, names: list[str], taken: str | None) -> None:
    for name in names:
        keep(tmp_path / name)
    assert latest_checkpoint(tmp_path / "x", "mine") == (tmp_path / taken if taken else None)


def test_none_of_another_run(tmp_path: Path) -> None:
    keep(tmp_path / "x", "another")
    assert latest_checkpoint(tmp_path / "x", "mine") is None
