"""`raysuite check`: the cluster ends with the command."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from raysuite.cli import check
from raysuite.cluster import client


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_cluster(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    folder, ended = SimpleNamespace(), []
    monkeypatch.setattr(check, "bring_up", lambda *_: folder)
    monkeypatch.setattr(client, "status_of", lambda _: None)

    def down(found: Any, grace_s: float) -> list[str]:
        ended.append(found)
        return []

    monkeypatch.setattr(client, "down", down)
    with pytest.raises(SystemExit) as stopped, check._cluster("local", None):
        signal.raise_signal(number)
    assert (stopped.value.code, ended) == (128 + number, [folder])
