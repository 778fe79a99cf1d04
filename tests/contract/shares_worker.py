"""What test_shares.py asks of two ranks: profiles of runs that sleep, and how long they slept."""

from __future__ import annotations

import gzip
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from raysuite.plan import RunPlan, make_plans
from raysuite.records import EpochFinished, RunFinished, TimeShares, run_figures
from raysuite.spec import Document
from raysuite.train.run import execute
from raysuite.train.world import world_from_environment
from tests.contract.launches import write
from tests.strategies import sleeping
from tests.strategies.sleeping import Span

STEPS = 6
SLEEP = 0.25
"""Seconds per step, beside which a step's own work is short."""
PER_RANK = 2
"""Samples of a step on each rank."""


def plan_of(strategy: dict[str, Any], data: dict[str, Any]) -> RunPlan:
    document = {
        "name": "shares",
        "model": {"name": "tests.tiny_model:Tiny"},
        "data": {"name": "tests.strategies.sleeping:Set", "image_size": 8, "channels": 1}
        | {"options": data},
        "strategy": strategy,
        "training": {"epochs": 1, "batch_per_worker": PER_RANK},
        "resources": {"workers": 2, "device": "cpu"},
        "measure": {"warmup_steps": 1, "profile": "torch", "profile_steps": STEPS},
    }
    return make_plans(Document(document, "test"), gpus=0)[0]


def within(spans: list[Span], window: Span) -> float:
    return sum(end - begin for begin, end in spans if window[0] <= begin and end <= window[1])


def awaited(steps: list[Span]) -> float:
    """Between two steps the loop waits for its loader."""
    last = steps[-STEPS - 1 :]
    return sum(begin - end for (_, end), (begin, _) in itertools.pairwise(last))


def left_of_steps(spans: list[Span], steps: list[Span]) -> float:
    """From the begin of the first span in a step to the step's end."""
    return sum(
        end - min(begin, default=end)
        for first, end in steps[-STEPS:]
        if (begin := [each for each, _ in spans if first <= each < end])
    )


def examine(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The profile of a run, and this rank's own notes of its last steps."""
    for notes in (sleeping.loads, sleeping.steps, sleeping.synchronisations):
        notes.clear()
    plan = plan_of(**request)
    world = world_from_environment("cpu")
    trace = folder / "trace.json.gz"
    records = list(execute(plan, world, trace_file=trace))
    (profile,) = (record for record in records if isinstance(record, TimeShares))
    found: dict[str, Any] = {
        "profile": profile.model_dump(mode="json"),
        "kinds": [record.kind for record in records],
        "finished_seconds": [r.seconds for r in records if isinstance(r, RunFinished)],
        "images": [r.images for r in records if isinstance(r, EpochFinished)],
        "slowest": run_figures(plan.model_dump(mode="json"), records).shares.slowest,
    }
    if sleeping.steps:
        window = (sleeping.steps[-STEPS - 1][1], sleeping.steps[-1][1])
        found["window"] = window[1] - window[0]
        found["loading"] = [within(sleeping.loads, window), awaited(sleeping.steps)]
        found["synchronising"] = [
            within(sleeping.synchronisations, window),
            left_of_steps(sleeping.synchronisations, sleeping.steps),
        ]
    if world.rank == 0:
        content = json.loads(gzip.decompress(trace.read_bytes()))
        names = [event.get("name") for event in content["traceEvents"]]
        found["traced"] = {name: names.count(name) for name in ("raysuite::step", "aten::conv2d")}
        found["files"] = sorted(file.name for file in folder.iterdir())
    return found


def main(requests: dict[str, Any], file: Path) -> None:
    rank = world_from_environment("cpu").rank
    found = {}
    for name, request in requests.items():
        folder = file.parent / f"{name}-{rank}"
        folder.mkdir()
        found[name] = examine(request, folder)
    write(found, file, rank)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
