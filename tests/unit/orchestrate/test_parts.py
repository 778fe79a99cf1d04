from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysuite.errors import RayStartError
from raysuite.measure.topology import Topology
from raysuite.orchestrate import part_trials as parts
from raysuite.orchestrate.part_trials import (
    Finding,
    Part,
    PartMissingError,
    State,
    try_part,
)
from raysuite.orchestrate.torchrun import Request
from raysuite.spec.strategies import DdpOptions
from tests.require import require

PART = Part("pretend", "pretend", distribution="not-installed", required=False, deadline_s=120)


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that stands for the interpreter, and so for the trial that it would run."""
    script = tmp_path / "python"
    script.write_text("")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(script))
    return script


def test_a_part_that_works_carries_its_note(trial: Path) -> None:
    trial.write_text("#!/bin/sh\necho chatter\necho 'raysuite-trial: 2 processes'\n")
    finding = try_part(PART)
    assert (finding.state, finding.note, finding.fix) == (State.WORKS, "2 processes", "")
    assert not finding.bad


def test_a_missing_part_is_bad_only_where_it_is_required(trial: Path) -> None:
    trial.write_text("#!/bin/sh\necho 'raysuite-trial: no module named x' >&2\nexit 3\n")
    finding = try_part(PART)
    assert (finding.version, finding.state, finding.note) == (
        "",
        State.MISSING,
        "no module named x",
    )
    assert finding.fix == "make setup"
    assert not finding.bad
    assert try_part(Part("pretend", "pretend")).bad


def test_a_crash_is_a_broken_part(trial: Path) -> None:
    trial.write_text("#!/bin/sh\necho 'libfoo.so: undefined symbol' >&2\nkill -SEGV $$\n")
    finding = try_part(PART)
    assert finding.state is State.BROKEN
    assert finding.note == "killed by SIGSEGV: libfoo.so: undefined symbol"
    assert finding.bad


@pytest.fixture(params=[(0.5, State.BROKEN), (9.0, State.SLOW)], ids=["idle", "busy"])
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> State:
    """What a part is that gives no answer in time, at a load for each of 16 processors."""
    load, state = request.param
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "getloadavg", lambda: (load * 16, 0.0, 0.0))
    assert isinstance(state, State)
    return state


def test_a_hang_is_slow_on_a_busy_machine_alone_and_its_children_die(
    trial: Path, tmp_path: Path, late: State
) -> None:
    beat = tmp_path / "beat"
    trial.write_text(f"#!/bin/sh\n(while :; do date +%N > {beat}; sleep 0.05; done) &\nwait\n")
    finding = try_part(Part("pretend", "pretend", deadline_s=2))
    assert finding.state is late
    assert finding.note.startswith("its check did not end within 2 s; the load is ")
    assert finding.bad
    last = beat.read_text()
    time.sleep(0.3)
    assert beat.read_text() == last


def test_a_trial_that_ended_for_want_of_time_is_slow_on_a_busy_machine_alone(
    trial: Path, late: State
) -> None:
    trial.write_text("#!/bin/sh\necho 'raysuite-trial: Ray did not start' >&2\nexit 4\n")
    finding = try_part(Part("pretend", "pretend", required=False))
    assert finding.state is late
    assert finding.bad == (late is State.BROKEN)
    assert (finding.fix == "make setup") == (late is State.BROKEN)


def test_a_compiler_is_found_with_its_version_or_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert parts.find_compiler().state is State.MISSING
    (compiler := tmp_path / "c++").write_text("#!/bin/sh\necho 13.2 $*\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    assert parts.find_compiler() == Finding(
        "C++ compiler",
        "13.2 -dumpfullversion",
        State.WORKS,
        str(compiler),
        "",
        required=False,
        seconds=0.0,
    )


@pytest.mark.parametrize(
    ("nodes", "note"),
    [
        ([0, 0], "memory nodes 0: CPUs 0-1; workers are not bound (resources.binding)"),
        (
            [0, 1],
            "memory nodes 0: CPUs 0; 1: CPUs 1; workers are bound to them (resources.binding)",
        ),
    ],
)
def test_workers_are_bound_where_there_are_several_memory_nodes(
    nodes: list[int], note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = [SimpleNamespace(node=node, cpus=(cpu,)) for cpu, node in enumerate(nodes)]
    topology: Any = Topology(tuple(cores), {})  # type: ignore[arg-type]
    monkeypatch.setattr(parts, "read_topology", lambda: topology)
    found = parts.find_binding()
    assert (found.note, found.state, found.bad) == (note, State.WORKS, False)


@pytest.mark.parametrize(
    ("error", "code", "note"),
    [
        (None, 0, "2 processes"),
        (PartMissingError("no module x"), parts.MISSING, "no module x"),
        (ModuleNotFoundError("no module x"), parts.MISSING, "no module x"),
        (RayStartError("late"), parts.SLOW, "late"),
        (TimeoutError("late"), parts.SLOW, "late"),
        (ValueError("a\nb"), 1, "ValueError: a b"),
    ],
    ids=str,
)
def test_a_trial_ends_with_the_code_of_its_finding(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception | None,
    code: int,
    note: str,
) -> None:
    def trial() -> str:
        if error is not None:
            raise error
        return note

    monkeypatch.setitem(parts.TRIALS, "pretend", trial)
    assert parts.main(["pretend"]) == code
    printed = capsys.readouterr()
    assert (printed.err if code else printed.out) == f"{parts.MARK}{note}\n"


@pytest.mark.parametrize(
    ("seconds", "expected"), [(None, "2 processes"), (1.0, RuntimeError), (99.0, TimeoutError)]
)
def test_a_strategy_is_tried_by_the_gate_with_two_workers(
    monkeypatch: pytest.MonkeyPatch, seconds: float | None, expected: Any
) -> None:
    """A verdict after that many seconds of 60 is a failure."""
    clock, options = iter([0.0, seconds]), DdpOptions()
    verdict = SimpleNamespace(passed=seconds is None, message="differs")

    def verify(request: Request) -> Iterator[tuple[int, Any]]:
        assert request == Request([options], workers=2, settings={}, timeout_s=60.0)
        yield 0, verdict

    monkeypatch.setattr(parts, "_GATE_S", 60.0)
    monkeypatch.setattr(parts, "verify", verify)
    monkeypatch.setattr(parts, "installed", lambda name: True)
    monkeypatch.setattr(parts, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    if isinstance(expected, str):
        assert parts.by_gate("ddp", options) == expected
    else:
        with pytest.raises(expected, match="differs"):
            parts.by_gate("ddp", options)


def test_every_tried_part_has_a_trial() -> None:
    from raysuite.orchestrate.part_trials import TRIALS

    assert [part.name for part in parts.TRIED] == list(TRIALS)


def test_dali_works_where_it_is_installed() -> None:
    require("dali")
    assert parts.dali() == "CPU pipeline"
