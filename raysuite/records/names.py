"""Names of variants, and keys that are equal for comparable runs, computed from plans.

A plan is the plain data of a `raysuite.plan.RunPlan`, as `Results.plans` reads it.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from raysuite.spec.tasks import CLASSIFICATION, TaskFacts

Plan = dict[str, Any]


def task_of(plan: Plan) -> TaskFacts:
    """The declarations of a plan's task. Plans of classification omit them, so the declarations of
    classification are the default."""
    return TaskFacts.model_validate(plan["task"]) if "task" in plan else CLASSIFICATION


_BY_PATH = ("image_folder", "tfrecord")
"""Data sets that are defined by their path."""
_SHOWN_FIRST = ("strategy", "loader", "resources.workers")


def variant_name(plan: Plan) -> str:
    """`ddp · native · 2 workers`: the name that all repeats of a run share."""
    parts = [strategy_name(plan), loader_name(plan), workers_name(plan["workers"])]
    return " · ".join([*filter(None, parts), *extras(plan)])


def run_name(plan: Plan) -> str:
    """The variant's name, its seed if the matrix has seeds, and the repeat if it is not the
    first."""
    parts = [variant_name(plan)]
    if (seed := plan["label"].get("seed")) is not None:
        parts.append(f"seed={seed}")
    if plan["repeat"]:
        parts.append(f"repeat {plan['repeat']}")
    return " · ".join(parts)


def series_name(plan: Plan) -> str:
    """`ddp · native`: the variant's name without its number of workers."""
    parts = filter(None, (strategy_name(plan), loader_name(plan)))
    return " · ".join([*parts, *extras(plan)])


def script_name(plan: Plan) -> str:
    """`train.py`, for a user's own training script; empty for any other run."""
    script = plan["spec"].get("script")
    if not script:
        return ""
    words: list[str] = script["command"]
    return words[1] if words[0] == "-m" else words[0].rpartition("/")[2]


def strategy_name(plan: Plan) -> str:
    """The strategy as in the matrix, such as `deepspeed(zero_stage=2)`; for a script, its name."""
    if script := script_name(plan):
        return script
    return block_name(plan["label"].get("strategy", plan["spec"]["strategy"]["name"]))


def loader_name(plan: Plan) -> str:
    """The loader as in the matrix, such as `dali(threads=2)`; empty for a script."""
    if script_name(plan):
        return ""
    return block_name(plan["label"].get("loader", plan["spec"]["loader"]["name"]))


def workers_name(workers: int) -> str:
    """The number of workers as text, such as `2 workers`."""
    return f"{workers} worker" + ("s" if workers > 1 else "")


def extras(plan: Plan) -> list[str]:
    """The matrix keys of a run that are in no other part of its name, such as `bucket_mb=1`."""
    return [
        f"{key_name(key)}={block_name(value)}"
        for key, value in plan["label"].items()
        if key not in _SHOWN_FIRST and key != "seed" and value is not None
    ]


def key_name(key: str) -> str:
    """The last part of a dotted key; for `schedule.name` it is `schedule`."""
    return key.removesuffix(".name").rpartition(".")[2]


def key_names(keys: Iterable[str]) -> dict[str, str]:
    """Dotted key -> its last part, or the whole key if another key has the same last part."""
    names = {key: key_name(key) for key in keys}
    counts = Counter(names.values())
    return {key: name if counts[name] == 1 else key for key, name in names.items()}


def variant_key(plan: Plan) -> str:
    """A key that is equal for the repeats of one variant: the device, and the resolved spec without
    `seed` and `track`."""
    spec = {key: value for key, value in plan["spec"].items() if key not in ("seed", "track")}
    return json.dumps([spec, plan["device"]], sort_keys=True)


def current_spec(spec: dict[str, Any]) -> dict[str, Any]:
    """Convert an earlier version's spec for comparisons: newer options get their defaults, and
    removed options that the spec does not use are dropped. A spec that uses a removed option is
    returned unchanged."""
    from raysuite.spec.experiment import ExperimentSpec

    with contextlib.suppress(ValidationError):
        return ExperimentSpec.model_validate(spec).model_dump(mode="json")
    return spec


def series_key(plan: Plan, found: str | None = None) -> str:
    """A key that is equal for variants that differ only in their number of workers.

    The key has the spec's device, which may be `auto`, not the device that was used. `found` is the
    spec's key whose value a batch search found, such as `training.accumulate`: this key is left
    out, because its value depends on the number of workers.
    """
    spec = copy.deepcopy({key: value for key, value in plan["spec"].items() if key != "seed"})
    spec["resources"].pop("workers")
    if found is None:
        return json.dumps(spec, sort_keys=True)
    block, _, name = found.partition(".")
    spec[block].pop(name)
    return json.dumps([spec, extras(plan)], sort_keys=True)


def work_key(plan: Plan) -> str:
    """A key that is equal for runs whose throughputs are comparable: the same model on the same
    data.

    The path and the format of a named data set are left out, so that formats can be compared. The
    number of images is part of the key, because data sets with different images may have the same
    name.
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
    """`resnet20 on digits`: model and data set, equal for all variants of a comparison."""
    if script := script_name(plan):
        return script
    data = plan["spec"]["data"]
    size = f" at {data['image_size']} pixels" if data.get("image_size") else ""
    return f"{plan['spec']['model']['name']} on {data['name']}{size}"


_WORK = ("model", "data", "task", "optimizer", "schedule", "training")
"""Blocks of a spec that determine what a run computes."""


def unnamed_differences(plans: Sequence[Plan], found: Collection[str] = ()) -> list[dict[str, Any]]:
    """For each plan, {key: value} for the keys in the blocks _WORK that have different values in
    the plans although no plan's matrix sets them. There are such keys if the plans come from
    different specs.

    `found`: keys whose values a batch search found; they are left out. The format of a data set on
    disk is also left out, and so is the path of a data set known by name.
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
    """Number of images, samples or tokens in an epoch: the units that the throughput counts."""
    facts = plan["dataset"]
    return task_of(plan).units(int(facts["train_samples"]), int(facts.get("sequence") or 0))


def target_of(plan: Plan) -> float | None:
    """The target value of the task's primary metric, as a plan's spec sets it."""
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


_LIKE_A_VALUE = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|True|False|None")


def block_name(value: Any) -> str:
    """A value of the matrix as text: `ddp`, or `dali(threads=2)` for a block with options. A text
    that looks like a number, a Boolean or null is quoted, so that `"1"` differs from 1."""
    if isinstance(value, str) and _LIKE_A_VALUE.fullmatch(value):
        return f'"{value}"'
    if not isinstance(value, dict):
        return str(value)
    options = [f"{key}={block_name(item)}" for key, item in value.items() if key != "name"]
    name = str(value.get("name", ""))
    return f"{name}({', '.join(options)})" if options else name
