"""A sweep and a suite in MLflow's own pages, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch

from raysuite import models
from raysuite.cli.console import print_text
from raysuite.orchestrate.registration import register_best
from raysuite.orchestrate.tracking import Tracking
from raysuite.plan import RunPlan
from raysuite.records import Results
from raysuite.records.sweep import trials
from raysuite.track import sync
from raysuite.track.model_registry import weights_of
from raysuite.track.store import view_page
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
    """Twelve made-up trials, with an untrained network for the weights of those that finished."""
    results = write_sweep(tmp_path_factory.mktemp("swept") / "a-sweep")
    for plan, trial in zip(results.plans(), trials(results), strict=True):
        if trial.status == "finished":
            read = RunPlan.model_validate(plan)
            network = models.build(read.spec.model, read.dataset)
            torch.save(network.state_dict(), weights_of(results, read.run_id))
    summary = sync(results, server.uri)
    assert summary.ok, summary
    registered, _ = register_best(results, "digits-model", server.uri)
    assert registered.ok, registered
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


def experiment(server: Server) -> str:
    [(number,)] = server.query("select experiment_id from experiments where name = 'made-up-sweep'")
    return str(number)


def mlflow_run(server: Server, run_id: str) -> str:
    [(uuid,)] = server.query(
        "select run_uuid from tags where key = 'raysuite.run_id' and value = '" + run_id + "'"
    )
    return str(uuid)


def best_of(results: Results) -> Any:
    return max(trials(results), key=lambda trial: trial.goals["accuracy"] or 0)


def show(page: Any, server: Server, place: str, name: str, *texts: str) -> None:
    """Open a page, wait for each of the texts, and keep a picture of it beside the server."""
    page.goto("about:blank")  # pages differ after the # alone, which loads nothing anew
    page.goto(f"{server.uri}/#/{place}")
    try:
        for text in texts:
            page.get_by_text(text, exact=True).first.wait_for()
    finally:
        page.screenshot(path=server.folder / f"{name}.png")


def test_the_experiment_is_listed(page: Any, server: Server) -> None:
    show(page, server, "experiments", "experiments", "made-up-sweep")


def test_trials_are_nested_under_their_sweep(page: Any, server: Server, swept: Results) -> None:
    place = view_page(experiment(server), "").removeprefix("#/")
    show(page, server, place, "folded", "made-up-sweep a-sweep")
    assert page.get_by_text("trial 0", exact=True).count() == 0
    page.locator(".ag-row button").first.click()
    for number in range(12):
        page.get_by_text(f"trial {number}", exact=True).first.wait_for()
    page.screenshot(path=server.folder / "unfolded.png")


def test_the_sweep_links_to_its_trials_in_columns(
    page: Any, server: Server, swept: Results
) -> None:
    [(sweep,)] = server.query(
        "select run_uuid from tags where key = 'raysuite.kind' and value = 'sweep'"
    )
    linked = "The trials, with what was searched"
    show(page, server, f"experiments/{experiment(server)}/runs/{sweep}", "sweep", linked)
    page.goto(f"{server.uri}/{page.get_by_text(linked).first.get_attribute('href')}")
    for column in ("goal/accuracy", "optimizer.lr", "optimizer.momentum", "strategy"):
        page.locator(".ag-header-cell").get_by_text(column, exact=True).first.wait_for()
    page.get_by_text(f"trial {best_of(swept).number}", exact=True).first.wait_for()
    names = page.locator(".ag-row[row-index='0']").first.inner_text()
    assert f"trial {best_of(swept).number}" in names, "the best comes first"
    page.screenshot(path=server.folder / "columns.png")


def test_trials_are_compared_by_what_was_searched(
    page: Any, server: Server, swept: Results
) -> None:
    runs = [mlflow_run(server, trial.run_id) for trial in trials(swept)]
    asked = f"runs={quote(json.dumps(runs))}&experiments={quote(json.dumps([experiment(server)]))}"
    show(page, server, f"compare-runs?{asked}", "compared", "Parallel Coordinates Plot")
    titles = page.locator(".js-plotly-plot .axis-title")
    titles.first.wait_for()
    axes = titles.all_text_contents()
    assert {"optimizer.lr", "optimizer.momentum", "goal/accuracy"} <= set(axes)
    told = page.inner_text("body")
    for key in ("training.global_batch", "strategy.zero_stage", "strategy"):
        assert key in told
    page.screenshot(path=server.folder / "compared.png", full_page=True)


def test_the_best_trial_says_so(page: Any, server: Server, swept: Results) -> None:
    best = best_of(swept)
    place = f"experiments/{experiment(server)}/runs/{mlflow_run(server, best.run_id)}"
    show(page, server, place, "best", f"trial {best.number}", "raysuite.best", "optimizer.lr")
    page.get_by_text("digits-model").first.wait_for()
    page.get_by_text("digits-train").first.wait_for()
    page.get_by_text("+1", exact=True).first.click()
    page.get_by_text("digits-val").first.wait_for()
    assert server.query("select count(*) from tags where key = 'raysuite.best'") == [(1,)]


def test_the_model_tells_its_signature(page: Any, server: Server, swept: Results) -> None:
    show(page, server, "models", "models", "digits-model")
    show(page, server, "models/digits-model/versions/1", "model", "raysuite.accuracy")
    assert f"{best_of(swept).figures.final_primary:.4f}" in page.inner_text("body")
    for part in ("Inputs (1)", "Outputs (1)"):
        page.get_by_text(part, exact=True).first.click()
    page.get_by_text("uint8").first.wait_for()
    told = page.inner_text("body").replace(" ", "")
    assert "[-1,1,8,8]" in told
    assert "[-1,10]" in told
    page.screenshot(path=server.folder / "model.png")


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
