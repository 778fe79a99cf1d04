from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

import pytest

from raysuite.orchestrate import part_trials as parts
from raysuite.orchestrate.part_trials import Part, State, try_part

PART = Part("pretend", "pretend", required=False, deadline_s=120)


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
    assert (finding.state, finding.note) == (State.MISSING, "no module named x")
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
    """What a part is that gives no answer in time, at a load for each processor."""
    load, state = request.param
    monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
    assert isinstance(state, State)
    return state


def test_a_hang_is_slow_on_a_busy_machine_alone_and_its_children_die(
    trial: Path, tmp_path: Path, late: State
) -> None:
    beat = tmp_path / "beat"
    trial.write_text(f"#!/bin/sh\n(while :; do date +%N > {beat}; sleep 0.05; done) &\nwait\n")
    finding = try_part(Part("pretend", "pretend", deadline_s=2))
    assert finding.state is late
    assert finding.note.startswith("no answer within 2 s; the load is ")
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


def test_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert parts.find_compiler().state is State.MISSING


def test_every_tried_part_has_a_trial() -> None:
    from raysuite.orchestrate.part_trials import TRIALS

    assert [part.name for part in parts.TRIED] == list(TRIALS)
