"""Make the processes of a cluster listen only on the node's chosen address.

Ray's GCS, raylet, workers and metrics agent listen on every interface, whatever the options of `ray
start`. torch's TCPStore, Horovod's rendezvous and TensorFlow's workers do this too, and require no
token. `bind.c` intercepts the calls of bind(2), and replaces "every interface" by the chosen
address; docs/explanation/security.md lists all listening ports.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path

from raysuite.compiled import LibraryError, build, library_in, run

SOURCE = Path(__file__).with_name("bind.c")
CLOSED = {
    # these close Ray's metrics ports, which require no token; with -1, Ray opens no port
    "RAY_enable_metrics_collection": "0",
    "AUTOSCALER_METRIC_PORT": "-1",
    "DASHBOARD_METRIC_PORT": "-1",
}
_TRIAL = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[0])"

log = logging.getLogger(__name__)


def variables(address: str, folder: Path) -> dict[str, str]:
    """The environment in which a node's processes listen only on `address`, an IPv4 address.

    The library is compiled into `folder`, which must belong to the user, unless `folder` already
    has a library that works on this host. (The login node has compiled a library, but that library
    may need a newer libc than an image has.) If no library can be used, for example without a C
    compiler, the reason is logged, and the variables only close Ray's metrics ports. All other
    servers named in this module's docstring then listen on every interface; of these servers, only
    those of Ray require the token.
    """
    try:
        return {**CLOSED, **bound(address, folder)}
    except LibraryError as error:
        log.warning("processes listen on all interfaces of this node: %s", error)
        return dict(CLOSED)


def bound(address: str, folder: Path) -> dict[str, str]:
    """Variables with which processes listen only on `address`; the library is in `folder`.

    Raises LibraryError if no library can be compiled or loaded.
    """
    if (made := library_in(folder, SOURCE)).exists():
        with contextlib.suppress(LibraryError):
            return _bound(address, made)
    return _bound(address, build(SOURCE, folder))


def _bound(address: str, library: Path) -> dict[str, str]:
    if set(str(library)) & set(" :"):
        raise LibraryError(
            f"LD_PRELOAD cannot contain {str(library)!r}, because of its spaces or colons"
        )
    others = os.environ.get("LD_PRELOAD", "")
    words = [str(library), *(word for word in others.split() if word != str(library))]
    made = {"LD_PRELOAD": " ".join(words), "RAYSUITE_BIND": address}
    # a library that cannot be loaded, for example from a noexec folder, is ignored silently
    done = run([sys.executable, "-S", "-c", _TRIAL], made)
    if done.returncode != 0 or done.stdout.strip() != address:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise LibraryError(f"{library} failed its test: {said[-1] if said else 'no output'}")
    return made
