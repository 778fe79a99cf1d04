"""Processes of a cluster listen on the node's chosen address alone.

Ray's GCS, raylet, workers and metrics agent listen on every interface, whatever the options of
`ray start`, and so do torch's TCPStore and Horovod's rendezvous, which need no token. `bind.c`
turns such a bind(2) into one to the chosen address; docs/explanation/security.md lists what
listens where.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("bind.c")
COMPILERS = ("cc", "gcc", "clang")
CLOSED = {
    # pages of figures that are given to everyone who asks; -1 is no port that can be opened
    "RAY_enable_metrics_collection": "0",
    "AUTOSCALER_METRIC_PORT": "-1",
    "DASHBOARD_METRIC_PORT": "-1",
}
"""Close Ray's ports that need no token and are the same on every node."""
_TRIAL = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[0])"
_PATIENCE_S = 60.0

log = logging.getLogger(__name__)


class UnboundError(Exception):
    """Why processes of this node listen on all of its interfaces."""


def variables(address: str, folder: Path) -> dict[str, str]:
    """The environment under which a node's processes listen on `address` alone, an IPv4 address.

    The library is compiled into `folder`, which is the user's own, unless one that works here is
    there already: the login node makes one, whose C library may be newer than an image's.
    Where that fails, as without a C compiler, the reason is logged, and the variables close only
    Ray's ports without a token: the others require the token, on every interface.
    """
    try:
        return {**CLOSED, **bound(address, folder)}
    except UnboundError as error:
        log.warning("processes listen on all interfaces of this node: %s", error)
        return dict(CLOSED)


def bound(address: str, folder: Path) -> dict[str, str]:
    """The variables of processes that listen on `address` alone; the library is in `folder`.

    Raises UnboundError where that cannot be.
    """
    if (made := library_in(folder)).exists():
        with contextlib.suppress(UnboundError):
            return _bound(address, made)
    return _bound(address, build(folder))


def library_in(folder: Path) -> Path:
    """Where `build` puts the library; nodes of several architectures may share the folder."""
    return folder / f"bind-{platform.machine()}.so"


def build(folder: Path) -> Path:
    """The library, compiled into `folder`. Raises UnboundError, with what is missing."""
    made = library_in(folder)
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise UnboundError(f"no C compiler here (looked for {', '.join(COMPILERS)})")
    with tempfile.TemporaryDirectory(prefix=".bind-", dir=folder) as scratch:
        fresh = Path(scratch) / made.name
        words = [compiler, "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(fresh)]
        done = _run([*words, str(SOURCE)], {})
        if done.returncode != 0:
            raise UnboundError(f"{compiler} cannot compile {SOURCE}: {done.stderr.strip()}")
        os.replace(fresh, made)  # other nodes may be doing the same
    return made


def _bound(address: str, library: Path) -> dict[str, str]:
    try:
        ipaddress.IPv4Address(address)
    except ValueError:
        raise UnboundError(f"{address!r} is no IPv4 address") from None
    if set(str(library)) & set(" :"):
        raise UnboundError(f"LD_PRELOAD cannot name {str(library)!r}, for its spaces or colons")
    others = os.environ.get("LD_PRELOAD", "")
    words = [str(library), *(word for word in others.split() if word != str(library))]
    made = {"LD_PRELOAD": " ".join(words), "RAYSUITE_BIND": address}
    # a library that cannot be loaded, as from a folder mounted noexec, is ignored without a message
    done = _run([sys.executable, "-S", "-c", _TRIAL], made)
    if done.returncode != 0 or done.stdout.strip() != address:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise UnboundError(f"{library} has no effect: {said[-1] if said else 'no answer'}")
    return made


def _run(words: list[str], settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnboundError(str(error)) from error
