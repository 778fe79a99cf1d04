"""Make a sweep's report: summary, tables, plots, data, and the best spec."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from raysuite.errors import SpecError
from raysuite.records import Results
from raysuite.records.sweep import TrialFigures
from raysuite.report.against import Comparison, against_sweep, other_sweep
from raysuite.report.plot import Plot
from raysuite.report.summary import Sentence
from raysuite.report.sweep.importance import Importances, importances
from raysuite.report.sweep.study import Study, goal_text, study
from raysuite.report.sweep.sweep_plots import sweep_plots, trial_key
from raysuite.report.sweep.sweep_summary import summarize_sweep
from raysuite.report.sweep.sweep_tables import best_trials, sheets
from raysuite.report.tables import Sheet, sheet_files
from raysuite.spec import validate
from raysuite.spec.document import set_dotted
from raysuite.spec.tasks import CLASSIFICATION

MOST_SPECS = 6
"""Largest number of specs of a Pareto front on the page; all of them are files next to the page."""


@dataclass(frozen=True)
class SweepReport:
    """The parts of a report that only a sweep has."""

    study: Study
    importances: Importances
    comparison: Comparison | None = None

    @cached_property
    def summary(self) -> list[Sentence]:
        return summarize_sweep(self.study, self.importances)

    @cached_property
    def plots(self) -> list[Plot]:
        return sweep_plots(self.study, self.importances)

    @cached_property
    def sheets(self) -> list[Sheet]:
        return sheets(self.study)

    @cached_property
    def best_files(self) -> dict[str, str]:
        """Name -> content: `best.yaml`, or `best-N.yaml` for each trial N on the Pareto front."""
        study = self.study
        if study.front:
            return {f"best-{t.number}.yaml": best_spec(study, t) for t in study.front}
        return {} if study.best is None else {"best.yaml": best_spec(study, study.best)}

    def files(self) -> dict[str, str]:
        """Path -> content of the text files that only a sweep's report has."""
        tables = {path: text for sheet in self.sheets for path, text in sheet_files(sheet).items()}
        return {**tables, **self.best_files}

    def data(self) -> dict[str, Any]:
        """The content of the key `sweep` in rows.json."""
        best = self.study.best
        return {
            "search": self.study.search,
            "goals": list(self.study.goals),
            "best": None if best is None else best.number,
            "pareto": [trial.number for trial in self.study.front],
            "worker_seconds": self.study.worker_seconds,
            "importances": asdict(self.importances),
            "trials": [trial_data(trial) for trial in self.study.trials],
        }

    def context(self) -> dict[str, Any]:
        """The content of the template's variable `sweep`."""
        return {
            "study": self.study,
            "best_keys": [trial_key(each) for each in best_trials(self.study)],
            "trial_keys": [trial_key(trial) for trial in self.study.trials],
            "sheets": {sheet.name: sheet for sheet in self.sheets},
            "best_files": dict(list(self.best_files.items())[:MOST_SPECS]),
            "search": yaml.safe_dump(
                _given(self.study.search), sort_keys=False, allow_unicode=True
            ),
        }


def collect_sweep(results: Results, against: str | None = None) -> SweepReport | None:
    """Collect the report of a sweep; None if the folder holds no sweep.

    Raises UserError if `against` is not a sweep's results folder.
    """
    found = study(results)
    if found is None:
        return None
    comparison = None if against is None else against_sweep(found, other_sweep(against), against)
    return SweepReport(found, importances(found), comparison)


def trial_data(trial: TrialFigures) -> dict[str, Any]:
    task = trial.figures.task
    target = "accuracy" if task == CLASSIFICATION else "target"
    return {
        "trial": trial.number,
        "run_id": trial.run_id,
        "values": trial.values,
        "status": trial.status,
        "reason": trial.reason,
        "gate": trial.figures.gate,
        "goals": dict(trial.goals),
        "epochs": trial.epochs,
        f"epochs_to_{target}": trial.figures.epochs_to_accuracy,
        "workers": trial.figures.workers,
        "worker_seconds": trial.worker_seconds,
        "curve": [
            {"epoch": epoch, "elapsed_s": seconds, f"val_{task.primary}": value}
            for epoch, seconds, value in trial.curve
        ],
    }


def _given(options: Any) -> Any:
    if not isinstance(options, dict):
        return options
    found = {key: _given(value) for key, value in options.items()}
    return {key: value for key, value in found.items() if value not in (None, {}, [])}


# best.yaml: the best trial's spec, ready to run.

_NOT_A_RUNS = ("search", "matrix", "repeats", "scales", "scale")
"""Keys that an experiment has, but a run does not."""
HEAD = "# Written by raysuite report: "
"""First words of a file with a best spec. They identify the files of an earlier report."""


def outdated(folder: Path, files: dict[str, str]) -> Iterator[Path]:
    """Files that an earlier report wrote for trials that are no longer the best."""
    for file in sorted(folder.glob("best*.yaml")):
        if file.name not in files and file.read_text("utf-8", errors="replace").startswith(HEAD):
            yield file


def best_spec(study: Study, trial: TrialFigures) -> str:
    """The sweep's spec with this trial's values and seed, and without the search.

    If a trial changed its values during training, the spec uses the last values in all epochs, and
    a comment at the top of the file states this. If the command line of the sweep set other keys,
    the spec in the trial's plan, with every default, is returned instead.
    """
    started = trial.figures.started
    # if PBT changed its values, the plan of the last attempt has the changed values
    plan = started.plan if trial.taken and started is not None else trial.figures.plan
    spec = _from_base(study, trial)
    if not _same(spec, plan["spec"]):
        spec = {key: value for key, value in plan["spec"].items() if key not in _NOT_A_RUNS}
    spec |= {"name": f"{study.name}-trial-{trial.number}", "seed": plan["seed"]}
    written = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)
    first, *others = _head(study, trial)
    return "\n".join([f"{HEAD}{first}", *(f"# {line}" for line in others), written])


def _from_base(study: Study, trial: TrialFigures) -> dict[str, Any]:
    spec = copy.deepcopy({k: v for k, v in study.base.items() if k not in _NOT_A_RUNS})
    # set blocks before keys in blocks: `strategy` before `strategy.zero_stage`
    for key, value in sorted(trial.values_now.items(), key=lambda each: each[0].count(".")):
        set_dotted(spec, key, copy.deepcopy(value))
    return spec


def _same(spec: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a spec equals the spec of a run, except for name, seed and keys in _NOT_A_RUNS."""
    try:
        found = validate(copy.deepcopy(spec), lambda path: ("", None)).model_dump(mode="json")
    except SpecError:
        return False
    skipped = {"name", "seed", *_NOT_A_RUNS}
    return all(found[key] == wanted.get(key) for key in found if key not in skipped)


def _head(study: Study, trial: TrialFigures) -> Iterator[str]:
    words = {goal: study.told(goal).words for goal in study.goals}
    if study.quality in words:
        words[study.quality] += " in its best epoch"
    reached = "; ".join(
        f"{goal_text(goal, trial.goals[goal], study.task)} {words[goal]}" for goal in study.goals
    )
    which = "on the Pareto front" if study.front else "the best"
    yield f"trial {trial.number} of the sweep {study.name}, {which} of {len(study.trials)}."
    ended = "stopped early" if trial.status == "pruned" else "finished"
    yield f"Its result: {reached}; it {ended} after {trial.epochs} epochs. n = 1."
    if trial.taken:
        yield "This run differs from the trial: pbt changed values during training, and here the"
        yield "last values hold throughout."
    yield f"Searched keys: {', '.join(sorted(trial.values))}. Run: raysuite run FILE"
