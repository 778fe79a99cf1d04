"""Steps that a training script marks itself, where `raysuite scale` cannot count them.

`raysuite.mark.step(samples=32)` after each step. Without raysuite's launcher it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable

_listener: Callable[[int | None, int | None, float | None], None] | None = None


def step(
    *, samples: int | None = None, tokens: int | None = None, loss: float | None = None
) -> None:
    """A step of this rank has ended.

    `samples` and `tokens` are those that this rank has trained on in it, `loss` the mean over them.
    From the first call on, steps are these calls, and optimisers' steps no longer count.
    """
    if _listener is not None:
        _listener(samples, tokens, loss)


def listen(listener: Callable[[int | None, int | None, float | None], None] | None) -> None:
    """Have `step` call a function; None: nothing."""
    global _listener
    _listener = listener
