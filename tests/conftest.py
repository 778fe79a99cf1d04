"""Of all tests: no property fails because the machine is busy, and seconds by test are recorded."""

from __future__ import annotations

import csv
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("raysuite", deadline=None)
settings.load_profile("raysuite")

# whoever tests may do so under nohup or in the background of a script: what is tested must hear
# these two (a child process begins with the default where its parent has a handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

DURATIONS = "RAYSUITE_TEST_DURATIONS"
"""The variable that names the file; without it nothing is recorded."""
PHASES = ("setup", "call", "teardown")


class Durations:
    """Add a row for each test to a CSV file: outcome and seconds of its three phases."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._session = time.strftime("%Y-%m-%dT%H:%M:%S")
        self._reports: dict[str, dict[str, pytest.TestReport]] = {}
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            self._add("session", "test", "outcome", *(f"{phase}_s" for phase in PHASES))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        phases = self._reports.setdefault(report.nodeid, {})
        phases[report.when or ""] = report
        if report.when == "teardown":
            outcomes = {each.outcome for each in phases.values()}
            outcome = next((each for each in ("failed", "skipped") if each in outcomes), "passed")
            seconds = [phases[name].duration if name in phases else 0.0 for name in PHASES]
            row = (report.nodeid, outcome, *(f"{each:.2f}" for each in seconds))
            self._add(self._session, *row)
            del self._reports[report.nodeid]

    def _add(self, *row: str) -> None:
        with self._file.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow(row)


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that hears of all tests, not in the workers of pytest-xdist."""
    file = os.environ.get(DURATIONS)
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(config.rootpath / file))
