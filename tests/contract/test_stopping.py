"""Under every strategy, two ranks stop after the same step and go on as if they had not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.launches import found_by
from tests.contract.stopping_worker import STOP_AFTER

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RANKS = 2
REBUILT = ("tensorflow", "keras", "jax")
VARIANTS: dict[str, dict[str, Any]] = {
    "ddp": {"name": "ddp"},
    "horovod": {"name": "horovod"},
    **{f"deepspeed-{n}": {"name": "deepspeed", "zero_stage": n} for n in (0, 1, 2, 3)},
    **{
        schedule: {"name": "pipeline", "schedule": schedule, "micro_batches": 2}
        for schedule in ("gpipe", "1f1b")
    },
    **{name: {"name": name} for name in ("fsdp", "fabric", "accelerate", *REBUILT)},
}
ROUNDING = {"horovod": 1e-6, "deepspeed": 1e-6}
"""Relative distance from a run left alone; 0 of the others."""
IN_CI = ("ddp", "horovod", "deepspeed-1", "deepspeed-3")
CASES = [
    pytest.param(name, marks=[] if name in IN_CI else [pytest.mark.thorough]) for name in VARIANTS
]


def found_for(variant: str) -> list[dict[str, Any]]:
    framework = VARIANTS[variant]["name"]
    request = {
        name: value
        for name, value in VARIANTS.items()
        if value["name"] == framework and (name in IN_CI) == (variant in IN_CI)
    }
    return [found[variant] for found in found_by(framework, RANKS, "stopping_worker", request)]


@pytest.mark.parametrize("variant", CASES)
def test_all_ranks_stop_after_the_same_step(variant: str) -> None:
    assert [each["stop"] for each in found_for(variant)] == [["preempted", 7.0, STOP_AFTER]] * RANKS


@pytest.mark.parametrize("variant", CASES)
def test_training_goes_on_as_if_left_alone(variant: str) -> None:
    for found in found_for(variant):
        if variant in REBUILT:  # go on with rank 0's statistics, which only the validation uses
            del found["distances"]["validation"]
        for name, distance in found["distances"].items():
            assert distance <= ROUNDING.get(VARIANTS[variant]["name"], 0.0), name
        assert (found["attempts"], found["waits"]) == (2, RANKS)


@pytest.mark.parametrize("variant", CASES)
def test_no_code_of_a_checkpoint_is_run(variant: str) -> None:
    """Each file of it in turn, put there by somebody else."""
    kinds = {"deepspeed-1": 4, "deepspeed-2": 4, **dict.fromkeys(REBUILT, 2)}
    for found in found_for(variant):
        assert len(found["refused"]) == kinds.get(variant, 3)
        assert set(found["refused"].values()) == {"RunError"}, found["refused"]
