"""The page in a real browser, from a file, with the network off."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raysuite.records import RunFailed
from raysuite.records.confusion import class_figures
from raysuite.report import build
from raysuite.report.loader_page import build as write_loaders
from tests.fake_loading import fake_bench
from tests.fake_results import TWELVE_ROWS, write_results
from tests.fake_sweeps import write_sweep
from tests.require import chromium, give_up, require

pytestmark = [pytest.mark.browser, pytest.mark.integration, pytest.mark.slow]

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CAUGHT = RunFailed(run_id="", reason="gate", message="the ranks disagree")
LOST = RunFailed(run_id="", reason="lost", message="worker <b>1</b> died")
DEMO = TWELVE_ROWS.replace("resources.workers: [1, 2]\n  ", "").replace(
    "{device: cpu}", "{device: cpu, workers: 2}"
)
LARGEST_PAGE = 1_500_000
"""Bytes."""
MANY = TWELVE_ROWS.replace("[1, 2]", "[1, 2, 4, 8]").replace(
    "  loader: [native, dali]",
    "  loader: [native, dali]\n  training.global_batch: [64, 128, 256]\n  optimizer.lr: [0.1, 0.2]",
)


MARKS = ".role-mark.mark-symbol path, .role-mark.mark-rect path, .role-mark.mark-line path"
SILENT = """(div, marks) => {
  // Points and bars that a pointer tells nothing of, or nothing that a person can read.
  const points = [...div.querySelectorAll(marks)].filter((each) => !each.closest(".mark-line"));
  const lines = [...div.querySelectorAll(marks)].filter((each) => each.__data__.tooltip);
  if (!points.length && !lines.length) return ["the whole plot"];
  return points.map((each) => String(each.__data__.tooltip)).filter(
    (said) => !said.trim() || /undefined|null|NaN/.test(said));
}"""
MIDDLE = """(div, marks) => {
  // A point or bar, or else a line, in the middle of a plot.
  const told = [...div.querySelectorAll(marks)].filter((each) => each.__data__.tooltip
    && each.getBoundingClientRect().width);
  const points = told.filter((each) => !each.closest(".mark-line"));
  return (points.length ? points : told)[Math.floor((points.length || told.length) / 2)];
}"""


CUT = """() => [...document.querySelectorAll(".plot svg text")].filter((text) => {
  const [own, drawing] = [text, text.closest("svg")].map((each) => each.getBoundingClientRect());
  return own.width && (own.left < drawing.left - 1 || own.right > drawing.right + 1);
}).map((text) => text.textContent)"""
"""Texts that reach beyond their drawing, where a browser does not show them."""
TALLEST_ROW = """(() => {
  document.querySelectorAll("details").forEach((each) => { each.open = true; });
  const rows = [...document.querySelectorAll("tr")];
  return Math.max(...rows.map((row) => row.getBoundingClientRect().height));
})()"""
"""In pixels."""


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    require("browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield started
        started.close()


def open_page(browser, file, width=1280, scheme="light"):
    """The page, drawn to the end, and all that its console complained of."""
    context = browser.new_context(
        offline=True,
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        reduced_motion="reduce",  # or the page still scrolls as the pointer is placed
    )
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: message.type in ("error", "warning") and complaints.append(message.text),
    )
    page.on(
        "request", lambda request: request.url.startswith("http") and complaints.append(request.url)
    )
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    return page, complaints


def redrawn(page, act: Callable[[], None]) -> None:
    """Do what has plots drawn anew, and wait until they are: the page begins with it later."""
    page.evaluate("delete document.documentElement.dataset.drawn")
    act()
    page.wait_for_selector("html[data-drawn]", timeout=60_000)


def assert_all_drawn(page) -> int:
    plots = page.query_selector_all(".plot")
    for plot in plots:
        marks = plot.query_selector_all(MARKS)
        assert [mark for mark in marks if mark.bounding_box()], plot.get_attribute("id")
    return len(plots)


def assert_every_point_answers(page) -> None:
    for plot in page.query_selector_all(".plot"):
        assert plot.evaluate(SILENT, MARKS) == [], plot.get_attribute("id")


def hovered(page, plot) -> str:
    """What the pointer at a mark of the plot shows; of a line, at one of its points: another line
    may cover it there."""
    from playwright.sync_api import TimeoutError as Waited

    mark = plot.evaluate_handle(MIDDLE, MARKS).as_element()
    mark.scroll_into_view_if_needed()
    if mark.evaluate("(mark) => Boolean(mark.closest('.mark-line'))"):
        places = mark.evaluate(
            """(line) => {
              // Vega shows a line's tooltip at its points only, not between them.
              const points = line.__data__.mark.items;
              return [4, 2, 6, 1, 3, 5, 7].map((eighth) => {
                const point = points[Math.floor(points.length * eighth / 8)];
                const at = new DOMPoint(point.x, point.y).matrixTransform(line.getScreenCTM());
                return [at.x, at.y];
              });
            }"""
        )
    else:
        box = mark.bounding_box()
        places = [[box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]]
    shown = page.locator("#vg-tooltip-element.visible")
    for place in places:
        page.mouse.move(place[0] + 40, place[1] + 40)
        page.mouse.move(*place)
        with contextlib.suppress(Waited):
            shown.wait_for(timeout=10_000 / len(places))
            break
    return str(shown.inner_text(timeout=100))


SIZES = [
    pytest.param(1280, "light", id="wide"),
    pytest.param(1280, "dark", id="dark", marks=pytest.mark.thorough),
    pytest.param(390, "light", id="narrow", marks=pytest.mark.thorough),
]
"""Widths and colour schemes of a window."""


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_every_plot_is_drawn_without_a_network(browser, tmp_path, width, scheme):
    classes = class_figures(["a", "b"], [[1, 0], [1, 1]])
    build(write_results(tmp_path, repeats=2, classes=classes), pictures=False)
    page, complaints = open_page(browser, tmp_path / "report.html", width, scheme)
    assert assert_all_drawn(page) == 13
    squares = page.query_selector_all("#plot-confusion .role-mark.mark-rect path")
    assert len({square.get_attribute("fill") for square in squares}) == 3  # shares 0, 1/2 and 1
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(TALLEST_ROW) < 150
    assert_every_point_answers(page)


def test_long_names_and_messages_are_whole_on_a_phone(browser, tmp_path):
    spec = DEMO.replace("workers: 2", "workers: 1").replace(
        "  loader:",
        "  resources.workers: [1, 2, 4]\n  optimizer.lr_reference_batch: [64]\n  loader:",
    )
    spec = spec.replace("[ddp,", "[{name: deepspeed, zero_stage: 3, offload: optimizer},")
    long = RunFailed(run_id="", reason="error", message="no " + "x" * 200)
    build(write_results(tmp_path, spec=spec, fails={0: long}), pictures=False)
    page, complaints = open_page(browser, tmp_path / "report.html", 360)
    assert page.evaluate(CUT) == complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_logarithmic_axis_and_a_pointer(browser, tmp_path):
    build(write_results(tmp_path, repeats=2), pictures=False)
    page, complaints = open_page(browser, tmp_path / "report.html")
    labels = "[...document.querySelectorAll('#plot-loss .role-axis-label text')]"
    text = f"{labels}.map((label) => label.textContent).join()"
    before = page.evaluate(text)
    page.check("[data-log=loss]")
    page.wait_for_function(f"(before) => {text} !== before", arg=before)
    for name in ("throughput", "epoch-time", "loss"):
        assert hovered(page, page.query_selector(f"#plot-{name}")).strip()
    assert complaints == []


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of npm's axe-core, from a folder of its own, or from the file RAYSUITE_AXE."""
    if given := os.environ.get("RAYSUITE_AXE"):
        return Path(given).read_text("utf-8")
    require("npm")
    folder = tmp_path_factory.mktemp("axe")
    words = ["npm", "install", "--prefix", str(folder), "--ignore-scripts", "--no-save", "axe-core"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        give_up("npm")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


@pytest.mark.thorough
def test_axe_finds_no_violation(browser, axe, tmp_path):
    build(write_results(tmp_path / "suite", repeats=2), pictures=False)
    build(write_results(tmp_path / "demo", DEMO, repeats=3), pictures=False)
    build(write_sweep(tmp_path / "sweep"), against=str(tmp_path / "sweep"), pictures=False)
    write_loaders(fake_bench({"native · 1 thread": ([480, 490, 470], 1.0)}), tmp_path)
    for file in ("suite/report.html", "demo/report.html", "sweep/report.html", "loaders.html"):
        assert (tmp_path / file).stat().st_size <= LARGEST_PAGE
        for width, scheme in ((1280, "light"), (390, "dark")):
            page, _ = open_page(browser, tmp_path / file, width, scheme)
            page.evaluate(axe)
            found = page.evaluate("axe.run()")["violations"]
            assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


def test_partial_results(browser, tmp_path):
    build(write_results(tmp_path, fails={0: LOST, 4: CAUGHT}, missing=[10, 11]), pictures=False)
    page, complaints = open_page(browser, tmp_path / "report.html")
    assert_all_drawn(page)
    assert complaints == []
    assert "worker <b>1</b> died" in page.inner_text("#failures")


@pytest.mark.thorough
def test_nothing_to_draw(browser, tmp_path):
    build(write_results(tmp_path, missing=range(12)), pictures=False)
    page, complaints = open_page(browser, tmp_path / "report.html")
    assert complaints == []
    assert "No run has anything to draw so far." in page.inner_text("#plots")


def test_search_and_sorting(browser, tmp_path):
    build(write_results(tmp_path), pictures=False)
    page, complaints = open_page(browser, tmp_path / "report.html")
    redrawn(page, lambda: page.fill("#search", "native"))
    assert page.locator(".rows tbody tr:visible").count() == 6
    assert "dali" not in page.inner_text("#plot-throughput")
    redrawn(page, lambda: page.fill("#search", "dali 2"))
    assert page.locator(".rows tbody tr:visible").count() == 3
    redrawn(page, lambda: page.fill("#search", ""))
    page.click("th button:has-text('Images/s')")
    top = page.locator(".rows tbody tr:visible").first
    assert "ddp" in top.inner_text()
    assert "dali" in top.inner_text()
    assert complaints == []


@pytest.mark.thorough
def test_some_hundred_runs(browser, tmp_path):
    build(write_results(tmp_path, spec=MANY), pictures=False)
    page, complaints = open_page(browser, tmp_path / "report.html")
    assert assert_all_drawn(page) == 14
    assert complaints == []
    assert page.locator(".rows tbody tr").count() == 144
