"""Every task is trained by several ranks as by a plain loop, under every strategy that takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.launches import found_by
from tests.contract.variants import PIPELINES, VARIANTS
from tests.task_sets import CASES

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EVERY = ("language_model", *CASES)
OPTIONS = {
    variant: each.options
    for variant, each in VARIANTS.items()
    if each.plain and each.refused is not None and each.fits(2)
}
TOLERANCE = 1e-5
CI = ("ddp", 2)
CI_CASES = ("language_model", "own")


def found(variant: str, workers: int) -> list[dict[str, Any]]:
    """Of each rank: every case, with and without accumulation; or, in CI, two of them, and the
    seeded defects of DDP."""
    framework = OPTIONS[variant]["name"]
    if (variant, workers) == CI:
        runs = {f"{case} {variant} 2": (case, OPTIONS[variant], 2) for case in CI_CASES}
        return found_by(framework, workers, "task_worker", {"runs": runs, "defects": True}, 600)
    runs = {
        f"{case} {each} {accumulate}": (case, OPTIONS[each], accumulate)
        for each in OPTIONS
        if OPTIONS[each]["name"] == framework
        for case in EVERY
        for accumulate in (1, 2)
    }
    return found_by(framework, workers, "task_worker", {"runs": runs}, timeout_s=1200)


def check(variant: str, workers: int, case: str, accumulate: int) -> None:
    label = f"{case} {variant} {accumulate}"
    first, *others = (each[label] for each in found(variant, workers))
    assert first["passed"], first
    assert first["network"] == "equal to one process"
    assert first["steps"] >= 20
    assert first["losses"] < TOLERANCE
    assert first["weights"] < TOLERANCE
    assert first["metrics"] < 1e-6
    for other in others:
        assert (other["val"], other["images"]) == (first["val"], first["images"])


@pytest.mark.parametrize("case", CI_CASES)
def test_two_ranks_of_ddp_train_a_task_as_a_plain_loop_does(case: str) -> None:
    check(*CI, case, 2)


@pytest.mark.thorough
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("case", EVERY)
@pytest.mark.parametrize(
    ("variant", "workers"), [(v, n) for v in OPTIONS for n in (1, 2, 3) if (v, n) != CI]
)
def test_ranks_train_a_task_as_a_plain_loop_does(
    variant: str, workers: int, case: str, accumulate: int
) -> None:
    check(variant, workers, case, accumulate)


@pytest.mark.thorough
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3)])
@pytest.mark.parametrize("variant", ["ddp", "fsdp", "horovod"])
def test_a_run_that_stopped_in_an_epoch_is_resumed_by_another_number_of_ranks(
    variant: str, before: int, after: int, tmp_path: Path
) -> None:
    """Not of DeepSpeed: as many ranks read its shards as wrote them."""
    framework = OPTIONS[variant]["name"]
    runs = {case: (case, OPTIONS[variant], str(tmp_path / case)) for case in CI_CASES}
    ended = found_by(framework, before, "task_worker", {"runs": {}, "stopped": runs}, 600)
    resumed, *_ = found_by(framework, after, "task_worker", {"runs": {}, "resumed": runs}, 600)
    for case in CI_CASES:
        assert 0 < ended[0][case]["step"] < 4
        assert resumed[case]["steps"] >= 20
        for name, most in (("losses", TOLERANCE), ("weights", TOLERANCE), ("metrics", 1e-6)):
            assert resumed[case][name] < most, (case, name)


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", PIPELINES)
def test_stages_of_a_gpt_train_as_a_plain_loop_does(schedule: str) -> None:
    case = "language_model-untied"
    runs = {name: (case, strategy, 1) for name, strategy in PIPELINES.items()}
    first, *_ = (each[schedule] for each in found_by("pipeline", 2, "task_worker", {"runs": runs}))
    assert first["passed"], first
    assert first["network"] == "equal to one process"
    assert first["losses"] < TOLERANCE
    assert first["weights"] < TOLERANCE


@pytest.mark.parametrize("defect", ["loss", "take_step"])
def test_the_gate_refuses_a_seeded_defect(defect: str) -> None:
    for rank in found("ddp", 2):
        assert not rank[defect]["passed"]
        assert "is not trained as in one process" in rank[defect]["failed"][0]
