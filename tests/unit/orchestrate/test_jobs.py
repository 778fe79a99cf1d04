"""The output of a job on a cluster, over connections that break: each character once."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from raysuite.cluster.dashboard import Dashboard
from raysuite.errors import RunError, UserError
from raysuite.orchestrate import jobs
from raysuite.orchestrate.jobs import JobServer

SOME = "0123456789abcdef"


class Server(JobServer):
    """Of one job, whose output comes in the pieces of one connection after the other; each but the
    last breaks, but None ends without any output, as before the first line of a job."""

    def __init__(self, *connections: tuple[str, ...] | None) -> None:
        self._left = list(connections)
        super().__init__("http://here", Path("/no/token"))

    def _connect(self) -> Any:
        return self

    def list_jobs(self) -> list[Any]:
        status = "RUNNING" if len(self._left) > 1 else "SUCCEEDED"
        times = {"start_time": 1000, "end_time": 2500}
        about = {"entrypoint": "x", "message": None, "driver_exit_code": 0}
        return [SimpleNamespace(submission_id="one", status=status, **times, **about)]

    async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
        pieces = self._left.pop(0)
        for piece in pieces or ():
            yield piece
        if self._left and pieces is not None:
            raise aiohttp.ClientPayloadError("the connection broke")

    def get_job_logs(self, name: str) -> str:
        return "".join(self._left.pop(0) or ())


def cut(places: set[int]) -> list[str]:
    """Some text in pieces."""
    edges = [0, *sorted(places), len(SOME)]
    return [SOME[begin:end] for begin, end in itertools.pairwise(edges)]


cuts = st.sets(st.integers(1, len(SOME) - 1)).map(cut)


@settings(max_examples=25)
@given(st.lists(cuts, min_size=1, max_size=4), st.lists(st.integers(0, 16), min_size=3, max_size=3))
def test_each_character_comes_once_however_often_the_connection_breaks(
    connections: list[list[str]], reached: list[int]
) -> None:
    """A connection begins with all that was printed, in pieces of its own."""
    whole = connections.pop()
    broken = [tuple(each[:many]) for each, many in zip(connections, reached, strict=False)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "_PAUSE_S", 0)
        assert "".join(Server(*broken, tuple(whole)).follow("one")) == SOME


class Undecoded(Server):
    """Ray's tail ends at a byte that is not UTF-8, and its whole output cannot be read."""

    async def tail_job_logs(self, name: str) -> AsyncIterator[str]:
        yield "before\n"

    def get_job_logs(self, name: str) -> str:
        self._left.pop(0)
        raise RuntimeError("status code 500: UnicodeDecodeError: 'utf-8' codec can't decode")


def test_output_that_is_not_utf8_is_shown_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = b"before\r\ncaf\xe9\r50%\nafter\n"
    monkeypatch.setattr(jobs, "_PAUSE_S", 0)
    monkeypatch.setattr(Dashboard, "log", lambda self, job: output)
    (tmp_path / "token").touch()
    server = Undecoded((), (), ())
    server._token_file = tmp_path / "token"
    assert "".join(server.follow("one")) == "before\ncaf\ufffd\n50%\nafter\n"


def test_jobs_are_of_the_given_server_whatever_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setattr(os, "environ", {"RAY_API_SERVER_ADDRESS": "http://elsewhere:1"})
    monkeypatch.setattr(JobSubmissionClient, "_check_connection_and_version", lambda *_, **__: None)
    client = JobServer("http://here:2", tmp_path / "token")._client
    assert client._address == "http://here:2"
    assert client._headers == {"Authorization": "Bearer secret"}


def test_a_server_that_stays_away_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_PAUSE_S", 0)
    monkeypatch.setattr(jobs, "_PATIENCE_S", 0)
    with pytest.raises(RunError, match="one cannot be followed any longer: the connection broke"):
        list(Server((), (), ()).follow("one"))


def test_breaks_between_which_the_server_answered_are_not_one_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count(1, jobs._PATIENCE_S * 0.7)  # read twice at most for each break
    time = SimpleNamespace(monotonic=clock.__next__, sleep=lambda _: None)
    monkeypatch.setattr(jobs, "time", time)
    assert "".join(Server((SOME[:4],), (SOME[:9],), (SOME[:9],), (SOME,)).follow("one")) == SOME
    assert "".join(Server((), None, (), None, (SOME,)).follow("one")) == SOME
    with pytest.raises(RunError, match="cannot be followed any longer"):
        list(Server((SOME[:4],), (), (SOME,)).follow("one"))


def test_a_job_has_seconds_and_its_own_exit_code() -> None:
    found = Server(()).job("one")
    assert (found.started, found.ended, found.exit_code) == (1.0, 2.5, 0)
    with pytest.raises(UserError, match="no job 'two' on this cluster; known: one"):
        Server(()).job("two")


def test_jobs_are_in_the_order_of_their_starts_without_those_that_nobody_submitted() -> None:
    server = Server(())
    with_ids = {"b": 3000, "a": 2000, None: 1000, "waits": None}
    one = vars(server.list_jobs()[0])
    found = [
        SimpleNamespace(**one | {"submission_id": name, "start_time": at})
        for name, at in with_ids.items()
    ]
    vars(server)["list_jobs"] = lambda: found
    assert [job.id for job in server.jobs()] == ["waits", "a", "b"]
    assert server.newest().id == "b"
    del found[:2], found[1:]
    with pytest.raises(UserError, match="no job has been submitted"):
        server.newest()
    with pytest.raises(UserError, match="known: none"):
        server.job("a")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (AuthenticationError("no"), "refuses the token"),
        (FileNotFoundError("no"), "token's file is missing: /no/token"),
        (ConnectionError("reset"), "does not answer correctly: reset"),
    ],
)
def test_what_is_wrong_with_a_server_is_a_users_error_that_names_it(
    error: Exception, message: str
) -> None:
    def get_job_logs(name: str) -> str:
        raise error

    server = Server(())
    vars(server)["get_job_logs"] = get_job_logs
    with pytest.raises(UserError, match=message):
        server.logs("one")


def test_a_job_is_submitted_once_the_head_has_an_agent_and_other_errors_are_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "_PAUSE_S", 0)
    server, errors = Server(()), [RuntimeError(f"500: {jobs._NO_AGENT}")] * 2

    def submit_job(*, entrypoint: str, submission_id: str) -> str:
        if errors:
            raise errors.pop()
        return f"{submission_id}: {entrypoint}"

    vars(server)["submit_job"] = submit_job
    assert re.fullmatch(r"job-\d{4}-\d{6}-[0-9a-f]{6}: python x.py", server.submit("python x.py"))
    errors.append(RuntimeError("500: no disk"))
    with pytest.raises(UserError, match="no disk"):
        server.submit("python x.py")


@pytest.mark.parametrize(
    ("asks", "patience_s", "ended"), [(0, 9, True), (2, 9, True), (2, 0, False)]
)
def test_a_job_is_cancelled_and_waited_for_until_the_patience_is_over(
    monkeypatch: pytest.MonkeyPatch, asks: int, patience_s: float, ended: bool
) -> None:
    """It runs for so many queries after the request, or has ended before."""
    monkeypatch.setattr(jobs, "_PAUSE_S", 0)
    server, stopped = Server(*[()] * (asks + 2 if asks else 1)), list[str]()
    one = server.list_jobs

    def list_jobs() -> list[Any]:
        if stopped:
            server._left.pop()
        return one()

    vars(server).update(list_jobs=list_jobs, stop_job=stopped.append)
    assert server.cancel("one", patience_s).ended_already == ended
    assert stopped == ["one"] * (asks > 0)
