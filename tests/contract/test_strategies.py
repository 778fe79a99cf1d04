"""Every strategy, with every option, means what one process on the same global batch means.

One launch a framework and world size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysuite.records import Results, RunFinished
from tests.contract.launches import found_by
from tests.contract.strategy_worker import RECIPES
from tests.contract.variants import EXACT, FP32, LOSSY, VARIANTS
from tests.ranks import DEEPSPEED, ranks
from tests.require import require

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SIZES = (1, 2, 3, 4)
"""Ranks. Three divide neither a batch nor ZeRO's shards; four do, and reduce in more steps."""
TOLERANCE = 1e-5
CLOSE = {"bf16": 0.02, "fp16": 0.002}
"""Relative distance from one process in the same precision, after six steps: 16 bits round each
micro-batch's gradient by itself."""

CASES = [
    pytest.param(
        variant,
        size,
        marks=[] if size in each.ci else [pytest.mark.thorough],
        id=f"{variant}-{size}",
    )
    for size in SIZES
    for variant, each in VARIANTS.items()
    if each.fits(size)
]
EXACT_CASES, FP32_CASES, LOSSY_CASES = (
    [case for case in CASES if VARIANTS[str(case.values[0])].kind == kind]
    for kind in (EXACT, FP32, LOSSY)
)


def found_for(variant: str, size: int) -> dict[str, Any]:
    """What its launch has found: of all variants of a framework, those of CI or the others."""
    own = VARIANTS[variant]
    request = {
        name: (each.options, each.kind)
        for name, each in VARIANTS.items()
        if each.name == own.name and each.fits(size) and (size in each.ci) == (size in own.ci)
    }
    found: dict[str, Any] = found_by(own.name, size, "strategy_worker", request)[0][variant]
    return found


@pytest.mark.parametrize(("variant", "size"), [*EXACT_CASES, *FP32_CASES])
def test_equal_to_one_process(variant: str, size: int) -> None:
    found = found_for(variant, size)
    for recipe in RECIPES:
        assert found[recipe]["ranks_equal"], recipe
        assert found[recipe]["weights"] <= TOLERANCE, recipe
        assert found[recipe]["losses"] <= TOLERANCE, recipe


@pytest.mark.parametrize(("variant", "size"), EXACT_CASES)
def test_the_norm_of_gradients_is_that_of_one_process_and_changes_nothing(
    variant: str, size: int
) -> None:
    found = found_for(variant, size)
    assert found["accumulate"]["norms"] <= TOLERANCE
    assert found["clip"]["norms"] <= TOLERANCE
    assert found["fp16"]["norms"] <= CLOSE["fp16"], "unscaled"
    # from three ranks on the order of sums varies from engine to engine
    assert found["accumulate"]["measuring"] <= (1e-6 if size > 2 else 0.0)


@pytest.mark.parametrize(("variant", "size"), EXACT_CASES)
def test_16_bits_mean_the_same(variant: str, size: int) -> None:
    found = found_for(variant, size)
    for precision, bound in CLOSE.items():
        assert found[precision]["ranks_equal"], precision
        assert found[precision]["weights"] <= bound, precision
        assert found[precision]["losses"] <= bound, precision


@pytest.mark.parametrize(("variant", "size"), EXACT_CASES)
def test_an_overflow_is_skipped_by_all(variant: str, size: int) -> None:
    assert found_for(variant, size)["overflow"] == dict.fromkeys(
        ("skipped", "halved", "goes_on", "ranks_equal"), True
    )


@pytest.mark.parametrize(("variant", "size"), EXACT_CASES)
def test_a_step_that_is_not_finite_leaves_no_finite_weight(variant: str, size: int) -> None:
    assert found_for(variant, size)["diverged"] == [[False] * 3] * 2


@pytest.mark.parametrize(("variant", "size"), EXACT_CASES)
def test_a_checkpoint_continues_to_the_bit(variant: str, size: int) -> None:
    found = found_for(variant, size)
    rounding = 1e-6 if size > 2 and VARIANTS[variant].regroups else 0.0
    assert found["resumed_fp16"] <= rounding, "each rank has a folder of its own"
    assert found["resumed"] <= rounding, "all ranks share a folder"
    assert found["changed"] <= rounding, "with settings of its own"


@pytest.mark.parametrize(("variant", "size"), FP32_CASES)
def test_a_checkpoint_of_another_framework_continues(variant: str, size: int) -> None:
    found = found_for(variant, size)
    assert found["resumed"] <= 1e-6
    assert found["changed"] <= 1e-6


@pytest.mark.parametrize(("variant", "size"), [*EXACT_CASES, *FP32_CASES])
def test_running_statistics_are_averaged(variant: str, size: int) -> None:
    assert found_for(variant, size)["buffers"]


@pytest.mark.parametrize(("variant", "size"), [*EXACT_CASES, *FP32_CASES])
def test_the_comm_reduces_every_kind_of_tensor(variant: str, size: int) -> None:
    assert found_for(variant, size)["comm"] == []


@pytest.mark.parametrize(("variant", "size"), EXACT_CASES)
def test_ranks_are_connected_when_they_exchange(variant: str, size: int) -> None:
    at_start, used = found_for(variant, size)["transports"]
    assert used == (["TCP, this host"] if size > 1 else [])
    if variant.startswith(("ddp", "deepspeed")):
        assert at_start == []


@pytest.mark.parametrize(("variant", "size"), CASES)
def test_nothing_of_an_engine_is_left_after_its_end(variant: str, size: int) -> None:
    assert found_for(variant, size)["left"] == []


@pytest.mark.parametrize(("variant", "size"), LOSSY_CASES)
def test_lossy_options_leave_ranks_equal(variant: str, size: int) -> None:
    found = found_for(variant, size)
    assert all(found[recipe]["ranks_equal"] for recipe in RECIPES)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_runs_of_zero_3_in_the_same_processes_leave_no_memory(tmp_path: Path) -> None:
    require("deepspeed")
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "name: again\nmodel: resnet20\ndata: digits\n"
        "strategy: {name: deepspeed, zero_stage: 3}\nrepeats: 6\n"
        "training: {epochs: 1, global_batch: 240}\nresources: {workers: 2, device: cpu}\n"
    )
    ranks(2, "raysuite.train", spec, "--results", tmp_path / "results", loaded=DEEPSPEED)
    results = Results.open(tmp_path / "results")
    ends = [results.end_of(plan["run_id"]) for plan in results.plans()]
    held = [end.start_process_bytes for end in ends if isinstance(end, RunFinished)]
    assert len(held) == 6
    for first, fifth in zip(held[1], held[5], strict=True):  # what is held after each
        assert fifth <= 1.05 * first, held
