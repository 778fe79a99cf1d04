"""Find from a profiler's events how long steps compute, communicate and wait for data."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

# Sets of time as sorted intervals [begin, end) of nanoseconds, which neither overlap nor touch.

Interval = tuple[int, int]
Intervals = list[Interval]


def union(*sets: Iterable[Interval]) -> Intervals:
    """The time that at least one of the intervals covers; the intervals may overlap."""
    merged: Intervals = []
    for begin, end in sorted(chain.from_iterable(sets)):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def minus(whole: Intervals, *others: Intervals) -> Intervals:
    """The part of `whole` that none of the other sets covers."""
    taken = union(*others)
    left: Intervals = []
    place = 0
    for begin, end in whole:
        while place < len(taken) and taken[place][1] <= begin:
            place += 1
        at = place
        while at < len(taken) and taken[at][0] < end:
            if taken[at][0] > begin:
                left.append((begin, taken[at][0]))
            begin = max(begin, taken[at][1])
            at += 1
        if begin < end:
            left.append((begin, end))
    return left


def within(whole: Intervals, window: Interval) -> Intervals:
    """The part of `whole` that is in the window."""
    first, last = window
    cut = [(max(begin, first), min(end, last)) for begin, end in whole]
    return [(begin, end) for begin, end in cut if begin < end]


def seconds(whole: Intervals) -> float:
    return sum(end - begin for begin, end in whole) / 1e9


# A profiler's events -> when one rank computes, communicates and waits for its loader.

WINDOW = "raysuite::window"
DATA = "raysuite::data"
STEP = "raysuite::step"
"""Events that the profiled loop records: the whole window, each wait for the loader, each step."""

CALL = re.compile(r"^_?c10d\w*::")
IN_FLIGHT = re.compile(r"^gloo:")
"""torch.distributed's events on the host: a collective's call, and its work in Gloo's threads."""

OPERATOR = re.compile(r"^(?!_?c10d|autograd::|torch::|raysuite::)\w+::|_cpp_fused_")
"""Operators that compute on a CPU: aten::mm, torchvision::nms, and kernels that Inductor wrote.

Events of autograd (`autograd::`), of its accumulation of gradients and of DDP's reducer (`torch::`)
last as long as the hooks that they call, and some hooks communicate. Therefore only the operators
inside these events count.
"""

KERNELS = {
    "communication": re.compile(r"nccl|AllReduce|ReduceScatter|AllGather", re.IGNORECASE),
    "loading": re.compile(r"dali|nvjpeg|Memcpy (HtoD|DtoH)", re.IGNORECASE),
    "convolution_gemm": re.compile(
        r"gemm|conv(?!ert)|cudnn|cublas|cutlass|winograd|wgrad|dgrad|xmma|_mma_|implicit_",
        re.IGNORECASE,
    ),
    "other": re.compile(""),
}
"""Class of a GPU's kernels and copies -> pattern of their names; the first match counts. Copies
between host and device belong to the class loading, copies within the device to the class other."""


class Event(NamedTuple):
    """An event of a profiler; times in ns since 1970."""

    name: str
    begin: int
    end: int
    thread: int
    on_device: bool = False
    """Whether the event is a kernel, copy or fill that ran on a GPU."""


@dataclass(frozen=True)
class Parts:
    """Seconds of a window by activity. Exposed communication overlaps no computation; exposed
    loading of data overlaps neither computation nor communication."""

    window: float
    computation: float
    communication: float
    communication_exposed: float
    data: float
    data_exposed: float
    kernels: dict[str, float] = field(default_factory=dict)
    sources: tuple[str, ...] = ()


def parts_of(events: Iterable[Event], mark: str, timeline: Intervals | None = None) -> Parts:
    """Measure the activities within the window, which is the time of the event named WINDOW.

    `mark` is the name of the events by which an engine marks its communication. `timeline` has the
    intervals of collectives that a framework itself has recorded, in ns since 1970. If the events
    contain GPU kernels, only these count as computation, not the host's operators. If communication
    kernels are among them, only these count as communication, not the host's events or `timeline`.
    """
    events = list(events)
    frame = next(event for event in events if event.name == WINDOW and not event.on_device)
    window = (frame.begin, frame.end)
    events = [event for event in events if event.begin < frame.end and event.end > frame.begin]
    host = [event for event in events if not event.on_device]
    kernels = _kernels([event for event in events if event.on_device])
    waits = _spans(host, lambda event: event.name == DATA)
    collectives = _spans(
        host, lambda event: bool(CALL.match(event.name) or IN_FLIGHT.match(event.name))
    )
    marked = _spans(host, lambda event: event.name == mark)
    sources = {"torch.distributed": collectives, "timeline": timeline or [], "waits": marked}
    if kernels:
        # the host runs ahead of the device: its calls count only without communication kernels
        computes = union(kernels["convolution_gemm"], kernels["other"])
        loads = union(waits, kernels["loading"])
        if kernels["communication"]:
            sources = {"kernels": kernels["communication"]}
    else:
        own = [event for event in host if event.thread == frame.thread]
        calls = _spans(own, lambda event: CALL.match(event.name) is not None)
        operators = _spans(own, lambda event: OPERATOR.search(event.name) is not None)
        # operators in a wait for data count as loading, those in a collective as communication
        computes, loads = minus(operators, waits, calls), waits
    computes, loads = within(computes, window), within(loads, window)
    communicates = within(union(*sources.values()), window)
    return Parts(
        window=seconds([window]),
        computation=seconds(computes),
        communication=seconds(communicates),
        communication_exposed=seconds(minus(communicates, computes)),
        data=seconds(loads),
        data_exposed=seconds(minus(loads, computes, communicates)),
        kernels={name: seconds(within(each, window)) for name, each in kernels.items()},
        sources=tuple(name for name, each in sources.items() if each),
    )


def _spans(events: Sequence[Event], wanted: Callable[[Event], bool]) -> Intervals:
    return union((event.begin, event.end) for event in events if wanted(event))


def _kernels(events: Sequence[Event]) -> dict[str, Intervals]:
    """The intervals of each class in KERNELS; empty if nothing ran on a GPU."""
    found: dict[str, list[Interval]] = {name: [] for name in KERNELS if events}
    for event in events:
        kind = next(name for name, pattern in KERNELS.items() if pattern.search(event.name))
        found[kind].append((event.begin, event.end))
    return {kind: union(each) for kind, each in found.items()}


# torch.profiler (Kineto) over a window of steps: its events, and a trace for Perfetto.


class Profiler:
    """Profiles this thread, the threads of autograd and of process groups, and the device."""

    def __init__(self, device: torch.device) -> None:
        # otherwise Kineto writes to stderr when it starts and stops, and if there is no GPU
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        # Shapes and stacks are not recorded: this would take more time than the operators.
        self._profile = profile(activities=activities)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Profile within the context; beginning and ending take seconds on a GPU."""
        with self._profile:
            yield

    def events(self) -> list[Event]:
        """All recorded events, with times in ns since 1970."""
        # torch's public list of events is a tree, which takes minutes to build for many events
        results: Any = self._profile.profiler.kineto_results  # type: ignore[union-attr]
        events = []
        for event in results.events():
            on_device = event.device_type().name != "CPU"
            if on_device and event.is_user_annotation():
                continue  # a mark of the host, copied to the device's track: not a kernel
            begin = event.start_ns()
            end = begin + event.duration_ns()
            events.append(Event(event.name(), begin, end, event.start_thread_id(), on_device))
        return events

    def write_trace(self, file: Path) -> None:
        """Write a gzipped trace in Chrome's format (`.json.gz`), which ui.perfetto.dev opens."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(file))


# Horovod's timeline: when its collectives were under way (horovod.readthedocs.io, Timeline).

_TRANSFERS = ("ALLREDUCE", "ALLGATHER", "BROADCAST", "REDUCESCATTER", "ALLTOALL")
"""Names of the outer phases of a collective. They last from the moment when all ranks are ready
until the result is available."""


def horovod_collectives(file: Path) -> Intervals:
    """The intervals of the collectives in a timeline, in ns since 1970.

    The timeline shows each tensor as a process with nested phases: `B` begins a phase, `E` ends the
    innermost phase. A truncated file is read as far as it is complete. With one rank, the timeline
    has no collectives.
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
