"""Pictures, tables and sentences of made-up results: see tests/recorded.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysuite.records import RunFailed
from raysuite.records.confusion import ClassFigures
from raysuite.records.history import History, _changes
from raysuite.records.loader_rates import loading_rows
from raysuite.records.predicted import Interval, RunPredicted
from raysuite.report import Report, collect, history_page, loader_page
from raysuite.report.build import contents
from raysuite.report.plot import Plot
from tests import recorded
from tests.fake_loading import fake_bench
from tests.fake_population import write_population
from tests.fake_results import FOUR_KINDS, TWELVE_ROWS, write_results
from tests.fake_studies import write_study
from tests.fake_sweeps import write_sweep
from tests.unit.records.test_history import points as speeds

MEMORY = RunFailed(run_id="", reason="out_of_memory", message="2 GiB too much", detail="boom")
_HIDDEN = re.compile(r"<(script|style|svg|table)\b.*?</\1>|<[^>]*>", re.DOTALL)
Texts = dict[str, Any]


def texts(report: Report) -> Texts:
    """Picture or file -> its content. rows.json and rows.csv are compared elsewhere; provenance has
    digests of the journals."""
    files = contents(report)
    files["report.html"] = shown(files["report.html"])
    left_out = ("rows.csv", "rows.json")
    found = {
        name: text.splitlines()
        for name, text in files.items()
        if name not in left_out and "provenance" not in name
    }
    return found | drawn(report.plots)


def shown(page: str) -> str:
    """The words of a page, without its tables, which rows.md has too."""
    return "\n".join(filter(None, map(str.strip, _HIDDEN.sub("\n", page).splitlines())))


def drawn(plots: list[Plot]) -> Texts:
    words = ("title", "note", "description")
    return {
        f"plot {plot.name}": {**{each: getattr(plot, each) for each in words}, **plot.data()}
        for plot in plots
    }


def suite(folder: Path) -> Texts:
    """Failed and missing runs, and classes, beside a slower study."""
    classes = ClassFigures(
        names=("cat", "dog"),
        samples=(5, 4),
        predicted=(5, 4),
        correct=(4, 3),
        confusion=((4, 1), (1, 3)),
    )
    slower = TWELVE_ROWS.replace("epochs: 6", "epochs: 5")
    write_results(folder / "theirs", slower, repeats=3)
    fails = {3: MEMORY, 7: RunFailed(run_id="", reason="gate", message="wrong", detail="")}
    results = write_results(folder / "ours", repeats=3, fails=fails, missing=[5], classes=classes)
    return texts(collect(results, baseline="ddp", against=str(folder / "theirs")))


def study(name: str, repeats: int) -> Callable[[Path], Texts]:
    return lambda folder: texts(collect(write_study(folder / name, name, repeats)))


def asha(folder: Path) -> Texts:
    write_sweep(folder / "whole", scheduler="none")
    results = write_sweep(folder / "asha", fails={4: MEMORY})
    return texts(collect(results, against=str(folder / "whole")))


def front(folder: Path) -> Texts:
    goals = ("accuracy", "throughput")
    results = write_sweep(
        folder / "front", scheduler="none", goals=goals, fails={3: MEMORY}, missing=[11]
    )
    return texts(collect(results))


def predictions(folder: Path) -> Texts:
    results = write_results(folder / "predicted", repeats=2)
    report = collect(results)
    found = {}
    for run in report.runs[:4]:
        value = 0.9 * (run.throughput or 1.0)
        between = Interval(value, 0.95 * value, 1.3 * value)
        found[run.run_id] = RunPredicted(run_id=run.run_id, calibration="c", throughput=between)
    sheets = replace(report, predictions=found).sheets
    return {sheet.name: [sheet.header, *sheet.cells] for sheet in sheets}


def loaders(folder: Path) -> Texts:
    bench = fake_bench(
        {
            "decoding alone · 2 threads": ([1000, 1010, 990], 2.0),
            "reading alone · 2 threads": ([18000, 18100, 17900], 2.0),
            "synthetic": ([1e6, 1.1e6, 0.9e6], 1.0),
            "native · 1 thread": ([450, 455, 445], 1.0),
            "native · 2 threads": ([900, 905, 895], 1.95),
        },
        failures={"dali cpu · 2 threads": "no such file", "memory": "no space"},
        others=0.3,
    )
    rows = loading_rows(bench)
    speeds = loader_page.speeds(rows)
    assert speeds is not None
    return {
        "diagnosis": str(loader_page.diagnose(bench)),
        "markdown": loader_page.markdown(bench).splitlines(),
        **drawn([speeds]),
    }


def history(folder: Path) -> Texts:
    """A regression and its repair."""
    points = _changes(speeds([100] * 6 + [90] * 6 + [105] * 6, 0.01, 0), 0.95, by_runs=False)
    found = History("ddp · native", "2 x Made-up CPU", tuple(points), by_runs=False)
    return {
        "page": shown(history_page.page([found])).splitlines(),
        "table": str(history_page.history_sheet(found)),
        **drawn([history_page.history_plot(found)]),
    }


REPORTS: dict[str, Callable[[Path], Texts]] = {
    "suite": suite,
    "kinds": lambda folder: texts(collect(write_results(folder / "kinds", FOUR_KINDS, 5))),
    "throughput": study("throughput", 2),
    "schedules": study("schedules", 2),
    "sets": study("sets", 1),
    "asha": asha,
    "front": front,
    "population": lambda folder: texts(collect(write_population(folder / "population"))),
    "predictions": predictions,
    "loaders": loaders,
    "history": history,
}


@pytest.mark.parametrize("name", REPORTS)
def test_reports_are_as_recorded(name: str, tmp_path: Path) -> None:
    recorded.check(f"report-{name}", REPORTS[name](tmp_path / "made"), tmp_path)
