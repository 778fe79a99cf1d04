"""The peak of a process's memory is that of what it does from then on."""

from __future__ import annotations

import ctypes

import psutil
import torch

from raysuite.measure.peak_memory import PeakMemory

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
