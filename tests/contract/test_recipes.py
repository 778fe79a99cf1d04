"""Each optimiser, and the average of the weights, means under a strategy what one process means.

Parameters without weight decay stand in a group of their own throughout.
"""

from __future__ import annotations

from typing import Any

import pytest

from raysuite.parts import installed
from tests.contract.launches import found_by
from tests.contract.recipe_worker import FACTOR
from tests.contract.variants import VARIANTS
from tests.require import require

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TOLERANCE = 1e-5
OF_MUON = 1e-2
"""Its updates are computed in bf16, and 12 of them added up."""
THOROUGH = (
    "ddp-sgd",
    "horovod-muon",
    "deepspeed-0-muon",
    "deepspeed-0-schedule_free",
    "deepspeed-1-tuned",
)
"""CI has SGD with rates by layer or weights of classes, and each of the others under DDP and
under a framework that wraps or shards it."""
RECIPES = {
    f"{name}-{optimizer}": (each.options, optimizer)
    for name, each in VARIANTS.items()
    for optimizer in each.recipes
}
RECIPES["pipeline-weighted"] = ({"name": "pipeline", "stages": 2, "micro_batches": 2}, "weighted")
AVERAGED = [
    name
    for name in RECIPES
    if not name.startswith(("fsdp", "deepspeed-3")) and not name.endswith("schedule_free")
]


CASES = [
    pytest.param(name, marks=[pytest.mark.thorough] if name in THOROUGH else []) for name in RECIPES
]


def launched(framework: str, thorough: bool = False) -> dict[str, Any]:
    """By variant: those of CI, or the others."""
    request = {
        name: (strategy, optimizer)
        for name, (strategy, optimizer) in RECIPES.items()
        if strategy["name"] == framework
        and (name in THOROUGH) == thorough
        and (optimizer != "schedule_free" or installed("schedulefree"))
    }
    found: dict[str, Any] = found_by(framework, 2, "recipe_worker", request)[0]
    return found


def found_for(variant: str) -> dict[str, Any]:
    if variant.endswith("schedule_free"):
        require("schedulefree")
    found: dict[str, Any] = launched(RECIPES[variant][0]["name"], variant in THOROUGH)[variant]
    return found


@pytest.mark.parametrize("variant", CASES)
def test_equal_to_one_process(variant: str) -> None:
    found = found_for(variant)
    assert found["ranks_equal"]
    tolerance = OF_MUON if variant.endswith("muon") else TOLERANCE
    assert found["weights"] <= tolerance
    assert found["validation"] <= tolerance
    assert (found["samples"], found["accuracy"]) == (360, pytest.approx(0.0, abs=1e-12))
    assert found["averaged"] == (variant in AVERAGED)


@pytest.mark.parametrize("variant", CASES)
def test_the_rates_told_are_the_rates_used(variant: str) -> None:
    found = found_for(variant)
    if variant.endswith("tuned"):  # whose groups of parameters have rates of their own
        expected = {rate * each for rate in found["rates_told"] for each in (1.0, FACTOR)}
        assert set(found["rates_used"]) == expected
    else:
        assert found["rates_used"] == found["rates_told"]
    assert len(found["rates_told"]) >= 11


@pytest.mark.parametrize("variant", CASES)
def test_a_checkpoint_continues_to_the_bit(variant: str) -> None:
    found = found_for(variant)
    assert found["resumed"] == 0.0
    assert found["resumed_validation"] == 0.0


def test_norms_of_shards_are_not_norms_of_tensors() -> None:
    """Why the plan refuses LARS and LAMB there, and that the gate would find it."""
    assert all(error > 100 * TOLERANCE for error in launched("deepspeed")["by shards"].values())
