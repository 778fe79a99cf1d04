"""Quantities of the cost models, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from raysuite.perf.costs import Work, epoch_terms
from tests.fake_calibration import NAME, plans

WORK = Work(parameters=270_000, gradient_bytes=1_080_000, forward_flops=10_000_000)
STEPS = 23  # of 64 images, for 1,437


def terms(strategy: dict[str, Any], workers: int, accumulate: int = 1) -> dict[str, float]:
    """By the names of costs, of an epoch in steps of 64 images."""
    plan = plans("[[64, 1]]")[0]
    micro = 64 // workers // accumulate
    counts = {"workers": workers, "micro_batch": micro, "accumulate": accumulate}
    plan = {**plan, **counts, "spec": {**plan["spec"], "strategy": strategy}}
    return epoch_terms(plan, WORK, workers_per_node=2)


def test_an_epoch_of_four_workers_by_hand() -> None:
    found = terms({"name": "ddp"}, workers=4, accumulate=2)
    assert found == pytest.approx(
        {
            f"image/{NAME}": 1437 / 4,
            f"pass/{NAME}": STEPS * 2,
            f"update/{NAME}": STEPS,
            "load/native": 1437 / 4,
            "epoch/all": 1,
            f"neighbour/{NAME}": 1437 / 4 * 1 / 2,  # of two workers of a node
            "step/ddp": STEPS,
            "copy/ddp": STEPS * 270_000 * 4,
            "hook/ddp": STEPS * 2,
            "beside/ddp": 1437 / 4 * 10_000_000,
            "message/ddp": STEPS * 2 * 3,  # one buffer holds all
            "byte/ddp": STEPS * 2 * 3 / 4 * 1_080_000,
        }
    )


@pytest.mark.parametrize(
    ("strategy", "accumulate", "sent", "buffers"),
    [
        ({"name": "ddp", "bucket_mb": 0.5}, 2, 1_080_000, 3),  # of 524,288 bytes
        ({"name": "ddp", "bucket_mb": 0.5, "compression": "fp16"}, 1, 540_000, 2),
        ({"name": "horovod", "fusion_threshold_mb": 0.25}, 1, 1_080_000, 5),
        ({"name": "deepspeed", "zero_stage": 1, "bucket_mb": 0.5}, 2, 1_080_000 * 1.5, 5),
        ({"name": "deepspeed", "zero_stage": 2, "bucket_mb": 0.5}, 2, 1_080_000 * 2.5, 7),
    ],
)
def test_messages_are_of_all_that_is_reduced_and_gathered(
    strategy: dict[str, Any], accumulate: int, sent: float, buffers: int
) -> None:
    """Two workers send what is all-reduced, and half of what is gathered (ZeRO's weights)."""
    found = {name.partition("/")[0]: each for name, each in terms(strategy, 2, accumulate).items()}
    assert found["byte"] == pytest.approx(STEPS * sent)
    assert found["message"] == STEPS * 2 * buffers
