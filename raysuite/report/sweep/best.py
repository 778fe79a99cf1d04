"""best.yaml: the best trial's spec, ready to run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from raysuite.errors import SpecError
from raysuite.records.names import Plan
from raysuite.records.sweep import TrialFigures
from raysuite.report.sweep.lineage import way_words
from raysuite.report.sweep.study import TOLD, Study, goal_text
from raysuite.spec import validate
from raysuite.spec.document import set_dotted

_NOT_A_RUNS = ("search", "matrix", "repeats", "scales", "scale")
"""Keys of a whole experiment."""
HEAD = "# Written by raysuite report: "
"""Begins each of these files, so that those of an earlier report are known."""


def best_files(study: Study) -> dict[str, str]:
    """`best.yaml`, or of several goals `best-N.yaml` for each trial N on the Pareto front."""
    if study.front:
        return {f"best-{t.number}.yaml": best_spec(study, t) for t in study.front}
    return {} if study.best is None else {"best.yaml": best_spec(study, study.best)}


def outdated(folder: Path, files: dict[str, str]) -> Iterator[Path]:
    """Such files that an earlier report wrote, of trials that are not the best any more."""
    for file in sorted(folder.glob("best*.yaml")):
        if file.name not in files and file.read_text("utf-8", errors="replace").startswith(HEAD):
            yield file


def best_spec(study: Study, trial: TrialFigures) -> str:
    """The spec that the sweep began from, with this trial's values, seed and no search.

    Of a trial that changed its values on the way, the last of them hold throughout, and the head
    says so. Where that would not give the trial's own spec, as the command line set other keys, it
    is the trial's spec with every default written out.
    """
    plan = _last_plan(trial)
    spec = _from_base(study, trial)
    if not _same(spec, plan["spec"]):
        spec = {key: value for key, value in plan["spec"].items() if key not in _NOT_A_RUNS}
    spec |= {"name": f"{study.name}-trial-{trial.number}", "seed": plan["seed"]}
    written = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)
    first, *others = _head(study, trial)
    return "\n".join([f"{HEAD}{first}", *(f"# {line}" for line in others), written])


def _last_plan(trial: TrialFigures) -> Plan:
    """The plan of its last attempt: of a population's trial, with the values that it has now."""
    started = trial.figures.started
    return started.plan if trial.taken and started is not None else trial.figures.plan


def _from_base(study: Study, trial: TrialFigures) -> dict[str, Any]:
    base = {key: value for key, value in study.base.items() if key not in _NOT_A_RUNS}
    spec: dict[str, Any] = copy.deepcopy(base)
    # a whole block first, then the keys in it: `strategy` before `strategy.zero_stage`
    for key, value in sorted(trial.values_now.items(), key=lambda each: each[0].count(".")):
        set_dotted(spec, key, copy.deepcopy(value))
    return spec


def _same(spec: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a spec is that of a run, but for its name, its seed, and what no run has."""
    try:
        found = validate(copy.deepcopy(spec), lambda path: ("", None)).model_dump(mode="json")
    except SpecError:
        return False
    skipped = {"name", "seed", *_NOT_A_RUNS}
    return all(found[key] == wanted.get(key) for key in found if key not in skipped)


def _head(study: Study, trial: TrialFigures) -> Iterator[str]:
    words = {goal: TOLD[goal].words for goal in study.goals}
    if "accuracy" in words:
        words["accuracy"] += " in its best epoch"
    reached = "; ".join(
        f"{goal_text(goal, trial.goals[goal])} {words[goal]}" for goal in study.goals
    )
    which = "on the Pareto front" if study.front else "the best"
    yield f"trial {trial.number} of the sweep {study.name}, {which} of {len(study.trials)}."
    ended = "stopped early" if trial.status == "pruned" else "finished"
    yield f"It reached {reached}; it {ended} after {trial.epochs} epochs. n = 1."
    if trial.taken:
        yield "It is another run than the trial: pbt changed values on the way, and here the last"
        yield "ones hold throughout. The trial's weights came to be by"
        yield from (f"  {words}" for words in way_words(study, trial))
    yield f"Searched keys: {', '.join(sorted(trial.values))}. Run: raysuite run FILE"
