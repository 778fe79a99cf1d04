"""MLflow's server as the head keeps it: whatever becomes of it, the cluster goes on."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysuite.cluster.agent.children import Children
from raysuite.cluster.agent.head import MlflowKeeper
from raysuite.cluster.agent.mlflow import ANSWERED, MlflowServer
from raysuite.cluster.folder import ClusterFolder, prepare
from raysuite.cluster.state_files import Cluster
from raysuite.spec.site import LocalSite, MlflowOptions
from tests.killed import said, write


class Ends(MlflowServer):
    """One whose process ends at once, and which answers where it is asked."""

    def words(self) -> list[str]:
        said = "print('began'); print('INFO: no Error'); print('ERROR: no port'); print('ended')"
        return [sys.executable, "-c", said]

    def answers(self, pid: int) -> bool:
        return True


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MlflowKeeper]:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path / "home"))
    site = LocalSite(name="local")
    folder = prepare(Cluster(name="a", site=site, nodes=1, created=1.0, working_folder="/"))
    (tmp_path / "temp").mkdir()
    server = Ends(folder, MlflowOptions(), "127.0.0.1", 5000, tmp_path / "temp")
    made = MlflowKeeper(server, Children(tmp_path), tmp_path / "log")
    yield made
    made._children.end("mlflow", 5.0)


def home(keeper: MlflowKeeper) -> ClusterFolder:
    return keeper.server._folder


def look_for(keeper: MlflowKeeper, seconds: float) -> list[bool]:
    end, seen = time.monotonic() + seconds, []
    while time.monotonic() < end:
        seen.append(keeper.look())
        time.sleep(0.02)
    return seen


def test_one_that_never_answers_is_given_up_and_told_once(keeper: MlflowKeeper) -> None:
    keeper.start({})
    keeper._children._started["mlflow"].wait(60)
    assert look_for(keeper, 0.3).count(True) == 1
    assert keeper.error.endswith("exit status 0: ERROR: no port")
    assert not keeper.answers


def test_a_server_that_answers_late_is_reported_and_then_used(
    keeper: MlflowKeeper, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(keeper.server, "words", lambda: slow)
    monkeypatch.setattr(keeper.server, "answers", lambda pid: clock[0] > 2000.0)
    seen = []
    keeper.start({})
    for clock[0] in (1100.0, 1300.0, 1700.0, 2100.0):
        seen.append((keeper.look(), keeper.answers, keeper.error))
    late = "its server has not answered for 240 s"
    assert seen == [(False, False, ""), (True, False, late), (False, False, late), (True, True, "")]


def test_one_that_ends_again_and_again_ends_nothing_else(
    keeper: MlflowKeeper, tmp_path: Path
) -> None:
    keeper.answers = keeper._answered = True
    keeper.start({})
    keeper.look()
    deadline = time.monotonic() + 60
    while (tmp_path / "log").read_text().count("began") < 6:
        assert not keeper.look()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert look_for(keeper, 1.0).count(True) == 1
    assert (tmp_path / "log").read_text().count("began") == 6
    assert not keeper.answers
    assert "repeatedly" in keeper.error


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its last value is the keeper's time."""
    now = [1000.0]
    monkeypatch.setattr("raysuite.cluster.agent.head.time.monotonic", lambda: now[-1])
    return now


def crash(keeper: MlflowKeeper) -> None:
    keeper._children._started["mlflow"].wait(60)
    keeper.look()


def give_up(keeper: MlflowKeeper) -> None:
    """The server had answered, and then ends repeatedly."""
    keeper.answers = keeper._answered = True
    keeper.start({})
    for _ in range(6):
        crash(keeper)
    assert not keeper.answers


def test_crashes_that_are_far_apart_never_end_it(keeper: MlflowKeeper, clock: list[float]) -> None:
    keeper.answers = keeper._answered = True
    keeper.start({})
    for _ in range(12):
        clock.append(clock[-1] + 200)
        crash(keeper)
        assert (keeper.answers, keeper.error) == (True, "")


def test_one_that_had_answered_is_started_again_after_a_rest(
    keeper: MlflowKeeper, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up(keeper)
    clock.append(clock[-1] + 299)
    assert not keeper.look()
    clock.append(clock[-1] + 400)
    monkeypatch.setattr(Ends, "words", lambda self: ["sleep", "60"])
    assert keeper.look(), "the error is gone"
    assert keeper.look(), "it answers"
    assert (keeper.answers, keeper.error) == (True, "")


def test_one_that_starts_slowly_after_a_rest_is_not_started_beside_itself(
    keeper: MlflowKeeper, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up(keeper)
    monkeypatch.setattr(Ends, "words", lambda self: ["sleep", "60"])
    monkeypatch.setattr(Ends, "answers", lambda self, pid: False)
    clock.append(clock[-1] + 400)
    assert keeper.look(), "the error is gone"
    server = keeper._children.pid("mlflow")
    clock.append(clock[-1] + 241)
    assert keeper.look(), "it is late"
    assert not keeper.look()
    assert keeper._children.pid("mlflow") == server


def test_the_reason_is_of_the_last_server_and_no_line_of_a_clean_end(
    keeper: MlflowKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeper.answers = keeper._answered = True
    keeper.start({})
    end = "print('INFO: Finished server process'); import os; os.kill(os.getpid(), 15)"
    monkeypatch.setattr(Ends, "words", lambda self: [sys.executable, "-c", end])
    crash(keeper)
    crash(keeper)
    reasons = [record.args for record in caplog.records if record.args]
    assert reasons == [("exit status 0: ERROR: no port",), ("signal 15",)]


def test_one_that_cannot_be_started_again_is_given_up(
    keeper: MlflowKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    keeper.answers = keeper._answered = True
    keeper.start({})
    keeper._children._started["mlflow"].wait(60)
    home(keeper).mlflow_file.unlink()
    assert [keeper.look() for _ in range(3)] == [True, False, False]
    assert not keeper.answers
    assert "mlflow.json is missing" in keeper.error
    assert caplog.text.count("starting it again") == 1


def test_its_first_answer_leaves_word_beside_the_database(keeper: MlflowKeeper) -> None:
    word = keeper.server._own / ANSWERED
    keeper.start({})
    keeper._await(ended=True, now=0.0)
    assert not word.exists()
    keeper.start({})
    keeper._await(ended=False, now=0.0)
    assert keeper.answers
    assert word.exists()


def test_a_full_disk_keeps_no_server_from_answering(
    keeper: MlflowKeeper, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "touch", full)
    keeper.start({})
    keeper._await(ended=False, now=0.0)
    assert keeper.answers
    assert "No space left" in caplog.text


@pytest.mark.parametrize("answered", [True, False])
def test_the_database_comes_home_once_it_was_of_use(keeper: MlflowKeeper, answered: bool) -> None:
    write(keeper.server._own / "mlflow.db", "of use")
    keeper._answered = answered
    keeper.save()
    assert (home(keeper).mlflow / "mlflow.db").exists() == answered


def test_a_copy_that_fails_is_said_and_leaves_nothing(
    keeper: MlflowKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    (keeper.server._own / "mlflow.db").write_bytes(b"no database, " * 1000)
    keeper._answered = True
    keeper.save()
    assert "could not be copied to the cluster's folder: file is not a database" in caplog.text
    assert list(home(keeper).mlflow.iterdir()) == []


def damage(database: Path) -> None:
    """Overwrite its last page, as a disk that fails may: SQLite still opens and copies it."""
    with contextlib.closing(sqlite3.connect(database)) as opened, opened:
        opened.execute("create table rows (value)")
        opened.executemany("insert into rows values (?)", [("x" * 100,)] * 1000)
    with database.open("r+b") as stream:
        stream.seek(-4096, os.SEEK_END)
        stream.write(b"\xff" * 4096)


@pytest.mark.parametrize("how", ["damaged", "empty"])
def test_a_damaged_database_overwrites_no_copy_and_the_last_one_is_restored(
    keeper: MlflowKeeper, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    here, kept = keeper.server._own / "mlflow.db", home(keeper).mlflow / "mlflow.db"
    write(here, "ours")
    keeper._answered = True
    keeper.save()
    if how == "damaged":
        damage(here)
    else:
        here.write_bytes(b"")
    keeper.save()
    assert "could not be copied" in caplog.text
    assert said(kept) == "ours"
    keeper.server.prepare({})
    assert said(here) == "ours"
    assert (kept.parent / "mlflow.db.damaged").exists()


def test_a_damaged_copy_is_passed_over_for_an_older_one(keeper: MlflowKeeper) -> None:
    here, kept = keeper.server._own / "mlflow.db", home(keeper).mlflow / "mlflow.db"
    for word in ("first", "second", "third", "fourth", "fifth", "sixth"):
        here.unlink(missing_ok=True)
        write(here, word)
        keeper._answered = True
        keeper.save()
        if word not in ("fourth", "fifth"):  # the others are hours apart
            for copy in kept.parent.glob("mlflow.db*"):
                os.utime(copy, (copy.stat().st_mtime - 4000,) * 2)
    copies = [kept, *(kept.with_name(f"mlflow.db.{number}") for number in (1, 2, 3))]
    assert [said(copy) for copy in copies] == ["sixth", "fourth", "third", "second"]
    copies[0].unlink()  # as a user may who moves a damaged one away
    keeper.save()
    assert [said(copy) for copy in copies] == ["sixth", "fourth", "third", "second"]
    here.unlink()
    for copy in copies[:2]:
        damage(copy)
    keeper.server.prepare({})
    assert said(here) == "third"
    here.unlink()
    for copy in copies[2:]:
        damage(copy)
    keeper.start({})
    assert keeper.look()
    assert not keeper.answers
    assert str(copies[3]) in keeper.error
    assert all(copy.exists() for copy in copies)
