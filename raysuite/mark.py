"""Let a script mark its training steps itself, if `raysuite scale` cannot count them.

Call `raysuite.mark.step(samples=32)` after each step. The call does nothing if raysuite's launcher
did not start the script.
"""

from __future__ import annotations

from collections.abc import Callable

_listener: Callable[[int | None, int | None, float | None], None] | None = None


def step(
    *, samples: int | None = None, tokens: int | None = None, loss: float | None = None
) -> None:
    """Mark the end of a step of this rank.

    `samples` and `tokens` are the numbers of samples and tokens that this rank processed in the
    step; `loss` is the mean loss over them. After the first call, only these calls count as
    steps; steps of an optimiser do not.
    """
    if _listener is not None:
        _listener(samples, tokens, loss)


def listen(listener: Callable[[int | None, int | None, float | None], None] | None) -> None:
    """Set the function that `step` calls; with None, `step` does nothing."""
    global _listener
    _listener = listener
