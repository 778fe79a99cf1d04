"""`raysuite run --budget`: repeats until the time is over."""

from __future__ import annotations

import re
import time

import pytest

from raysuite.records import RunFinished
from tests.integration.test_run import ALONE
from tests.integration.workplace import Workplace
from tests.marks import SLOW_MARKS

pytestmark = [*SLOW_MARKS, pytest.mark.thorough, pytest.mark.timeout(600)]
SECONDS = 90


def test_runs_are_repeated_until_the_time_is_over(workplace: Workplace) -> None:
    workplace.write("budget.yaml", ALONE)
    began = time.monotonic()
    command = workplace.run("raysuite", "run", "budget.yaml", "--budget", f"{SECONDS}s")
    took = time.monotonic() - began
    results = workplace.results()
    ends = [results.end_of(plan["run_id"]) for plan in results.plans()]
    assert len(ends) >= 2
    assert all(isinstance(end, RunFinished) for end in ends)
    assert took <= SECONDS * 1.1
    enough = re.search(r"budget: (\d) of 1 variants", command.stdout)
    assert enough
    assert took >= SECONDS / 2 or enough[1] == "1"
