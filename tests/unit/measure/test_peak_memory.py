"""The peak of a process's memory is that of what it does from then on."""

from __future__ import annotations

import ctypes

import psutil
import pytest
import torch

from raysuite.measure import peak_memory
from raysuite.measure.peak_memory import PeakMemory, available_bytes

PIECE, PIECES = 100_000, 1_000  # below malloc's own mappings, which go to the kernel at once


def test_memory_that_was_freed_before_does_not_count() -> None:
    before = psutil.Process().memory_info().rss
    held = [ctypes.create_string_buffer(PIECE) for _ in range(PIECES)]
    last = ctypes.create_string_buffer(PIECE)  # behind them: the heap cannot shrink from its end
    held.clear()
    peak = PeakMemory(torch.device("cpu"))
    assert peak.start_bytes - before < PIECE * PIECES / 4
    assert peak.process_bytes() - before < PIECE * PIECES / 4
    again = [ctypes.create_string_buffer(b"x" * PIECE) for _ in range(PIECES)]
    assert peak.process_bytes() - peak.start_bytes > PIECE * PIECES / 2
    assert len(again) > len(last) / PIECE


@pytest.mark.parametrize(
    ("limits", "wanted"), [([], 1000), ([2000, 700, 900], 700), ([2000], 1000), ([-5], 0)]
)
def test_the_smallest_limit_counts_and_is_never_below_0(
    monkeypatch: pytest.MonkeyPatch, limits: list[int], wanted: int
) -> None:
    memory = psutil.virtual_memory()._replace(available=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(peak_memory, "memory_left", lambda: limits)
    assert available_bytes(torch.device("cpu")) == wanted


def test_memory_that_torch_holds_unused_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("mem_get_info", (100, 500)),
        ("memory_reserved", 30),
        ("memory_allocated", 10),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda _, value=value: value)
    assert available_bytes(torch.device("cuda", 0)) == 100 + 30 - 10
