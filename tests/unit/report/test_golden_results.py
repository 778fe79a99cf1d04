"""Results folders of an earlier version render, with the figures that they had then.

`tests/golden/results` holds synthetic journals of three kinds: a suite with a failed run, a study
with profiles, costs and energy, and a sweep. Figures may be added; none may change or go. The
summary's sentences may be written better: rows.json is without them.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from raysuite.plan import RunPlan
from raysuite.records import Results, results_figures
from raysuite.report import Report, collect
from raysuite.report.build import contents
from raysuite.track.entries import run_points

FOLDERS = sorted((Path(__file__).parents[2] / "golden" / "results").iterdir())


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def report(request) -> Report:
    return collect(Results.open(request.param))


def golden(report: Report, name: str) -> str:
    return (report.folder / "golden" / name).read_text("utf-8")


def assert_holds(found: Any, wanted: Any, place: str) -> None:
    """`found` holds all of `wanted`; dictionaries may hold more."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            assert key in found, f"{place}.{key} is missing"
            assert_holds(found[key], value, f"{place}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), place
        for number, (left, right) in enumerate(zip(found, wanted, strict=True)):
            assert_holds(left, right, f"{place}[{number}]")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-9), place
    else:
        assert found == wanted, place


def test_plans_of_an_earlier_version_are_read(report):
    for plan in Results.open(report.folder).plans():
        RunPlan.model_validate(plan)


def test_rows_json(report):
    found = json.loads(json.dumps(report.data()))
    assert_holds(found, json.loads(golden(report, "rows.json")), "rows.json")


def test_rows_csv(report):
    found, wanted = (
        list(csv.DictReader(io.StringIO(text)))
        for text in (contents(report)["rows.csv"], golden(report, "rows.csv"))
    )
    assert_holds(found, wanted, "rows.csv")


def test_metrics_of_mlflow(report):
    found = {
        run.run_id: {f"{p.key} {p.step}": p.value for p in run_points(run)}
        for run in results_figures(Results(report.folder))
    }
    assert_holds(found, json.loads(golden(report, "mlflow.json")), "mlflow")
