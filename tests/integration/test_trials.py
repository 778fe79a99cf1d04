"""Each trial of `raysuite doctor`, for real."""

from __future__ import annotations

import os

import pytest

from raysuite.orchestrate.part_trials import TRIALS, TRIED, Part, State, try_part
from tests.require import PRESENT, require

MANY_PROCESSES = ("ray", "gloo", "deepspeed")
"""Their trials take longest; horovod's starts ranks in the same way."""
HERE = ("torchvision", "timm", "schedulefree", "dali", "horovod", "mlflow")
"""Tried in this process, which has torch: to start another one is tried with torch itself."""


@pytest.mark.integration
@pytest.mark.parametrize(
    "part",
    [
        pytest.param(
            part,
            id=part.name,
            marks=[pytest.mark.thorough] if part.name in MANY_PROCESSES else [],
        )
        for part in TRIED
    ],
)
def test_part_works(part: Part) -> None:
    if part.name in PRESENT:
        require(part.name)
    if part.name in HERE:
        TRIALS[part.name]()  # it raises where something is wrong
        return
    finding = try_part(part)
    assert finding.state is State.WORKS, finding.note


@pytest.mark.integration
def test_the_trial_of_mlflow_sends_no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "")  # restored at the end
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY")
    TRIALS["mlflow"]()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
