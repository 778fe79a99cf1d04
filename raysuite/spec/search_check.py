"""What depends on several keys of a `search` section: every mistake at once, with its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from raysuite.errors import Mistake, SpecError
from raysuite.spec.checking import Place, dotted_keys, suggest, validate_as
from raysuite.spec.document import Document, KeyPath
from raysuite.spec.experiment import FREE_FORM, NOT_IN_A_MATRIX
from raysuite.spec.population import population_findings
from raysuite.spec.search import LISTED, Dimension, SearchOptions, name_of

_ANY = {"seed": {"uniform": [0, 1]}}
"""A space that is in order."""

Finding = tuple[KeyPath, str]
"""A key below `search`, and what is wrong there."""


def read_search(document: Document) -> SearchOptions:
    """The `search` section of a document. Raises SpecError with every mistake in it."""
    given = document.data.get("search")
    if not isinstance(given, dict):
        said = "is missing: a sweep needs it" if given is None else f"given was {given!r}"
        file, line = document.place(("search",))
        message = f"{said}; it should name what is varied: search: {{trials: 10, space: {{...}}}}"
        raise SpecError([Mistake(message, key="search", file=file, line=line)])
    space = given.get("space")
    mistakes = _shape(document, given, space if isinstance(space, dict) else {})
    for path, message in _findings(document, given, space if isinstance(space, dict) else {}):
        file, line = document.place(path)
        key = ".".join(map(str, path))
        mistakes.append(Mistake(message, key=key, file=file, line=line))
    if mistakes:
        raise SpecError(mistakes)
    return SearchOptions.model_validate(given)


def _shape(document: Document, given: Mapping[str, Any], space: Mapping[str, Any]) -> list[Mistake]:
    """What each part by itself is wrong in: the dimensions one by one, and all else."""
    parts: list[tuple[type[BaseModel], Any, tuple[str, ...]]] = [
        (SearchOptions, {**given, "space": _ANY} if space else given, ("search",)),
        *((Dimension, each, ("search", "space", str(key))) for key, each in space.items()),
    ]
    mistakes: list[Mistake] = []
    for model, content, path in parts:
        if not isinstance(content, dict):
            file, line = document.place(path)
            message = f"given was {content!r}; it should be a distribution: {{choice: [1, 2]}}"
            mistakes.append(Mistake(message, key=".".join(path), file=file, line=line))
            continue
        try:
            validate_as(model, content, _below(document, path))
        except SpecError as error:
            for each in error.mistakes:
                key = ".".join(filter(None, [*path, each.key]))
                mistakes.append(Mistake(each.message, key=key, file=each.file, line=each.line))
    return mistakes


def _below(document: Document, path: KeyPath) -> Place:
    return lambda below: document.place((*path, *below))


def _findings(
    document: Document, given: Mapping[str, Any], space: Mapping[str, Any]
) -> Iterator[Finding]:
    for key in space:
        if unknown := _unknown(str(key)):
            yield ("search", "space", key), unknown
    read = {str(key): each for key, value in space.items() if (each := _dimension(value))}
    yield from _conditions(read, {str(key) for key in space})
    rest = _rest(given)
    if rest is not None:
        yield from _together(rest, read)
        yield from _target(document, rest, space)
        yield from population_findings(document, rest, read)
    if document.data.get("matrix"):
        yield ("matrix",), "a sweep has no matrix: write its keys as `grid` into search.space"
    if document.data.get("repeats", 1) != 1:
        yield (
            ("repeats",),
            "a sweep makes each trial once; leave repeats out, or put `seed: {grid: [0, 1, 2]}` "
            "into search.space",
        )


def _dimension(value: Any) -> Dimension | None:
    try:
        return Dimension.model_validate(value)
    except ValidationError:
        return None


def _rest(given: Mapping[str, Any]) -> SearchOptions | None:
    """The section but for its space, where that is in order."""
    try:
        return SearchOptions.model_validate({**given, "space": _ANY})
    except ValidationError:
        return None


def _unknown(key: str) -> str:
    """Why a key cannot be searched; empty where it can."""
    known = [each for each in dotted_keys() if each.partition(".")[0] not in NOT_IN_A_MATRIX]
    if key in known or key.startswith(FREE_FORM):
        return ""
    if key.partition(".")[0] in NOT_IN_A_MATRIX:
        return "belongs to the whole experiment, and cannot differ between trials"
    block = key.rpartition(".")[0]
    beside = [name for name in known if name.rpartition(".")[0] == block]
    beside = beside or [name for name in known if "." not in name]
    return f"unknown key; {suggest(key, beside, known)}"


def _conditions(space: Mapping[str, Dimension], given: set[str]) -> Iterator[Finding]:
    for key, dimension in space.items():
        for other, wanted in dimension.when.items():
            path = ("search", "space", key, "when", other)
            parent = space.get(other)
            if parent is None and other in given:
                continue  # that mistake is reported there
            listed = [each for each, found in space.items() if found.kind in LISTED]
            if parent is None or parent.kind not in LISTED:
                valid = [each for each in listed if each != key]
                hint = suggest(other, valid) if valid else "this space has none"
                yield path, f"a condition is on another `choice` or `grid` of the space; {hint}"
            elif name_of(wanted) not in (names := [name_of(v) for v in parent.arguments]):
                valid_values = ", ".join(map(str, names))
                yield path, f"{other} never is {wanted!r}; valid are {valid_values}"
        if circle := _circle(key, space):
            yield (
                ("search", "space", key, "when"),
                f"conditions go in a circle: {' -> '.join(circle)}",
            )


def _circle(start: str, space: Mapping[str, Dimension]) -> list[str]:
    """The way from a key by conditions back to it; empty where there is none."""
    ways = [[start]]
    seen = set()
    while ways:
        way = ways.pop()
        for other in space[way[-1]].when if way[-1] in space else ():
            if other == start:
                return [*way, start]
            if other not in seen:
                seen.add(other)
                ways.append([*way, other])
    return []


def _together(rest: SearchOptions, space: Mapping[str, Dimension]) -> Iterator[Finding]:
    searcher, scheduler = rest.searcher.name, rest.scheduler.name
    if searcher == "grid":
        if rest.trials is not None:
            yield (
                ("search", "trials"),
                "the searcher grid makes every combination; leave trials out",
            )
        for key, dimension in space.items():
            if dimension.kind not in LISTED:
                message = f"the searcher grid needs `grid` or `choice`; given was {dimension.kind}"
                yield ("search", "space", key), message
    elif rest.trials is None:
        yield ("search", "trials"), f"the searcher {searcher} needs to know how many; give trials"
    if searcher == "optuna":
        for key, dimension in space.items():
            if dimension.kind == "grid":
                message = f"{searcher} decides each trial by itself; write `choice` for `grid`"
                yield ("search", "space", key), message
    several = len(rest.wanted) > 1
    if several and scheduler != "none":
        message = f"{scheduler} compares trials by one figure; give one goal, or scheduler: none"
        yield ("search", "scheduler"), message


def _target(document: Document, rest: SearchOptions, space: Mapping[str, Any]) -> Iterator[Finding]:
    training = document.data.get("training")
    has = isinstance(training, dict) and training.get("target_accuracy") is not None
    if "time_to_accuracy" in rest.wanted and not has and "training.target_accuracy" not in space:
        where = "goals" if rest.goals else "goal"
        yield ("search", where), "time_to_accuracy needs training.target_accuracy; set it"
