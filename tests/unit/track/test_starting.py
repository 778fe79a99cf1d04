"""The first sync waits for a server that its cluster is still starting; what a sync prints."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from raysuite.cluster.state_files import Head
from raysuite.errors import UserError
from raysuite.track.sync import SyncSummary, _is_starting, one_line, wait_while_starting

URL = "http://10.0.0.1:30000"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSUITE_CLUSTER", str(tmp_path))
    return tmp_path


def tell(folder: Path, answers: bool, url: str = URL) -> None:
    head = Head(host="n", gcs="10.0.0.1:1", dashboard="", mlflow=url, mlflow_answers=answers)
    fresh = folder / "fresh"
    fresh.write_text(head.model_dump_json(), "utf-8")
    fresh.replace(folder / "head.json")


@pytest.mark.parametrize(
    ("address", "waits"),
    [
        (URL, True),
        ("http://127.0.0.1:20105/", True),
        ("http://10.0.0.1:30001", False),
        ("", False),
    ],
)
def test_it_waits_for_its_clusters_server_by_either_of_its_addresses(
    folder: Path, address: str, waits: bool
) -> None:
    told = {"mlflow": URL, "mlflow_inside": "http://127.0.0.1:20105", "mlflow_answers": False}
    (folder / "head.json").write_text(json.dumps(told), "utf-8")
    assert _is_starting(str(folder), address) == waits
    (folder / "head.json").write_text(json.dumps({"mlflow": URL}), "utf-8")  # of an earlier version
    assert not _is_starting(str(folder), URL)


def test_it_waits_until_the_server_answers(folder: Path) -> None:
    tell(folder, answers=False)
    waiting = threading.Thread(target=wait_while_starting, args=(f"{URL}/", 60.0), daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    tell(folder, answers=True)
    waiting.join(30)
    assert not waiting.is_alive()


def test_it_gives_up_at_the_end_of_its_patience(folder: Path) -> None:
    tell(folder, answers=False)
    began = time.monotonic()
    wait_while_starting(URL, longest_s=0.2)
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("case", ["answers", "another server", "no file", "no JSON"])
def test_there_is_nothing_to_wait_for(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case in ("answers", "another server"):
        tell(folder, answers=case == "answers", url=URL if case == "answers" else "http://h:1")
    elif case == "no JSON":
        (folder / "head.json").write_text("{", "utf-8")

    def no_sleep(_: float) -> None:
        raise AssertionError("it waited")

    monkeypatch.setattr("time.sleep", no_sleep)
    wait_while_starting(URL)


def test_a_sync_leads_to_the_table_of_what_it_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    done = SyncSummary("http://mlflow:5000/", "x", 2, page="#/experiments/1/runs")
    assert str(done).splitlines()[-1] == "http://mlflow:5000/#/experiments/1/runs"
    here, there = (replace(done, address=f"sqlite:////{name}.db") for name in ("here", "there"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", here.address)
    assert here.shown.startswith("`raysuite ui`")
    secure = replace(done, address="https://mlflow")
    assert secure.shown == "https://mlflow/#/experiments/1/runs"
    assert there.shown.startswith("`MLFLOW_TRACKING_URI=sqlite:////there.db raysuite ui`")
    assert "#" not in str(replace(done, error="no answer"))
    assert str(replace(done, page="")).count("\n") == 0


def test_an_error_is_one_line_without_a_password() -> None:
    error = OSError("http://me:hush@host:5000/api: refused\nby http://me:hush@host")
    assert one_line(error) == "OSError: http://host:5000/api: refused"
    assert one_line(UserError("x" * 600)) == 500 * "x"
