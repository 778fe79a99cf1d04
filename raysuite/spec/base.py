"""The base of every option block: frozen, unknown keys forbidden, `name: x` writable as `x`."""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator

IMPORT_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
"""`module:attribute`."""

CHOSEN = "chosen:"
"""Prefix of the tags of a value that is a number or a block; tags are no keys of a spec."""


class Options(BaseModel):
    """A block of a spec. Values cannot change once made, and unknown keys are mistakes."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _no_truth_in_the_place_of_a_number(cls, data: Any) -> Any:
        """Turn a boolean for a number into text, which is refused: `epochs: true` would be 1."""
        if not isinstance(data, dict):
            return data
        return {
            key: str(value).lower() if isinstance(value, bool) and cls._is_number(key) else value
            for key, value in data.items()
        }

    @classmethod
    def _is_number(cls, key: Any) -> bool:
        field = cls.model_fields.get(key)
        types = [] if field is None else _types(field.annotation)
        return bool not in types and (int in types or float in types)


def _types(annotation: Any) -> list[Any]:
    """The classes that a field's type allows."""
    if get_origin(annotation) is Annotated:
        return _types(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [each for part in get_args(annotation) for each in _types(part)]
    return [annotation]


def expand_shorthand(value: Any) -> Any:
    """`ddp` means `{name: ddp}`, for every block that is chosen by its name."""
    return {"name": value} if isinstance(value, str) else value
