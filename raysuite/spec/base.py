"""The base class of all blocks of a spec, with helpers for their types and names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator

IMPORT_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
"""Regular expression of an import path `module:attribute`."""

MOST_RUNS = 10_000
"""Largest number of runs in a matrix, repeats included, or of trials in a sweep."""
CHOSEN = "chosen:"
"""Prefix of the tags by which pydantic distinguishes a number from a block. The tags are not keys
of a spec."""


class Frozen(BaseModel):
    """Data that cannot be changed. Unknown keys, such as those of newer files, are ignored."""

    model_config = ConfigDict(frozen=True)


class Strict(Frozen):
    """Data that cannot be changed. Unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid")


class Options(Strict):
    """A block of a spec. Its values cannot be changed, and unknown keys are mistakes."""

    model_config = ConfigDict(allow_inf_nan=False)

    removed: ClassVar[Mapping[str, Any]] = {}
    """Removed key -> its value in older Records. The key is ignored if it has this value."""

    @model_validator(mode="before")
    @classmethod
    def _no_truth_in_the_place_of_a_number(cls, data: Any) -> Any:
        """Turn a boolean that is given for a number into text, which pydantic refuses. Otherwise
        `epochs: true` would mean 1."""
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
    """A field that was added in a later version. Dumps leave the field out while it has its
    default, so that the ids of earlier runs do not change."""
    return Field(default=default, exclude_if=lambda value: value == default, **rules)


def types_of(annotation: Any) -> list[Any]:
    """The classes that a field's type allows."""
    if get_origin(annotation) is Annotated:
        return types_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [each for part in get_args(annotation) for each in types_of(part)]
    return [annotation]


def expand_shorthand(value: Any) -> Any:
    """Expand `ddp` to `{name: ddp}`."""
    return {"name": value} if isinstance(value, str) else value


def suggest(given: str, valid: Iterable[str], near: Iterable[str] = (), block: str = "") -> str:
    """The hint `did you mean x? valid: x, y, z` for a name that is not valid.

    `near` has further names, which may be suggested but are not listed as valid. `block` is the
    dotted key of the block that has the valid names as keys.
    """
    names = list(valid)
    within = {name: f"{block}.{name}" if block else name for name in names}
    close = [within[x] for x in difflib.get_close_matches(given, names, n=1, cutoff=0.6)]
    close += [name for name in near if name.rpartition(".")[2] == given]
    close += [within[x] for x in difflib.get_close_matches(given, names, n=1, cutoff=0.5)]
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}valid: {', '.join(names)}"


def off(value: Any) -> Any:
    """Turn False into "off": YAML 1.1 reads `off` as false."""
    return "off" if value is False else value
