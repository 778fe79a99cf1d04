"""A spec as text: YAML with the line of every key, and overrides from the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from raysuite.errors import Mistake, SpecError

KeyPath = tuple[str | int, ...]

COMMAND_LINE = "command line"


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers: `1e-4` is one, where PyYAML alone reads a text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)

_UNREADABLE = (yaml.YAMLError, ValueError, RecursionError)
"""ValueError: a date such as 2001-99-99. RecursionError: a block that holds itself."""


@dataclass
class Document:
    """Plain data read from YAML, and where each key of it was written."""

    data: dict[str, Any]
    file: str
    text: str = ""
    lines: dict[KeyPath, int] = field(default_factory=dict)
    """Key path -> line, counted from 1."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Dotted keys that were set on the command line."""

    def place(self, path: KeyPath) -> tuple[str, int | None]:
        """File and line where `path`, or the nearest key above it, was written."""
        for end in range(len(path), 0, -1):
            key = ".".join(map(str, path[:end]))
            if key in self.overrides:
                return COMMAND_LINE, None
            if path[:end] in self.lines:
                return self.file, self.lines[path[:end]]
            if any(override.startswith(f"{key}.") for override in self.overrides):
                return COMMAND_LINE, None
        return self.file, None


def read_document(file: Path, overrides: Sequence[str] = ()) -> Document:
    """Read a spec's YAML and apply `key=value` overrides; values are YAML too.

    Raises SpecError for a file that is missing, is not YAML, or is not a mapping.
    """
    name = str(file)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError([Mistake(f"cannot be read: {error.strerror}", file=name)]) from error
    except UnicodeDecodeError as error:
        raise SpecError([Mistake(f"is not UTF-8 text: {error}", file=name)]) from error
    document = parse_document(text, name)
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
            parsed = yaml.load(value, _Loader)
        except _UNREADABLE:
            mistakes.append(Mistake(f"{value!r} is not YAML", key=key, file=COMMAND_LINE))
            continue
        _override(document, key, parsed)
    if mistakes:
        raise SpecError(mistakes)
    return document


def _override(document: Document, key: str, value: Any) -> None:
    """Set `key`, which ends its sweep in the matrix; `matrix.KEY` sets a sweep instead."""
    document.overrides[key] = value
    matrix = document.data.get("matrix")
    swept = key.removeprefix("matrix.")
    if swept != key:
        document.data["matrix"] = {**(matrix if isinstance(matrix, dict) else {}), swept: value}
        return
    if isinstance(matrix, dict):
        matrix.pop(key, None)
    set_dotted(document.data, key, value)


def parse_document(text: str, file: str) -> Document:
    """YAML text -> Document. Raises SpecError with the line of a syntax error."""
    lines: dict[KeyPath, int] = {}
    repeated: list[Mistake] = []
    try:
        node = yaml.compose(text, Loader=_Loader)
        data = yaml.load(text, _Loader)
        if node is not None:
            _walk(node, (), lines, repeated, file)
    except _UNREADABLE as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        if isinstance(error, RecursionError):
            problem = "a block is nested too deep, or holds itself"
        line = mark.line + 1 if mark else None
        raise SpecError([Mistake(f"is not valid YAML: {problem}", file=file, line=line)]) from error
    if not isinstance(data, dict):
        given = "nothing" if data is None else type(data).__name__
        raise SpecError(
            [Mistake(f"a spec is a mapping of keys to values; given was {given}", file=file)]
        )
    if repeated:
        raise SpecError(repeated)
    return Document(data=data, file=file, text=text, lines=lines)


def _walk(
    node: yaml.Node,
    path: KeyPath,
    lines: dict[KeyPath, int],
    repeated: list[Mistake],
    file: str,
) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, key.value)
            line = key.start_mark.line + 1
            if below in lines:
                repeated.append(
                    Mistake(
                        f"is given twice, first in line {lines[below]}; keep one",
                        key=".".join(map(str, below)),
                        file=file,
                        line=line,
                    )
                )
            lines[below] = line
            _walk(value, below, lines, repeated, file)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*path, index)] = value.start_mark.line + 1
            _walk(value, (*path, index), lines, repeated, file)


def set_dotted(data: dict[str, Any], key: str, value: Any) -> None:
    """Set `a.b.c` in nested mappings; a block written in shorthand is spelled out first."""
    *parents, last = key.split(".")
    block = data
    for parent in parents:
        below = block.get(parent)
        if isinstance(below, str):
            below = {"name": below}
        elif not isinstance(below, dict):
            below = {}
        else:
            below = dict(below)
        block[parent] = below
        block = below
    block[last] = value
