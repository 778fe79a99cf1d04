"""Under every strategy, two ranks stop after the same step and go on as if they had not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.launches import found_by
from tests.contract.stopping_worker import STOP_AFTER
from tests.contract.variants import FP32, PIPELINES, VARIANTS, Variant

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RANKS = 2
STOPPED = {
    **{name: each for name, each in VARIANTS.items() if each.plain and each.fits(RANKS)},
    **{schedule: Variant(PIPELINES[schedule]) for schedule in ("gpipe", "1f1b")},
}
IN_CI = ("ddp", "horovod", "deepspeed-1", "deepspeed-3")
CASES = [
    pytest.param(name, marks=[] if name in IN_CI else [pytest.mark.thorough]) for name in STOPPED
]


def found_for(variant: str) -> list[dict[str, Any]]:
    framework = STOPPED[variant].name
    request = {
        name: each.options
        for name, each in STOPPED.items()
        if each.name == framework and (name in IN_CI) == (variant in IN_CI)
    }
    return [found[variant] for found in found_by(framework, RANKS, "stopping_worker", request)]


@pytest.mark.parametrize("variant", CASES)
def test_all_ranks_stop_after_the_same_step(variant: str) -> None:
    assert [each["stop"] for each in found_for(variant)] == [["preempted", 7.0, STOP_AFTER]] * RANKS


@pytest.mark.parametrize("variant", CASES)
def test_training_goes_on_as_if_left_alone(variant: str) -> None:
    for found in found_for(variant):
        if STOPPED[variant].kind == FP32:  # these resume with rank 0's statistics for validation
            del found["distances"]["validation"]
        for name, distance in found["distances"].items():
            assert distance <= STOPPED[variant].rounding, name
        assert (found["attempts"], found["waits"]) == (2, RANKS)


@pytest.mark.parametrize("variant", CASES)
def test_no_code_of_a_checkpoint_is_run(variant: str) -> None:
    """Each file of it in turn, put there by somebody else."""
    for found in found_for(variant):
        assert len(found["refused"]) == STOPPED[variant].saved
        assert set(found["refused"].values()) == {"RunError"}, found["refused"]
