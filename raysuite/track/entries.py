"""Records -> MLflow's metrics, params and tags, as plain data.

Everything is derived from the Records, including timestamps: a replay gives identical rows, and
MLflow's database stores identical rows only once.

The step of a metric in MLflow is the number of its optimiser step or of its epoch, counted from 1,
or 0 for metrics of the whole run. MLflow's pages group metrics by the text before the slash.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from raysuite import __version__
from raysuite.records import EpochFinished, Row, RunFigures, RunFinished
from raysuite.records.ends import RunEnd
from raysuite.records.metrics import metrics_of
from raysuite.records.names import Plan, dotted, run_name
from raysuite.spec.tasks import CLASSIFICATION, TaskFacts

# MLflow 3 (mlflow/utils/validation.py): longest key, longest value of a param and of a tag.
MOST_KEY, MOST_PARAM, MOST_TAG = 250, 6000, 8000
MOST_EXPERIMENT_TAG = 5000

DECIDED = (
    "workers",
    "device",
    "global_batch",
    "micro_batch",
    "accumulate",
    "steps_per_epoch",
    "total_steps",
    "peak_lr",
    "repeat",
    "seed",
)
"""Keys of a plan that are logged in addition to its spec."""


SOURCE = {
    "raysuite.version": __version__,
    "mlflow.source.name": "raysuite",
    "mlflow.source.type": "LOCAL",
}
"""Tags of every run."""
_OF_MANY = ("matrix", "search")
"""Keys of a spec that describe the whole experiment, not one run."""


class Point(NamedTuple):
    key: str
    value: float
    timestamp: int
    """Milliseconds since 1970 (UTC)."""
    step: int


def epoch_points(
    epoch: EpochFinished, with_speed: bool, task: TaskFacts = CLASSIFICATION
) -> Iterator[Point]:
    """The metrics of one epoch and of each of its steps.

    A Record has only the time of the epoch's end; the times of steps are spread evenly over the
    training time. `with_speed` is False if the gate has not passed: then no throughput is reported.
    """
    begin = epoch.time - epoch.validation_seconds - epoch.seconds
    each = epoch.seconds / max(1, len(epoch.losses))
    curves = {"loss": epoch.losses, "learning_rate": epoch.learning_rates, **epoch.figures}
    for place, values in enumerate(zip(*curves.values(), strict=False), 1):
        when, step = milliseconds(begin + each * place), epoch.first_step + place
        for name, value in zip(curves, values, strict=True):
            yield Point(f"step/{name}", value, when, step)
    # classification logs only its primary metric by epoch; top-5 is logged for the whole run
    shown = [task.primary] if task == CLASSIFICATION else [each.name for each in task.metrics]
    learnt = {
        "train_loss": epoch.train_loss,
        "val_loss": epoch.val_loss,
        **{f"val_{name}": epoch.validation[name] for name in shown if name in epoch.validation},
        **epoch.mean_figures,
    }
    # a script's epochs have no losses
    figures: dict[str, float] = learnt if epoch.losses else {}
    figures["elapsed_seconds"] = epoch.elapsed_seconds
    if with_speed:
        figures["seconds"] = epoch.seconds
        if epoch.steady_seconds > 0:
            figures[f"{task.unit}_per_second"] = epoch.steady_images / epoch.steady_seconds
        if epoch.seconds > 0 and epoch.data_wait_seconds:
            wait = sum(epoch.data_wait_seconds) / len(epoch.data_wait_seconds)
            figures["data_wait_share"] = wait / epoch.seconds
    when = milliseconds(epoch.time)
    for name, value in figures.items():
        yield Point(f"epoch/{name}", value, when, epoch.epoch + 1)


def run_points(run: RunFigures) -> Iterator[Point]:
    """The metrics of a run's `final_epochs` and, once the run has finished, of the whole run."""
    for epoch in final_epochs(run):
        yield from epoch_points(epoch, run.may_tell_speed, run.task)
    if run.status != "finished" or run.end is None:
        return
    when = milliseconds(run.end.time)
    for metric in metrics_of(run.task):
        value = metric.value(run)
        if value is not None:
            name = metric.mlflow or metric.name
            yield Point(f"run/{name}", value, when, 0)
    for name, value in (*class_metrics(run.end), *_starts(run)):
        yield Point(name, value, when, 0)


def _starts(run: RunFigures) -> Iterator[tuple[str, float]]:
    """Seconds of each phase of a script's start on each node, as `start/PHASE/NODE`."""
    for host, phases in run.script.starts_by_host.items() if run.script else ():
        for phase, seconds in phases.items():
            yield f"start/{mlflow_key(phase)}/{mlflow_key(host)}", seconds


def class_metrics(end: RunEnd | None) -> Iterator[tuple[str, float]]:
    """The mean recall and, for up to 100 classes, precision, recall and F1 of each class."""
    found = end.classes if isinstance(end, RunFinished) else None
    if found is None:
        return
    yield "run/balanced_accuracy", found.balanced_accuracy
    if found.confusion is None:
        return
    for name in ("precision", "recall", "f1"):
        for label, value in zip(found.names, getattr(found, name), strict=True):
            if value is not None:
                yield f"{name}/{mlflow_key(label)}", value


def final_epochs(run: RunFigures) -> Sequence[EpochFinished]:
    """The epochs of a run. During the run, epochs after the last complete checkpoint are left out,
    because they may be trained again. A checkpoint is complete once a later epoch has ended."""
    if run.end is not None or run.stopped is not None or not run.epochs:
        return run.epochs
    every = int(run.plan["spec"]["training"].get("checkpoint_every", 1))
    covered = run.epochs[-1].epoch // every * every if every else 0
    return [epoch for epoch in run.epochs if epoch.epoch < covered]


def history_of(epochs: Sequence[EpochFinished]) -> str:
    """`N DIGEST` of N epochs; the digest changes if one of the epochs is trained again."""
    times = ",".join(str(milliseconds(epoch.time)) for epoch in epochs)
    return f"{len(epochs)} {hashlib.sha256(times.encode()).hexdigest()[:16]}"


def continues(run: RunFigures, history: str) -> bool:
    """Whether the run's first epochs are those from which `history_of` computed `history`."""
    return history_of(run.epochs[: int(history.partition(" ")[0])]) == history


def run_params(plan: Plan) -> dict[str, str]:
    """The resolved spec, flattened to dotted keys, and the plan's values of the keys in DECIDED,
    as `plan.KEY`."""
    spec = {key: value for key, value in plan["spec"].items() if key not in _OF_MANY}
    decided = {f"plan.{key}": plan[key] for key in DECIDED if key in plan}
    return param_values({**dict(flatten(spec)), **decided})


def param_values(flat: Mapping[str, Any]) -> dict[str, str]:
    """Keys and values in the form that MLflow accepts for params."""
    return {mlflow_key(key): _cut(_written(value), MOST_PARAM) for key, value in flat.items()}


def run_tags(run: RunFigures, results_id: str) -> dict[str, str]:
    """Tags that identify a run, and tags with its status and its environment."""
    tags = {
        "raysuite.kind": "run",
        "raysuite.results": results_id,
        "raysuite.run_id": run.run_id,
        "raysuite.variant": run.variant,
        "raysuite.gate": run.gate,
        "raysuite.status": run.status,
        "raysuite.reason": run.reason,
        "raysuite.attempts": str(run.attempts),
        **SOURCE,
    }
    if run.script is not None:
        tags["raysuite.hosts"] = ", ".join(run.script.starts_by_host)
    environment = run.started.environment if run.started else {}
    tags |= {f"env.{key}": _written(value) for key, value in flatten(environment)}
    commit = (environment.get("git") or {}).get("commit")
    if commit:
        tags["mlflow.source.git.commit"] = commit
    return {mlflow_key(key): _cut(value, MOST_TAG) for key, value in tags.items()}


def shared_params(plans: Sequence[Plan]) -> dict[str, str]:
    """The params that all runs of a results folder have in common."""
    each = [run_params(plan) for plan in plans]
    return {
        key: value
        for key, value in (each[0] if each else {}).items()
        if all(other.get(key) == value for other in each)
    }


def row_points(rows: Sequence[Row]) -> Iterator[Point]:
    """The report's figures of each variant: `throughput/VARIANT`, speed-up and efficiency."""
    for row in rows:
        ends = [milliseconds(run.end.time) for run in row.runs if run.end]
        name = variant_key(row.name)
        figures = (row.throughput, row.speed_up, row.efficiency)
        for metric, figure in zip(("throughput", "speed_up", "efficiency"), figures, strict=True):
            if figure is not None and ends:
                value = figure.value
                yield Point(f"{metric}/{name}", value, max(ends), 0)


def mlflow_status(run: RunFigures) -> str:
    """The run's status in MLflow's terms. A trial that waits for the other trials of its sweep is
    RUNNING; any other stopped run is KILLED until it is resumed."""
    if run.status in ("finished", "pruned"):  # the tag raysuite.status distinguishes them
        return "FINISHED"
    if run.status == "stopped":
        held = run.stopped is not None and run.stopped.reason == "interval"
        return "RUNNING" if held else "KILLED"
    if run.status == "failed":
        return "KILLED" if run.reason.startswith("interrupted") else "FAILED"
    return "RUNNING"


def title(run: RunFigures) -> str:
    """The run's name in MLflow."""
    return _cut(run_name(run.plan), MOST_KEY)


def begin_of(run: RunFigures) -> int | None:
    """When the run began, in ms since 1970."""
    return milliseconds(run.started.time) if run.started else None


def milliseconds(seconds: float) -> int:
    """Seconds -> whole milliseconds, MLflow's unit of time."""
    return round(seconds * 1000)


def flatten(block: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested blocks as dotted keys with values; empty values are left out."""
    return (each for each in dotted(block, prefix) if each[1] not in (None, ""))


def mlflow_key(name: str) -> str:
    """Turn any text into an MLflow key, or into a part of a key whose parts are separated by
    slashes. Different texts give different keys.

    MLflow accepts letters, digits, `_`, `-`, `.` and space, treats `/` as a separator of folders,
    and refuses a key that is not a normalised path. A text of accepted characters is
    returned unchanged, unless it contains `/`, begins with a dot, is too long, or already ends like
    a digest. In any other text, other characters become `_`, and a digest is appended.
    """
    if _PLAIN.fullmatch(name) and len(name) <= _MOST_PART and not _DIGEST.search(name):
        return name
    told = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{_REFUSED.sub('_', name)[: _MOST_PART - _DIGITS - 1]}_{told}"


_MOST_PART = 200
"""Largest number of characters that `mlflow_key` returns: less than MOST_KEY, to leave space for
the other parts of a key."""
_DIGITS = 16
_PLAIN = re.compile(r"(?!\.)[\w\-. ]+")
_DIGEST = re.compile(rf"_[0-9a-f]{{{_DIGITS}}}\Z")
_REFUSED = re.compile(r"\A\.+|[^\w\-. ]")


def variant_key(name: str) -> str:
    """`ddp · native · 2 workers` -> `ddp native 2 workers`; if spaces make that ambiguous,
    with a digest."""
    *parts, last = name.split(" · ")
    return mlflow_key(name if any(" " in part for part in parts) else " ".join([*parts, last]))


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
