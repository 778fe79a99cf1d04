"""Which checkpoint of a run is taken, also after workers were killed while they wrote one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raysuite.parallel.base import World
from raysuite.parallel.comm import NoComm
from raysuite.train.checkpoint import LoopState, keep_checkpoint, latest_checkpoint

STATE = LoopState(run_id="mine", epoch=1, step=9, elapsed_seconds=1.0, time_to_accuracy=None)


class Loop:
    """What `keep_checkpoint` needs of a TrainingLoop."""

    world = World(0, 1, 0, torch.device("cpu"))

    def __init__(self, state: LoopState = STATE) -> None:
        self.engine, self.state = SimpleNamespace(comm=NoComm()), state

    def save(self, folder: Path) -> None:
        torch.save({"model": torch.arange(1000), "epoch": self.state.epoch}, folder / "engine.pt")
        self.state.write(folder)


def keep(folder: Path, run_id: str = "mine", epoch: int = 1) -> None:
    loop: Any = Loop(STATE.model_copy(update={"run_id": run_id, "epoch": epoch}))
    keep_checkpoint(loop, folder)


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
        keep(tmp_path / "made")
        (tmp_path / "made").rename(tmp_path / name)
    assert latest_checkpoint(tmp_path / "x", "mine", 1) == (tmp_path / taken if taken else None, "")


def test_none_of_another_run(tmp_path: Path) -> None:
    keep(tmp_path / "x", "another")
    assert latest_checkpoint(tmp_path / "x", "mine", 1) == (None, "")


def test_one_of_epochs_that_the_journal_lacks_is_not_taken(tmp_path: Path) -> None:
    keep(tmp_path / "x", epoch=3)
    found, why = latest_checkpoint(tmp_path / "x", "mine", 2)
    assert found is None
    assert str(tmp_path / "x") in why


@pytest.mark.parametrize("name", ["engine.pt", "loop.json", "files.json"])
@pytest.mark.parametrize("how", ["cut", "flipped", "missing"])
def test_a_damaged_one_is_named_and_the_one_before_is_taken(
    tmp_path: Path, name: str, how: str
) -> None:
    keep(tmp_path / "x")
    (tmp_path / "x").rename(tmp_path / "x.old")
    keep(tmp_path / "y", epoch=2)
    (tmp_path / "y").rename(tmp_path / "x")
    file = tmp_path / "x" / name
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle] ^= 4
    file.write_bytes(content[:middle] if how == "cut" else content)
    if how == "missing":
        file.unlink()
    found, why = latest_checkpoint(tmp_path / "x", "mine", 2)
    assert found == tmp_path / "x.old"
    assert str(file) in why
