"""The page's sections of a comparison and of provenance, in a real browser."""

from __future__ import annotations

import pytest

from raysuite.report import build
from tests.fake_results import TWELVE_ROWS, write_results
from tests.integration.test_report_browser import browser, open_page

__all__ = ["browser"]  # the fixture

pytestmark = [pytest.mark.browser, pytest.mark.integration, pytest.mark.slow]

AACH = (
    TWELVE_ROWS.replace("model: resnet20", "model: resnet50")
    .replace("data: digits", "data: imagenet")
    .replace("[1, 2]", "[4, 1024]")
    .replace("global_batch: 64", "batch_per_worker: 64")
    .replace("epochs: 6", "epochs: 1")
)


@pytest.mark.parametrize("width", [1280, pytest.param(400, marks=pytest.mark.thorough)])
def test_a_study_beside_a_paper(browser, tmp_path, width):
    results = write_results(tmp_path, AACH, elsewhere=True)
    build(results, against="published:aach2023", pictures=False)
    page, complaints = open_page(browser, tmp_path / "report.html", width)
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("nav a[href='#against']")
    shown = page.inner_text("#against")
    assert "0.76" in shown
    assert "0.91" in shown
    assert page.locator("#sheet-against tbody tr:visible").count() > 12
    page.click("#provenance summary >> nth=0")
    assert page.locator("#sheet-provenance tbody tr:visible").count() == 2 + 12
