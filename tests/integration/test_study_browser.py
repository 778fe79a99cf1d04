"""Figures of studies in a real browser: every panel is drawn, every hover answers."""

from __future__ import annotations

import pytest

from raysuite.report import build
from tests.fake_studies import ALL, write_study
from tests.integration.test_report_browser import (
    assert_all_drawn,
    assert_every_point_answers,
    browser,
    open_page,
    redrawn,
)

__all__ = ["browser"]  # the fixture

pytestmark = [pytest.mark.browser, pytest.mark.integration, pytest.mark.slow]

POINT = """(div) => {
  // Where the middle point of the first trace of rows is drawn, in pixels of the window.
  const place = div._fullData.findIndex((trace) => trace.meta && trace.meta.keys);
  const trace = div._fullData[place];
  const box = div.getBoundingClientRect();
  if (trace.type === "bar") {
    const bars = [...div.querySelectorAll(".barlayer .point path")];
    const boxes = bars.map((each) => each.getBoundingClientRect());
    const bar = boxes.find((each) => each.width * each.height > 9);
    return [bar.x + bar.width / 2, bar.y + bar.height / 2];
  }
  const point = div.calcdata[place][Math.floor(trace.x.length / 2)];
  const [x, y] = [trace.xaxis, trace.yaxis].map(
    (name) => div._fullLayout[name.replace(/^([xy])/, "$1axis")]);
  return [box.x + x._offset + x.c2p(point.x), box.y + y._offset + y.c2p(point.y)];
}"""


def hovered(page, plot) -> str:
    """What the hover at the plot's POINT says; empty if it says nothing for 10 s."""
    for _ in range(20):
        _, y = plot.evaluate(POINT)
        page.evaluate("(y) => scrollBy({top: y - innerHeight / 2, behavior: 'instant'})", y)
        x, y = plot.evaluate(POINT)
        page.mouse.move(x + 4, y + 2)
        page.mouse.move(x, y)
        page.wait_for_timeout(500)
        said = plot.evaluate("(div) => div.querySelector('.hoverlayer').textContent")
        if said.strip():
            return str(said)
    return ""


def assert_every_hover_answers(page) -> None:
    for plot in page.query_selector_all(".plot"):
        said = hovered(page, plot)
        name = plot.get_attribute("id")
        assert said, f"{name} says nothing"
        assert "undefined" not in said, name
        assert "%{" not in said, name


def test_every_point_answers_and_a_panel_that_the_filters_empty_goes(browser, tmp_path):
    report = build(write_study(tmp_path, "throughput"), pictures=False)
    page, complaints = open_page(browser, tmp_path / "report.html")
    assert assert_all_drawn(page) == len(report.plots)
    assert_every_point_answers(page)
    panels = page.locator("#plot-throughput-workers .cartesianlayer .subplot")
    assert panels.count() == 6
    redrawn(page, lambda: page.uncheck("input[name=loader][value=dali]"))
    assert panels.count() == 3
    assert "dali" not in page.inner_text("#plot-throughput-workers")
    assert "horovod" in page.inner_text("#plot-throughput-workers")
    assert complaints == []


@pytest.mark.thorough
@pytest.mark.parametrize("study", ALL)
@pytest.mark.parametrize("width", [1280, 400])
def test_every_figure_answers_the_mouse(browser, tmp_path, study, width):
    report = build(write_study(tmp_path, study, repeats=2), pictures=False)
    page, complaints = open_page(browser, tmp_path / "report.html", width)
    assert assert_all_drawn(page) == len(report.plots)
    for plot in report.plots:
        panels = plot.layout.get("meta", {}).get("panels", [""])
        assert page.locator(f"#plot-{plot.name} .cartesianlayer .subplot").count() == len(panels)
    assert_every_hover_answers(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []


def test_a_plot_by_itself_needs_no_network(browser, tmp_path):
    build(write_study(tmp_path, "schedules"))
    context = browser.new_context(offline=True)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda told: told.type == "error" and complaints.append(told.text))
    file = tmp_path / "plots" / "accuracy-batch.html"
    page.goto(file.as_uri())
    page.wait_for_selector("#accuracy-batch .main-svg")
    assert "exponential" in page.inner_text("#accuracy-batch")
    assert complaints == []
    (tmp_path / "plots" / "plotly.min.js").unlink()
    page.goto(file.as_uri())
    assert page.eval_on_selector("img", "(image) => image.naturalWidth") > 1000
