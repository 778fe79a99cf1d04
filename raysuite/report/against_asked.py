"""What `--against` names: a paper's published values, or another results folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raysuite.errors import UserError
from raysuite.records import Results, Row, make_rows, results_figures
from raysuite.report.against import Comparison
from raysuite.report.against_published import against_published
from raysuite.report.against_study import against_study
from raysuite.report.published import PAPERS, published

PREFIX = "published:"


def compare(rows: Sequence[Row], asked: str, baseline: str | None = None) -> Comparison:
    """The rows beside `published:PAPER` or beside the results folder of that path.

    `baseline` counts on both sides. Raises UserError, with what is valid, if there is no such
    paper or folder.
    """
    if asked.startswith(PREFIX):
        return against_published(rows, published(asked.removeprefix(PREFIX)))
    if not Path(asked).is_dir():
        papers = ", ".join(f"{PREFIX}{paper}" for paper in PAPERS)
        raise UserError(f"there is no folder {asked}; --against takes a results folder or {papers}")
    other = Results.open(Path(asked))
    try:
        others = make_rows(results_figures(other), baseline)
    except UserError as error:
        raise UserError(f"in {asked}: {error}") from error
    title = other.folder.resolve()
    return against_study(rows, others, asked, f"{title.parent.name}/{title.name}")
