"""The wall time of a command by phase: measured while it runs, stored in timings.json, printed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raysuite.cluster.folder import current_folder
from raysuite.cluster.process import age_s
from raysuite.records import Results, RunFinished

PHASES = {
    "driver": "start of the command, imports, spec and plans",
    "ray": "start of Ray, or joining its cluster",
    "dry batch": "check of your own networks with one batch: the part after the start of Ray",
    "batches": "search for batch sizes that the spec leaves open",
    "workers": "start of the worker processes, until the first run begins in them",
    "runs": "from the start of the first run to the end of the last, with the time between runs",
    "report": "the report, while Ray ends",
    "mlflow": "MLflow, after the report",
}


class Timings:
    """The phases of this command, in seconds of wall time."""

    def __init__(self) -> None:
        self.began = time.time() - age_s(os.getpid())
        self.seconds: dict[str, float] = {"driver": time.time() - self.began}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of this context to a phase, even if it raises an exception."""
        began = time.time()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.time() - began

    def split_runs(self, results: Results, began: float) -> None:
        """Separate the start of the workers from the phase `runs`, which started at `began`."""
        firsts = [
            end.first_step_time - end.first_step_seconds
            for plan in results.plans()
            if isinstance(end := results.end_of(plan["run_id"]), RunFinished)
            and end.first_step_time is not None
        ]
        here = [first for first in firsts if first > began]
        if here:
            self.seconds["workers"] = min(here) - began
            self.seconds["runs"] -= self.seconds["workers"]

    def write(self, results: Results) -> None:
        """Store the timings next to the timings of earlier commands on these results."""
        own = {"began": self.began, "seconds": {n: round(s, 3) for n, s in self.seconds.items()}}
        if (cluster := current_folder()) is not None:
            own["nodes"] = {node.host: node.seconds for node in cluster.nodes()}
        earlier = [each for each in results.timings() if each["began"] != self.began]
        results.write_timings([*earlier, own])


def timing_lines(results: Results, timings: Timings) -> Iterator[str]:
    """The lines of a table with the seconds of each phase, and of the parts of each run."""
    total = time.time() - timings.began
    yield f"{'phase':<10}{'seconds':>9}{'share':>8}"
    for name, what in PHASES.items():
        if name in timings.seconds:
            seconds = timings.seconds[name]
            yield f"{name:<10}{seconds:9.2f}{seconds / total:8.0%}  {what}"
    yield f"{'all':<10}{total:9.2f}"
    runs: list[tuple[dict[str, Any], RunFinished]] = [
        (plan, end)
        for plan in results.plans()
        if isinstance(end := results.end_of(plan["run_id"]), RunFinished) and end.parts_seconds
    ]
    names = list(dict.fromkeys(name for _, end in runs for name in end.parts_seconds))
    if names:
        yield ""
        yield "run   seconds" + "".join(f"{name:>12}" for name in names)
    for plan, end in runs:
        parts = "".join(f"{end.parts_seconds.get(name, 0.0):12.2f}" for name in names)
        yield f"{plan['index'] + 1:<4}{end.seconds:9.2f}{parts}"
