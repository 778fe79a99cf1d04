"""A sweep and a suite in MLflow's own pages, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raysuite.cli.console import print_text
from raysuite.orchestrate.tracking import Tracking
from raysuite.records import Results
from raysuite.records.sweep import trials
from raysuite.track import sync
from tests.fake_results import write_results
from tests.fake_sweeps import write_sweep
from tests.integration.test_mlflow_outage import Server
from tests.integration.test_report_browser import ARGUMENTS
from tests.marks import SLOW_MARKS
from tests.require import chromium, require

pytestmark = [*SLOW_MARKS, pytest.mark.thorough, pytest.mark.browser, pytest.mark.timeout(900)]

PATIENCE_MS = 240_000
SUITE_COLUMNS = ("run/images_per_second", "run/speed_up", "strategy.name", "plan.workers")


@pytest.fixture(scope="module")
def server(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    require("browser")
    made = Server(tmp_path_factory.mktemp("server"), empty_store)
    made.start()
    yield made
    made.kill()


@pytest.fixture(scope="module")
def swept(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Twelve made-up trials."""
    results = write_sweep(tmp_path_factory.mktemp("swept") / "a-sweep")
    summary = sync(results, server.uri)
    assert summary.ok, summary
    return results


@pytest.fixture(scope="module")
def page(swept: Results) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        opened = browser.new_context(viewport={"width": 1700, "height": 1000}).new_page()
        opened.set_default_timeout(PATIENCE_MS)
        yield opened
        browser.close()


def test_the_sweep_links_to_its_trials_in_columns(
    page: Any, server: Server, swept: Results
) -> None:
    [(sweep, experiment)] = server.query(
        "select run_uuid, experiment_id from runs join tags using (run_uuid) "
        "where tags.key = 'raysuite.kind' and tags.value = 'sweep'"
    )
    page.goto(f"{server.uri}/#/experiments/{experiment}/runs/{sweep}")
    link = page.get_by_text("Table of the trials with searched keys").first
    page.goto(f"{server.uri}/{link.get_attribute('href')}")
    for column in ("goal/accuracy", "optimizer.lr", "optimizer.momentum", "strategy"):
        page.locator(".ag-header-cell").get_by_text(column, exact=True).first.wait_for()
    best = max(trials(swept), key=lambda trial: trial.goals["accuracy"] or 0)
    names = page.locator(".ag-row[row-index='0']")
    names.get_by_text(f"trial {best.number}", exact=True).first.wait_for()
    page.screenshot(path=server.folder / "columns.png")


@pytest.mark.parametrize("kind", ["suite", "sweep"])
def test_the_printed_address_shows_rows_and_columns_without_a_click(
    page: Any, server: Server, tmp_path: Path, kind: str
) -> None:
    if kind == "suite":
        results, columns = write_results(tmp_path / "a-suite", repeats=2), SUITE_COLUMNS
    else:
        results, columns = write_sweep(tmp_path / "another-sweep"), ("goal/accuracy", "strategy")
    address = Tracking(server.uri, print_text).sync(results)
    page.goto("about:blank")
    page.goto(address)
    for column in columns:
        page.locator(".ag-header-cell").get_by_text(column, exact=True).first.wait_for()
    page.locator(".ag-row[row-index='0']").first.wait_for()
    page.screenshot(path=server.folder / f"address-{kind}.png")
    rows = page.locator(".ag-pinned-left-cols-container .ag-row").all_inner_texts()
    expected = "trial " if kind == "sweep" else " · "
    assert len(rows) == len(results.plans())
    assert all(expected in row for row in rows), rows
