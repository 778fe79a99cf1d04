"""A spec's file, its scale and the command line's `key=value` -> one Document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from raysuite.errors import Mistake, SpecError
from raysuite.spec.document import (
    COMMAND_LINE,
    UNREADABLE,
    Document,
    Loader,
    parse_document,
    set_key,
)
from raysuite.spec.scales import choose_scale


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
        document.overrides[key] = parsed
        set_key(document, key, parsed)
    if mistakes:
        raise SpecError(mistakes)
    return document
