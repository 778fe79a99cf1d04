"""What a searcher learns of trials that missed their target."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from raysuite.orchestrate.sweep.optuna import longest_s, objective
from raysuite.records.derive import Status
from raysuite.records.sweep import TrialFigures
from raysuite.spec.tasks import MetricFacts, TaskFacts
from tests.unit.orchestrate.sweep.test_optuna import trial


def timed(seconds: float, status: Status = "finished", **goals: float) -> TrialFigures:
    return replace(trial(0, {}, status, **goals), curve=((0, seconds, 0.1),))


def test_trials_that_missed_the_target_count_as_slower_than_all_that_met_it():
    met = timed(20.0, accuracy=0.9, time_to_accuracy=12.0)
    near, far = timed(5.0, accuracy=0.8), timed(5.0, "pruned", accuracy=0.2)
    longest = longest_s([met, near, far, timed(99.0, "failed"), trial(0, {})])
    assert longest == 20.0
    found = [objective(each, "time_to_accuracy", longest) for each in (met, near, far)]
    assert found == [12.0, pytest.approx(24.0), pytest.approx(36.0)]


def test_other_goals_and_failures_are_as_they_are():
    assert objective(timed(5.0, accuracy=0.8), "throughput", 20.0) is None
    assert objective(timed(5.0, accuracy=0.8), "accuracy", 20.0) == 0.8
    assert objective(timed(5.0, "failed", accuracy=0.8), "time_to_accuracy", 20.0) is None
    assert objective(trial(0, {}), "time_to_accuracy", 0.0) is None
    assert longest_s([]) == 0.0


@pytest.mark.parametrize(
    ("higher_is_better", "reached", "expected"),
    [
        (False, 0.0, 30.0),
        (False, 1.0, 35.0),
        (False, 3.0, 37.5),
        (True, 3.0, 22.5),
        (True, -1.0, 35),
    ],
)
def test_a_metric_without_bounds_counts_between_once_and_twice_the_longest_time(
    higher_is_better: bool, reached: float, expected: float
) -> None:
    """1.5 times 20 s, and half of 3 / (1 + 3) of them, or of 1 / (1 + 1), more or less."""
    metric = MetricFacts(name="m", title="M", note="", higher_is_better=higher_is_better)
    task = TaskFacts(name="own", unit="samples", metrics=(metric,), primary="m")
    figures: Any = SimpleNamespace(task=task)
    missed = replace(timed(5.0, accuracy=reached), figures=figures)
    assert objective(missed, "time_to_accuracy", 20.0) == expected
