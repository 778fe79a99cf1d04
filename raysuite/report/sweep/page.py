"""What a sweep's page shows beside what every report shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from raysuite.records.derive import STATUS_WORDS
from raysuite.records.sweep import TrialFigures
from raysuite.report.sweep.build import SweepReport
from raysuite.report.sweep.plots import trial_key
from raysuite.report.sweep.study import STATES
from raysuite.report.sweep.tables import best_sheet, best_trials, trial_columns

MOST_SPECS = 6
"""Specs of a Pareto front that the page shows; the others lie beside it."""


def sweep_context(report: SweepReport) -> dict[str, Any]:
    """The template's variables below `sweep`."""
    study = report.study

    def lines(trials: Iterable[TrialFigures]) -> list[tuple[TrialFigures, str, str]]:
        return [
            (
                trial,
                trial_key(study, trial),
                "bad" if trial.status == "failed" else "" if trial.counts else "dim",
            )
            for trial in trials
        ]

    states = [(state, STATUS_WORDS[of[0].status]) for state in STATES if (of := study.of(state))]
    written = yaml.safe_dump(_said(study.search), sort_keys=False, allow_unicode=True)
    return {
        "study": study,
        "columns": trial_columns(study),
        "best": best_sheet(study),
        "best_trials": best_trials(study),
        "lines": lines(study.trials),
        "best_lines": lines(best_trials(study)),
        "states": states if len(states) > 1 else [],
        "sheets": {sheet.name: sheet for sheet in report.sheets},
        "best_files": dict(list(report.best_files.items())[:MOST_SPECS]),
        "search": written,
    }


def _said(options: Any) -> Any:
    """Options without those that say nothing."""
    if not isinstance(options, dict):
        return options
    told = {key: _said(value) for key, value in options.items()}
    return {key: value for key, value in told.items() if value not in (None, {}, [])}
