"""torch.profiler (Kineto) over a window of steps: its events, and a trace for Perfetto."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from raysuite.measure.shares.classify import Event


class Profiler:
    """Profiles this thread, autograd's, the process groups' and the device."""

    def __init__(self, device: torch.device) -> None:
        # Kineto writes on stderr when it starts and stops, and that there is no GPU
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        # neither shapes nor stacks: they take more time than what they are recorded of
        self._profile = profile(activities=activities)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Profile; to start and to end it takes seconds on a GPU."""
        with self._profile:
            yield

    def events(self) -> list[Event]:
        """All that was seen, in ns since 1970."""
        # the public list makes a tree of them, which takes minutes where there are many
        results: Any = self._profile.profiler.kineto_results  # type: ignore[union-attr]
        events = []
        for event in results.events():
            on_device = event.device_type().name != "CPU"
            if on_device and event.is_user_annotation():
                continue  # the host's marks, drawn beside the kernels: not one of them
            begin = event.start_ns()
            end = begin + event.duration_ns()
            events.append(Event(event.name(), begin, end, event.start_thread_id(), on_device))
        return events

    def write_trace(self, file: Path) -> None:
        """Chrome's trace format, gzipped (`.json.gz`), which ui.perfetto.dev opens."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(file))
