from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from raysuite.errors import UserError
from raysuite.parallel import horovod, make_strategy
from raysuite.parallel.base import World
from raysuite.parallel.horovod import join_from_torchrun, rank_variables
from raysuite.spec.strategies import HorovodOptions
from tests.require import require


def places(hosts: list[str]) -> list[tuple[int, ...]]:
    """(rank, local rank, local size, cross rank, cross size) of each rank."""
    keys = ("RANK", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    return [tuple(int(own[f"HOROVOD_{key}"]) for key in keys) for own in rank_variables(hosts)]


def test_one_host() -> None:
    assert places(["a", "a"]) == [(0, 0, 2, 0, 1), (1, 1, 2, 0, 1)]


def test_hosts_with_unequal_ranks() -> None:
    assert places(["a", "a", "a", "b", "c", "c"]) == [
        (0, 0, 3, 0, 3),
        (1, 1, 3, 0, 2),  # of the second ranks, b has none
        (2, 2, 3, 0, 1),
        (3, 0, 1, 1, 3),
        (4, 0, 2, 2, 3),
        (5, 1, 2, 1, 2),
    ]


def test_ranks_of_a_host_need_not_be_neighbours() -> None:
    assert places(["a", "b", "a"]) == [(0, 0, 2, 0, 2), (1, 0, 1, 1, 2), (2, 1, 2, 0, 1)]


def test_all_ranks_know_size_and_host() -> None:
    for own, host in zip(rank_variables(["a", "b"]), "ab", strict=True):
        assert own["HOROVOD_SIZE"] == "2"
        assert own["HOROVOD_HOSTNAME"] == host
        assert own["HOROVOD_CONTROLLER"] == own["HOROVOD_CPU_OPERATIONS"] == "gloo"


@pytest.mark.parametrize("counts", [{"a": 3, "b": 1, "c": 2}, {"a": 1}, {"a": 2, "b": 2}])
def test_horovod_itself_agrees(counts: dict[str, int]) -> None:
    require("horovod")
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

    named = ",".join(f"{host}:{count}" for host, count in counts.items())
    slots = get_host_assignments(parse_hosts(named), sum(counts.values()))
    ours = places([host for host, count in counts.items() for _ in range(count)])
    assert ours == [
        (each.rank, each.local_rank, each.local_size, each.cross_rank, each.cross_size)
        for each in slots
    ]


def test_nothing_is_set_where_a_launcher_has_done_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", "1")
    before = dict(os.environ)
    assert join_from_torchrun(0, 2) is None
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("size", "given", "expected"), [(2, None, "60"), (301, None, "151"), (301, "90", "90")]
)
def test_larger_worlds_have_more_time_to_meet(
    monkeypatch: pytest.MonkeyPatch, size: int, given: str | None, expected: str
) -> None:
    store = HashStore()
    for rank in range(size):
        store.set(f"host/{rank}", f"node{rank}")
    store.set("port", "1234")
    monkeypatch.setattr(horovod, "shared_store", lambda *_: store)
    before = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    timeout = {"HOROVOD_GLOO_TIMEOUT_SECONDS": given} if given else {}
    with patch.dict(os.environ, {**before, **timeout, "MASTER_ADDR": "node0"}, clear=True):
        assert join_from_torchrun(size - 1, size) is None
        assert os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] == expected


def test_horovods_defaults_are_left_alone() -> None:
    assert horovod._tuning(HorovodOptions()) == {}
    tuned = horovod._tuning(HorovodOptions(fusion_threshold_mb=0.5, cycle_time_ms=2))
    assert tuned == {"HOROVOD_FUSION_THRESHOLD": "524288", "HOROVOD_CYCLE_TIME": "2.0"}


def test_starts_that_crash_horovod_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, one = HorovodOptions(), HorovodOptions(cycle_time_ms=2)
    both = HorovodOptions(fusion_threshold_mb=1, cycle_time_ms=2)

    def starts(*options: HorovodOptions) -> None:
        monkeypatch.setattr(horovod, "_both_given", {})
        for each in options:
            horovod._refuse_what_crashes(each)

    starts(plain, one, plain)
    starts(both)
    for refused in ((plain, both), (both, plain)):
        with pytest.raises(UserError, match="be started a second time"):
            starts(*refused)


@pytest.mark.parametrize("profiled", [False, True])
def test_horovod_starts_with_its_options_and_a_timeline_for_a_profile_only(
    profiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options, also defaults, take precedence over the environment, which is restored."""
    names = ("HOROVOD_TIMELINE", "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME")
    seen: list[list[str | None]] = []
    hvd = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda: seen.append([*map(os.environ.get, names)]),
        shutdown=lambda: None,
    )
    monkeypatch.setattr(horovod, "_horovod", lambda: hvd)
    monkeypatch.setattr(horovod, "join_from_torchrun", lambda rank, size: None)
    monkeypatch.delenv("HOROVOD_TIMELINE", raising=False)
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "7")
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "8")
    strategy = make_strategy(HorovodOptions(fusion_threshold_mb=1), profiled)
    strategy.start(World(0, 1, 0, torch.device("cpu")))
    strategy.stop()
    assert seen == [["DYNAMIC" if profiled else None, "1048576", None]]
    assert [*map(os.environ.get, names)] == [None, "7", "8"]


def test_a_reduction_gathers_from_no_rank() -> None:
    """A gathering takes the memory of all ranks' values on each."""
    sizes: list[int] = []

    def allreduce(part: torch.Tensor, op: str) -> torch.Tensor:
        sizes.append(part.numel())
        return part

    hvd = SimpleNamespace(size=lambda: 4, allreduce=allreduce, Sum="s", Max="x", Min="n")
    value = torch.arange(10.0)
    with patch.object(horovod, "_CHUNK", 4):
        assert torch.equal(horovod.HorovodComm(hvd).all_reduce(value, "max"), value)
    assert sizes == [4, 4, 2]


def test_a_reduction_keeps_shape_and_dtype_and_small_integers_are_sent_as_larger_ones() -> None:
    """Of two ranks with equal values."""
    sent: list[tuple[torch.dtype, str]] = []

    def allreduce(part: torch.Tensor, op: str) -> torch.Tensor:
        sent.append((part.dtype, op))
        return 2 * part if op == "s" else part

    hvd = SimpleNamespace(size=lambda: 2, allreduce=allreduce, Sum="s", Max="x", Min="n")
    own = horovod.HorovodComm(hvd)
    for dtype, as_sent in (
        (torch.float64, torch.float64),
        (torch.int64, torch.int64),
        (torch.uint8, torch.int32),
        (torch.int8, torch.int32),
        (torch.int16, torch.int32),
    ):
        value = torch.arange(6, dtype=dtype).view(2, 3).T
        for reduction, op in (("sum", "s"), ("max", "x"), ("min", "n")):
            found = own.all_reduce(value, reduction)  # type: ignore[arg-type]
            assert sent.pop() == (as_sent, op)
            assert found.dtype == dtype
            assert found.tolist() == (value * (2 if op == "s" else 1)).tolist()
    assert value.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_horovod_that_runs_already_is_neither_started_nor_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hvd = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setattr(horovod, "_horovod", lambda: hvd)
    monkeypatch.setenv("HOROVOD_RANK", "0")
    before = dict(os.environ)
    strategy = make_strategy(HorovodOptions())
    strategy.start(World(0, 1, 0, torch.device("cpu")))
    strategy.stop()
    assert dict(os.environ) == before


@pytest.mark.parametrize("variable", ["DYNAMIC", "/own/timeline.json", None])
def test_a_timeline_is_recorded_unless_the_user_records_one(
    variable: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []
    hvd = SimpleNamespace(
        start_timeline=calls.append, stop_timeline=lambda: calls.append("stopped")
    )
    monkeypatch.setattr(horovod, "_horovod", lambda: hvd)
    monkeypatch.delenv("HOROVOD_TIMELINE", raising=False)
    if variable:
        monkeypatch.setenv("HOROVOD_TIMELINE", variable)
    engine: Any = SimpleNamespace()
    with horovod.HorovodEngine.timeline(engine, tmp_path):
        calls.append("steps")
    recorded = [str(tmp_path), "steps", "stopped"]
    assert calls == (recorded if variable == "DYNAMIC" else ["steps"])
