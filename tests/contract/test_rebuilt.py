"""Networks that another framework builds anew: the gate refuses what a conversion gets wrong."""

from __future__ import annotations

from typing import Any

import pytest

from raysuite.gate.rebuilt_network import TOLERANCE_REBUILT
from raysuite.gate.small_network import TOLERANCE
from tests.contract.launches import found_by

pytestmark = [pytest.mark.integration, pytest.mark.slow]
FLAWS = ("epsilon", "momentum", "padding", "layout")
"""Of tests.strategies.wrong_layers, which imports torch."""


@pytest.fixture(params=("tensorflow", "jax"))
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    asked = {"strategy": request.param}
    answers: dict[str, Any] = found_by(request.param, 1, "rebuilt_worker", asked)[0]
    return answers


def test_a_right_conversion_passes(found: dict[str, Any]) -> None:
    assert found["none"] < 1e-5
    assert found["resnet20"] < TOLERANCE_REBUILT


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_is_refused(found: dict[str, Any], flaw: str) -> None:
    assert found[flaw] > TOLERANCE_REBUILT


def test_the_gate_refuses_what_no_training_step_shows(found: dict[str, Any]) -> None:
    verdict = found["verdict"]
    assert verdict["error"] < TOLERANCE
    assert not verdict["passed"]
