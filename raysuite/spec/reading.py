"""A spec's file, its scale and the command line's `key=value` -> one Document."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from raysuite.errors import Mistake, SpecError
from raysuite.spec.aliases import current_name
from raysuite.spec.document import (
    COMMAND_LINE,
    UNREADABLE,
    Document,
    Loader,
    parse_document,
    set_key,
)
from raysuite.spec.sweeps import SPACE

# `scales` of a spec: other forms of the same experiment, such as one for a laptop.


def choose_scale(document: Document, scale: str) -> None:
    """Set the keys of `scales.SCALE` in the document, as if each were given on the command line.

    `matrix` replaces the whole matrix, and comes last. The experiment is then called NAME-SCALE,
    so that its results are separate. Raises SpecError for a scale that is not there.
    """
    scales = document.data.get("scales")
    names = [str(name) for name in scales] if isinstance(scales, dict) else []
    chosen = scales.get(scale) if isinstance(scales, dict) else None
    if not isinstance(chosen, dict):
        file, line = document.place(("scales", scale))
        if scale in names:
            message = f"given was {chosen!r}; it should map dotted keys to values"
        else:
            valid = f"valid are {', '.join(names)}" if names else "this spec has none"
            message = f"no scale is called {scale!r}; {valid}; without --scale it is the full form"
        raise SpecError([Mistake(message, key="scales", file=file, line=line)])
    settings: dict[str, Any] = {str(key): value for key, value in chosen.items()}
    for key in sorted(settings, key=lambda key: (key == "matrix", key.startswith("matrix."))):
        set_key(document, key, copy.deepcopy(settings[key]))
        document.scaled[current_name(key)] = settings[key]
        _move_lines(document, ("scales", scale, key), _path(current_name(key)))
    document.data["scale"] = scale
    if "name" not in settings and isinstance(document.data.get("name"), str):
        document.data["name"] += f"-{scale}"


def _path(key: str) -> tuple[str, ...]:
    """The place of a dotted key in the document; those of the matrix, and of the space of a sweep,
    are not divided."""
    if key.startswith(SPACE):
        return ("search", "space", key.removeprefix(SPACE))
    head, separator, swept = key.partition(".")
    return (head, swept) if head == "matrix" and separator else tuple(key.split("."))


def _move_lines(document: Document, source: tuple[str, ...], target: tuple[str, ...]) -> None:
    """Give keys at `target` the lines of those at `source`."""
    ended = [path for path in document.lines if path[: len(target)] == target]
    for path in ended:
        del document.lines[path]
    for path, line in list(document.lines.items()):
        if path[: len(source)] == source:
            document.lines[(*target, *path[len(source) :])] = line


def read_document(file: Path, overrides: Sequence[str] = (), scale: str | None = None) -> Document:
    """Read a spec's YAML, choose a scale, and apply `key=value` overrides; values are YAML too.

    Raises SpecError for a file that is missing, is not YAML, or is not a mapping, and for a scale
    that it does not have.
    """
    name = str(file)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError([Mistake(f"cannot be read: {error.strerror}", file=name)]) from error
    except UnicodeDecodeError as error:
        raise SpecError([Mistake(f"is not UTF-8 text: {error}", file=name)]) from error
    document = parse_document(text, name)
    if scale is not None:
        choose_scale(document, scale)
    mistakes = []
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key:
            mistakes.append(
                Mistake(
                    f"{override!r} is not key=value, such as training.epochs=3", file=COMMAND_LINE
                )
            )
            continue
        try:
            parsed = yaml.load(value, Loader)
        except UNREADABLE:
            mistakes.append(Mistake(f"{value!r} is not YAML", key=key, file=COMMAND_LINE))
            continue
        document.overrides[current_name(key)] = parsed
        set_key(document, key, parsed)
    if mistakes:
        raise SpecError(mistakes)
    return document
