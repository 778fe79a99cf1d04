"""Submit, follow and end jobs through Ray's job server, with the token in the cluster's folder."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysuite.cluster.dashboard import Dashboard, NoAnswerError
from raysuite.cluster.variables import past_proxies
from raysuite.errors import RunError, UserError

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_PATIENCE_S = 60.0
"""Seconds without an answer after which a request is given up; a head may need this time to start
again."""
_PAUSE_S = 0.5
_NO_AGENT = "No available agent"
"""Part of the job server's error message as long as Ray's agent on the head is not registered."""


@dataclass(frozen=True)
class Job:
    """One job, as reported by the server. Times are in seconds since 1970."""

    id: str
    status: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    entrypoint: str
    message: str = ""
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    """Exit code of the command; None while it runs, and if it was never started."""

    @property
    def ended_already(self) -> bool:
        return self.status in ("SUCCEEDED", "FAILED", "STOPPED")

    @property
    def code(self) -> int:
        """Exit code for a program that waited for the job: the command's exit code, or 1 if the job
        failed without a positive exit code."""
        if self.status == "SUCCEEDED":
            return 0
        return self.exit_code if self.exit_code and self.exit_code > 0 else 1


class JobServer:
    """The job server at `url`, accessed with the token in `token_file`.

    Raises UserError if the server does not answer, or rejects the token.
    """

    def __init__(self, url: str, token_file: Path) -> None:
        self._url, self._token_file = url, token_file
        with self._named_errors():
            self._client = self._connect()

    def submit(self, entrypoint: str) -> str:
        """Run a shell command on the head, in the cluster's working folder; return the job's id."""
        name = f"job-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        deadline = time.monotonic() + _PATIENCE_S
        with self._named_errors():
            while True:
                try:
                    return str(self._client.submit_job(entrypoint=entrypoint, submission_id=name))
                except RuntimeError as error:  # the cluster may have just come up
                    if _NO_AGENT not in str(error) or time.monotonic() > deadline:
                        raise
                time.sleep(_PAUSE_S)

    def jobs(self) -> list[Job]:
        """All submitted jobs, oldest first."""
        with self._named_errors():
            found = [job for job in self._client.list_jobs() if job.submission_id]
        return sorted(map(_job, found), key=lambda job: job.started or 0.0)

    def job(self, name: str) -> Job:
        """The job with the id `name`. Raises UserError if there is none."""
        known = {job.id: job for job in self.jobs()}
        if name not in known:
            raise UserError(f"no job {name!r} on this cluster; known: {', '.join(known) or 'none'}")
        return known[name]

    def newest(self) -> Job:
        """The newest job. Raises UserError if none was ever submitted."""
        known = self.jobs()
        if not known:
            raise UserError("no job has been submitted to this cluster yet")
        return known[-1]

    def logs(self, name: str) -> str:
        """The job's output so far; bytes that are not UTF-8 are replaced."""
        with self._named_errors():
            try:
                return str(self._client.get_job_logs(name))
            except RuntimeError as error:
                if UnicodeDecodeError.__name__ not in str(error):
                    raise
            token = self._token_file.read_text("utf-8").strip()
            content = Dashboard(self._url, token, _PATIENCE_S).log(name)
        # Ray, too, reads every line end as \n
        return io.TextIOWrapper(io.BytesIO(content), "utf-8", "replace").read()

    def follow(self, name: str) -> Iterator[str]:
        """Yield the job's output, until the job has ended.

        A broken connection is restored. Raises RunError if this is not possible within a minute.
        """
        self.job(name)
        yielded, failing_since, tails = 0, None, True
        while True:
            seen = 0
            try:
                ended = self.job(name).ended_already  # queried before the last lines are read
                # Ray's tail ends where the output is not UTF-8
                tail = tails and not ended
                for text in _read(self._client.tail_job_logs(name)) if tail else [self.logs(name)]:
                    seen, failing_since = seen + len(text), None
                    if seen > yielded:
                        yield text[yielded - seen :]
                        yielded = seen
                tails, failing_since = not seen, None
                if ended:
                    return
            except (OSError, RuntimeError, UserError, NoAnswerError) as error:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > _PATIENCE_S:
                    raise RunError(f"job {name} cannot be followed any longer: {error}") from error
            time.sleep(_PAUSE_S)

    def cancel(self, name: str, patience_s: float) -> Job:
        """Request the end of a job, and wait for it, for at most `patience_s` seconds."""
        if not self.job(name).ended_already:
            with self._named_errors():
                self._client.stop_job(name)
        deadline = time.monotonic() + patience_s
        while not (job := self.job(name)).ended_already and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        return job

    def _connect(self) -> JobSubmissionClient:
        token = self._token_file.read_text("utf-8").strip()
        # Ray prefers this variable to an address argument, and to RAY_ADDRESS
        os.environ["RAY_API_SERVER_ADDRESS"] = self._url
        os.environ.update(past_proxies((self._url,), os.environ))
        from ray.job_submission import JobSubmissionClient

        logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.WARNING)
        return JobSubmissionClient(self._url, headers={"Authorization": f"Bearer {token}"})

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            raise UserError(
                f"the job server at {self._url} refuses the token in {self._token_file}: the "
                "token belongs to another cluster, or this cluster was started again; see "
                "`raysuite cluster status --all`"
            ) from error
        except FileNotFoundError as error:
            raise UserError(f"the token's file is missing: {self._token_file}") from error
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"the job server at {self._url} does not answer correctly: {error}; "
                "`raysuite cluster status` shows whether the cluster is up"
            ) from error


def _job(details: Any) -> Job:
    return Job(
        id=details.submission_id,
        status=str(details.status),
        entrypoint=details.entrypoint,
        message=details.message or "",
        started=_seconds(details.start_time),
        ended=_seconds(details.end_time),
        exit_code=details.driver_exit_code,
    )


def _seconds(milliseconds: int | None) -> float | None:
    return milliseconds / 1000 if milliseconds else None


def _read(pieces: AsyncIterator[str]) -> Iterator[str]:
    """The items of an asynchronous iterator, as they arrive."""
    import aiohttp

    async def following() -> str | None:
        return await anext(pieces, None)

    with asyncio.Runner() as runner:
        while True:
            try:
                piece = runner.run(following())
            except aiohttp.ClientError as error:
                raise RuntimeError(str(error)) from error
            if piece is None:
                return
            yield piece
