"""A sweep's page in a real browser: all is drawn, every trace answers, filters and sorting work."""

from __future__ import annotations

import pytest

from raysuite.records import RunFailed
from raysuite.report import build
from tests.fake_sweeps import write_sweep
from tests.integration.test_report_browser import (
    SIZES,
    assert_all_drawn,
    assert_every_point_answers,
    browser,
    open_page,
    redrawn,
)

__all__ = ["browser"]  # the fixture

pytestmark = [pytest.mark.browser, pytest.mark.integration, pytest.mark.slow]

MEMORY = RunFailed(run_id="", reason="out_of_memory", message="<b>2 GiB</b> too much")

OUTSIDE = """(div) => {
  // Texts of a plot that reach beyond its left or right edge.
  const edge = div.getBoundingClientRect();
  return [...div.querySelectorAll("svg text")].filter((each) => {
    const box = each.getBoundingClientRect();
    return box.width && (box.left < edge.left - 1 || box.right > edge.right + 1);
  }).map((each) => each.textContent);
}"""


@pytest.fixture(scope="module")
def asha(tmp_path_factory):
    """Twelve trials under ASHA beside the same trials without it."""
    folder = tmp_path_factory.mktemp("asha")
    write_sweep(folder / "whole", scheduler="none")
    return build(write_sweep(folder / "asha"), against=str(folder / "whole"), pictures=False).folder


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    """Two goals, a trial that failed and one that was never started."""
    results = write_sweep(
        tmp_path_factory.mktemp("front"),
        scheduler="none",
        goals=("accuracy", "throughput"),
        fails={3: MEMORY},
        missing=[11],
    )
    return build(results, pictures=False).folder


@pytest.mark.parametrize(("width", "scheme"), SIZES)
@pytest.mark.parametrize("which", ["asha", pytest.param("front", marks=pytest.mark.thorough)])
def test_all_is_drawn_and_answers(browser, request, which, width, scheme):
    folder = request.getfixturevalue(which)
    page, complaints = open_page(browser, folder / "report.html", width, scheme)
    assert assert_all_drawn(page) == {"asha": 3, "front": 4}[which]
    assert_every_point_answers(page)
    for plot in page.query_selector_all(".plot"):
        assert plot.evaluate(OUTSIDE) == [], plot.get_attribute("id")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []


def test_states_and_values_filter_tables_and_plots(browser, asha):
    page, complaints = open_page(browser, asha / "report.html")
    lines = "#plot-learning-curves .role-mark.mark-line path"
    assert page.locator("#trials tbody tr:visible").count() == 12
    before = page.locator(lines).count()
    redrawn(page, lambda: page.fill("#search", "finished"))
    shown = page.locator("#trials tbody tr:visible")
    assert 0 < shown.count() < 12
    assert "stopped early" not in " ".join(shown.all_inner_texts())
    assert 0 < page.locator(lines).count() < before
    redrawn(page, lambda: page.fill("#search", "strategy=deepspeed"))
    texts = page.locator("#trials tbody tr:visible").all_inner_texts()
    assert texts
    assert all("deepspeed" in each for each in texts)
    assert complaints == []


def test_a_title_sorts_by_value(browser, asha):
    page, complaints = open_page(browser, asha / "report.html")
    page.click("#trials th button:has-text('lr')")
    cells = page.locator("#trials tbody tr td:nth-child(3)").all_inner_texts()
    rates = [float(cell) for cell in cells]
    assert rates == sorted(rates, reverse=True)
    assert complaints == []


def test_what_failed_is_told_as_text(browser, front):
    page, complaints = open_page(browser, front / "report.html")
    assert "out_of_memory: <b>2 GiB</b> too much" in page.inner_text("#failures")
    assert complaints == []
