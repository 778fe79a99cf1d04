"""Validation accuracy against the global batch, per schedule (Aach et al. 2023, Figs. 8b and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raysuite.records import Row
from raysuite.records.names import work_key
from raysuite.report import curves, text
from raysuite.report.facets import WORK, shared, telling, written
from raysuite.report.figures.panels import ACCURACY, panelled
from raysuite.report.figures.points import line, means
from raysuite.report.figures.styles import Styles
from raysuite.report.plot import Plot, Trace


def accuracy(rows: Sequence[Row], styles: Styles) -> Plot | None:
    """Final accuracy over the global batch; None unless some line has several batches."""
    shown = [row for row in rows if row.final_accuracy]
    names = telling(shown, lambda row: row.global_batch, WORK)
    across = [name for name in names if name in WORK]
    within = [name for name in names if name not in WORK]
    series: dict[str, list[Row]] = {}
    for row in shown:
        series.setdefault(written(row, names), []).append(row)
    if all(len(members) < 2 for members in series.values()):
        return None
    panels: dict[str, list[Trace]] = {}
    for members in series.values():
        label = written(members[0], within) or shared(members, ("schedule",))
        panels.setdefault(written(members[0], across), []).append(
            line(
                members,
                label,
                lambda row: row.global_batch,
                lambda row: row.final_accuracy,
                text.percent,
                styles.line(members[0], within),
            )
        )
    batches = sorted({row.global_batch for row in shown})
    said = shared(shown, [name for name in (*WORK, "schedule") if name not in names])
    return panelled(
        name="accuracy-batch",
        title="Accuracy over global batch" + (f" – {said}" if said else ""),
        note=f"Top-1 after the last epoch: {means(row.final_accuracy for row in shown)}.",
        description=f"Lines over {text.count(len(batches), 'global batch')}"
        f"{'es' if len(batches) > 1 else ''}, from {batches[0]} to {batches[-1]}.",
        panels=panels,
        x={
            "title": {"text": "global batch"},
            "type": "log",
            "tickvals": batches,
            "ticktext": [f"{batch:,}" for batch in batches],
        },
        y=ACCURACY,
    )


def largest_batch(rows: Sequence[Row], styles: Styles) -> Plot | None:
    """Accuracy over epochs of the rows with the largest global batch of their work."""
    shown = [row for row in rows if row.final_accuracy]
    names = telling(shown, lambda row: row.global_batch, WORK)
    most: dict[str, int] = {}  # by the key of their work
    counts: dict[str, set[int]] = {}
    for row in shown:
        work = work_key(row.runs[0].plan)
        most[work] = max(most.get(work, 0), row.global_batch)
        counts.setdefault(written(row, names), set()).add(row.global_batch)
    if all(len(batches) < 2 for batches in counts.values()):
        return None
    chosen = [row for row in shown if row.global_batch == most[work_key(row.runs[0].plan)]]
    plot = curves.accuracy(chosen, styles, intervals=True)
    sizes = sorted({row.global_batch for row in chosen})
    title = f"Accuracy at the largest batch ({', '.join(f'{size:,}' for size in sizes)})"
    return plot and replace(
        plot,
        name="accuracy-largest",
        title=title,
        note=f"Top-1 over epochs: {means(row.final_accuracy for row in chosen)}.",
    )
