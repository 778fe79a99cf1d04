"""Rank 0's decisions reach all ranks, also those that come earlier."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

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
