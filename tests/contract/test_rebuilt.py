"""Networks that another framework builds anew: the gate refuses what a conversion gets wrong."""

from __future__ import annotations

from typing import Any

import pytest

from raysuite.train.gate import TOLERANCE, TOLERANCE_REBUILT
from tests.contract.launches import found_by
from tests.require import require

pytestmark = [pytest.mark.integration, pytest.mark.slow]
FLAWS = ("epsilon", "momentum", "padding", "layout")
"""Of tests.strategies.wrong_layers, which imports torch."""


def found() -> dict[str, Any]:
    require("tensorflow")
    answers: dict[str, Any] = found_by("tensorflow", 1, "rebuilt_worker", {})[0]
    return answers


def test_a_right_conversion_passes() -> None:
    assert found()["none"] < 1e-5
    assert found()["resnet20"] < TOLERANCE_REBUILT


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_is_refused(flaw: str) -> None:
    assert found()[flaw] > TOLERANCE_REBUILT


def test_the_gate_refuses_what_no_training_step_shows() -> None:
    verdict = found()["verdict"]
    assert verdict["error"] < TOLERANCE
    assert not verdict["passed"]
