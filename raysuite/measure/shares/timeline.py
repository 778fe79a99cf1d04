"""Horovod's timeline: when its collectives were under way (horovod.readthedocs.io, Timeline)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from raysuite.measure.shares.intervals import Intervals, union

_TRANSFERS = ("ALLREDUCE", "ALLGATHER", "BROADCAST", "REDUCESCATTER", "ALLTOALL")
"""From when all ranks are ready to when the result is there; what is nested in them says how."""


def horovod_collectives(file: Path) -> Intervals:
    """When the collectives of a timeline were under way, in ns since 1970.

    Each tensor is a process of the timeline, with a stack of phases: `B` begins one, `E` ends the
    innermost. A timeline that breaks off is read as far as it goes; that of one process is empty.
    """
    events = _events(file.read_text())
    start = next(
        (
            1000 * int(event["args"]["start_time_since_epoch_in_micros"])
            for event in events
            if "start_time_since_epoch_in_micros" in event.get("args", {})
        ),
        0,
    )
    return union((start + 1000 * begin, start + 1000 * end) for begin, end in _transfers(events))


def _transfers(events: Iterable[dict[str, Any]]) -> Iterable[tuple[int, int]]:
    open_phases: dict[int, list[tuple[str, int]]] = {}
    for event in events:
        stack = open_phases.setdefault(event.get("pid", 0), [])
        if event.get("ph") == "B":
            stack.append((event["name"], event["ts"]))
        elif event.get("ph") == "E" and stack:
            name, begin = stack.pop()
            if name in _TRANSFERS:
                yield begin, event["ts"]


def _events(text: str) -> list[dict[str, Any]]:
    try:
        return list(json.loads(text))
    except ValueError:
        whole, brace, _ = text.rpartition("}")
        return list(json.loads(whole + brace + "]")) if brace else []
