"""Processor time of others."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest
import torch

from raysuite.measure.processor import OtherPrograms, family_seconds, machine_seconds

SPIN = [
    sys.executable,
    "-c",
    "import time\nend = time.process_time() + 5\nwhile time.process_time() < end: pass",
]


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_the_machine_takes_at_least_what_a_process_takes() -> None:
    began = machine_seconds()
    spin(0.3)
    assert machine_seconds() - began > 0.25


def test_waiting_for_a_disk_is_no_work_and_guests_count_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`user` holds the time of guests, and `nice` that of nice ones (proc(5))."""
    now = psutil.cpu_times()
    if not hasattr(now, "iowait"):
        pytest.skip("only Linux counts it")
    none = dict.fromkeys(now._fields, 0.0)
    busy = {"user": 20.0, "guest": 5.0, "nice": 3.0, "guest_nice": 1.0, "system": 2.0}
    held = now._replace(**{**none, **busy, "irq": 0.5, "idle": 100.0, "iowait": 50.0})
    monkeypatch.setattr(psutil, "cpu_times", lambda: held)
    assert machine_seconds() == 20 + 3 + 2 + 0.5


def test_own_time_and_that_of_children_is_not_others() -> None:
    others = OtherPrograms()
    with subprocess.Popen(SPIN) as child:
        others.begin()
        spin(0.2)
        while family_seconds(psutil.Process(child.pid)) < 0.1:
            time.sleep(0.02)
        others.end()
        elapsed, machine, own = others._taken
        assert own >= 0.25
        child.kill()
    [alone] = others.cores(lambda tensor: tensor)
    assert alone <= max(0.0, machine - own) / elapsed + 1e-9


def test_descendants_of_children_count() -> None:
    """Such as a loader's processes, which are children of the fork server."""
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
    before = family_seconds(psutil.Process(), itself=False)
    command = ["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", burn]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        (grandchild,) = psutil.Process(child.pid).children()
        assert family_seconds(psutil.Process(), itself=False) - before > 0.25
        assert family_seconds(psutil.Process(child.pid), itself=False) > 0.25
        assert family_seconds(grandchild) > 0.25
        child.communicate("\n")


def test_a_child_that_ends_takes_no_time_away() -> None:
    """Such as torch.compile's: their seconds would else be those of other programs."""
    with subprocess.Popen(SPIN) as child:
        while family_seconds(psutil.Process(child.pid)) < 0.2:
            time.sleep(0.02)
        before = [family_seconds(psutil.Process(), itself) for itself in (True, False)]
        child.kill()
    for then, itself in zip(before, (True, False), strict=True):
        assert family_seconds(psutil.Process(), itself) >= then - 1e-6  # sums round


def test_ranks_of_one_machine_are_taken_together() -> None:
    others = OtherPrograms()
    others._taken = [8.0, 10.0, 3.0]

    def two_here_and_one_elsewhere(mine: torch.Tensor) -> torch.Tensor:
        elsewhere = torch.tensor([[1.0, 8.0, 7.0, 7.5]], dtype=torch.float64)
        return torch.cat([mine, mine, elsewhere])

    assert others.cores(two_here_and_one_elsewhere) == [0.5, 0.5, 0.0]


def test_cores_are_a_mean_over_all_of_the_time_in_which_they_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also over torch.compile's, which a run's training time leaves out."""
    clock = iter([(0.0, 100.0, 5.0), (40.0, 130.0, 15.0)])
    others = OtherPrograms()
    monkeypatch.setattr(others, "_read", lambda: next(clock))
    others.begin()
    others.end()
    assert others.cores(lambda tensor: tensor) == [0.5]


def test_a_process_that_is_left_out_does_not_count() -> None:
    spin(0.1)
    assert family_seconds(psutil.Process(), itself=False) <= family_seconds(psutil.Process())
