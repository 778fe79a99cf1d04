"""The suites that are in progress on a cluster. A restarted head reads their files to resume them.

FOLDER/suites/ID.json   a suite that was started on this cluster, and has not ended
RESULTS/driver.lock     locked by the one process that writes to that results folder
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from raysuite.cluster import private
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.process import birth_of, find_process
from raysuite.cluster.state_files import File
from raysuite.errors import (
    HeadLostError,
    RaysuiteError,
    StorageError,
    UserError,
    how_to_write,
    is_full,
)
from raysuite.files import write_whole

LOCK = "driver.lock"
RESUMED = "resumed-"
"""Prefix of the new job ids under which a head resumes suites."""
_ROOM_BYTES = 2**20
"""Free bytes that a results folder needs before its suite is resumed."""
_MOST_IN_VAIN = 3
"""A suite is not resumed again after this number of resumptions without progress. Otherwise, an
allocation with suites would be requeued for ever."""
log = logging.getLogger("raysuite.cluster")

Verb = Literal["run", "sweep"]


class Suite(File):
    """suites/ID.json: the data that are needed to resume a suite."""

    results: Path
    folder: Path
    """The working folder in which the suite was started."""
    verb: Verb = "run"
    arguments: tuple[str, ...] = ()
    """Options of the command that also apply when the suite is resumed."""
    job: str = ""
    """The id of the Ray job in which the user started the suite; empty without such a job."""
    began: float = Field(default_factory=time.time)
    reached: int = 0
    """The suite's progress (see `_reached`) when it was registered or last resumed."""
    in_vain: int = 0
    """Number of resumptions that began with the progress `reached`."""

    @property
    def words(self) -> tuple[str, ...]:
        """The command that resumes the suite, in `folder`."""
        return ("raysuite", self.verb, "--resume-from", str(self.results), *self.arguments)


def job_id() -> str:
    """The id of the Ray job of this process; empty if the process is not part of a job.

    Ray's JobSupervisor sets this environment variable (Ray 2.60,
    dashboard/modules/job/job_supervisor.py).
    """
    try:
        config = json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])
        return str(config["metadata"]["job_submission_id"])
    except (KeyError, TypeError, ValueError):
        return ""


def register(cluster: ClusterFolder, suite: Suite) -> None:
    """Register `suite`, to be resumed whenever the cluster's head restarts."""
    private.make_folder(cluster.suites)
    known = _read(_file(cluster, suite.results))
    reached = known.reached if known else _reached(suite.results)
    told: dict[str, object] = {"reached": reached, "in_vain": known.in_vain if known else 0}
    if known and suite.job.startswith(RESUMED):
        told["job"] = known.job
    _write(cluster, suite.model_copy(update=told))


def unregister(cluster: ClusterFolder, results: Path) -> None:
    """Remove the suite of that results folder from the registered suites, if it is there."""
    _file(cluster, results).unlink(missing_ok=True)


def suites_to_resume(cluster: ClusterFolder, head_is_new: bool = True) -> list[Suite]:
    """The registered suites that have no driver, the oldest first.

    Suites without results, and unreadable files, are left out. Suites that were resumed several
    times without progress are unregistered. If `head_is_new` is False, a suite is resumed only if
    its driver was killed or failed on this host, and its results folder can be written.
    """
    found = [suite for file in cluster.suites.glob("*.json") if (suite := _read(file))]
    if not head_is_new:
        found = [suite for suite in found if _has_lost_its_driver(suite.results)]
    return [
        suite
        for suite in sorted(found, key=lambda suite: suite.began)
        if (suite.results / "plan.json").is_file()
        and not _is_held(suite.results)
        and not _is_forgotten(cluster, suite)
    ]


def taken_up(cluster: ClusterFolder, results: Path) -> None:
    """Count a resumption of a suite."""
    # `_reached` takes time, in which the driver may change the suite's file: read the file later
    reached = _reached(results)
    suite = _read(_file(cluster, results))
    if suite is not None:
        in_vain = 1 + (suite.in_vain if reached == suite.reached else 0)
        _write(cluster, suite.model_copy(update={"reached": reached, "in_vain": in_vain}))


def _is_forgotten(cluster: ClusterFolder, suite: Suite) -> bool:
    if suite.in_vain < _MOST_IN_VAIN or _reached(suite.results) != suite.reached:
        return False
    log.warning(
        "the suite in %s made no progress in %d attempts and is not resumed again",
        suite.results,
        _MOST_IN_VAIN,
    )
    unregister(cluster, suite.results)
    return True


def _reached(results: Path) -> int:
    """A number that grows with a suite's progress: the number of Records that show progress (such
    as epochs), plus for each run the highest step at which it stopped."""
    # imported on use, so that a cluster's agents start faster
    from raysuite.records import GateVerdict, RunStarted, RunStopped, SamplesSkipped, read_journal

    reached = 0
    for file in results.glob("runs/*/journal.jsonl"):
        steps = 0  # a maximum: another stop at the same step is no progress
        with contextlib.suppress(OSError):
            for record in read_journal(file):
                if isinstance(record, RunStopped):
                    steps = max(steps, record.step)
                elif not isinstance(record, (RunStarted, GateVerdict, SamplesSkipped)):
                    reached += 1
        reached += steps
    return reached


@contextmanager
def sole_driver(results: Path) -> Iterator[None]:
    """Within the context, hold the lock that lets only one process write to a results folder.

    Raises UserError if another process holds the lock, or if the folder cannot be written;
    StorageError if a file system is found full or read-only within the context. A killed driver
    releases the lock, but the file still names its process.
    """
    try:
        stream = (results / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{results} cannot be written: {error.strerror}") from error
    with stream:
        if not _take(stream.fileno()) or _lives(_holder(results)):
            holder = _holder(results)
            raise UserError(
                f"{results} is being written by process {holder.get('pid', '?')} on "
                f"{holder.get('host', 'another host')}; wait until it has ended, or end it"
            )
        stream.truncate(0)
        stream.write(json.dumps(_ourselves()))
        stream.flush()
        try:
            yield
        except BaseException as error:
            if not is_to_be_resumed(error):
                stream.truncate(0)
            elif isinstance(error, StorageError) or is_full(error):
                raise StorageError(
                    f"{results} cannot be written: {error}; {how_to_write(error)}, then continue "
                    f"with `raysuite run --resume-from {shlex.quote(str(results))}`"
                ) from error
            raise
        stream.truncate(0)


def has_driver(results: Path) -> bool:
    """Whether a command is writing to a results folder, as far as this host can tell: a command
    that was killed on another host still counts."""
    holder = _holder(results)
    return bool(holder) and (holder.get("host") != socket.gethostname() or _lives(holder))


def is_to_be_resumed(error: BaseException) -> bool:
    """Whether to resume a suite whose driver ends with this error. False if the user, or a mistake
    of the user, ended the driver."""
    if isinstance(error, HeadLostError | StorageError):
        return True
    return isinstance(error, Exception) and not isinstance(error, RaysuiteError)


def _has_lost_its_driver(results: Path) -> bool:
    """Whether the last driver was killed or failed on this host, and the folder can be written.

    This check does not acquire the lock, because a driver could then not start at that moment.
    """
    holder = _holder(results)
    here = holder.get("host") == socket.gethostname()
    return here and not _lives(holder) and _is_writable(results)


def _is_writable(folder: Path) -> bool:
    file = folder / ".writable"
    try:
        with file.open("wb") as stream:
            stream.write(bytes(_ROOM_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    return True


def _read(file: Path) -> Suite | None:
    with contextlib.suppress(OSError, ValidationError):
        return Suite.model_validate_json(file.read_bytes())
    return None


def _write(cluster: ClusterFolder, suite: Suite) -> None:
    content = suite.model_dump_json(indent=1) + "\n"
    write_whole(_file(cluster, suite.results), content.encode(), private.MODE)


def _is_held(results: Path) -> bool:
    try:
        with (results / LOCK).open("a+") as stream:
            return not _take(stream.fileno()) or _lives(_holder(results))
    except OSError:
        return False


def _take(descriptor: int) -> bool:
    """Acquire the lock, if the file system has locks; return False if another process holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _ourselves() -> dict[str, object]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "birth": birth_of(pid)}


def _holder(results: Path) -> dict[str, object]:
    try:
        found = json.loads((results / LOCK).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _lives(holder: dict[str, object]) -> bool:
    """Whether `holder`, the content of a lock file, names another process that runs on this host.
    This check is for file systems without locks."""
    if holder.get("host") != socket.gethostname() or holder.get("pid") == os.getpid():
        return False
    try:
        return find_process(int(str(holder["pid"])), str(holder["birth"])) is not None
    except (KeyError, ValueError):
        return False


def _file(cluster: ClusterFolder, results: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(results.resolve())).hexdigest()
    return cluster.suites / f"{digest[:16]}.json"
