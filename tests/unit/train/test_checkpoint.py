"""Which checkpoint of a run is taken, also after workers were killed while they wrote one."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from raysuite.files import flush_folder
from raysuite.parallel.base import World, draws, kept_draws, restore_draws, seed_draws
from raysuite.parallel.comm import Comm, NoComm, Reduction
from raysuite.train import checkpoint
from raysuite.train.checkpoint import (
    LoopState,
    keep_checkpoint,
    latest_checkpoint,
    load_rank,
    save_rank,
)

STATE = LoopState(run_id="mine", epoch=1, step=9, elapsed_seconds=1.0, time_to_accuracy=None)


def keep(
    folder: Path,
    run_id: str = "mine",
    epoch: int = 1,
    rank: int = 0,
    comm: Comm | None = None,
) -> None:
    state = STATE.model_copy(update={"run_id": run_id, "epoch": epoch})

    def save(to: Path) -> None:
        torch.save({"model": torch.arange(1000), "epoch": epoch}, to / "engine.pt")
        state.write(to)

    world = World(rank, 1 if comm is None else 2, 0, torch.device("cpu"))
    keep_checkpoint(folder, save, world, comm or NoComm())


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


def test_one_before_those_that_the_journal_lacks_is_taken(tmp_path: Path) -> None:
    for epoch, name in ((1, "x.old"), (2, "x")):
        keep(tmp_path / "made", epoch=epoch)
        (tmp_path / "made").rename(tmp_path / name)
    found, why = latest_checkpoint(tmp_path / "x", "mine", 1)
    assert (found, str(tmp_path / "x") in why) == (tmp_path / "x.old", True)
    keep(tmp_path / "x", "another", epoch=2)
    keep(tmp_path / "made")
    (tmp_path / "made").rename(tmp_path / "x.old")
    assert latest_checkpoint(tmp_path / "x", "mine", 1) == (tmp_path / "x.old", "")


def test_a_new_one_replaces_the_one_before_only_when_it_is_whole(tmp_path: Path) -> None:
    def dies(to: Path) -> None:
        (to / "loop.json").touch()
        raise OSError

    for epoch in (1, 2):
        keep(tmp_path / "x", epoch=epoch)
        assert LoopState.read(tmp_path / "x").epoch == epoch
        assert [*tmp_path.iterdir()] == [tmp_path / "x"]
    with pytest.raises(OSError):  # noqa: PT011
        keep_checkpoint(tmp_path / "x", dies, World(0, 1, 0, torch.device("cpu")), NoComm())
    assert latest_checkpoint(tmp_path / "x", "mine", 2) == (tmp_path / "x", "")
    checkpoint.remove_partial(tmp_path / "x")
    assert [*tmp_path.iterdir()] == [tmp_path / "x"]
    for name in ("x.old", "x.partial", "xx"):
        (tmp_path / name).mkdir()
    checkpoint.remove_checkpoint(tmp_path / "x")
    assert [*tmp_path.iterdir()] == [tmp_path / "xx"]


def test_one_with_files_in_folders_is_whole(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    torch.save({"model": torch.arange(9)}, tmp_path / "engine" / "a.pt")
    STATE.write(tmp_path)
    checkpoint.write_sizes(tmp_path)
    assert latest_checkpoint(tmp_path, "mine", 1) == (tmp_path, "")


class LateComm(NoComm):
    """Threads that wait for each other as ranks do; then one of them is late."""

    def __init__(self, barrier: threading.Barrier, late_s: float) -> None:
        self._barrier, self._late_s = barrier, late_s

    def all_reduce(self, value: torch.Tensor, reduction: Reduction) -> torch.Tensor:
        self._barrier.wait(20)
        time.sleep(self._late_s)
        return value


def test_sizes_are_written_after_every_node_has_flushed_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(real: Callable[[Path], None], folder: Path) -> None:
        real(folder)
        order.append(real.__name__)

    for real in (flush_folder, checkpoint.write_sizes):
        monkeypatch.setattr(checkpoint, real.__name__, partial(noted, real))
    barrier = threading.Barrier(2)
    comms = [LateComm(barrier, 0.05 * rank) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as ranks:
        list(ranks.map(lambda rank: keep(tmp_path / "x", rank=rank, comm=comms[rank]), (0, 1)))
    assert order == ["flush_folder", "flush_folder", "write_sizes"]
    assert latest_checkpoint(tmp_path / "x", "mine", 1) == (tmp_path / "x", "")


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


def test_a_rank_draws_on_from_its_own_state_and_a_new_rank_from_nobodys(tmp_path: Path) -> None:
    """Two ranks wrote; three continue."""
    cpu = torch.device("cpu")
    models = [nn.BatchNorm1d(1) for _ in range(3)]
    expected = []

    def drawn() -> list[float]:
        return [*torch.rand(2).tolist(), random.random(), float(np.random.normal())]

    with kept_draws(cpu):
        for rank in (0, 1):
            models[rank].running_mean = torch.tensor([5.0 + rank])
            seed_draws(rank)
            np.random.normal()  # NumPy keeps the second of two normal numbers
            save_rank(tmp_path, World(rank, 2, rank, cpu), [models[rank]])
            expected.append(drawn())
        for rank in (1, 0):
            own = load_rank(tmp_path, World(rank, 3, rank, cpu), [nn.BatchNorm1d(1)])
            assert own is not None
            assert own.keys() == draws(cpu).keys()
            restore_draws(cpu, own)
            assert drawn() == expected[rank]
    assert load_rank(tmp_path, World(2, 3, 2, cpu), [models[2]]) is None
    assert models[2].running_mean is not None
    assert models[2].running_mean.tolist() == [5.0]  # rank 0's


def test_a_rank_that_dies_before_the_new_checkpoint_is_in_place_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path / "x", epoch=1)
    rename = Path.rename

    def dies(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", dies)
    with pytest.raises(KeyboardInterrupt):
        keep(tmp_path / "x", epoch=2)
    found, why = latest_checkpoint(tmp_path / "x", "mine", 1)
    assert (found, why) == (tmp_path / "x.old", "")
    assert LoopState.read(tmp_path / "x.old").epoch == 1
