"""A document with a matrix -> one spec for each combination."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from typing import Any

from raysuite.errors import Mistake, SpecError
from raysuite.spec import Document, ExperimentSpec, suggest, validate
from raysuite.spec.document import KeyPath, set_dotted
from raysuite.spec.experiment import FREE_FORM, NOT_IN_A_MATRIX
from raysuite.spec.validate import dotted_keys

Variant = tuple[dict[str, Any], ExperimentSpec]
"""The matrix keys with this combination's values, and the spec that results."""


def expand(document: Document) -> list[Variant]:
    """Every combination of the document's matrix, the last key varying fastest.

    Raises SpecError with the mistakes of all combinations, each once.
    """
    data = dict(document.data)
    matrix = data.pop("matrix", None)
    matrix = {} if matrix is None else matrix
    found = _matrix_mistakes(document, matrix)
    wrong = {mistake.key for mistake in found}
    sweeps: dict[str, list[Any]] = {}
    if isinstance(matrix, dict):
        sweeps = {key: values for key, values in matrix.items() if f"matrix.{key}" not in wrong}

    variants: list[Variant] = []
    for choice in itertools.product(*(range(len(values)) for values in sweeps.values())):
        picks = dict(zip(sweeps, choice, strict=True))
        try:
            variants.append(_variant(document, data, sweeps, picks))
        except SpecError as error:
            found += error.mistakes
    if found:
        raise SpecError(found)
    return variants


def _variant(
    document: Document,
    data: Mapping[str, Any],
    sweeps: Mapping[str, list[Any]],
    picks: Mapping[str, int],
) -> Variant:
    """One combination; `picks` says which value of each sweep it has."""
    label = {key: sweeps[key][pick] for key, pick in picks.items()}
    settings = [*label.items()]
    settings += [
        (key, value)
        for key, value in document.overrides.items()
        if any(key.startswith(f"{swept}.") for swept in sweeps)
    ]
    content = copy.deepcopy(dict(data))
    # a whole block first, then the keys in it: `strategy` before `strategy.zero_stage`
    for key, value in sorted(settings, key=lambda setting: setting[0].count(".")):
        set_dotted(content, key, copy.deepcopy(value))

    def place(path: KeyPath) -> tuple[str, int | None]:
        for end in range(len(path), 0, -1):
            key = ".".join(map(str, path[:end]))
            if key in document.overrides:
                break
            if key in picks:
                return document.place(("matrix", key, picks[key], *path[end:]))
        return document.place(path)

    return label, validate(content, place)


def _matrix_mistakes(document: Document, matrix: Any) -> list[Mistake]:
    def mistake(message: str, *path: str) -> Mistake:
        file, line = document.place(("matrix", *path))
        return Mistake(message, key=".".join(["matrix", *path]), file=file, line=line)

    if not isinstance(matrix, dict):
        return [mistake(f"given was {matrix!r}; it should map dotted keys to lists of values")]
    mistakes = []
    known = [key for key in dotted_keys() if key not in NOT_IN_A_MATRIX]
    for given, values in matrix.items():
        key = str(given)
        if key not in known and not key.startswith(FREE_FORM):
            block = key.rpartition(".")[0]
            beside = [name for name in known if name.rpartition(".")[0] == block]
            beside = beside or [name for name in known if "." not in name]
            mistakes.append(mistake(f"unknown key; {suggest(key, beside, known)}", key))
        if not isinstance(values, list) or not values:
            message = f"given was {values!r}; it should be a list of at least one value"
            mistakes.append(mistake(message, key))
    return mistakes
