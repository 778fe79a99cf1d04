"""What a report, MLflow and `explain` show of scripts whose ranks were on several nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysuite.perf.explanation import explain
from raysuite.plan import make_plans
from raysuite.records import Journal, Results, RunStarted, make_rows, results_figures
from raysuite.records.script_records import RankLog, script_records, steps_of
from raysuite.report.build import collect
from raysuite.report.raw_data import row_data
from raysuite.report.script_report import _mean, script_caveats
from raysuite.report.tables import Sheet, rows_sheet
from raysuite.spec import parse_document
from tests.fake_results import ENVIRONMENT

SPEC = """
name: own
script: {{command: [{file}]}}
matrix: {{resources.workers: [1, 2]}}
resources: {{device: cpu}}
"""


def rank(host: str, imports_s: float, joules: float | None) -> RankLog:
    """12 steps of 1 s; with a counter of energy, or why there is none."""
    log = RankLog(begin={"host": host, "memory": 1}, model={"parameters": 10, "optimizer": "SGD"})
    first = 2 + imports_s
    log.rows = [[first + place, None, 0.0, 8, None, False, 0.0] for place in range(12)]
    log.end = {"marks": {"launcher": 0.0, "process": 1.0, "first_batch": first - 1}, "memory": 5}
    log.end["marks"]["first_step"] = first
    missing = ["energy is not measured, because it is dark"] if joules is None else []
    number = 0 if joules is None else 1 + len(host)
    log.model["counters"] = {"device": 0, "host": number, "missing": missing}
    log.power = {} if joules is None else {"at": first + 1.0, "host_joules": joules}
    return log


@pytest.fixture(params=[8.0, None], ids=["energy", "no energy"])
def results(tmp_path: Path, request: pytest.FixtureRequest) -> Results:
    """A run with one worker, and one with two, on two nodes, the second of which has no counter, or
    has one."""
    file = tmp_path / "train.py"
    file.touch()
    plans = make_plans(parse_document(SPEC.format(file=file), "spec.yaml"), 0)
    results = Results(tmp_path)
    dump = [plan.model_dump(mode="json") for plan in plans]
    results.write_plans(dump)
    for plan, whole in zip(plans, dump, strict=True):
        logs = [rank("a", 3.0, 8.0), rank("longer", 5.0, request.param)][: plan.workers]
        journal = Journal(results.journal_file(plan.run_id))
        journal.write(RunStarted(run_id=plan.run_id, plan=whole, environment=ENVIRONMENT))
        for record in script_records(plan.run_id, logs, steps_of(logs, 2), None):
            journal.write(record)
    return results


def sheets(results: Results) -> dict[str, Sheet]:
    return {sheet.name: sheet for sheet in collect(results).sheets}


def cells(sheet: Sheet) -> list[dict[str, Any]]:
    return [dict(zip(sheet.header, line, strict=True)) for line in sheet.cells]


def test_the_throughput_of_a_script_is_in_samples(results: Results) -> None:
    rows = collect(results).rows
    assert "Samples/s" in rows_sheet(rows).header
    assert row_data(rows[0])["throughput_samples_per_s"]["mean"] == 8  # of a step of 1 s


def test_each_node_has_its_start_and_the_energy_or_why_there_is_none(results: Results) -> None:
    found = sheets(results)
    by_node = cells(found["script-start-nodes"])
    assert [(line["Node"], line["Imports"]) for line in by_node] == [
        ("a", "3.00"),
        ("longer", "5.00"),
    ]
    start = cells(found["script-start"])  # of two workers, the first is the faster one
    assert [line["Imports"] for line in start] == ["3.00", "5.00"]
    assert [line["Nodes"] for line in cells(found["script-work"])] == ["1", "2"]
    one, two = make_rows(results_figures(results))
    # 8 W for the steps of 1 s, with 8 samples of each worker
    assert one.figures["host_joules"].mean == pytest.approx(1.0)
    dark = any("it is dark (longer)" in note for note in found["script-work"].notes)
    energy = two.figures["host_joules"]
    assert (energy is None) == dark
    assert energy is None or energy.mean == pytest.approx(1.0)


def test_explain_names_the_number_of_nodes(results: Results) -> None:
    one, two = explain(make_rows(results_figures(results)))
    assert "nodes" not in one.evidence
    assert "2 nodes" in two.evidence


def test_what_of_a_script_is_not_known_or_differs_is_a_caveat() -> None:
    def row(name: str, samples: float | None, *notes: str, apart: bool = False) -> Any:
        script = SimpleNamespace(samples_per_step=samples, notes=notes)
        timed = [SimpleNamespace(script=script), SimpleNamespace(script=None)]
        return SimpleNamespace(name=name, timed=timed, baseline="one", differs_in_work=apart)

    one, two = row("one", 8, "odd"), row("two", None, "odd", "late", apart=True)
    said = [*script_caveats([one, two])]
    assert said[0].startswith("The number of samples in a step is not known for two, so only")
    assert said[1:] == [
        "two and its baseline one train different numbers of parameters: no speed-up.",
        "one and two: odd.",
        "two: late.",
    ]
    assert [*script_caveats([one])] == ["one: odd."]


def test_a_mean_of_a_script_is_of_all_repeats_or_none() -> None:
    def mean(*tokens: float | None) -> float | None:
        timed = [SimpleNamespace(script=SimpleNamespace(tokens_per_step=each)) for each in tokens]
        row: Any = SimpleNamespace(timed=timed)
        return _mean(row, lambda each: each.tokens_per_step)

    assert (mean(1, 3), mean(1, None), mean(None), mean()) == (2, None, None, None)
