"""Where runs and trials are shown: a terminal, a log, a pipe that takes JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from raysuite.cli.console import stderr
from raysuite.plan import RunPlan
from raysuite.records import Record, Results


class LiveView(ABC):
    """A live display on a terminal, lines elsewhere, JSON lines, or failures only.

    Enter it to show the live part.
    """

    def __init__(self, quiet: bool, json: bool, console: Console, per_second: float) -> None:
        self._quiet, self._json, self._console = quiet, json, console
        self._is_live = console.is_terminal and not quiet and not json
        self._per_second = per_second
        self._live: Live | None = None

    @abstractmethod
    def view(self) -> RenderableType:
        """The live part."""

    @abstractmethod
    def add(self, plan: RunPlan) -> None:
        """One run or trial more, behind the others."""

    @abstractmethod
    def poll(self, results: Results) -> None:
        """About twice a second: take in what the journals gained, and show it."""

    def __enter__(self) -> Self:
        if self._is_live:
            self._live = Live(
                get_renderable=self.view,
                console=self._console,
                refresh_per_second=self._per_second,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _write_json(self, record: Record) -> None:
        """A Record as a line; not through rich, which would wrap it."""
        self._console.file.write(record.model_dump_json() + "\n")
        self._console.file.flush()

    def _write(self, line: Text) -> None:
        """A line above the live part; what is told where all else is silent is no result."""
        (stderr() if self._quiet else self._console).print(line, soft_wrap=True)
