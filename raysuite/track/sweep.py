"""A sweep's Records -> what MLflow keeps of it beyond its runs, as plain data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raysuite.records.names import block_name
from raysuite.records.sweep import (
    LOWER_IS_BETTER,
    Goal,
    TrialFigures,
    best,
    pareto,
    wanted_goals,
)
from raysuite.track.entries import MOST_TAG, Point, flatten, milliseconds, param_values

BEST = "raysuite.best"
"""Tag of the best trial, or of all trials on the Pareto front; no other trial has it."""

TRIAL = "raysuite.trial"
"""Tag of a trial's run: its number."""

VIEW = "mlflow.sharedViewState."
"""Tag of an experiment, with a key behind it: a view of its runs, as MLflow's pages share it."""

Search = Mapping[str, Any]
"""What `Results.search` reads."""

_METRIC: dict[Goal, str] = {
    "accuracy": "accuracy",
    "time_to_accuracy": "time_to_accuracy_seconds",
    "throughput": "images_per_second",
}


def sweep_params(search: Search) -> dict[str, str]:
    """What was searched and how; each key of the space as `space.KEY`."""
    asked = dict(search["search"])
    space = {f"space.{key}": _told(about) for key, about in asked.pop("space").items()}
    asked.pop("goal", None)
    asked["goals"] = list(wanted_goals(search["search"]))
    return param_values({**dict(flatten(asked, "search.")), **space})


def sweep_tags(search: Search, trials: Sequence[TrialFigures]) -> dict[str, str]:
    """How many trials ended, and which are the best."""
    winners = sorted(trial.number for trial in trials if trial.run_id in best_runs(search, trials))
    return {
        "raysuite.sweep.goals": ", ".join(wanted_goals(search["search"])),
        "raysuite.sweep.ended": str(sum(trial.figures.end is not None for trial in trials)),
        "raysuite.sweep.best": ", ".join(map(str, winners)),
    }


def best_runs(search: Search, trials: Sequence[TrialFigures]) -> list[str]:
    """Ids of the runs that are tagged: the best trial's, or those of the Pareto front."""
    goals = wanted_goals(search["search"])
    if len(goals) > 1:
        return [trial.run_id for trial in pareto(trials, goals)]
    winner = best(trials, goals[0])
    return [] if winner is None else [winner.run_id]


def sweep_points(search: Search, trials: Sequence[TrialFigures]) -> Iterator[Point]:
    """The best value so far of each goal, step n being the n-th trial that ended and did not fail:
    one that failed may be made again."""
    ended = [(end.time, each) for each in trials if each.counts and (end := each.figures.end)]
    ended.sort(key=lambda each: (each[0], each[1].number))
    for goal in wanted_goals(search["search"]):
        for count, (time, _) in enumerate(ended, 1):
            winner = best((trial for _, trial in ended[:count]), goal)
            if winner is not None and (value := winner.goals[goal]) is not None:
                yield Point(f"best/{_METRIC[goal]}", value, milliseconds(time), count)


def ended_by(now: float, trials: Sequence[TrialFigures]) -> list[TrialFigures]:
    """Without those that ended while they were read: one read before may have ended earlier, and
    the n-th that ended is to be the same one in every sync."""
    return [trial for trial in trials if not (end := trial.figures.end) or end.time <= now]


def trials_view(search: Search, results_id: str) -> str:
    """The trials of one sweep as a table: goals and searched keys as columns, the best first."""
    goals = wanted_goals(search["search"])
    metrics = [f"metrics.`goal/{_METRIC[goal]}`" for goal in goals]
    params = [f"params.`{key}`" for key in param_values(search["search"]["space"])]
    view = {
        "searchFilter": f"tags.`raysuite.results` = '{results_id}' "
        "and tags.`raysuite.kind` = 'trial'",
        "orderByKey": metrics[0],
        "orderByAsc": goals[0] in LOWER_IS_BETTER,
        "selectedColumns": [*metrics, *params, "tags.`raysuite.status`", f"tags.`{BEST}`"],
    }
    return json.dumps(view)


def trial_params(values: Mapping[str, Any]) -> dict[str, str]:
    """A trial's values under the very keys that are searched; a block by its name."""
    return param_values({key: _named(value) for key, value in values.items()})


def trial_points(search: Search, trial: TrialFigures) -> Iterator[Point]:
    """What a trial that has ended reached and cost, as `goal/...` and `trial/...`."""
    end = trial.figures.end
    if end is None:
        return
    when = milliseconds(end.time)
    for goal in wanted_goals(search["search"]):
        value = trial.goals[goal]
        if value is not None:
            yield Point(f"goal/{_METRIC[goal]}", value, when, 0)
    yield Point("trial/worker_seconds", trial.worker_seconds, when, 0)
    yield Point("trial/epochs", trial.epochs, when, 0)


def trial_tags(trial: TrialFigures) -> dict[str, str]:
    """Its number; of a population, whose weights it took, and what it has now."""
    tags = {"raysuite.kind": "trial", TRIAL: str(trial.number)}
    if trial.turns:
        tags["raysuite.pbt.values"] = json.dumps(trial.values_now)
        tags["raysuite.pbt.judged"] = "; ".join(turn.words for turn in trial.turns)
    return {key: value[:MOST_TAG] for key, value in tags.items()}


def trial_title(number: int) -> str:
    """What MLflow calls a trial: its values stand in columns of their own."""
    return f"trial {number}"


def _named(value: Any) -> Any:
    return block_name(value) if isinstance(value, dict) else value


def _told(about: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in about.items() if value not in (None, {})}
