"""The two streams of every verb: results on stdout, words about them on stderr.

rich honours NO_COLOR and FORCE_COLOR, and writes no control codes where a stream is no terminal.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

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
