"""The store of a worker group's ranks: their rendezvous, and rank 0's decisions for all of them."""

from __future__ import annotations

import json
import os
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
"""How long a rank waits for another's address, as in Ray Train's TorchConfig."""
_opened: Any = None
_store: Any = None


def serve_store() -> tuple[TCPStore, str]:
    """A store that this process serves, and its host."""
    host = ray.util.get_node_ip_address()
    return TCPStore(host, 0, is_master=True, wait_for_workers=False), host


def open_store() -> tuple[str, int]:
    """In rank 0's process: serve the store; its host and port."""
    global _opened
    _opened, host = serve_store()
    return host, _opened.port


def store_at(host: str, port: int) -> TCPStore:
    """The store that another process serves."""
    return TCPStore(host, port, timeout=_WAIT)


def join_store(host: str, port: int) -> None:
    """Make the process groups of this process's runs use the store at that address."""
    global _store
    _store = _opened or store_at(host, port)
    _store.set_timeout(_WAIT)
    use_store(_store)
    # for Horovod's rendezvous, and for what a user's strategy reads
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))


def decided(key: str, rank: int, decide: Any) -> Any:
    """What `decide`, called on rank 0 alone, returned there, as plain data: on all ranks.

    The others wait, also for hours while runs continue that need fewer ranks.
    """
    if rank == 0:
        found = decide()
        _store.set(key, json.dumps(found))
        return found
    return awaited(_store, key)


def store_of(key: str) -> Store:
    """A part of this worker group's store, for what is under a key."""
    return PrefixStore(key, _store)


def awaited(store: Store, key: str) -> Any:
    """What is set under a key of a store, as plain data, once it is."""
    while True:
        try:
            return json.loads(store.get(key))
        except DistStoreError as error:
            if "timeout" not in str(error).lower():
                raise
