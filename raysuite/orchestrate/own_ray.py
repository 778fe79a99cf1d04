"""A Ray that `raysuite run` starts for itself is for its processes only.

Its token is fresh. Left alone, Ray asks for one too, but for one that all of the user's clusters
share, from ~/.ray/auth_token, which it writes readable for everyone whom the umask lets in.

Its workers' meeting places, torch's TCPStore, Gloo and Horovod's rendezvous, know no token: they
are on loopback.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raysuite.cluster import binding, private
from raysuite.cluster.environment import LOOPBACK_ONLY

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
PREFIX = "rs-"
_PRELOADED = "raysuite.orchestrate.worker"
log = logging.getLogger(__name__)


@contextmanager
def own_folder() -> Iterator[Path]:
    """Temporary folder of an embedded Ray, which asks for a token and listens on loopback.

    Token and preloaded library lie above the folder that Ray is given: Ray gives that one mode
    0777, whatever it was, so that another user could replace the library and run code as this one.
    """
    with private.temporary_folder(PREFIX) as folder, own_token(folder), own_loopback(folder):
        ours = {
            # compiled code; torch's own default can be guessed
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            # processes that wait for work import meanwhile what it needs
            "RAY_preload_python_modules": _PRELOADED,
        }
        with _environment({name: ours[name] for name in ours if name not in os.environ}):
            yield folder / "r"


@contextmanager
def own_token(folder: Path) -> Iterator[Path]:
    """Have the Ray that starts within the context ask for a new token; yields the token's file.

    `folder` is the user's own (0700) and holds the file, which is created with mode 0600. What the
    environment said of tokens before, it says again afterwards.
    """
    file = folder / "token"
    private.create(file, private.new_token())
    ours = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}
    # Ray prefers a token in the environment to one in a file
    before = {name: os.environ.pop(name, None) for name in (*ours, "RAY_AUTH_TOKEN")}
    try:
        _set(ours)
        yield file
    finally:
        _set(before)


@contextmanager
def own_loopback(folder: Path) -> Iterator[None]:
    """Have what the Ray that starts within the context starts listen on loopback alone.

    Where processes cannot be led there, as without a C compiler, torch's TCPStore and Horovod's
    rendezvous listen on every interface. An interface that the user names for Gloo or NCCL stays.
    """
    ours = LOOPBACK_ONLY | {name: _LOOPBACK for name in _INTERFACES if name not in os.environ}
    try:
        ours |= binding.bound("127.0.0.1", folder)
    except binding.UnboundError as error:
        log.info("torch's and Horovod's meeting places are on all interfaces: %s", error)
    with _environment(ours), _single_machine():
        yield


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables within the context."""
    before = {name: os.environ.get(name) for name in values}
    try:
        os.environ.update(values)
        yield
    finally:
        _put(before)


@contextmanager
def _single_machine() -> Iterator[None]:
    """Have a Ray that was imported before LOOPBACK_ONLY was set heed it too.

    It reads that variable once. Its driver would ask for the GCS at an address on which that, led
    to loopback, does not listen.
    """
    constants: Any = sys.modules.get("ray._private.ray_constants")
    if constants is None:
        yield
        return
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _put(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _set(values: Mapping[str, str | None]) -> None:
    _put(values)
    if "ray" in sys.modules:  # it reads the environment once, when it is imported
        from ray._raylet import (  # type: ignore[attr-defined]
            AuthenticationTokenLoader,
            Config,
        )

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
