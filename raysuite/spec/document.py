"""A spec as text: YAML with the line of every key, and keys that are set afterwards."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from raysuite.errors import Mistake, SpecError
from raysuite.spec.aliases import ALIASES, current_name, current_names
from raysuite.spec.sweeps import SPACE, end_dimension, end_sweeps, set_dimension, swept_keys

KeyPath = tuple[str | int, ...]

COMMAND_LINE = "command line"


class Loader(yaml.SafeLoader):
    """YAML 1.2's numbers: `1e-4` is one, where PyYAML alone reads a text, and `24:00:00` is a text,
    where PyYAML alone reads 86400."""


_COLONS = ("tag:yaml.org,2002:str", re.compile(r"[-+]?[0-9_]+(:[0-9_.]+)+$"))
Loader.yaml_implicit_resolvers = {
    first: [_COLONS, *resolvers] if first in "-+0123456789" and first else resolvers
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _whole_number(loader: Loader, node: yaml.ScalarNode) -> int:
    """`010` is ten, as in YAML 1.2, where PyYAML alone reads eight."""
    plain = re.fullmatch(r"[-+]?[0-9][0-9_]*", node.value)
    return int(node.value) if plain else loader.construct_yaml_int(node)


Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)
_MOST_VALUES = 100_000
"""Keys and values of a spec; an alias counts as what it refers to."""

UNREADABLE = (yaml.YAMLError, ValueError, RecursionError)
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
    scaled: dict[str, Any] = field(default_factory=dict)
    """Dotted keys that the chosen scale set."""

    @property
    def settings(self) -> dict[str, Any]:
        """Dotted keys that were set after the spec was read; they hold for each swept block."""
        return {**self.scaled, **self.overrides}

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


def parse_document(text: str, file: str) -> Document:
    """YAML text -> Document. Raises SpecError with the line of a syntax error."""
    lines: dict[KeyPath, int] = {}
    repeated: list[Mistake] = []
    try:
        node = yaml.compose(text, Loader=Loader)
        data = yaml.load(text, Loader)
        if node is not None:
            _walk(node, (), lines, repeated, file)
    except UNREADABLE as error:
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
    places = {(ALIASES.get(str(path[0]), path[0]), *path[1:]): at for path, at in lines.items()}
    return Document(data=current_names(data), file=file, text=text, lines=places)


def _walk(
    node: yaml.Node,
    path: KeyPath,
    lines: dict[KeyPath, int],
    repeated: list[Mistake],
    file: str,
) -> None:
    if len(lines) > _MOST_VALUES:
        message = (
            f"has more than {_MOST_VALUES:,} values, those of its aliases included; shorten it"
        )
        raise SpecError([Mistake(message, file=file)])
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


def set_key(document: Document, key: str, value: Any) -> None:
    """Set `key`, which ends its sweep in the matrix, and its search in the space of a sweep.

    `matrix.KEY` sets a sweep instead, `search.space.KEY` what is searched; null ends the search.
    """
    key = current_name(key)
    search = document.data.get("search")
    if key.startswith(SPACE):
        document.data["search"] = set_dimension(search, key.removeprefix(SPACE), value)
        return
    if search is not None:
        document.data["search"] = end_dimension(search, key, value)
    given = document.data.get("matrix")
    matrix = given if isinstance(given, dict) else {}
    swept = key.removeprefix("matrix.")
    if swept == key:
        if matrix:
            document.data["matrix"] = end_sweeps(matrix, [key])
        set_dotted(document.data, key, value)
    elif swept in matrix:
        matrix[swept] = value
    else:
        document.data["matrix"] = {**end_sweeps(matrix, swept_keys(swept)), swept: value}
