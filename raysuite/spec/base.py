"""The base of every option block: frozen, unknown keys forbidden, `name: x` writable as `x`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator

IMPORT_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
"""`module:attribute`."""

MOST_RUNS = 10_000
"""Runs of a matrix with its repeats, or trials of a sweep, that are planned at most."""
CHOSEN = "chosen:"
"""Prefix of the tags of a value that is a number or a block; tags are no keys of a spec."""


class Options(BaseModel):
    """A block of a spec. Values cannot change once made, and unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    removed: ClassVar[Mapping[str, Any]] = {}
    """Keys of earlier versions -> the value with which records of theirs are still read."""

    @model_validator(mode="before")
    @classmethod
    def _no_truth_in_the_place_of_a_number(cls, data: Any) -> Any:
        """Turn a boolean for a number into text, which is refused: `epochs: true` would be 1."""
        if not isinstance(data, dict):
            return data
        return {
            key: str(value).lower() if isinstance(value, bool) and cls._is_number(key) else value
            for key, value in data.items()
            if key not in cls.removed or value != cls.removed[key]
        }

    @classmethod
    def _is_number(cls, key: Any) -> bool:
        field = cls.model_fields.get(key)
        types = [] if field is None else types_of(field.annotation)
        return bool not in types and (int in types or float in types)


def later(default: Any, **rules: Any) -> Any:
    """A field that came after others: left out of dumps where it is not set, so that runs keep the
    ids that they had without it."""
    return Field(default=default, exclude_if=lambda value: value == default, **rules)


def types_of(annotation: Any) -> list[Any]:
    """The classes that a field's type allows."""
    if get_origin(annotation) is Annotated:
        return types_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [each for part in get_args(annotation) for each in types_of(part)]
    return [annotation]


def expand_shorthand(value: Any) -> Any:
    """`ddp` means `{name: ddp}`, for every block that is chosen by its name."""
    return {"name": value} if isinstance(value, str) else value


def suggest(given: str, valid: Iterable[str], near: Iterable[str] = (), block: str = "") -> str:
    """`did you mean x? valid are x, y, z`, for a name that is not among the valid ones.

    `near` are further names that may have been meant, and that are not listed. `block` is the
    dotted key of the block whose keys the valid ones are.
    """
    names = list(valid)
    within = {name: f"{block}.{name}" if block else name for name in names}
    close = [within[x] for x in difflib.get_close_matches(given, names, n=1, cutoff=0.6)]
    close += [name for name in near if name.rpartition(".")[2] == given]
    close += [within[x] for x in difflib.get_close_matches(given, names, n=1, cutoff=0.5)]
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}valid are {', '.join(names)}"


def off(value: Any) -> Any:
    """YAML 1.1 reads `off` as false."""
    return "off" if value is False else value
