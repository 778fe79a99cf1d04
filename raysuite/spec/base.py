"""The base of every option block: frozen, unknown keys forbidden, `name: x` writable as `x`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

IMPORT_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
"""`module:attribute`."""

CHOSEN = "chosen:"
"""Begins the tags of a value that is a number or a block: they are no keys of a spec."""


class Options(BaseModel):
    """A block of a spec. Values cannot change once made, and unknown keys are mistakes."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def expand_shorthand(value: Any) -> Any:
    """`ddp` means `{name: ddp}`, for every block that is chosen by its name."""
    return {"name": value} if isinstance(value, str) else value
