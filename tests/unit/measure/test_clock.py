"""The clock that times steps."""

from __future__ import annotations

import time

import pytest
import torch

from raysuite.measure.clock import now


@pytest.mark.parametrize(("device", "waits"), [("cpu", False), ("cuda", True)])
def test_it_is_read_once_the_device_has_done_its_work(
    monkeypatch: pytest.MonkeyPatch, device: str, waits: bool
) -> None:
    called: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: called.append("synchronize"))
    monkeypatch.setattr(time, "perf_counter", lambda: called.append("read") or 7.0)
    found = now(torch.device(device))
    monkeypatch.undo()
    assert found == 7.0
    assert called == ["synchronize", "read"][not waits :]
