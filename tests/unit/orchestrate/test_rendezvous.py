"""Rank 0's decisions reach all ranks, also those that come earlier."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import (  # type: ignore[attr-defined]
    DistStoreError,
    HashStore,
    TCPStore,
)

from raysuite.orchestrate import rendezvous


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    made = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made.set_timeout(timedelta(seconds=1))
    monkeypatch.setattr(rendezvous, "_store", made)
    return made


def test_all_ranks_get_what_rank_0_decided(store: TCPStore) -> None:
    asked: list[int] = []

    def decide() -> dict[str, str | None]:
        asked.append(0)
        return {"resume": None}

    assert rendezvous.decided("run/a", 0, decide) == {"resume": None}
    other = TCPStore("127.0.0.1", store.port, timeout=timedelta(seconds=5))
    assert json.loads(other.get("run/a")) == {"resume": None}
    assert rendezvous.decided("run/a", 1, decide) == {"resume": None}
    assert asked == [0]


def test_a_rank_waits_longer_than_the_store_does(store: TCPStore) -> None:
    """A run that needs fewer ranks may take hours."""
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(rendezvous.awaited, store, "job/0")
        with pytest.raises(TimeoutError):
            waiting.result(2.5)
        TCPStore("127.0.0.1", store.port).set("job/0", "null")
        assert waiting.result(30) is None


def test_a_rank_whose_store_is_gone_waits_no_longer() -> None:
    class Gone(HashStore):
        def get(self, key: str) -> bytes:
            raise DistStoreError("Connection reset by peer")

    with pytest.raises(DistStoreError, match="reset"):
        rendezvous.awaited(Gone(), "job/0")


def test_a_runs_groups_meet_in_the_store_at_the_address_that_is_in_the_environment(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[TCPStore] = []
    monkeypatch.setattr(rendezvous, "use_store", used.append)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "before")
    rendezvous.join_store("127.0.0.1", store.port)
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("127.0.0.1", str(store.port))
    used[0].set("key", "value")
    assert store.get("key") == b"value"
