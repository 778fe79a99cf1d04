"""Expand a document with a matrix to one spec for each combination."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raysuite.errors import Mistake, SpecError
from raysuite.spec import Document, ExperimentSpec, validate
from raysuite.spec.base import MOST_RUNS
from raysuite.spec.checking import not_swept
from raysuite.spec.document import KeyPath, set_dotted, swept_keys

Variant = tuple[dict[str, Any], ExperimentSpec]
"""Matrix keys with the values of one combination, and the resulting spec."""


def expand(document: Document) -> list[Variant]:
    """Every combination of the document's matrix; the last key varies fastest.

    Raises SpecError with the mistakes of all combinations, each mistake once.
    """
    data = dict(document.data)
    matrix = data.pop("matrix", None)
    data.pop("search", None)
    matrix = {} if matrix is None else matrix
    found = [*_matrix_mistakes(document, matrix), *_of_a_sweep(document)]
    wrong = {mistake.key for mistake in found}
    sweeps: dict[str, list[Any]] = {}
    if isinstance(matrix, dict):
        sweeps = {key: values for key, values in matrix.items() if f"matrix.{key}" not in wrong}

    repeats = data.get("repeats", 1)
    count = math.prod(map(len, sweeps.values())) * (repeats if isinstance(repeats, int) else 1)
    if count > MOST_RUNS:
        message = f"the matrix and repeats make {count:,} runs; at most {MOST_RUNS:,} are allowed"
        raise SpecError([*found, document.mistake(message, "matrix" if sweeps else "repeats")])
    variants: list[Variant] = []
    for choice in itertools.product(*(range(len(values)) for values in sweeps.values())):
        picks = [
            (key, values[n], n) for (key, values), n in zip(sweeps.items(), choice, strict=True)
        ]
        try:
            variants.append(_variant(document, data, picks))
        except SpecError as error:
            found += error.mistakes
    found += _same_runs(document, variants)
    if found:
        raise SpecError(found)
    return variants


def _same_runs(document: Document, variants: Sequence[Variant]) -> Iterator[Mistake]:
    """A mistake for each combination that has the same run, including the seed, as an earlier
    combination."""
    first: dict[str, dict[str, Any]] = {}
    for label, spec in variants:
        same = first.setdefault(spec.model_dump_json(), label)
        if same is not label:
            what = "occurs twice" if same == label else f"is the same run as {_words(same)}"
            message = f"{_words(label)} {what}; keep one; to repeat each run, set repeats"
            yield document.mistake(message, "matrix")


def _words(label: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in label.items())


def swept_at(document: Document, label: Mapping[str, Any], key: str) -> KeyPath | None:
    """The key path at which the matrix has the value that `label` gives for `key`; None if `key` is
    not swept."""
    for written, values in (document.data.get("matrix") or {}).items():
        together = swept_keys(written)
        if key in together:
            wanted = [label[each] for each in together]
            value = wanted[0] if len(wanted) == 1 else wanted  # the form in the matrix
            return _at(written, values.index(value), key)
    return None


def _at(written: str, pick: int, key: str) -> KeyPath:
    together = swept_keys(written)
    column = () if len(together) == 1 else (together.index(key),)
    return ("matrix", written, pick, *column)


def _variant(
    document: Document, data: Mapping[str, Any], picks: Sequence[tuple[str, Any, int]]
) -> Variant:
    """One combination of the matrix. `picks`: (key as written in the matrix, value, position of the
    value in its list)."""
    label: dict[str, Any] = {}
    places: dict[str, KeyPath] = {}
    for written, value, pick in picks:
        together = swept_keys(written)
        for key, each in zip(together, [value] if len(together) == 1 else value, strict=True):
            label[key], places[key] = each, _at(written, pick, key)
    return label, spec_with(document, data, label, places.get)


Where = Callable[[str], KeyPath | None]
"""A function: dotted key -> the key path at which the document has this run's value of the key, or
the distribution from which the value was drawn; None if the key is neither swept nor searched."""


def spec_with(
    document: Document, data: Mapping[str, Any], values: Mapping[str, Any], where: Where
) -> ExperimentSpec:
    """The spec of one run: `data` with `values` set at their dotted keys.

    Raises SpecError if a value is invalid for its key.
    """
    below = tuple(f"{key}." for key in values)
    later = {key: value for key, value in document.settings.items() if key.startswith(below)}
    content = dict(data)  # shallow: `set_dotted` replaces the blocks that it changes
    # blocks first, then keys in them: `strategy` before `strategy.zero_stage`
    settings = [*values.items(), *later.items()]
    for key, value in sorted(settings, key=lambda setting: setting[0].count(".")):
        set_dotted(content, key, value)
    spec = validate(content, lambda path: place_of(document, path, where))
    # scales and the synthetic versions of other data sets belong to the whole experiment
    own = {name: each for name, each in spec.synthetic_data.items() if name == spec.data.name}
    return spec.model_copy(update={"scales": {}, "synthetic_data": own})


def place_of(document: Document, path: KeyPath, where: Where) -> tuple[str, int | None]:
    """File and line of a run's key or, if the document lacks it, of the nearest enclosing block."""
    for end in range(len(path), 0, -1):
        key = ".".join(map(str, path[:end]))
        if key in document.settings:
            break
        if (found := where(key)) is not None:
            return document.place((*found, *path[end:]))
    return document.place(path)


def located(document: Document, mistake: Mistake, where: Where) -> Mistake:
    """The mistake with the file and line of its key."""
    file, line = place_of(document, tuple(mistake.key.split(".")), where)
    return replace(mistake, file=file, line=line)


def _of_a_sweep(document: Document) -> list[Mistake]:
    if document.data.get("search") is None:
        return []
    message = (
        "this spec describes a sweep, whose trials are chosen while the sweep runs: use `raysuite "
        "sweep SPEC`; its --dry-run shows what would be tried"
    )
    return [document.mistake(message, "search")]


def _matrix_mistakes(document: Document, matrix: Any) -> list[Mistake]:
    def mistake(message: str, *path: str | int) -> Mistake:
        found = document.mistake(message, "matrix", *path)
        return replace(found, key=".".join(map(str, ("matrix", *path[:1]))))

    if not isinstance(matrix, dict):
        return [mistake(f"got {matrix!r}; it should map dotted keys to lists of values")]
    mistakes = []
    lines: dict[str, str] = {}
    for written, values in matrix.items():
        together = swept_keys(str(written))
        for key in together:
            if wrong := not_swept(key):
                mistakes.append(mistake(wrong, written))
            if key in lines:
                message = f"{key} is swept twice, also by {lines[key]!r}; keep one"
                mistakes.append(mistake(message, written))
            lines[key] = str(written)
        if not isinstance(values, list) or not values:
            message = f"got {values!r}; it should be a list of at least one value"
            mistakes.append(mistake(message, written))
        elif len(together) > 1:
            for place, row in enumerate(values):
                if not isinstance(row, list) or len(row) != len(together):
                    message = f"got {row!r}; it should be a list of {len(together)} values"
                    mistakes.append(mistake(f"{message}, one for each key", written, place))
    return mistakes
