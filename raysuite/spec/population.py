"""What a sweep with `scheduler: pbt` may search: keys that can change while a network trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raysuite.spec.batches import AUTO
from raysuite.spec.document import Document, KeyPath
from raysuite.spec.optimizers import SETTINGS
from raysuite.spec.search import Dimension, SearchOptions
from raysuite.spec.searchers import PbtScheduler

CHANGED = (
    *(f"optimizer.{name}" for name in SETTINGS),
    "schedule",
    "training.clip_norm",
    "training.label_smoothing",
)
"""Keys, and all keys below them, that may change from one step to the next."""
KEPT = ("seed",)
"""Keys that trials may differ in, and that a trial keeps whatever weights it takes."""

Finding = tuple[KeyPath, str]


def can_change(key: str) -> bool:
    """Whether a key may change in mid-training."""
    return any(key == known or key.startswith(f"{known}.") for known in CHANGED)


def population_findings(
    document: Document, search: SearchOptions, space: Mapping[str, Dimension]
) -> Iterator[Finding]:
    """What keeps a sweep from population-based training: keys, and what is wrong there."""
    scheduler = search.scheduler
    if not isinstance(scheduler, PbtScheduler):
        return
    for key in space:
        if key not in KEPT and not can_change(key):
            yield (
                ("search", "space", key),
                "pbt moves weights from one trial to another, so that only keys can be searched "
                f"that may change while a network trains: {', '.join(CHANGED)}; and "
                f"{', '.join(KEPT)}, which each trial keeps",
            )
    if space and all(key in KEPT for key in space):
        yield ("search", "space"), f"pbt has nothing to change; give one of {', '.join(CHANGED)}"
    if search.wanted != ("accuracy",):
        where = "goals" if search.goals else "goal"
        said = " and ".join(search.wanted)
        yield ("search", where), f"pbt compares accuracies; given was {said}: leave it out"
    if search.searcher.name not in ("random", "grid"):
        yield (
            ("search", "searcher"),
            "pbt draws its whole population at the start; give random or grid, "
            f"not {search.searcher.name}",
        )
    if search.trials == 1 and not any(dimension.grid for dimension in space.values()):
        yield ("search", "trials"), "pbt needs a population: give 2 trials or more"
    yield from _of_training(document.data.get("training"), scheduler)


def _of_training(training: Any, scheduler: PbtScheduler) -> Iterator[Finding]:
    if not isinstance(training, dict):
        return
    epochs = training.get("epochs")
    if isinstance(epochs, int) and scheduler.interval_epochs >= epochs:
        yield (
            ("search", "scheduler"),
            f"an interval of {scheduler.interval_epochs} epochs ends no earlier than the "
            f"{epochs} of training.epochs; give a shorter one",
        )
    for key in ("batch_per_worker", "accumulate"):
        value = training.get(key)
        if value == AUTO or isinstance(value, dict):
            yield (
                ("training", key),
                "a population trains in the same steps, and pbt cannot leave them to be found by "
                "each trial; give a number (raysuite bench batch SPEC finds one)",
            )
