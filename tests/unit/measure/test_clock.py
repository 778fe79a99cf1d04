"""The clock that times steps."""

from __future__ import annotations

import time

import pytest
import torch

from raysuite.measure.clock import StepClock, now
from tests.require import require


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


def test_steps_are_timed_from_the_end_of_the_one_before() -> None:
    clock = StepClock(torch.device("cpu"))
    clock.restart()
    time.sleep(0.02)
    clock.mark()
    clock.restart()
    assert clock.seconds() == []
    clock.mark()
    time.sleep(0.02)
    clock.mark()
    short, long = clock.seconds()
    assert 0 <= short < 0.02 <= long


def test_events_of_a_device_are_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        times = iter((10.0, 35.0, 135.0))

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = next(self.times)

        def elapsed_time(self, end: Event) -> float:
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = StepClock(torch.device("cuda"))
    clock.restart()
    clock.mark()
    clock.mark()
    assert clock.seconds() == [0.025, 0.1]


@pytest.mark.gpu
def test_steps_of_a_device_are_timed_in_its_stream() -> None:
    require("gpu")
    device = torch.device("cuda", 0)
    matrix = torch.randn(4096, 4096, device=device)
    clock = StepClock(device)
    began = now(device)
    clock.restart()
    for _ in range(5):
        matrix = (matrix @ matrix).clamp(-1, 1)
        clock.mark()
    queued = time.perf_counter() - began
    whole = now(device) - began
    assert queued < whole / 2
    assert sum(clock.seconds()) == pytest.approx(whole, rel=0.2)
