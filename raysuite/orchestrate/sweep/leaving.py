"""How Ray Tune's loop is left at once, when the process is about to end its Ray."""

from __future__ import annotations

from typing import Any

from ray.tune import Callback


class Leaving(Callback):
    """Ends the thread in which Ray Tune runs, at its next step, without waiting for trials.

    Left alone, it would go on to ask a Ray that has ended.
    """

    def __init__(self) -> None:
        self.asked = False

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Ray Tune's call, several times a second. Raises SystemExit."""
        if self.asked:
            raise SystemExit
