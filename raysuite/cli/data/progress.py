"""The bar that the verbs on data show while they work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raysuite.cli.console import stderr


def cpus() -> int:
    """CPUs that this process may use: the default of --workers."""
    return len(os.sched_getaffinity(0))


@contextmanager
def progress(title: str, total: int, unit: str, hidden: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, fed by what this yields; none if `hidden`, or where nobody looks."""
    console = stderr()
    if hidden or not console.is_terminal:
        yield lambda more: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f} {unit}/s" if task.speed else "")

    counted = (MofNCompleteColumn(), Rate())
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        *((DownloadColumn(), TransferSpeedColumn()) if unit == "bytes" else counted),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda more: bar.advance(task, more)
