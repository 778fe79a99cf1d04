"""What is on disk after a power cut: each name and content as of its last fsync."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from raysuite.files import flush_names, write_whole
from raysuite.parallel.base import World
from raysuite.records import Journal, Results, RunFailed, read_journal
from raysuite.track.results_folder import results_id
from raysuite.train.checkpoint import LoopState, latest_checkpoint
from raysuite.train.loop import TrainingLoop
from tests.unit.train.test_checkpoint import keep


class Disk:
    """Drops all that was not flushed. Folders whose names were never flushed are kept as they
    are."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root, self._cuts = root, 0
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        self._held: list[int] = []
        self.flushed: Callable[[], None] = lambda: None
        fsync = os.fsync

        def noted(descriptor: int) -> None:
            fsync(descriptor)
            self._note(descriptor)
            self.flushed()

        monkeypatch.setattr(os, "fsync", noted)

    def _note(self, descriptor: int) -> None:
        path, inode = Path(os.readlink(f"/proc/self/fd/{descriptor}")), os.fstat(descriptor).st_ino
        self._held.append(os.open(path, os.O_RDONLY))  # or another file may get its number
        if path.is_dir():
            self._names[inode] = self._names_in(path)
        else:
            self._contents[inode] = path.read_bytes()

    @staticmethod
    def _names_in(folder: Path) -> dict[str, tuple[int, bool]]:
        with os.scandir(folder) as entries:
            return {each.name: (each.inode(), each.is_dir()) for each in entries}

    def cut(self) -> Path:
        """A copy of the root as it is found after a power cut now."""
        self._cuts += 1
        to = self._root.with_name(f"{self._root.name}-{self._cuts}")
        here = {path.stat().st_ino: path for path in self._root.rglob("*") if path.is_dir()}
        self._copy(self._root.stat().st_ino, to, {**here, self._root.stat().st_ino: self._root})
        return to

    def _copy(self, inode: int, to: Path, here: dict[int, Path]) -> None:
        to.mkdir()
        names = self._names.get(inode)
        if names is None:
            found = self._names_in(here[inode]).items() if inode in here else ()
            names = {name: each for name, each in found if each[1]}
        for name, (number, is_folder) in names.items():
            if is_folder:
                self._copy(number, to / name, here)
            else:
                (to / name).write_bytes(self._contents.get(number, b""))

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


@pytest.fixture
def disk(tmp_path, monkeypatch):
    (tmp_path / "root").mkdir()
    found = Disk(tmp_path / "root", monkeypatch)
    yield found
    found.close()


def test_what_is_not_flushed_is_lost(tmp_path, disk):
    write_whole(tmp_path / "root" / "kept", b"1")
    write_whole(tmp_path / "root" / "kept", b"2", flush=False)
    write_whole(tmp_path / "root" / "lost", b"2", flush=False)
    assert {path.name: path.read_bytes() for path in disk.cut().iterdir()} == {"kept": b"1"}


def test_plans_are_the_old_or_the_new_ones(tmp_path, disk):
    results, seen = Results(tmp_path / "root"), []
    disk.flushed = lambda: seen.append(Results(disk.cut()).plans())
    for number in (1, 2):
        results.write_plans([{"run_id": str(number)}])
        assert seen[-1] == [{"run_id": str(number)}]
    assert all(plans in ([], [{"run_id": "1"}], [{"run_id": "2"}]) for plans in seen)


def test_a_journal_has_every_record_that_was_written(tmp_path, disk):
    journal, written = Journal(tmp_path / "root" / "runs" / "a" / "journal.jsonl"), []
    for number in range(3):
        written.append(RunFailed(run_id="a", reason="error", message=str(number)))
        journal.write(written[-1])
        assert read_journal(disk.cut() / "runs" / "a" / "journal.jsonl") == written


def test_a_checkpoint_is_the_old_or_the_new_one(tmp_path, disk):
    folder = tmp_path / "root" / "checkpoint"
    flush_names(folder.parent)
    seen = []

    def epoch() -> int:
        found, _ = latest_checkpoint(disk.cut() / "checkpoint", "mine", 9)
        return 0 if found is None else LoopState.read(found).epoch

    disk.flushed = lambda: seen.append(epoch())
    for number in (1, 2, 3):
        keep(folder, epoch=number)
        assert seen[-1] == epoch() == number
    assert seen == sorted(seen)


def test_the_id_of_a_results_folder_is_on_disk_when_it_is_used(tmp_path, disk):
    found = results_id(tmp_path / "root")
    assert (disk.cut() / "results.id").read_text() == f"{found}\n"


def test_the_trained_weights_are_on_disk_when_they_are_there(tmp_path, disk):
    """Before the record that the run has finished, after which it is not repeated."""
    file = tmp_path / "root" / "model.pt"
    for number in (1, 2):
        state = {"weight": torch.full((3,), float(number))}
        engine = SimpleNamespace(whole_state=lambda _, state=state: state)
        world = World.alone(torch.device("cpu"))
        loop = SimpleNamespace(average=None, engine=engine, world=world)
        TrainingLoop.save_model(loop, file, {})
        found = torch.load(disk.cut() / "model.pt", weights_only=True)
        assert found["weight"].tolist() == [number] * 3
    loop.engine = SimpleNamespace(whole_state=lambda _: {"weight": lambda: None})
    with pytest.raises(AttributeError):  # while it is written
        TrainingLoop.save_model(loop, file, {})
    assert [path.name for path in file.parent.iterdir()] == ["model.pt"]
    assert torch.load(file, weights_only=True)["weight"].tolist() == [2.0] * 3
