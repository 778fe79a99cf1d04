"""What a kept verdict of the gate depends on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from raysuite import files
from raysuite.gate import strategy_check, verdict_cache
from raysuite.parallel.base import StepSettings, World
from raysuite.parallel.comm import NoComm, Reduction
from raysuite.spec.optimizers import LarsOptions, OptimizerOptions
from raysuite.spec.strategies import DdpOptions, HorovodOptions, StrategyOptions

SETTINGS = StepSettings(1)
PLACES = [[1, 1, 1], [1, 1, 1]]


def test_the_cache_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path))

    def file(
        options: StrategyOptions = DdpOptions(),  # noqa: B008 - frozen
        size: int = 2,
        settings: StepSettings = SETTINGS,
        places: list[list[int]] = PLACES,
        optimizer: OptimizerOptions | None = None,
        device: str = "cpu",
    ) -> Path:
        world = World(0, size, 0, torch.device(device))
        cache = verdict_cache.VerdictCache(options, world, NoComm(), places)
        return cache.file(settings, optimizer)

    same = [
        file(),
        file(settings=replace(SETTINGS, micro_batch=64)),
        file(places=[[9, 1, 1], [9, 1, 1]]),
    ]
    assert len(set(same)) == 1
    others = [
        file(DdpOptions(bucket_mb=1)),
        file(HorovodOptions()),
        file(size=4),
        file(device="cuda"),
        file(settings=replace(SETTINGS, accumulate=2)),
        file(settings=replace(SETTINGS, clip_norm=1.0)),
        file(settings=replace(SETTINGS, precision="bf16")),
        file(settings=replace(SETTINGS, label_smoothing=0.1)),
        file(optimizer=LarsOptions()),
        file(optimizer=LarsOptions(momentum=0.5)),
        file(places=[[1, 1, 1], [2, 1, 1]]),  # two hosts
        file(places=[[1, 1, 1], [1, 2, 1]]),  # of two kinds
        file(places=[[1, 2, 1], [1, 2, 1]]),  # of another kind, or with other versions
        file(places=[[1, 1, 2], [1, 1, 2]]),  # with other algorithms of NCCL or Horovod
        file(size=4, places=[[1, 1, 1], [1, 1, 1], [2, 1, 1], [2, 1, 1]]),
        file(size=4, places=[[1, 1, 1], [2, 1, 1], [2, 1, 1], [2, 1, 1]]),  # unlike on the hosts
    ]
    assert len({*same, *others}) == 1 + len(others)


@pytest.mark.parametrize(
    "name", ["NCCL_ALGO", "HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_TORUS_ALLREDUCE"]
)
def test_variables_that_choose_an_algorithm_are_in_the_key(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    without = verdict_cache.places(NoComm(), {})
    monkeypatch.setenv("HOME", "/elsewhere")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/proc/self/fd/9")
    assert verdict_cache.places(NoComm(), {}) == without
    monkeypatch.setenv(name, "1")
    assert verdict_cache.places(NoComm(), {}) != without


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_reads_and_writes_the_cache(
    rank: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rank 1 may have no file or an older one; what counts is whether rank 0 has one."""

    class Known(NoComm):
        def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
            assert reduction == "max"
            return torch.ones(1)

    monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path))
    world = World(rank, 2, rank, torch.device("cpu"))
    unknown, known = (
        verdict_cache.VerdictCache(DdpOptions(), world, comm, PLACES)
        for comm in (NoComm(), Known())
    )
    verdict = strategy_check._verdict("ddp", world, "", passed=True, message="kept")
    unknown.keep(verdict, SETTINGS)
    assert unknown.file(SETTINGS).exists() == (rank == 0)
    assert unknown.find(SETTINGS) == (None if rank else verdict)
    if rank:
        found = known.find(SETTINGS)
        assert found is not None
        assert (found.passed, found.workers, found.rule) == (True, 2, "known to rank 0")
        unknown.file(SETTINGS).parent.mkdir(exist_ok=True)
        unknown.file(SETTINGS).write_text(verdict.model_dump_json())
        assert (unknown.find(SETTINGS), known.find(SETTINGS)) == (None, verdict)


def test_a_damaged_or_failing_entry_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    assert verdict_cache.known_pass(file) is None
    file.write_text("{")
    assert verdict_cache.known_pass(file) is None
    world = World(0, 2, 0, torch.device("cpu"))
    file.write_text(strategy_check._verdict("ddp", world, "", passed=False).model_dump_json())
    assert verdict_cache.known_pass(file) is None
    file.write_text(strategy_check._verdict("ddp", world, "", passed=True).model_dump_json())
    assert verdict_cache.known_pass(file) is not None


def test_all_code_is_in_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file of each package, and all that stand beside the packages."""
    monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path / "cache"))
    world = World(0, 2, 0, torch.device("cpu"))
    cache = verdict_cache.VerdictCache(DdpOptions(), world, NoComm(), PLACES)

    def key() -> Path:
        """As in a process that begins now."""
        files.code_digest.cache_clear()
        return cache.file(SETTINGS)

    copy = tmp_path / "raysuite"
    original = Path(files.__file__).parent
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = key()
    monkeypatch.setattr(files, "__file__", str(copy / "files.py"))
    assert key() == before
    last = {file.parent: file for file in copy.rglob("*.py")}
    changed = {*last.values(), *copy.glob("*.py")}
    names = {file.relative_to(copy).parts[0] for file in changed}
    assert {"parallel", "optim", "gate", "tasks", "data", "train", "nested.py"} <= names
    missed = []
    for file in changed:
        text = file.read_bytes()
        file.write_bytes(text + b"# changed\n")
        if key() == before:
            missed.append(file)
        file.write_bytes(text)
    assert missed == []
    last[copy / "gate"].rename(copy / "gate" / "renamed.py")
    assert key() != before
    monkeypatch.undo()
    files.code_digest.cache_clear()
