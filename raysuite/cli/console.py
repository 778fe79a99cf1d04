"""What every verb prints: results on stdout, as text, table or JSON; words about them on stderr.

rich honours NO_COLOR and FORCE_COLOR, and writes no control codes where a stream is no terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from raysuite.report.tables import Sheet

PLAIN_WIDTH = 200
"""Columns of a file or a pipe: a table there is not cut to 80."""


def stdout() -> Console:
    """For results."""
    return _console(stderr=False)


def stderr() -> Console:
    """For messages, warnings and errors."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    from rich.console import Console  # here: `raysuite --version` needs none

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    # a new one each time: it takes the present stream, which tests exchange
    return Console(
        stderr=stderr,
        width=None if terminal else PLAIN_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


def print_text(text: str, *, error: bool = False) -> None:
    """One text as it is: not wrapped, not coloured, nothing in it read as markup."""
    print(text, file=sys.stderr if error else sys.stdout, flush=True)


def print_json(data: Any) -> None:
    """Results as one JSON document; null for what is not finite, which JSON does not know."""
    from pydantic_core import to_json  # here: --help needs none

    from raysuite.records.schema import finite

    try:  # in a tenth of the time of json, which indents in Python
        text = to_json(data, indent=2, inf_nan_mode="null").decode()
    except ValueError:  # pydantic's, of a name that is no UTF-8
        text = json.dumps(finite(data), indent=2, ensure_ascii=False)
    print_text(text)


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[RenderableType]],
    numbers: Collection[str] = (),
    title: str = "",
) -> Table:
    """A table; columns whose headings are in `numbers` are set flush right and not wrapped."""
    from rich import box  # here: --help needs none
    from rich.table import Table
    from rich.text import Text

    shown = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=Text(title) or None, title_justify="left"
    )
    for heading in headings:
        if heading in numbers:
            shown.add_column(heading, justify="right", no_wrap=True)
        else:
            shown.add_column(heading, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    return shown


def print_line(text: str) -> None:
    """A result in one line, which is wrapped where it is wider than the stream."""
    if len(text) <= PLAIN_WIDTH and _as_rich_would([[text]]):
        print_text(text)
    else:
        stdout().print(text)


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = ()
) -> None:
    """A table of texts. Where it goes to a file or a pipe and is no wider than that, rich, which
    takes a second for 1,000 rows, is not asked: the characters are the same."""
    cells = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    width = sum(widths) + 3 * len(widths) - 1
    if _as_rich_would(cells) and width <= PLAIN_WIDTH:
        fit = [str.rjust if heading in numbers else str.ljust for heading in headings]
        lines = (
            "   ".join(set_in(text, n) for text, set_in, n in zip(row, fit, widths, strict=True))
            for row in cells
        )
        blank = " " * width
        rule = f" {'─' * (width - 2)} "
        print_text("\n".join((blank, f" {next(lines)} ", rule, *(f" {x} " for x in lines), blank)))
    else:
        stdout().print(table(headings, rows, numbers))


def _as_rich_would(cells: Iterable[Sequence[str]]) -> bool:
    """Whether texts are written as they are: without colours, each character in one column."""
    colours = any(os.environ.get(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))
    if colours or sys.stdout.isatty() or not sys.stdout.encoding.lower().startswith("utf"):
        return False
    return all(text.isprintable() and max(text, default="") < "\u0300" for x in cells for text in x)


def print_sheet(sheet: Sheet, without: Collection[str] = ()) -> None:
    """A table of a report under its title, without some columns, and its notes."""
    from raysuite.report.tables import terminal_sheet

    out = stdout()
    out.print(sheet.title)
    out.print(terminal_sheet(sheet, without))
    for note in sheet.notes:
        out.print(f"- {note}")
