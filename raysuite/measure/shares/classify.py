"""A profiler's events -> when one rank computes, communicates and waits for its loader."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raysuite.measure.shares.intervals import Intervals, minus, seconds, union, within

WINDOW = "raysuite::window"
DATA = "raysuite::data"
STEP = "raysuite::step"
"""Marks that the profiled loop sets: the whole window, each wait for the loader, each step."""

CALL = re.compile(r"^_?c10d\w*::")
IN_FLIGHT = re.compile(r"^gloo:")
"""Of torch.distributed on the host: the call of a collective, and its life in Gloo's threads."""

OPERATOR = re.compile(r"^(?!_?c10d|autograd::|torch::|raysuite::)\w+::|_cpp_fused_")
"""Operators that compute on a CPU: aten::mm, torchvision::nms, and kernels that Inductor wrote.

Autograd's own events hold whatever a hook does, communication included: not they count, but the
operators within them. `torch::` are autograd's accumulation and DDP's reducer, whose operators
count as well.
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
"""Class of a GPU's kernels and copies -> what their names hold; the first that fits counts.
Copies between host and device are loading, copies within the device are other."""


class Event(NamedTuple):
    """What a profiler saw; times in ns since 1970."""

    name: str
    begin: int
    end: int
    thread: int
    on_device: bool = False
    """A kernel, copy or fill that ran on a GPU."""


@dataclass(frozen=True)
class Parts:
    """How much of the window went where, in seconds."""

    window: float
    computation: float
    communication: float
    communication_exposed: float
    data: float
    data_exposed: float
    kernels: dict[str, float] = field(default_factory=dict)
    sources: tuple[str, ...] = ()


def parts_of(events: Iterable[Event], mark: str, timeline: Intervals | None = None) -> Parts:
    """The parts of the one WINDOW among the events.

    `mark` is what an engine calls its own communication. `timeline` is when collectives were
    under way by a framework's own record, in the clock of the events. A GPU's kernels are
    believed before their callers on the host, so that nothing counts twice.
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
        # the host runs ahead of the device: its calls are believed where no kernel tells
        computes = union(kernels["convolution_gemm"], kernels["other"])
        loads = union(waits, kernels["loading"])
        if kernels["communication"]:
            sources = {"kernels": kernels["communication"]}
    else:
        own = [event for event in host if event.thread == frame.thread]
        calls = _spans(own, lambda event: CALL.match(event.name) is not None)
        operators = _spans(own, lambda event: OPERATOR.search(event.name) is not None)
        # what runs while the loop waits for its loader is loading; within a collective, its own
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
    """By class; empty where nothing ran on a GPU."""
    found: dict[str, list[Event]] = {name: [] for name in KERNELS}
    for event in events:
        kind = next(name for name, pattern in KERNELS.items() if pattern.search(event.name))
        found[kind].append(event)
    if not events:
        return {}
    return {kind: _spans(each, lambda _: True) for kind, each in found.items()}
