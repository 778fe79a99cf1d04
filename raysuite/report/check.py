"""`raysuite report --check`: what a report's files say, against what the journals say now.

Each figure of rows.json that docs/method.md defines is computed anew by `check_recompute`, which
shares no code with `records`. Everything else in the files, tables and plots of the page included,
is made again from the journals and compared cell by cell.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from raysuite.errors import UserError
from raysuite.records import Results
from raysuite.report.build import collect, contents
from raysuite.report.check_read import Cells, cells_of, equal
from raysuite.report.check_recompute import RUN_COLUMNS, Values, recount
from raysuite.report.data import finite

MISSING = "nothing"
"""Stands where one side has no such cell."""


@dataclass(frozen=True)
class Mismatch:
    """One cell that says something else than the journals."""

    file: str
    row: str
    column: str
    written: Any
    recomputed: Any

    def __str__(self) -> str:
        place = ", ".join(filter(None, (self.row, self.column)))
        return f"{self.file}: {place}: written {self.written!r}, recomputed {self.recomputed!r}"


@dataclass
class Checked:
    """What was compared, and what differs."""

    mismatches: list[Mismatch] = field(default_factory=list)
    journals: int = 0
    figures: int = 0
    """Values that were computed by the other route."""
    cells: int = 0
    """Cells of files that were made again."""
    notes: list[str] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {**asdict(self), "agrees": not self.mismatches}

    @property
    def summary(self) -> str:
        """What was done, in a sentence."""
        said = "all agree" if not self.mismatches else f"{len(self.mismatches)} do not agree"
        return (
            f"{self.figures:,} figures computed again from {self.journals:,} journals by another "
            f"route, and {self.cells:,} cells of the files made again: {said}"
        )


def check(results: Results, out: Path | None = None) -> Checked:
    """Compare the files of a report in `out` (default: the results folder) with the journals.

    Raises UserError if there is no report.
    """
    folder = out or results.folder
    written = _written(folder)
    done = Checked()
    options = written.get("options", {})
    against = options.get("against")
    _recounted(done, results.folder, folder, written, options)
    try:
        report = collect(results, options.get("baseline"), against)
    except UserError as error:
        if against is None:
            raise
        done.notes.append(f"what is against {against} is not checked: {error}")
        against = None
        report = collect(results, options.get("baseline"))
        report = replace(report, options=options)
    for name, content in contents(report).items():
        file = folder / name
        if not file.is_file():
            done.mismatches.append(Mismatch(name, "", "", "no file", "a file"))
            continue
        made, found = cells_of(name, content), _read(name, file)
        if against is None:
            found = [cell for cell in found if not cell[0].startswith("#against:")]
        done.cells += len(made)
        done.mismatches += _compared(name, found, made)
    done.mismatches = _once(done.mismatches)
    return done


def _written(folder: Path) -> dict[str, Any]:
    file = folder / "rows.json"
    if not file.is_file():
        raise UserError(
            f"{folder} holds no rows.json, so there is nothing to check; "
            "write it with `raysuite report`, or name the folder with --out"
        )
    try:
        data: dict[str, Any] = json.loads(file.read_text("utf-8"))
        data["rows"], data["runs"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} is no rows.json of a report ({error}); write it again with `raysuite report`"
        ) from error
    return data


def _read(name: str, file: Path) -> Cells:
    try:
        return cells_of(name, file.read_text("utf-8"))
    except ValueError as error:
        return [("", "", f"cannot be read: {error}")]


def _recounted(
    done: Checked, results: Path, folder: Path, written: dict[str, Any], options: dict[str, Any]
) -> None:
    """The figures of rows.json and rows.csv against those of the other route."""
    names = [row["name"] for row in written["rows"]]
    named = [names.index(b) if (b := r["baseline"]) in names else None for r in written["rows"]]
    found = recount(results, named if "baseline" in options else None)
    done.journals = found.journals
    done.notes += [
        f"{journal}: {count} lines cannot be read, and are passed over"
        for journal, count in found.unreadable.items()
    ]
    rows = zip(written["rows"], found.rows, strict=False)
    runs = zip(written["runs"], found.runs, strict=False)
    for kind, pairs, columns in (("rows", rows, None), ("runs", runs, RUN_COLUMNS)):
        for place, (ours, again) in enumerate(pairs):
            for column, value in again.items():
                if columns is None or column in columns:
                    done.figures += 1
                    said = _at(ours, column)
                    if not equal(said, finite(value)):
                        row = f"{kind}[{place}] {ours['name']}"
                        done.mismatches.append(Mismatch("rows.json", row, column, said, value))
    _csv(done, folder / "rows.csv", found.rows)


def _csv(done: Checked, file: Path, rows: Iterable[Values]) -> None:
    if not file.is_file():
        return
    lines: dict[str, dict[str, str]] = {}
    for row, column, cell in _read("rows.csv", file):
        lines.setdefault(row, {})[column] = cell
    for (row, line), again in zip(lines.items(), rows, strict=False):
        for column, value in again.items():
            cell = line.get(column.replace(".", "_"))
            if cell is None:
                continue
            done.figures += 1
            if not equal(_number(cell), None if value is None else _number(str(value))):
                done.mismatches.append(Mismatch("rows.csv", row, column, cell, value))


def _number(cell: str) -> float | str | None:
    try:
        return float(cell)
    except ValueError:
        return cell or None


def _at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data.get(key, MISSING) if isinstance(data, dict) else MISSING
    return data


def _compared(name: str, found: Cells, made: Cells) -> Iterator[Mismatch]:
    """Cells by their place; a place that occurs more than once is compared in order."""
    left, right = _placed(found), _placed(made)
    for place in dict.fromkeys((*right, *left)):
        written, recomputed = left.get(place, MISSING), right.get(place, MISSING)
        if not equal(written, recomputed):
            row, column, _ = place
            yield Mismatch(name, row, column, written, recomputed)


def _placed(cells: Cells) -> dict[tuple[str, str, int], Any]:
    placed: dict[tuple[str, str, int], Any] = {}
    counts: dict[tuple[str, str], int] = {}
    for row, column, value in cells:
        number = counts.get((row, column), 0)
        counts[row, column] = number + 1
        placed[row, column, number] = value
    return placed


def _once(mismatches: Iterable[Mismatch]) -> list[Mismatch]:
    """Without what both routes tell of one cell."""
    told: dict[tuple[str, str, str], Mismatch] = {}
    for each in mismatches:
        told.setdefault((each.file, each.row, each.column.replace(".", "_")), each)
    return list(told.values())
