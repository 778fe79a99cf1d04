"""Training does not wait for an MLflow server that its cluster is still starting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from raysuite import track
from raysuite.cluster.state_files import Head
from raysuite.orchestrate import registration
from raysuite.orchestrate.tracking import Tracking
from raysuite.records import Results
from raysuite.track.sync import SyncSummary


def test_a_server_that_starts_slowly_is_waited_for_beside_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSUITE_CLUSTER", str(tmp_path))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    uri = "http://127.0.0.1:9"  # nobody answers, which ends the preparation too
    starting = Head(host="n", gcs="10.0.0.1:1", dashboard="", mlflow=uri, mlflow_answers=False)
    (tmp_path / "head.json").write_text(starting.model_dump_json(), "utf-8")
    shown: list[str] = []

    def show(text: str, *, error: bool = False) -> None:
        shown.append(text)

    now = 0.0
    tracking = Tracking(uri, show, clock=lambda: now, patience_s=0.05)
    assert not tracking.ready()
    now = 1e6
    tracking.follow(Results(tmp_path / "results"))
    assert tracking.sync(Results(tmp_path / "results")) == ""
    tracking.register(Results(tmp_path / "results"), silent=False)
    assert len(shown) == 1
    assert "raysuite sync" in shown[0]
    (tmp_path / "head.json").unlink()
    patient = Tracking(uri, show)
    assert patient.ready()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What a `Tracking` whose store is ready at once shows: (text, whether it is an error)."""
    monkeypatch.setattr(track, "prepare", lambda uri: None)
    return []


def tracking_of(shown: list[tuple[str, bool]], clock: Callable[[], float]) -> Tracking:
    def show(text: str, *, error: bool = False) -> None:
        shown.append((text, error))

    made = Tracking(None, show, clock=clock)
    assert made.ready()
    return made


def test_records_are_sent_when_they_grew_and_not_before_a_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[tuple[str, bool]]
) -> None:
    now, results, sent = 0.0, Results(tmp_path), list[str | None]()

    def sync(given: Results, uri: str | None, status: str | None) -> SyncSummary:
        assert given is results
        sent.append(status)
        return SyncSummary("a", "b", error="down" if len(sent) == 1 else "")

    monkeypatch.setattr(track, "sync", sync)
    tracking = tracking_of(shown, lambda: now)
    journal = tmp_path / "runs" / "1" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    counts = []
    for size, rest in [(1, 0.0), (1, 1e6), (2, 0.0), (2, 1e6), (2, 1e6)]:
        journal.write_bytes(bytes(size))
        now += rest
        tracking.follow(results)
        if tracking._beside is not None:
            tracking._beside.join()
        counts.append(len(sent))
    assert (counts, sent) == ([0, 1, 1, 2, 2], ["RUNNING", "RUNNING"])
    assert [(error, "down" in text) for text, error in shown] == [(True, True)]


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.5, 30.0), (1.5, 30.0), (10.0, 200.0)], ids=str)
def test_a_transfer_of_records_is_followed_by_twenty_times_its_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shown: list[tuple[str, bool]],
    took_s: float,
    rest_s: float,
) -> None:
    now, sent = 0.0, list[float]()

    def sync(*_: object, **__: object) -> SyncSummary:
        nonlocal now
        sent.append(now)
        now += took_s
        return SyncSummary("a", "b")

    monkeypatch.setattr(track, "sync", sync)
    tracking = tracking_of(shown, lambda: now)
    journal = tmp_path / "runs" / "1" / "journal.jsonl"
    journal.parent.mkdir(parents=True)
    ends = 120.0 + took_s
    for size, at in enumerate((119.9, 120.0, ends + rest_s - 0.1, ends + rest_s), 1):
        now = at
        journal.write_bytes(bytes(size))
        tracking.follow(Results(tmp_path))
        if tracking._beside is not None:
            tracking._beside.join()
    assert sent == [120.0, ends + rest_s]


def test_an_outage_is_shown_once_and_the_next_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[tuple[str, bool]]
) -> None:
    errors = iter(["down", "down", "", "down"])
    status: list[str | None] = []

    def sync(results: Results, uri: str | None, status_: str | None = None, **given: Any) -> Any:
        status.append(given["status"])
        return SyncSummary("a", "b", error=next(errors))

    monkeypatch.setattr(track, "sync", sync)
    tracking = tracking_of(shown, lambda: 0.0)
    counts = []
    for _ in range(4):
        tracking.sync(Results(tmp_path), "FAILED")
        counts.append(len(shown))
    assert counts == [1, 1, 1, 2]
    assert (status, {error for _, error in shown}) == (["FAILED"] * 4, {True})


@pytest.mark.parametrize(
    ("note", "error", "silent", "expected"),
    [
        ("", "", False, [("registered", False)]),
        ("the best has none", "", False, [("the best has none", True), ("registered", False)]),
        ("the best has none", "", True, [("the best has none", True)]),
        ("", "down", True, [("down", True)]),
    ],
)
def test_a_sweeps_best_network_is_shown_with_the_note_on_it_and_errors_always(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shown: list[tuple[str, bool]],
    note: str,
    error: str,
    silent: bool,
    expected: list[tuple[str, bool]],
) -> None:
    class Done(NamedTuple):
        ok: bool

        def __str__(self) -> str:
            return error or "registered"

    asked: list[tuple[str, str | None]] = []

    def register(results: Results, run_id: str, *, tracking_uri: str | None) -> Done:
        asked.append((run_id, tracking_uri))
        return Done(not error)

    monkeypatch.setattr(registration, "best_run", lambda results: ("7", note))
    monkeypatch.setattr(registration, "register_run", register)
    tracking_of(shown, lambda: 0.0).register(Results(tmp_path), silent)
    assert (shown, asked) == (expected, [("7", None)])
