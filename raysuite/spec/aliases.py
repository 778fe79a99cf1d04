"""Keys of specs under their former names, in files and records of earlier versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALIASES = {"stand_ins": "synthetic_data"}
"""Former name of a spec's key -> its name."""
_FORMER = {name: former for former, name in ALIASES.items()}


def current_name(key: str) -> str:
    """A dotted key by its present name."""
    head, dot, rest = key.partition(".")
    return f"{ALIASES.get(head, head)}{dot}{rest}"


def current_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """A spec's data with its keys by their present names."""
    return {ALIASES.get(key, key): value for key, value in data.items()}


def former_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """A spec's data as versions before the keys were renamed had it: run ids are made of it."""
    return {_FORMER.get(key, key): value for key, value in data.items()}
