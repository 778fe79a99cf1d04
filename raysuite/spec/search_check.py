"""Check the section `search` of a spec, and report every mistake at once, with its line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pydantic import BaseModel, ValidationError

from raysuite.errors import Mistake, SpecError
from raysuite.spec.base import MOST_RUNS, suggest
from raysuite.spec.batches import AUTO
from raysuite.spec.checking import Model, not_swept, validate_as
from raysuite.spec.document import Document, KeyPath
from raysuite.spec.optimizers import SETTINGS
from raysuite.spec.search import (
    LISTED,
    QUALITY,
    Dimension,
    PbtScheduler,
    SearchOptions,
    goals_of,
    name_of,
)
from raysuite.spec.tasks import CLASSIFICATION

_ANY = {"seed": {"uniform": [0, 1]}}
"""A valid search space; it replaces the given one while the rest of the section is checked."""

Finding = tuple[KeyPath, str]
"""(path of a key in the document, message)."""


def read_search(document: Document) -> SearchOptions:
    """The `search` section of a document. Raises SpecError with every mistake in it."""
    given = document.data.get("search")
    if not isinstance(given, dict):
        said = "is missing, but a sweep needs it" if given is None else f"got {given!r}"
        message = f"{said}; give the keys to vary, as in search: {{trials: 10, space: {{...}}}}"
        raise SpecError([document.mistake(message, "search")])
    space = given.get("space")
    space = space if isinstance(space, dict) else {}
    mistakes = _shape(document, given, space)
    found_in = _findings(document, given, space)
    mistakes += [document.mistake(message, *path) for path, message in found_in]
    if mistakes:
        raise SpecError(mistakes)
    found = SearchOptions.model_validate(given)
    if found.goal or found.goals or _task(document) == CLASSIFICATION.name:
        return found
    return found.model_copy(update={"goal": goals_of(classifies=False)[0]})


def _shape(document: Document, given: Mapping[str, Any], space: Mapping[str, Any]) -> list[Mistake]:
    """Mistakes within single parts: in each dimension, and in the rest of the section."""
    parts: list[tuple[type[BaseModel], Any, tuple[str, ...]]] = [
        (SearchOptions, {**given, "space": _ANY} if space else given, ("search",)),
        *((Dimension, each, ("search", "space", str(key))) for key, each in space.items()),
    ]
    mistakes: list[Mistake] = []
    for model, content, path in parts:
        if not isinstance(content, dict):
            message = f"got {content!r}; it should be a distribution: {{choice: [1, 2]}}"
            mistakes.append(document.mistake(message, *path))
            continue

        def below(key: KeyPath, path: KeyPath = path) -> tuple[str, int | None]:
            return document.place((*path, *key))

        try:
            validate_as(model, content, below)
        except SpecError as error:
            for each in error.mistakes:
                key = ".".join(filter(None, [*path, each.key]))
                mistakes.append(Mistake(each.message, key=key, file=each.file, line=each.line))
    return mistakes


def _findings(
    document: Document, given: Mapping[str, Any], space: Mapping[str, Any]
) -> Iterator[Finding]:
    for key in space:
        if wrong := not_swept(str(key)):
            yield ("search", "space", key), wrong
    read = {str(key): each for key, value in space.items() if (each := _read(Dimension, value))}
    yield from _conditions(read, {str(key) for key in space})
    rest = _read(SearchOptions, {**given, "space": _ANY})
    if rest is not None:
        yield from _together(rest, read)
        yield from _target(document, rest, space)
        yield from population_findings(document, rest, read)
    if document.data.get("matrix"):
        yield ("matrix",), "a sweep has no matrix: write these keys as `grid` into search.space"
    if document.data.get("repeats", 1) != 1:
        yield (
            ("repeats",),
            "a sweep runs each trial once; leave repeats out, or put `seed: {grid: [0, 1, 2]}` "
            "into search.space",
        )


def _read(model: type[Model], value: Any) -> Model | None:
    """The options if they are valid, else None; `_shape` reports the mistakes."""
    try:
        return model.model_validate(value)
    except ValidationError:
        return None


def _conditions(space: Mapping[str, Dimension], given: set[str]) -> Iterator[Finding]:
    for key, dimension in space.items():
        for other, wanted in dimension.when.items():
            path = ("search", "space", key, "when", other)
            parent = space.get(other)
            if parent is None and other in given:
                continue  # `_shape` reports the mistake of that key
            listed = [each for each, found in space.items() if found.kind in LISTED]
            if parent is None or parent.kind not in LISTED:
                valid = [each for each in listed if each != key]
                hint = suggest(other, valid) if valid else "this space has none"
                yield path, f"a condition must name another key with `choice` or `grid`; {hint}"
            elif name_of(wanted) not in (names := [name_of(v) for v in parent.arguments]):
                valid_values = ", ".join(map(str, names))
                yield path, f"{other} is never {wanted!r}; valid: {valid_values}"
    try:
        TopologicalSorter({key: [*each.when] for key, each in space.items()}).prepare()
    except CycleError as error:
        circle = error.args[1]
        yield (
            ("search", "space", circle[0], "when"),
            f"conditions depend on each other in a circle: {' -> '.join(circle)}; remove one",
        )


def _together(rest: SearchOptions, space: Mapping[str, Dimension]) -> Iterator[Finding]:
    searcher, scheduler = rest.searcher.name, rest.scheduler.name
    if searcher == "grid":
        if rest.trials is not None:
            message = "the searcher grid runs every combination; leave trials out"
            yield ("search", "trials"), message
        for key, dimension in space.items():
            if dimension.kind not in LISTED:
                message = f"the searcher grid needs `grid` or `choice`; got {dimension.kind}"
                yield ("search", "space", key), message
    elif rest.trials is None:
        message = f"the searcher {searcher} needs the number of trials; give `trials`"
        yield ("search", "trials"), message
    crossed = LISTED if searcher == "grid" else ("grid",)
    trials = math.prod(len(each.arguments) for each in space.values() if each.kind in crossed)
    trials *= rest.trials or 1
    if trials > MOST_RUNS:
        message = f"up to {trials:,} trials; at most {MOST_RUNS:,} are allowed; give fewer"
        yield ("search", "space"), f"{message} values or trials, or searcher random with `choice`"
    if searcher == "optuna":
        for key, dimension in space.items():
            if dimension.kind == "grid":
                message = f"{searcher} chooses each trial separately; write `choice`, not `grid`"
                yield ("search", "space", key), message
    if len(rest.wanted) > 1 and scheduler != "none":
        message = f"{scheduler} compares trials by one goal; give one goal, or scheduler: none"
        yield ("search", "scheduler"), message


def _target(document: Document, rest: SearchOptions, space: Mapping[str, Any]) -> Iterator[Finding]:
    task, where = _task(document), "goals" if rest.goals else "goal"
    classifies = task == CLASSIFICATION.name
    _, timed, _ = valid = goals_of(classifies)
    given = rest.goals or filter(None, [rest.goal])
    if wrong := [goal for goal in given if goal not in valid]:
        message = f"got {' and '.join(wrong)}; valid for the task {task} are {', '.join(valid)}"
        yield ("search", where), message
    key, training = "target_accuracy" if classifies else "target", document.data.get("training")
    has = isinstance(training, dict) and training.get(key) is not None
    if timed in rest.wanted and not has and f"training.{key}" not in space:
        yield ("search", where), f"{timed} needs training.{key}; set it"
    for searched in space:
        if str(searched).partition(".")[0] == "task":
            message = "trials of different tasks cannot be compared; leave this key out"
            yield ("search", "space", searched), message


def _task(document: Document) -> str:
    """The name of the document's task."""
    task = document.data.get("task") or CLASSIFICATION.name
    return str(task.get("name", CLASSIFICATION.name) if isinstance(task, dict) else task)


# Population-based training: keys that can change while a network trains.

CHANGED = (
    *(f"optimizer.{name}" for name in SETTINGS),
    "schedule",
    "training.clip_norm",
    "training.label_smoothing",
)
"""Keys that may change from one step to the next, with all keys below them."""
KEPT = ("seed",)
"""Keys in which trials may differ; a trial keeps its own value when it takes another trial's
weights."""


def can_change(key: str) -> bool:
    """Whether a key may change while a network trains."""
    return any(key == known or key.startswith(f"{known}.") for known in CHANGED)


def population_findings(
    document: Document, search: SearchOptions, space: Mapping[str, Dimension]
) -> Iterator[Finding]:
    """Keys that prevent population-based training, with messages."""
    scheduler = search.scheduler
    if not isinstance(scheduler, PbtScheduler):
        return
    for key in space:
        if key not in KEPT and not can_change(key):
            yield (
                ("search", "space", key),
                "pbt moves weights from one trial to another, so it can search only keys that may "
                f"change during training: {', '.join(CHANGED)}; and {', '.join(KEPT)}, which each "
                "trial keeps",
            )
    if space and all(key in KEPT for key in space):
        yield (
            ("search", "space"),
            "pbt needs at least one key that may change during training; add one of "
            f"{', '.join(CHANGED)} to search.space",
        )
    if len(search.wanted) > 1 or search.wanted[0] not in QUALITY:
        where = "goals" if search.goals else "goal"
        said = " and ".join(search.wanted)
        message = f"pbt compares trials by the primary metric; got {said}: leave it out"
        yield ("search", where), message
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
            f"an interval of {scheduler.interval_epochs} epochs is not shorter than "
            f"training.epochs, which is {epochs}; give a shorter interval",
        )
    for key in ("batch_per_worker", "accumulate"):
        value = training.get(key)
        if value == AUTO or isinstance(value, dict):
            yield (
                ("training", key),
                f"all trials of a population take the same steps, so {key} cannot be found for "
                "each trial separately; give a number (raysuite bench batch SPEC finds one)",
            )
