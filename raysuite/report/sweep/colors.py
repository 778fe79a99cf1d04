"""Colours of trials: by rank from grey to blue, the best orange, on light and on dark paper."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.records.sweep import TrialFigures
from raysuite.report.plot import NEUTRAL

SCALE = ("#A9B4BF", "#74ADD1", "#1F7FC4")
"""From the worst rank to the second."""
BEST = "#D55E00"
BY_RANK = "The best is orange; the others go by rank, from blue down to grey."
STATE_COLORS = {
    "finished": "#0072B2",
    "pruned": "#56B4E9",
    "failed": "#D55E00",
    "stopped": "#E69F00",
    "missing": NEUTRAL,
}


def rank_colors(ranked: Sequence[TrialFigures]) -> dict[int, str]:
    """Number of a trial -> its colour, the first of `ranked` being the best."""
    last = max(1, len(ranked) - 2)
    others = {trial.number: _at(1 - place / last) for place, trial in enumerate(ranked[1:])}
    return {trial.number: BEST for trial in ranked[:1]} | others


def _at(share: float) -> str:
    place = share * (len(SCALE) - 1)
    left = min(int(place), len(SCALE) - 2)
    pairs = zip(_parts(SCALE[left]), _parts(SCALE[left + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - left)):02X}" for a, b in pairs)


def _parts(color: str) -> list[int]:
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]
