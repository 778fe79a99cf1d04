"""Show how well networks distinguish the classes: a confusion matrix, and a table by class.

Both use the last validation, summed over the finished repeats of a row. With more than 100 classes,
runs keep no matrix, and only the last of these repeats is used.
"""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.records import Row, RunFinished
from raysuite.records.confusion import ClassFigures, class_figures
from raysuite.report import plot as p
from raysuite.report import text
from raysuite.report.plot import Plot
from raysuite.report.tables import Sheet, sheet_from

MOST_CLASSES = 30
"""Largest number of classes in a drawn matrix. A larger matrix is not readable."""
MOST_ROWS = 4
"""Largest number of rows whose matrices are drawn."""
_CELL_PX, _LEAST_PX = 18, 160


def classified(rows: Sequence[Row]) -> list[tuple[Row, ClassFigures]]:
    """Each row whose repeats have per-class figures for the same classes, with figures computed
    from the sum of the repeats' confusion matrices; if a repeat has no matrix, with the figures of
    the last repeat."""
    found = []
    for row in rows:
        ends = [run.end for run in row.runs if row.final]
        each = [end.classes for end in ends if isinstance(end, RunFinished) and end.classes]
        if not each or len({figures.names for figures in each}) > 1:
            continue
        matrices = [figures.confusion for figures in each if figures.confusion is not None]
        if len(matrices) == len(each):
            whole = [
                [sum(cells) for cells in zip(*lines, strict=True)]
                for lines in zip(*matrices, strict=True)
            ]
            found.append((row, class_figures(each[0].names, whole)))
        else:
            found.append((row, each[-1]))
    return found


def confusion(rows: Sequence[Row]) -> Plot | None:
    """The confusion matrices of the first rows; None if no row has a matrix that can be drawn."""
    all_of = [(row, of) for row, of in classified(rows) if of.confusion is not None]
    shown = [(row, of) for row, of in all_of if len(of.names) <= MOST_CLASSES]
    first = [(row, of) for row, of in shown if of.names == shown[0][1].names][:MOST_ROWS]
    if not first:
        return None
    names = first[0][1].names
    traces = []
    for row, of in first:
        name, matrix = row.name, zip(names, of.confusion or (), strict=True)
        cells = []
        for (true, line), samples in zip(matrix, of.samples, strict=True):
            for predicted, count in zip(names, line, strict=True):
                share = count / max(1, samples)
                said = f"{true} predicted as {predicted}: {count:,} ({text.percent(share)})"
                cells.append({"x": predicted, "y": true, "share": share, "tip": f"{name}\n{said}"})
        look = {"panel": name, "series": name, "color": p.COLORS[0], "key": row.name}
        traces.append(p.trace("mean", cells, **look))
    more = len(all_of) - len(first)
    left = f" Variants that are only in the table by class: {more}." if more else ""
    shade = {
        "field": "share",
        "type": "quantitative",
        "scale": {"domain": [0, 1], "range": ["#F1F5F9", p.COLORS[0]]},
        "legend": {"title": "share of the true class", "format": "~%"},
    }
    return Plot(
        name="confusion",
        title="Confusion matrix",
        note="Number of validation samples by true and predicted class, after the last epoch, over "
        f"all finished repeats.{left}",
        description=f"A square for each pair of {len(names)} true and predicted classes; a darker "
        "square has a larger share of the samples of its true class.",
        traces=traces,
        layers=[p.layer("mean", "rect", p.TIP | {"color": shade})],
        x=p.labels(names, "predicted class", lying=False),
        y=p.labels(names, "true class"),
        panels=[row.name for row, _ in first],
        columns=2,
        height=max(_LEAST_PX, _CELL_PX * len(names)),
        wide=len(first) > 1,
    )


def class_sheet(rows: Sequence[Row]) -> Sheet | None:
    """Precision, recall and F1 of each class of each row; None if no row has figures by class."""
    found = classified(rows)
    if not found:
        return None
    lines = []
    for row, of in found:
        columns = zip(of.names, of.samples, of.precision, of.recall, of.f1, strict=True)
        for name, samples, *shares in columns:
            figures = [text.optional(share, text.percent) for share in shares]
            numbers = dict(zip(("Precision", "Recall", "F1"), figures, strict=True))
            line = {"Variant": row.name, "Class": name, "Samples": f"{samples:,}"}
            lines.append(line | numbers)
    note = (
        "After the last epoch, over all finished repeats; with more than 100 classes, of the last "
        "repeat only."
    )
    return sheet_from("classes", "Validation by class", lines, list(lines[0])[2:], (note,))
