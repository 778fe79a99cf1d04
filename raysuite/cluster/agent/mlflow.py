"""The cluster's MLflow server. It requires a password; its SQLite database is on the head's disk.

Several writers can corrupt a SQLite database on a network file system (optuna#815). So the database
is restored from the cluster's folder at the start, and copied back at intervals and at the end.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from raysuite.cluster import mlflow_server, private
from raysuite.cluster.folder import ClusterFolder
from raysuite.errors import MissingPartError, UserError
from raysuite.files import sqlite_uri
from raysuite.spec.site import MlflowOptions

DATABASE = "mlflow.db"
_GENERATIONS = 3
_GENERATION_S = 3600.0
"""Number of older copies of the database that are kept, and minimum seconds between two of them."""
ANSWERED = "answered"
"""Name of a file that the agent creates next to the database at the server's first answer: from
then on, the database is complete."""
_NICENESS = 10
"""MLflow has a lower priority than Ray's processes: it must not slow a start or a measured run."""
log = logging.getLogger("raysuite.cluster")


class MlflowServer:
    """The server's command line, environment and files. NAME is the server's name in `Children`."""

    NAME = "mlflow"

    def __init__(
        self,
        folder: ClusterFolder,
        options: MlflowOptions,
        address: str,
        port: int,
        temp: Path,
        outside: str = "",
    ) -> None:
        """`outside`: the address that clients use, if it is not `address`."""
        self._folder, self._options = folder, options
        self._address, self._port = address, port
        self._names = (address, outside) if outside else (address,)
        self._own = private.make_folder(temp / "mlflow")

    @property
    def url(self) -> str:
        return f"http://{self._address}:{self._port}"

    def words(self) -> list[str]:
        """The command line; it contains no secret."""
        artifacts = private.make_folder(self._folder.mlflow / "artifacts")
        made = mlflow_server.words(self._address, self._port, artifacts)
        return ["nice", "-n", str(_NICENESS), *made]

    def prepare(self, base: Mapping[str, str]) -> dict[str, str]:
        """Restore the database on this host's disk, and write the file with the password. Return
        the server's environment."""
        user = self._folder.mlflow_user()
        if user is None:
            raise UserError(f"{self._folder.mlflow_file} is missing; start the cluster again")
        hosts = (*self._names, "127.0.0.1", "localhost")  # the last two: for clients over SSH
        store = self._store()
        return mlflow_server.environment(base, self._own, user, store, hosts, self._port)

    def answers(self, pid: int) -> bool:
        """Whether the server answers, and runs in process `pid` or in one of its children."""
        return mlflow_server.answers(self.url, pid)

    def mark_answered(self) -> None:
        """Write the file ANSWERED. It allows the next agent on this host to copy the database if
        this agent is killed."""
        (self._own / ANSWERED).touch(0o600)

    def save(self) -> None:
        """Copy the database consistently to the cluster's folder, while the server runs.

        Raises sqlite3.DatabaseError for a damaged database; the copies are then unchanged.
        """
        source = self._own / DATABASE
        if self._options.backend == "sqlite" and source.exists():
            _copy(source, self._folder.mlflow / DATABASE, keep=True)

    def _store(self) -> str:
        if self._options.url_file is not None:
            return _read_url(Path(self._options.url_file))
        here = self._own / DATABASE
        if here.exists() and (problem := _damage(here)):
            log.error("MLflow's database is damaged (%s); its last copy is restored", problem)
            shutil.move(here, self._folder.mlflow / f"{DATABASE}.damaged")
            for name in ("journal", "wal", "shm"):  # else SQLite applies them to the copy
                here.with_name(f"{DATABASE}-{name}").unlink(missing_ok=True)
        if not here.exists():
            _restore(self._folder.mlflow / DATABASE, here)
        return sqlite_uri(here)


def _read_url(file: Path) -> str:
    """The database's URL from `file`. Messages do not show the URL, because it may contain a
    password.

    Raises UserError, or MissingPartError if the database's driver is not installed.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    named = f"the site's mlflow.url_file {file}"
    try:
        mode = file.stat().st_mode
        url = file.read_text("utf-8").strip()
    except OSError as error:
        raise UserError(f"{named} cannot be read: {error}") from error
    if mode & 0o077:
        raise UserError(f"others may open {named} (mode {mode & 0o777:o}); call chmod 600 on it")
    try:
        dialect = make_url(url).get_dialect()
    except (SQLAlchemyError, ValueError):
        raise UserError(
            f"{named} contains no database URL; valid: one line such as "
            "postgresql://USER:PASSWORD@HOST/DATABASE"
        ) from None
    try:
        dialect.import_dbapi()
    except ModuleNotFoundError as error:
        raise MissingPartError(
            f"{named} names a database whose driver, {error.name}, is not installed for "
            f"{sys.executable}; for PostgreSQL, install it by `pip install 'raysuite[postgres]'` "
            "or, in a checkout, by `make setup`"
        ) from None
    return url


def _restore(kept: Path, here: Path) -> None:
    """Copy the newest undamaged copy to `here`; do nothing if there are no copies.

    Raises sqlite3.DatabaseError if all copies are damaged.
    """
    problems = []
    for copy in (kept, *_older(kept)):
        if copy.exists():
            try:
                return _copy(copy, here)
            except sqlite3.DatabaseError as error:
                problems.append(f"{copy}: {error}")
                log.error("a copy of MLflow's database is damaged: %s", problems[-1])
    if problems:
        raise sqlite3.DatabaseError(
            f"every copy of MLflow's database is damaged ({'; '.join(problems)}); move the copies "
            "away to start with an empty database, and write the runs again with `raysuite sync "
            "RESULTS`"
        )
    return None


def _older(kept: Path) -> list[Path]:
    return [kept.with_name(f"{kept.name}.{number}") for number in range(1, _GENERATIONS + 1)]


def _damage(database: Path) -> str:
    """The damage that SQLite finds in a database; empty if there is none."""
    try:
        with contextlib.closing(sqlite3.connect(database)) as opened:
            found = opened.execute("pragma integrity_check(1)").fetchone()[0]
            empty = opened.execute("select count(*) from sqlite_master").fetchone()[0] == 0
    except sqlite3.DatabaseError as error:
        return str(error)
    if found != "ok":
        return str(found).strip()
    return "it is empty" if empty else ""


def _copy(source: Path, target: Path, keep: bool = False) -> None:
    """Copy a database to a file of mode 0600. `target` is replaced only by a complete copy.

    With `keep`, the previous copy becomes TARGET.1, TARGET.1 becomes TARGET.2 and so on, but only
    if TARGET.1 is missing or at least _GENERATION_S seconds old; otherwise the previous copy is
    overwritten. Raises sqlite3.DatabaseError if the copy is damaged.
    """
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    # The file is created here, because SQLite would create it with the umask's mode. The copy needs
    # no journal files, because no other process writes to it.
    fresh.unlink(missing_ok=True)
    try:
        private.create(fresh, "")
        with (
            contextlib.closing(sqlite3.connect(source)) as origin,
            contextlib.closing(sqlite3.connect(fresh)) as copy,
        ):
            origin.backup(copy)
        if problem := _damage(fresh):
            raise sqlite3.DatabaseError(f"{source}: {problem}")
        if keep and target.exists():
            _keep_generation(target)
        os.replace(fresh, target)
    finally:  # failed copies must not accumulate on a full disk
        fresh.unlink(missing_ok=True)


def _keep_generation(target: Path) -> None:
    names = [target, *_older(target)]
    if names[1].exists() and time.time() - names[1].stat().st_mtime < _GENERATION_S:
        return
    for newer, older in reversed(list(itertools.pairwise(names))):
        if newer.exists():
            os.replace(newer, older)
