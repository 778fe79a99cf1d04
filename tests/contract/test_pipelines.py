"""A pipeline is one process that accumulates over the same micro-batches, whatever its schedule."""

from __future__ import annotations

import pytest

from tests.contract.launches import found_by
from tests.contract.pipeline_worker import FLAWS, FLAWS_OF_COPIES

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCHEDULES = ("model_parallel", "gpipe", "1f1b")
NETWORKS = ("resnet20", "vgg11", "mobilenet_v2")
TOLERANCE = 1e-5
SHAPES = [
    pytest.param((2, 2), id="2 stages"),
    pytest.param((4, 4), id="4 stages", marks=pytest.mark.thorough),
    pytest.param((2, 4), id="2 stages x 2 copies", marks=pytest.mark.thorough),
]


def found(shape: tuple[int, int], key: str) -> list[dict[str, float]]:
    stages, workers = shape
    request = {"stages": stages, "schedules": SCHEDULES, "networks": NETWORKS}
    return [each[key] for each in found_by("pipeline", workers, "pipeline_worker", request)]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_equal_to_one_process(shape: tuple[int, int], schedule: str, network: str) -> None:
    ranks = found(shape, f"{schedule} {network}")
    for each in ranks:
        assert max(each[key] for key in ("state", "logits", "losses")) <= TOLERANCE, each
        assert each["resumed"] == 0.0
        assert each["resumed alone"] <= TOLERANCE
    stages, copies = shape[0], shape[1] // shape[0]
    assert sum(each["own parameters"] for each in ranks) == copies * ranks[0]["parameters"]
    assert max(each["own parameters"] for each in ranks[:stages]) < ranks[0]["parameters"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_gate_passes_it_and_refuses_every_defect(shape: tuple[int, int], schedule: str) -> None:
    flaws = [*FLAWS, *(FLAWS_OF_COPIES if shape[1] > shape[0] else ())]
    for each in found(shape, f"{schedule} gate"):
        # with copies the running statistics are each copy's own, and the gate does not compare them
        passes = {"none"} if shape[1] == shape[0] else {"none", "BatchNorm frozen"}
        assert each == {flaw: flaw in passes for flaw in flaws}
