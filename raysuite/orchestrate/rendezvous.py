"""The TCPStore through which the ranks of a worker group meet, and get the decisions of rank 0."""

from __future__ import annotations

import json
import os
import socket
from datetime import timedelta
from typing import Any

import ray
from torch.distributed import (  # type: ignore[attr-defined]
    DistStoreError,
    PrefixStore,
    Store,
    TCPStore,
)

from raysuite.parallel.comm import use_store

_WAIT = timedelta(seconds=1800)
"""Time limit of one request to the store; equals the default of Ray Train's TorchConfig."""
_opened: Any = None
_store: Any = None


def serve_store() -> tuple[TCPStore, str]:
    """Start a store in this process; return the store and the address of this node."""
    host = ray.util.get_node_ip_address()
    return TCPStore(host, 0, is_master=True, wait_for_workers=False), host


def open_store() -> tuple[str, int]:
    """Open the store in rank 0's process; return its host and port."""
    global _opened
    _opened, host = serve_store()
    return host, _opened.port


def store_at(host: str, port: int) -> TCPStore:
    """Connect to the store of another process."""
    return TCPStore(host, port, timeout=_WAIT)


def join_store(host: str, port: int) -> tuple[str, str]:
    """Make torch's process groups in this process use the store at `host` and `port`. Return the id
    and the host name of this node."""
    global _store
    _store = _opened or store_at(host, port)
    _store.set_timeout(_WAIT)
    use_store(_store)
    # Horovod's rendezvous reads these variables, and a user's own strategy may do so
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))
    return ray.get_runtime_context().get_node_id(), socket.gethostname()


def decided(key: str, rank: int, decide: Any) -> Any:
    """Call `decide` on rank 0, and return its result, as plain data, on all ranks.

    The other ranks wait for the result without a time limit, because a run with fewer ranks may
    take hours before rank 0 decides.
    """
    if rank == 0:
        found = decide()
        _store.set(key, json.dumps(found))
        return found
    return awaited(_store, key)


def store_of(key: str) -> Store:
    """A view of this worker group's store that prefixes all its keys with `key`."""
    return PrefixStore(key, _store)


def awaited(store: Store, key: str) -> Any:
    """Wait for the value of a key in a store, and return it as plain data."""
    while True:
        try:
            return json.loads(store.get(key))
        except DistStoreError as error:
            if "timeout" not in str(error).lower():
                raise
