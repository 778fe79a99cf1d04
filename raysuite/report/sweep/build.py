"""A sweep's results folder -> what its report says, as objects and as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from raysuite.records import Results
from raysuite.records.sweep import TrialFigures
from raysuite.report.against import Comparison
from raysuite.report.fastest import Sentence
from raysuite.report.plot import Plot
from raysuite.report.sheet import Sheet, csv_lines
from raysuite.report.sheets import files_of
from raysuite.report.sweep.against import against_sweep, other_sweep
from raysuite.report.sweep.best import best_files
from raysuite.report.sweep.importance import Importances, importances
from raysuite.report.sweep.lineage import lines
from raysuite.report.sweep.plots import anytime_plot, sweep_plots
from raysuite.report.sweep.study import Study, study, value_text
from raysuite.report.sweep.summary import summarize_sweep
from raysuite.report.sweep.tables import sheets


@dataclass(frozen=True)
class SweepReport:
    """What a sweep's report says beside its rows."""

    study: Study
    importances: Importances
    other: Study | None = None
    """The sweep that `--against` names."""
    comparison: Comparison | None = None

    @cached_property
    def summary(self) -> list[Sentence]:
        """In words."""
        return summarize_sweep(self.study, self.importances)

    @cached_property
    def plots(self) -> list[Plot]:
        """In the order of the page."""
        beside = anytime_plot(self.study, self.other) if self.other else None
        return [*sweep_plots(self.study, self.importances), *([beside] if beside else [])]

    @cached_property
    def sheets(self) -> list[Sheet]:
        """Its tables, in the order of the page."""
        return sheets(self.study)

    @cached_property
    def best_files(self) -> dict[str, str]:
        """The best spec, or those of the Pareto front: their names, and what stands in them."""
        return best_files(self.study)

    def files(self) -> dict[str, str]:
        """Its text files beside those of every report: their paths, and what stands in them."""
        tables = {path: text for sheet in self.sheets for path, text in files_of(sheet).items()}
        return {**tables, "tables/trials-raw.csv": self.csv(), **self.best_files}

    def data(self) -> dict[str, Any]:
        """The content of rows.json below `sweep`."""
        best = self.study.best
        return {
            "search": self.study.search,
            "goals": list(self.study.goals),
            "best": None if best is None else best.number,
            "pareto": [trial.number for trial in self.study.front],
            "worker_seconds": self.study.worker_seconds,
            "importances": asdict(self.importances),
            "lineage": lines(self.study, self.study.trials),
            "trials": [trial_data(trial) for trial in self.study.trials],
        }

    def csv(self) -> str:
        """The trials with raw values, one line each: the searched keys, then the figures."""
        keys = self.study.keys
        lines = []
        for trial in self.study.trials:
            data = trial_data(trial)
            values, goals = data.pop("values"), data.pop("goals")
            data.pop("curve")
            lines.append(
                {"trial": data.pop("trial"), **{key: _cell(values.get(key)) for key in keys}}
                | {f"goal_{goal}": value for goal, value in goals.items()}
                | data
            )
        header = list(lines[0]) if lines else ["trial", *keys]
        return csv_lines([header, *(list(line.values()) for line in lines)])


def collect_sweep(results: Results, against: str | None = None) -> SweepReport | None:
    """The report of a sweep; None where the folder holds none.

    Raises UserError if `against` is no results folder of a sweep.
    """
    found = study(results)
    if found is None:
        return None
    if against is None:
        return SweepReport(found, importances(found))
    other = other_sweep(against)
    return SweepReport(found, importances(found), other, against_sweep(found, other, against))


def trial_data(trial: TrialFigures) -> dict[str, Any]:
    """A trial as plain data."""
    return {
        "trial": trial.number,
        "run_id": trial.run_id,
        "values": trial.values,
        "status": trial.status,
        "reason": trial.reason,
        "gate": trial.figures.gate,
        "goals": dict(trial.goals),
        "epochs": trial.epochs,
        "workers": trial.figures.workers,
        "worker_seconds": trial.worker_seconds,
        "curve": [
            {"epoch": epoch, "elapsed_s": seconds, "val_accuracy": accuracy}
            for epoch, seconds, accuracy in trial.curve
        ],
    }


def _cell(value: Any) -> Any:
    return value_text(value) if isinstance(value, dict) else value
