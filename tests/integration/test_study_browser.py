"""Figures of studies in a real browser: every panel is drawn, every hover answers."""

from __future__ import annotations

import pytest

from raysuite.report import build
from tests.fake_studies import ALL, write_study
from tests.integration.test_report_browser import (
    assert_all_drawn,
    assert_every_point_answers,
    browser,
    hovered,
    open_page,
    redrawn,
)

__all__ = ["browser"]  # the fixture

pytestmark = [pytest.mark.browser, pytest.mark.integration, pytest.mark.slow]


def test_every_point_answers_and_a_panel_that_the_filters_empty_goes(browser, tmp_path):
    report = build(write_study(tmp_path, "throughput"), pictures=False)
    page, complaints = open_page(browser, tmp_path / "report.html")
    assert assert_all_drawn(page) == len(report.plots)
    assert_every_point_answers(page)
    panels = page.locator("#plot-throughput .mark-group.role-scope.cell > g")
    assert panels.count() == 6
    redrawn(page, lambda: page.fill("#search", "native"))
    assert panels.count() == 3
    assert "dali" not in page.inner_text("#plot-throughput")
    assert "horovod" in page.inner_text("#plot-throughput")
    assert complaints == []


@pytest.mark.thorough
@pytest.mark.parametrize("study", ALL)
@pytest.mark.parametrize("width", [1280, 400])
def test_every_figure_answers_the_mouse(browser, tmp_path, study, width):
    report = build(write_study(tmp_path, study, repeats=2), pictures=False)
    page, complaints = open_page(browser, tmp_path / "report.html", width)
    assert assert_all_drawn(page) == len(report.plots)
    for plot in page.query_selector_all(".plot"):
        assert hovered(page, plot).strip(), plot.get_attribute("id")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
