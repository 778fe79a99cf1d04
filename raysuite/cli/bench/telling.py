"""A comparison of loaders on its way: the bar, the table, the files, MLflow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysuite.cli.console import print_text, stderr, stdout
from raysuite.cli.data.progress import cpus
from raysuite.units import human_seconds

if TYPE_CHECKING:
    from raysuite.plan.loading import LoadingPlan
    from raysuite.records.loading import LoadingBench


def tell_plan(plan: LoadingPlan, as_json: bool) -> None:
    """What would be timed."""
    if as_json:
        print_text(plan.model_dump_json(indent=2))
        return
    for each in plan.candidates:
        print_text(each.name)
    timings = plan.repeats * len(plan.candidates)
    length = f"{plan.images:,} images" if plan.images else f"{plan.seconds:g} s"
    least = "" if plan.images else f": {human_seconds(timings * plan.seconds)}, and the starts"
    print_text(f"{timings} timings of {length} each on {plan.title}{least}")


def measure_and_tell(
    plan: LoadingPlan,
    folder: Path,
    asked: bool,
    as_json: bool,
    mlflow: bool,
    tracking_uri: str | None,
) -> LoadingBench:
    """Measure, report, track; also what was measured before Ctrl-C, which is raised again."""
    from raysuite.orchestrate.loading import compare
    from raysuite.records.loading import FILE, LoadingBench

    interrupted = False
    with _progress(plan, hidden=as_json) as (begun, told):
        try:
            measured = compare(plan, folder, cpus(), asked, begun, told)
        except KeyboardInterrupt:
            if not (folder / FILE).exists():
                raise
            interrupted = True
            measured = LoadingBench.model_validate_json((folder / FILE).read_bytes())
    _report(measured, folder, as_json)
    if interrupted:
        raise KeyboardInterrupt
    if mlflow:
        from raysuite.track.loading import log_loaders

        error = log_loaders(measured, folder, tracking_uri)
        if error:
            print_text(f"{error}\nNothing is lost: {folder} holds all figures.", error=True)
    return measured


def _report(measured: LoadingBench, folder: Path, as_json: bool) -> None:
    from raysuite.records.loading import loading_rows
    from raysuite.report.data import finite
    from raysuite.report.loading.build import build
    from raysuite.report.loading.doctor import diagnose
    from raysuite.report.loading.tables import described, notes, terminal_table

    rows, diagnosis = loading_rows(measured), diagnose(measured)
    build(measured, folder)
    if as_json:
        figures = {
            "folder": str(folder),
            "complete": measured.complete,
            "rows": [asdict(row) | {"candidate": row.candidate.name} for row in rows],
            "diagnosis": asdict(diagnosis),
            "notes": notes(measured, rows),
        }
        print_text(json.dumps(finite(figures), indent=2, ensure_ascii=False))
        return
    out = stdout()
    out.print(f"{measured.name}: {described(measured)}")
    out.print(terminal_table(rows))
    for note in notes(measured, rows):
        out.print(f"- {note}")
    out.print(f"- {diagnosis}")
    print_text(f"\n{folder / 'loaders.html'}")


@contextmanager
def _progress(
    plan: LoadingPlan, hidden: bool
) -> Iterator[tuple[Callable[[str, int], None], Callable[[Any], None]]]:
    """A bar on stderr: what is being timed, and how much is left."""
    console = stderr()
    if hidden or not console.is_terminal:
        yield lambda name, repeat: None, lambda fact: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        total = plan.repeats * len(plan.candidates)
        task = bar.add_task("looking at the images", total=total)

        def begun(name: str, repeat: int) -> None:
            bar.update(task, description=f"round {repeat + 1} of {plan.repeats}: {name}")

        yield begun, lambda fact: bar.advance(task)
