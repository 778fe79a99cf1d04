"""Read a spec's YAML with the line of every key; set keys from a scale or the command line."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from raysuite.errors import Mistake, SpecError
from raysuite.spec.base import expand_shorthand
from raysuite.spec.search import holds

KeyPath = tuple[str | int, ...]

COMMAND_LINE = "command line"


class Loader(yaml.SafeLoader):
    """Read numbers as in YAML 1.2: `1e-4` is a number (text in PyYAML), and `24:00:00` is text
    (86400 in PyYAML)."""


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
    """Read `010` as ten, as in YAML 1.2; PyYAML reads eight."""
    plain = re.fullmatch(r"[-+]?[0-9][0-9_]*", node.value)
    return int(node.value) if plain else loader.construct_yaml_int(node)


Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)
_MOST_VALUES = 100_000
"""Largest number of keys and values in a spec; an alias counts with its whole content."""

UNREADABLE = (yaml.YAMLError, ValueError, RecursionError)
"""Errors for unreadable YAML. ValueError: a date such as 2001-99-99. RecursionError: a block that
contains itself."""


@dataclass
class Document:
    """Plain data read from YAML, with the place where each key was written."""

    data: dict[str, Any]
    file: str
    text: str = ""
    lines: dict[KeyPath, int] = field(default_factory=dict)
    """Key path -> line, counted from 1."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> value, as set on the command line."""
    scaled: dict[str, Any] = field(default_factory=dict)
    """Dotted key -> value, as set by the chosen scale."""
    ended: list[tuple[str, int]] = field(default_factory=list)
    """(dotted key, number of its values in the matrix), for each key of the matrix that the command
    line sets to one value."""

    @property
    def settings(self) -> dict[str, Any]:
        """Dotted key -> value, as set by the scale or on the command line. The values also replace
        those in blocks that a matrix or a sweep chooses."""
        return {**self.scaled, **self.overrides}

    def ended_sweeps(self) -> list[str]:
        """One sentence for each key of the matrix that the command line sets to one value."""
        return [
            f"{key}={self.overrides[key]} on the command line replaces the matrix's {count} values "
            f"of {key}"
            for key, count in self.ended
        ]

    def place(self, path: KeyPath) -> tuple[str, int | None]:
        """File and line in which `path`, or the nearest key above it, was written."""
        for end in range(len(path), 0, -1):
            key = ".".join(map(str, path[:end]))
            if key in self.overrides:
                return COMMAND_LINE, None
            if path[:end] in self.lines:
                return self.file, self.lines[path[:end]]
            if any(override.startswith(f"{key}.") for override in self.overrides):
                return COMMAND_LINE, None
        return self.file, None

    def mistake(self, message: str, *path: str | int) -> Mistake:
        """A Mistake with this message, and with the key, file and line of `path`."""
        file, line = self.place(path)
        return Mistake(message, key=".".join(map(str, path)), file=file, line=line)


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
            problem = "a block is nested too deeply, or contains itself"
        line = mark.line + 1 if mark else None
        raise SpecError([Mistake(f"is not valid YAML: {problem}", file=file, line=line)]) from error
    if not isinstance(data, dict):
        given = "nothing" if data is None else type(data).__name__
        raise SpecError([Mistake(f"a spec is a mapping of keys to values; got {given}", file=file)])
    if repeated:
        raise SpecError(repeated)
    return Document(data=data, file=file, text=text, lines=lines)


def _walk(
    node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], repeated: list[Mistake], file: str
) -> None:
    if len(lines) > _MOST_VALUES:
        message = (
            f"has more than {_MOST_VALUES:,} keys and values, with its aliases expanded; shorten it"
        )
        raise SpecError([Mistake(message, file=file)])
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, key.value)
            line = key.start_mark.line + 1
            if below in lines:
                message = f"is given twice, first in line {lines[below]}; keep one"
                written = ".".join(map(str, below))
                repeated.append(Mistake(message, key=written, file=file, line=line))
            lines[below] = line
            _walk(value, below, lines, repeated, file)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*path, index)] = value.start_mark.line + 1
            _walk(value, (*path, index), lines, repeated, file)


def set_dotted(data: dict[str, Any], key: str, value: Any) -> None:
    """Set `a.b.c` in nested mappings; a block written in shorthand is expanded first."""
    *parents, last = key.split(".")
    block = data
    for parent in parents:
        below = expand_shorthand(block.get(parent))
        block[parent] = dict(below) if isinstance(below, dict) else {}
        block = block[parent]
    block[last] = value


def set_key(document: Document, key: str, value: Any) -> None:
    """Set `key`. The matrix then no longer varies `key`, and a sweep no longer searches `key`.

    If `key` is `matrix.KEY`, `value` is the list of KEY's values in the matrix. If `key` is
    `search.space.KEY`, `value` is the distribution of KEY; null removes KEY from the search space.
    """
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


# Keys of a matrix and of a search space. A line of the matrix has one key, or several with commas.


def swept_keys(written: str) -> tuple[str, ...]:
    """The dotted keys in one line of a matrix: `data.name, training.global_batch` has two."""
    return tuple(key.strip() for key in written.split(","))


def swept_values(document: Document, key: str) -> list[tuple[str, int]]:
    """[(`key`, number of its values in the matrix)]; empty if the matrix does not have `key`."""
    matrix = document.data.get("matrix")
    for written, values in matrix.items() if isinstance(matrix, dict) else ():
        if key in swept_keys(str(written)) and isinstance(values, list):
            return [(key, len(values))]
    return []


def end_sweeps(matrix: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """The matrix without `keys`; other keys in the same line stay, without repeated values."""
    ended = set(keys)
    left: dict[str, Any] = {}
    for written, values in matrix.items():
        together = swept_keys(str(written))
        kept = [place for place, key in enumerate(together) if key not in ended]
        if len(kept) == len(together):
            left[written] = values
        elif kept:
            left[", ".join(together[place] for place in kept)] = _columns(values, kept)
    return left


def _columns(rows: Any, kept: list[int]) -> Any:
    """The columns `kept` of the rows, without repeated rows; a plain list for a single column."""
    found: list[Any] = []
    for row in rows if isinstance(rows, list) else [rows]:
        if not isinstance(row, list) or len(row) <= kept[-1]:
            return rows  # a mistake, which the check of the matrix reports
        values = [row[place] for place in kept]
        value = values[0] if len(kept) == 1 else values
        if value not in found:
            found.append(value)
    return found


SPACE = "search.space."
"""Prefix of searched keys. The dotted key after the prefix is not divided at its dots."""


def set_dimension(search: Any, key: str, dimension: Any) -> dict[str, Any]:
    """The section `search` whose space has `dimension` for `key`, or lacks `key` if `dimension` is
    None."""
    section = dict(search) if isinstance(search, dict) else {}
    given = section.get("space")
    space = dict(given) if isinstance(given, dict) else {}
    if dimension is None:
        space.pop(key, None)
    else:
        space[key] = dimension
    return {**section, "space": space}


def end_dimension(search: Any, key: str, value: Any) -> Any:
    """The section `search` whose space lacks `key`, because `key` now has the single value `value`.

    Dimensions whose condition on `key` fails are left out; conditions on `key` that hold are
    removed.
    """
    space = search.get("space") if isinstance(search, dict) else None
    if not isinstance(space, dict) or key not in space:
        return search
    left: dict[str, Any] = {}
    for other, dimension in space.items():
        when = dimension.get("when") if isinstance(dimension, dict) else None
        if other == key:
            continue
        if isinstance(when, Mapping) and key in when:
            if not holds({key: when[key]}, {key: value}):
                continue
            rest = {each: wanted for each, wanted in when.items() if each != key}
            dimension = {**dimension, "when": rest}
        left[other] = dimension
    return {**search, "space": left}


# `scales` of a spec: other versions of the same experiment, such as one for a laptop.


def choose_scale(document: Document, scale: str) -> None:
    """Set the keys of `scales.SCALE` in the document, as if each were given on the command line.

    The scale's key `matrix` replaces the whole matrix, and is set last. Unless the scale sets
    `name`, the experiment is then named NAME-SCALE, so that its results are kept separate. Raises
    SpecError for a scale that does not exist or is not a mapping.
    """
    scales = document.data.get("scales")
    names = [str(name) for name in scales] if isinstance(scales, dict) else []
    chosen = scales.get(scale) if isinstance(scales, dict) else None
    if not isinstance(chosen, dict):
        file, line = document.place(("scales", scale))
        if scale in names:
            message = f"got {chosen!r}; it should map dotted keys to values"
        else:
            valid = f"valid: {', '.join(names)}" if names else "this spec has none"
            message = (
                f"no scale is called {scale!r}; {valid}; leave --scale out for the full version"
            )
        raise SpecError([Mistake(message, key="scales", file=file, line=line)])
    settings: dict[str, Any] = {str(key): value for key, value in chosen.items()}
    for key in sorted(settings, key=lambda key: (key == "matrix", key.startswith("matrix."))):
        set_key(document, key, copy.deepcopy(settings[key]))
        document.scaled[key] = settings[key]
        _move_lines(document, ("scales", scale, key), _path(key))
    document.data["scale"] = scale
    if "name" not in settings and isinstance(document.data.get("name"), str):
        document.data["name"] += f"-{scale}"


def _path(key: str) -> tuple[str, ...]:
    """The path of a dotted key in the document. The part after `matrix.` or `search.space.` is
    itself a dotted key, and is not divided at its dots."""
    if key.startswith(SPACE):
        return ("search", "space", key.removeprefix(SPACE))
    head, separator, swept = key.partition(".")
    return (head, swept) if head == "matrix" and separator else tuple(key.split("."))


def _move_lines(document: Document, source: tuple[str, ...], target: tuple[str, ...]) -> None:
    """Give the keys at `target` the line numbers of the keys at `source`."""
    _drop_lines(document, target)
    for path, line in list(document.lines.items()):
        if path[: len(source)] == source:
            document.lines[(*target, *path[len(source) :])] = line


def _drop_lines(document: Document, target: tuple[str, ...]) -> None:
    for path in [path for path in document.lines if path[: len(target)] == target]:
        del document.lines[path]


def read_document(file: Path, overrides: Sequence[str] = (), scale: str | None = None) -> Document:
    """Read a spec's YAML, choose a scale, and apply `key=value` overrides; values are YAML too.

    Raises SpecError if the file is missing, is not YAML, is not a mapping or has no such scale, or
    if an override is invalid.
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
    override(document, overrides)
    return document


def of_network(document: Document) -> Document:
    """Return the document. Raises SpecError if the document has a script instead of a network."""
    if document.data.get("script") is None:
        return document
    message = (
        "a training script was given, but this command needs model and data; `raysuite run`, "
        "`plan` and `scale` accept a script"
    )
    raise SpecError([document.mistake(message, "script")])


def override(document: Document, overrides: Sequence[str]) -> None:
    """Apply `key=value` overrides. Raises SpecError with a mistake for each invalid override."""
    mistakes = []
    for each in overrides:
        key, separator, value = each.partition("=")
        if not separator or not key:
            message = f"{each!r} is not key=value, such as training.epochs=3"
            mistakes.append(Mistake(message, file=COMMAND_LINE))
            continue
        try:
            parsed = yaml.load(value, Loader)
        except UNREADABLE:
            mistakes.append(Mistake(f"{value!r} is not YAML", key=key, file=COMMAND_LINE))
            continue
        document.overrides[key] = parsed
        document.ended += swept_values(document, key)
        set_key(document, key, parsed)
        _drop_lines(document, _path(key))
    if mistakes:
        raise SpecError(mistakes)
