"""The confusion matrix and the table of classes, of runs that counted by class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import vl_convert

from raysuite.records import Row, RunFinished, make_rows, results_figures
from raysuite.records.confusion import ClassFigures, class_figures
from raysuite.report.classes import MOST_ROWS, class_sheet, classified, confusion
from raysuite.report.plot import pictures, points
from tests.fake_results import TWELVE_ROWS, write_results

MATRIX = [[8, 2, 0], [1, 9, 0], [0, 5, 5]]


def rows_of(folder: Path, matrix: list[list[int]] | None) -> list[Row]:
    """Twelve rows of one run each, with classes where there is a matrix."""
    found = class_figures([f"c{each}" for each in range(len(matrix))], matrix) if matrix else None
    return make_rows(results_figures(write_results(folder, TWELVE_ROWS, classes=found)))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return rows_of(tmp_path_factory.mktemp("classes"), MATRIX)


def test_a_square_holds_the_share_of_its_true_class(rows: list[Row]) -> None:
    plot = confusion(rows)
    assert plot is not None
    assert list(plot.panels) == [row.name for row in rows[:MOST_ROWS]]
    found = {(each["y"], each["x"]): each["share"] for each in points(plot.traces[0])}
    assert found["c0", "c0"] == 0.8
    assert found["c2", "c1"] == 0.5
    assert len(found) == 9
    assert plot.note.endswith(
        f" Variants that are only in the table by class: {len(rows) - MOST_ROWS}."
    )
    few = confusion(rows[:MOST_ROWS])
    assert few is not None
    assert "only in the table" not in few.note
    vl_convert.vegalite_to_vega(plot.spec(600))
    assert pictures(plot)[".png"].startswith(b"\x89PNG")


def test_every_row_stands_in_the_table(rows: list[Row]) -> None:
    sheet = class_sheet(rows)
    assert sheet is not None
    assert len(sheet.cells) == 3 * len(rows)
    assert sheet.cells[2][1:] == ("c2", "10", "100.0 %", "50.0 %", "66.7 %")


def test_nothing_where_nothing_was_counted(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, None)
    assert (confusion(rows), class_sheet(rows)) == (None, None)


def test_many_classes_are_in_the_table_alone(tmp_path: Path) -> None:
    size = 31
    whole = [[int(a == b) for a in range(size)] for b in range(size)]
    rows = rows_of(tmp_path / "more", whole)
    assert confusion(rows) is None
    drawn = confusion(rows_of(tmp_path / "most", [line[1:] for line in whole[1:]]))
    assert drawn is not None
    assert drawn.height >= 12 * 30  # each name has its line
    sheet = class_sheet(rows)
    assert sheet is not None
    assert len(sheet.cells) == size * len(rows)


def test_repeats_are_summed_and_without_a_matrix_the_last_one_counts(rows: list[Row]) -> None:
    run = rows[0].runs[0]
    assert isinstance(run.end, RunFinished)

    def summed(*each: ClassFigures | None) -> list[ClassFigures]:
        ends = [run.end and run.end.model_copy(update={"classes": classes}) for classes in each]
        runs = tuple(replace(run, end=end) for end in ends)
        return [found for _, found in classified([replace(rows[0], runs=runs)])]

    one, two = (class_figures(["a", "b"], m) for m in ([[3, 1], [0, 2]], [[1, 1], [1, 5]]))
    whole = class_figures(["a", "b"], [[4, 2], [1, 7]])
    assert summed(one, two) == summed(one, None, two) == [whole]
    bare = two.model_copy(update={"confusion": None})
    assert summed(one, bare) == [bare]
    assert summed(bare, one) == [one]
    assert summed(one, class_figures(["a", "c"], [[1, 1], [1, 5]])) == summed(None) == []
