"""The page of `raysuite bench loaders` in a real browser, from a file, with the network off."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.report.loader_page import build
from tests.fake_loading import fake_bench
from tests.integration.test_report_browser import browser, open_page

__all__ = ["browser"]  # the fixture

pytestmark = [pytest.mark.browser, pytest.mark.integration, pytest.mark.slow]

FIGURES = {
    "native · 1 thread": ([480, 490, 470], 1.0),
    "native · 2 threads": ([900, 905, 895], 2.0),
    "decoding alone · 1 thread": ([500, 505, 495], 1.0),
    "decoding alone · 2 threads": ([1000, 1010, 990], 2.0),
}


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.thorough)])
def test_it_is_drawn_without_a_complaint(browser, tmp_path: Path, width: int) -> None:
    build(fake_bench(FIGURES, failures={"dali cpu · 2 threads": "<b>no</b> DALI"}), tmp_path)
    page, complaints = open_page(browser, tmp_path / "loaders.html", width)
    bars = page.query_selector_all("#plot-loaders .role-mark.mark-rect path")
    assert len([bar for bar in bars if bar.bounding_box()]) == 4
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "<b>no</b> DALI" in page.inner_text("#table")
    assert complaints == []
