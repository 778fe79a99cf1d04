"""Measure how fast this node computes, copies and reads, in about half a second each."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from raysuite.measure.clock import now

_SECONDS = 0.4
_FILE_BYTES = 64 * 2**20


def node_figures(device: torch.device, folder: Path) -> dict[str, float]:
    """`matrix`: GFLOP/s of a matrix product; `memory`: GB/s of a copy in memory, where each byte
    counts twice (read and written); `disk`: MB/s of reading a file in `folder`."""
    size = 4096 if device.type == "cuda" else 512
    left, right = (torch.rand(size, size, device=device) for _ in range(2))
    source = torch.rand(2**26 if device.type == "cuda" else 2**23, device=device)
    target = torch.empty_like(source)
    copied = 2 * source.numel() * source.element_size()
    found = {
        "matrix": 2 * size**3 / _mean_s(lambda: torch.mm(left, right), device) / 1e9,
        "memory": copied / _mean_s(lambda: target.copy_(source), device) / 1e9,
    }
    with contextlib.suppress(OSError):  # on a full disk, this rate is missing
        found["disk"] = _FILE_BYTES / _read_s(folder) / 1e6
    return found


def _mean_s(work: Callable[[], object], device: torch.device) -> float:
    """Mean seconds of a call of `work`, which is called repeatedly for _SECONDS. Unlike a minimum,
    a mean contains the effect of disturbances."""
    for _ in range(3):
        work()
    calls, began = 0, now(device)
    while (passed := now(device) - began) < _SECONDS or not calls:
        work()
        calls += 1
    return passed / calls


def _read_s(folder: Path) -> float:
    """Seconds to read a new file: the shortest of three reads. Before each read, posix_fadvise
    advises the kernel to drop the file's pages from the page cache."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".raysuite-read-") as file:
        file.write(os.urandom(_FILE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        best = float("inf")
        for _ in range(3):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            with Path(file.name).open("rb", buffering=0) as opened:
                while opened.read(2**22):
                    pass
            best = min(best, time.perf_counter() - began)
    return best
