"""The phases of a command, in seconds of wall time."""

from __future__ import annotations

import os
import time

import pytest

from raysuite.cluster.process import age_s
from raysuite.orchestrate.timings import Timings


def test_the_first_phase_begins_with_the_process() -> None:
    timings = Timings()
    assert time.time() - timings.began == pytest.approx(age_s(os.getpid()), abs=0.03)
    assert timings.seconds["driver"] == pytest.approx(age_s(os.getpid()), abs=0.03)
