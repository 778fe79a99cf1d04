"""Published efficiencies at a number of workers, from figures that are known."""

from __future__ import annotations

import pytest

from raysuite.perf.scaling import Point
from raysuite.plan import scale_out
from raysuite.plan.scale_out import aach2023, reached
from raysuite.report.against import published

FAR = [Point(16, 4, 1120.0), Point(1, 1, 100.0), Point(4, 1, 360.0)]
"""Efficiencies of 1, 0.9 and 0.7."""
NEAR = [Point(2, 1, 50.0), Point(4, 1, 40.0)]
"""Efficiencies of 1 and 0.4."""


@pytest.mark.parametrize(
    ("workers", "lowest", "highest"),
    [
        (1, (1.0, "far", 1), (1.0, "near", 1)),
        (4, (0.4, "near", 4), (0.9, "far", 4)),
        (8, (0.4, "near", 4), (0.8, "far", 8)),  # halfway from 4 to 16 on the logarithm
        (99, (0.4, "near", 4), (0.7, "far", 16)),
    ],
)
def test_efficiencies_are_interpolated_up_to_the_largest_published_number(
    workers: int,
    lowest: tuple[float, str, int],
    highest: tuple[float, str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scale_out, "aach2023", lambda: {"far": FAR})
    monkeypatch.setattr(scale_out, "others", lambda: {"near": NEAR})
    for found, wanted in zip(reached(workers), (lowest, highest), strict=True):
        assert tuple(found) == (pytest.approx(wanted[0]), *wanted[1:])


def test_the_highest_efficiency_is_of_systems_as_large_as_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = [Point(1, 1, 10.0), Point(2, 1, 19.9)]
    monkeypatch.setattr(scale_out, "aach2023", lambda: {"far": FAR, "small": small})
    monkeypatch.setattr(scale_out, "others", dict)
    least, most = reached(16)
    assert (least.system, most.system, most.workers) == ("far", "far", 16)


def test_throughputs_of_a_paper_follow_from_its_shares_of_computation() -> None:
    (share, *_) = (
        each
        for each in published("aach2023").values
        if each.quantity == "share_computation" and each.workers and each.value
    )
    found = aach2023()[f"{share.model} · {share.loader} · Aach et al. 2023"]
    (point,) = (each for each in found if each.workers == share.workers)
    assert point.throughput == pytest.approx(share.workers * share.value * 100)
    assert point.nodes == share.workers // 4
