"""Which network of a sweep is registered, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.errors import UserError
from raysuite.orchestrate.registration import register_best
from raysuite.track.register import weights_of
from tests.fake_sweeps import write_sweep

TOO_SLOW = {"optimizer.lr": {"grid": [0.0001, 0.0002]}}


def test_a_sweep_without_weights(tmp_path: Path) -> None:
    results = write_sweep(tmp_path, trials=2, scheduler="none")
    with pytest.raises(UserError, match=r"kept its weights"):
        register_best(results)


def test_a_goal_that_no_trial_reached(tmp_path: Path) -> None:
    goals = ("time_to_accuracy",)
    results = write_sweep(tmp_path, trials=2, scheduler="none", space=TOO_SLOW, goals=goals)
    for plan in results.plans():
        weights_of(results, plan["run_id"]).touch()
    first = results.plans()[0]["run_id"]
    told = f"that kept its weights has a value of time_to_accuracy; .* --run {first}"
    with pytest.raises(UserError, match=told):
        register_best(results)
