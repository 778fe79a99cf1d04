"""Signals that end a command let it clean up first."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raysuite.cluster.process import in_order

pytestmark = pytest.mark.integration
PROGRAM = """
import sys, time
from pathlib import Path
from raysuite.cluster.process import in_order

with in_order():
    try:
        print("ready", flush=True)
        time.sleep(600)
    finally:
        print("cleaning", flush=True)
        time.sleep(1)
        Path(sys.argv[1]).touch()
"""


def test_a_second_signal_does_not_end_the_cleaning(tmp_path: Path) -> None:
    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "cleaned")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        program.send_signal(signal.SIGTERM)  # SIGHUP is ignored below nohup
        assert program.stdout.readline() == b"cleaning\n"
        program.send_signal(signal.SIGHUP)
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 128 + signal.SIGTERM
    assert (tmp_path / "cleaned").exists()


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        on_sigterm = signal.getsignal(signal.SIGTERM)
        with in_order():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != on_sigterm
        assert signal.getsignal(signal.SIGTERM) == on_sigterm
    finally:
        signal.signal(signal.SIGHUP, before)
