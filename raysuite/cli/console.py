"""Output of all verbs: results on stdout, as text, table or JSON; messages on stderr.

rich follows NO_COLOR and FORCE_COLOR, and writes no control codes to files and pipes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod, RenderableType
    from rich.table import Table

    from raysuite.report.tables import Sheet

PLAIN_WIDTH = 200
"""Width, in characters, of a table that is written to a file or a pipe; rich's default is 80."""


def stdout() -> Console:
    """The console for results."""
    return _console(stderr=False)


def stderr() -> Console:
    """The console for messages, warnings and errors."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    from rich.console import Console  # imported here: `raysuite --version` does not need it

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    # not cached: tests replace the stream
    return Console(
        stderr=stderr,
        width=None if terminal else PLAIN_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_text(text: str, *, error: bool = False) -> None:
    """Print a text unchanged: not wrapped, not coloured, without markup."""
    print(text, file=sys.stderr if error else sys.stdout, flush=True)


def print_json(data: Any) -> None:
    """Print results as one JSON document, with null for infinite and undefined numbers."""
    from pydantic_core import to_json  # imported here: --help does not need it

    from raysuite.records.schema import finite

    try:  # pydantic is 10 times as fast as json
        text = to_json(data, indent=2, inf_nan_mode="null").decode()
    except ValueError:  # pydantic refuses text that is not valid UTF-8, such as a file's name
        text = json.dumps(finite(data), indent=2, ensure_ascii=False)
    if not (sys.stdout.encoding or "utf-8").lower().startswith("utf"):
        text = json.dumps(json.loads(text), indent=2)
    print_text(text)


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[RenderableType]],
    numbers: Collection[str] = (),
    title: str = "",
) -> Table:
    """Make a table; columns whose headings are in `numbers` are right-aligned. If the
    terminal is too narrow, the widest columns are wrapped first."""
    from rich import box  # imported here: --help does not need it
    from rich.table import Table
    from rich.text import Text

    shown = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=Text(title) or None, title_justify="left"
    )
    for heading in headings:
        side: JustifyMethod = "right" if heading in numbers else "left"
        shown.add_column(heading, justify=side, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    return shown


def print_sheet(sheet: Sheet, without: Collection[str] = ()) -> None:
    """Print a sheet of a report: title, table without the columns `without`, and notes."""
    from raysuite.report.tables import terminal_sheet

    out = stdout()
    out.print(sheet.title)
    out.print(terminal_sheet(sheet, without))
    for note in sheet.notes:
        out.print(f"- {note}")
