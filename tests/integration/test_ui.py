"""`raysuite ui` on a host that others use too: what its owner gets, and what nobody else does."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil
import pytest

from raysuite.files import sqlite_uri
from raysuite.track.store import Store, artifacts_folder
from tests.integration.test_report_browser import ARGUMENTS
from tests.require import chromium, require
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

AJAX = "/ajax-api/2.0/mlflow"
DOORS = [
    ("GET", "/", None),
    ("GET", "/version", None),
    ("GET", "/metrics", None),
    ("GET", "/openapi.json", None),
    ("GET", "/signup", None),
    ("GET", "/get-artifact?run_uuid={run}&path=a.txt", None),
    ("POST", "/graphql", {"query": "{ test }"}),
    ("POST", f"{AJAX}/experiments/search", {"max_results": 1}),
    ("POST", "/api/2.0/mlflow/experiments/search", {"max_results": 1}),
    ("POST", "/api/2.0/mlflow/experiments/delete", {"experiment_id": "{experiment}"}),
    ("POST", "/api/2.0/mlflow/runs/create", {"experiment_id": "{experiment}"}),
    ("POST", "/api/2.0/mlflow/runs/delete", {"run_id": "{run}"}),
    ("POST", f"{AJAX}/upload-artifact?run_uuid={{run}}&path=b.txt", {"theirs": 1}),
    ("PUT", "/api/2.0/mlflow-artifacts/artifacts/b.txt", {"theirs": 1}),
    ("GET", "/api/2.0/mlflow-artifacts/artifacts?path=", None),
    ("GET", f"{AJAX}/users/current", None),
    ("POST", "/api/2.0/mlflow/users/create", {"username": "x", "password": "y" * 20}),
    ("GET", "/ajax-api/3.0/mlflow/assistant/config", None),
    ("GET", "/ajax-api/3.0/jobs/1", None),
    ("GET", "/gateway/x/mlflow/invocations", None),
    ("POST", "/v1/traces", {}),
]
"""Of MLflow's server: reading, writing, deleting, and what runs on the server's side."""


class Answer(NamedTuple):
    status: int
    headers: Message
    content: bytes


@dataclass
class Ui:
    process: psutil.Popen
    folder: Path
    link: str
    ids: dict[str, str]

    def ask(self, verb: str, path: str, body: Any = None, **headers: str) -> Answer:
        """The answer to a client that knows nothing but what is in `headers`."""
        parts = urlsplit(self.link)
        assert parts.port
        data = None if body is None else json.dumps(body)
        for name, value in self.ids.items():
            path = path.replace(f"{{{name}}}", value)
            data = data and data.replace(f"{{{name}}}", value)
        sent = {"Host": parts.netloc, "Content-Type": "application/json", **headers}
        with closing(http.client.HTTPConnection("127.0.0.1", parts.port, timeout=60)) as opened:
            opened.request(verb, path, data, sent)
            answer = opened.getresponse()
            return Answer(answer.status, answer.headers, answer.read())


@pytest.fixture(scope="module")
def ui(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """In a folder whose name has every character that means something in a URI."""
    top = tmp_path_factory.mktemp("ui")
    folder = top / "run #1 q?x a%41b"
    (folder / "tmp").mkdir(parents=True)
    store = sqlite_uri(Path(shutil.copy(empty_store, folder / "mlflow.db")))
    made = Store(store, "mine")
    run = made.create("one", 0, {}).info.run_id
    made.client.log_text(run, "what I trained", "a.txt")
    browser = top / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" >> "{top}/opened"\n', "utf-8")
    browser.chmod(0o755)
    with (folder / "said").open("w") as said:
        process = psutil.Popen(
            [sys.executable, "-m", "raysuite", "ui"],
            cwd=folder,
            env={
                **{k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"},
                "PYTHONPATH": str(Path(__file__).parents[2]),
                "TMPDIR": str(folder / "tmp"),
                "BROWSER": f"{browser} %s",
            },
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    until(lambda: (top / "opened").exists() or process.poll() is not None, 200)
    lines = (folder / "said").read_text("utf-8").splitlines()
    [link] = [line for line in lines if line.startswith("http://")]
    yield Ui(process, folder, link, {"run": run, "experiment": made.experiment_id})
    if process.is_running():
        process.terminate()
    process.wait()


@pytest.fixture(scope="module")
def cookie(ui: Ui) -> str:
    """What a browser has that opened the link."""
    parts = urlsplit(ui.link)
    answer = ui.ask("GET", f"{parts.path}?{parts.query}")
    assert answer.status == 200  # after a redirect, a browser that came from a file has no cookie
    assert parts.query.partition("=")[2] not in answer.content.decode()
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    kept, *rules = answer.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict"} <= set(rules)
    return kept


@pytest.mark.parametrize(("verb", "path", "body"), DOORS, ids=lambda each: str(each))
def test_a_client_without_the_link_is_refused(ui: Ui, verb: str, path: str, body: Any) -> None:
    for guess in ({}, {"Cookie": "raysuite-mlflow="}, {"Host": "127.0.0.1"}):
        assert ui.ask(verb, path, body, **guess).status == 401
    assert ui.ask(verb, path, body, Host="example.org").status in (401, 403)


def test_a_client_without_the_link_changes_nothing(ui: Ui, cookie: str) -> None:
    found = ui.ask("GET", f"{AJAX}/experiments/get?experiment_id={{experiment}}", Cookie=cookie)
    assert json.loads(found.content)["experiment"]["lifecycle_stage"] == "active"
    assert not list(ui.folder.rglob("b.txt"))


def test_the_owner_reads_writes_and_deletes_by_the_links_cookie(ui: Ui, cookie: str) -> None:
    own = {"Cookie": cookie, "Origin": f"http://{urlsplit(ui.link).netloc}"}
    assert b"<html" in ui.ask("GET", "/", **own).content
    shown = ui.ask("GET", "/get-artifact?run_uuid={run}&path=a.txt", **own)
    assert shown.content == b"what I trained"
    found = ui.ask("POST", f"{AJAX}/runs/search", {"experiment_ids": ["{experiment}"]}, **own)
    assert len(json.loads(found.content)["runs"]) == 1
    made = ui.ask("POST", f"{AJAX}/experiments/create", {"name": "new"}, **own)
    new = {"experiment_id": json.loads(made.content)["experiment_id"]}
    assert ui.ask("POST", f"{AJAX}/experiments/delete", new, **own).status == 200
    assert ui.ask("GET", "/ajax-api/3.0/mlflow/assistant/config", **own).status == 200


@pytest.mark.parametrize("path", [f"{AJAX}/users/current", "/ajax-api/3.0/mlflow/assistant/config"])
def test_pages_of_other_servers_get_nothing_from_the_owners_browser(
    ui: Ui, cookie: str, path: str
) -> None:
    for origin in ("http://127.0.0.1:1", "https://example.org"):
        assert ui.ask("GET", path, Cookie=cookie, Origin=origin).status == 403
    assert ui.ask("GET", path, Cookie=cookie, Host="example.org").status == 403


def test_the_link_leads_to_the_newest_runs(ui: Ui) -> None:
    assert urlsplit(ui.link).hostname.endswith(".localhost")
    place = f"/experiments/{ui.ids['experiment']}/runs?workflowType=machine_learning"
    assert urlsplit(ui.link).fragment == place


@pytest.mark.browser
def test_a_browser_shows_the_runs_and_no_password(ui: Ui) -> None:
    """Started with the file that `raysuite ui` gives it."""
    require("browser")
    from playwright.sync_api import sync_playwright

    opened = (ui.folder.parent / "opened").read_text("utf-8").strip()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        page = browser.new_page()
        page.set_default_timeout(240_000)
        page.goto(opened)
        page.get_by_text("one", exact=True).first.wait_for()
        assert "token" not in page.url
        assert urlsplit(page.url).netloc == urlsplit(ui.link).netloc
        browser.close()


def test_the_password_is_where_its_owner_alone_reads_it(ui: Ui) -> None:
    parts = urlsplit(ui.link)
    password, name = parts.query.partition("=")[2], str(parts.hostname)
    family = [ui.process, *ui.process.children(recursive=True)]
    words = [word for each in family for word in each.cmdline()]
    words.append((ui.folder.parent / "opened").read_text("utf-8"))
    assert len(password) == 64
    assert not [word for word in words if password in word or name in word]
    holding = [f for f in ui.folder.rglob("*") if f.is_file() and password in f.read_text("latin")]
    [folder] = {file.parent for file in holding} - {ui.folder}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(f.stat().st_mode) for f in holding if f.parent == folder} == {0o600}


def test_files_stay_in_the_working_folder(ui: Ui) -> None:
    assert {path.name for path in ui.folder.parent.iterdir()} == {
        ui.folder.name,
        "browser",
        "opened",
    }
    assert artifacts_folder(sqlite_uri(ui.folder / "mlflow.db")) == ui.folder / "mlartifacts"
    assert [f.read_text() for f in (ui.folder / "mlartifacts").rglob("a.txt")] == ["what I trained"]


def test_ui_ends_its_server_and_leaves_no_password(ui: Ui) -> None:
    """The last one: it ends what the others use."""
    family = ui.process.children(recursive=True)
    ui.process.send_signal(2)
    for each in family:  # as a terminal does
        each.send_signal(2)
    assert not psutil.wait_procs([ui.process, *family], 60)[1]
    assert not list((ui.folder / "tmp").iterdir())
