"""MLflow beside `raysuite run`: fed between runs, and missed without harm."""

from __future__ import annotations

import threading

from raysuite.cli import console
from raysuite.errors import RaysuiteError
from raysuite.records import Results


class Tracking:
    """MLflow, fed from the journals while no run is at work; an outage is told once."""

    def __init__(self, uri: str | None) -> None:
        self._uri = uri
        self._told = False
        self._preparing = threading.Thread(target=self._prepare, daemon=True)
        self._preparing.start()

    def _prepare(self) -> None:
        from raysuite.track import prepare

        prepare(self._uri)

    def ready(self) -> None:
        """Wait until MLflow is loaded and its store is open."""
        self._preparing.join()

    def sync(self, results: Results) -> None:
        """Send what the journals gained."""
        from raysuite.track import sync

        self.ready()
        summary = sync(results, self._uri)
        if not summary.ok and not self._told:
            console.print_text(str(summary), error=True)
        self._told = not summary.ok

    def register(self, results: Results, silent: bool) -> None:
        """Register a sweep's best network; why there is none is told, and no more comes of it."""
        from raysuite.cli.register import register_best

        try:
            done, note = register_best(results, tracking_uri=self._uri)
        except RaysuiteError as error:
            console.print_text(f"no model is registered: {error}", error=True)
            return
        if note:
            console.print_text(note, error=True)
        if done.ok and not silent:
            console.print_text(str(done))
        elif not done.ok and not self._told:
            console.print_text(str(done), error=True)
