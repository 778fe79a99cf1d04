"""What a variant is called, and which runs are the same variant: pure functions of plan data.

A plan is the plain data of a `raysuite.plan.RunPlan`, as `Results.plans` reads it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from raysuite.spec.tasks import CLASSIFICATION, TaskFacts

Plan = dict[str, Any]


def task_of(plan: Plan) -> TaskFacts:
    """The declarations of a plan's task; plans of classification leave them out."""
    return TaskFacts.model_validate(plan["task"]) if "task" in plan else CLASSIFICATION


_BY_PATH = ("image_folder", "tfrecord")
"""Data sets that are defined by their path."""
_SHOWN_FIRST = ("strategy", "loader", "resources.workers")


def variant_name(plan: Plan) -> str:
    """`ddp · native · 2 workers`: what a run is called, whatever its repeat or seed."""
    parts = [strategy_name(plan), loader_name(plan), workers_name(plan["workers"])]
    return " · ".join([*filter(None, parts), *extras(plan)])


def run_name(plan: Plan) -> str:
    """The variant's name and, after the first, the repeat."""
    name = variant_name(plan)
    return f"{name} · repeat {plan['repeat']}" if plan["repeat"] else name


def series_name(plan: Plan) -> str:
    """`ddp · native`: the variant's name without its number of workers."""
    parts = filter(None, (strategy_name(plan), loader_name(plan)))
    return " · ".join([*parts, *extras(plan)])


def script_name(plan: Plan) -> str:
    """`train.py`, of a training script of the user's own; empty for any other run."""
    script = plan["spec"].get("script")
    if not script:
        return ""
    words: list[str] = script["command"]
    return words[1] if words[0] == "-m" else words[0].rpartition("/")[2]


def strategy_name(plan: Plan) -> str:
    """The strategy as the matrix names it, such as `ddp` or `deepspeed(zero_stage=2)`, or the name
    of the script that has its own."""
    if script := script_name(plan):
        return script
    return block_name(plan["label"].get("strategy", plan["spec"]["strategy"]["name"]))


def loader_name(plan: Plan) -> str:
    """The loader as the matrix names it, such as `native` or `dali(threads=2)`; empty for a
    script, which has its own."""
    if script_name(plan):
        return ""
    return block_name(plan["label"].get("loader", plan["spec"]["loader"]["name"]))


def workers_name(workers: int) -> str:
    """`1 worker`, `2 workers`."""
    return f"{workers} worker" + ("s" if workers > 1 else "")


def extras(plan: Plan) -> list[str]:
    """The other matrix keys of a run that have a value, such as `bucket_mb=1`."""
    return [
        f"{key_name(key)}={block_name(value)}"
        for key, value in plan["label"].items()
        if key not in _SHOWN_FIRST and key != "seed" and value is not None
    ]


def key_name(key: str) -> str:
    """The last part of a dotted key; `schedule.name` is the schedule."""
    return key.removesuffix(".name").rpartition(".")[2]


def variant_key(plan: Plan) -> str:
    """Equal for the repeats of one variant: the resolved spec without its seed and what it is
    tracked by, and the device."""
    spec = {key: value for key, value in plan["spec"].items() if key not in ("seed", "track")}
    return json.dumps([spec, plan["device"]], sort_keys=True)


def series_key(plan: Plan, found: str | None = None) -> str:
    """Equal for variants that differ in their number of workers alone.

    The device is left out where the spec leaves it to the machine (`auto`), and so is the number of
    `found`, the key that was found by trial, such as `training.accumulate`: it follows from the
    workers.
    """
    spec = copy.deepcopy({key: value for key, value in plan["spec"].items() if key != "seed"})
    spec["resources"].pop("workers")
    if found is None:
        return json.dumps(spec, sort_keys=True)
    block, _, name = found.partition(".")
    spec[block].pop(name)
    return json.dumps([spec, extras(plan)], sort_keys=True)


def work_key(plan: Plan) -> str:
    """Equal for runs whose images per second compare: the same model on the same images.

    The path and format on disk of a set known by name are no part of it: they belong to what is
    compared. The number of images is: other images may have the same name.
    """
    if script := script_name(plan):
        return json.dumps({"script": script})
    data = dict(plan["spec"]["data"])
    left_out = ["format"] if data["name"] in _BY_PATH else ["format", "path", "root"]
    for key in left_out:
        data.pop(key, None)
    counts = {key: plan["dataset"][key] for key in ("train_samples", "classes")}
    work = {"model": plan["spec"]["model"], "data": data, "dataset": counts}
    return json.dumps(work, sort_keys=True)


def work_name(plan: Plan) -> str:
    """`resnet20 on digits`: what every variant of one comparison does."""
    if script := script_name(plan):
        return script
    data = plan["spec"]["data"]
    size = f" at {data['image_size']} pixels" if data.get("image_size") else ""
    return f"{plan['spec']['model']['name']} on {data['name']}{size}"


_WORK = ("model", "data", "task", "optimizer", "schedule", "training")
"""Blocks of a spec on which it depends what a run computes."""


def unnamed_differences(plans: Sequence[Plan], found: Collection[str] = ()) -> list[dict[str, Any]]:
    """For each plan, the keys of its work in which the plans differ though no matrix names them,
    with its values: they were planned from different specs.

    `found`: keys whose values were found by trial. A data set's format on disk is left out, and so
    is the path of a set known by name.
    """
    named = {key for plan in plans for key in plan["label"]} | {*found, "data.format", "data.root"}
    if all(plan["spec"]["data"]["name"] not in _BY_PATH for plan in plans):
        named.add("data.path")
    blocks = [{key: plan["spec"].get(key) for key in _WORK} for plan in plans]
    specs = [dict(dotted(each)) for each in blocks]
    differing = [
        key
        for key in dict.fromkeys(key for each in specs for key in each)
        if any(each.get(key) != specs[0].get(key) for each in specs)
        and not any(key == name or key.startswith(f"{name}.") for name in named)
    ]
    return [{key: each.get(key) for key in differing} for each in specs]


def epoch_units(plan: Plan) -> int:
    """What the throughput counts in an epoch."""
    facts = plan["dataset"]
    return task_of(plan).units(int(facts["train_samples"]), int(facts.get("sequence") or 0))


def target_of(plan: Plan) -> float | None:
    """The value of the task's primary metric that a plan's spec set as its target."""
    training = plan["spec"]["training"]
    target: float | None = training.get("target_accuracy")
    return training.get("target") if target is None else target


def dotted(block: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested blocks, each with its dotted key after `prefix`."""
    for key, value in block.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def block_name(value: Any) -> str:
    """A value of the matrix in words: `ddp`, or `dali(threads=2)` for a block with options."""
    if not isinstance(value, dict):
        return str(value)
    options = [f"{key}={block_name(item)}" for key, item in value.items() if key != "name"]
    name = str(value.get("name", ""))
    return f"{name}({', '.join(options)})" if options else name
