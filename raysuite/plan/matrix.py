"""A document with a matrix -> one spec for each combination."""

from __future__ import annotations

import copy
import itertools
from typing import Any

from raysuite.errors import Mistake, SpecError
from raysuite.spec import Document, ExperimentSpec, load_spec, suggest, validate
from raysuite.spec.document import KeyPath, set_dotted
from raysuite.spec.validate import valid_keys

Variant = tuple[dict[str, Any], ExperimentSpec]
"""The matrix keys with this combination's values, and the spec that results."""

_NOT_IN_A_MATRIX = ("matrix", "repeats", "name", "description")


def expand(document: Document) -> list[Variant]:
    """Every combination of the document's matrix, the last key varying fastest.

    Raises SpecError with the mistakes of all combinations, each once.
    """
    data = dict(document.data)
    matrix = data.pop("matrix", None) or {}
    mistakes = _matrix_mistakes(document, matrix)
    if mistakes:
        rest = _mistakes_of(lambda: validate(data, document.place))
        raise SpecError(_distinct([*rest, *mistakes]))
    if not matrix:
        return [({}, load_spec(document))]

    variants: list[Variant] = []
    found: list[Mistake] = []
    keys = list(matrix)
    for choice in itertools.product(*(range(len(matrix[key])) for key in keys)):
        variant = copy.deepcopy(data)
        label = {key: matrix[key][pick] for key, pick in zip(keys, choice, strict=True)}
        for key, value in label.items():
            set_dotted(variant, key, copy.deepcopy(value))
        for key, value in document.overrides.items():
            if any(key.startswith(f"{swept}.") for swept in keys):
                set_dotted(variant, key, value)
        picks = dict(zip(keys, choice, strict=True))

        def place(path: KeyPath, picks: dict[str, int] = picks) -> tuple[str, int | None]:
            for end in range(len(path), 0, -1):
                key = ".".join(map(str, path[:end]))
                if key in picks:
                    return document.place(("matrix", key, picks[key], *path[end:]))
            return document.place(path)

        try:
            variants.append((label, validate(variant, place)))
        except SpecError as error:
            found += error.mistakes
    if found:
        raise SpecError(_distinct(found))
    return variants


def _matrix_mistakes(document: Document, matrix: Any) -> list[Mistake]:
    def mistake(message: str, *path: str) -> Mistake:
        file, line = document.place(("matrix", *path))
        return Mistake(message, key=".".join(["matrix", *path]), file=file, line=line)

    if not isinstance(matrix, dict):
        return [mistake(f"given was {matrix!r}; it should map dotted keys to lists of values")]
    mistakes = []
    for key, values in matrix.items():
        parents, _, last = str(key).rpartition(".")
        names = valid_keys(parents.split(".") if parents else ())
        if not parents:
            names = [name for name in names if name not in _NOT_IN_A_MATRIX]
        free_form = parents in ("model.options", "strategy.options")
        if not free_form and last not in names:
            known = [f"{parents}.{name}" if parents else name for name in names]
            known = known or [name for name in valid_keys(()) if name not in _NOT_IN_A_MATRIX]
            mistakes.append(mistake(f"unknown key; {suggest(str(key), known)}", str(key)))
        if not isinstance(values, list) or not values:
            message = f"given was {values!r}; it should be a list of at least one value"
            mistakes.append(mistake(message, str(key)))
    return mistakes


def _mistakes_of(call: Any) -> list[Mistake]:
    try:
        call()
    except SpecError as error:
        return list(error.mistakes)
    return []


def _distinct(mistakes: list[Mistake]) -> list[Mistake]:
    return list(dict.fromkeys(mistakes))
