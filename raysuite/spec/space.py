"""The space of a sweep as it is written: keys that are set afterwards are no longer searched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysuite.spec.search import holds

SPACE = "search.space."
"""Below it stand dotted keys as they are, not divided."""

Search = dict[str, Any]


def set_dimension(search: Any, key: str, dimension: Any) -> Search:
    """The section with another dimension for `key`; without any where `dimension` is None."""
    section = dict(search) if isinstance(search, dict) else {}
    given = section.get("space")
    space = dict(given) if isinstance(given, dict) else {}
    if dimension is None:
        space.pop(key, None)
    else:
        space[key] = dimension
    return {**section, "space": space}


def end_dimension(search: Any, key: str, value: Any) -> Any:
    """The section where `key` has one `value`.

    Conditions on it are decided by that: what they forbid is left out, and where they hold they
    are said no longer.
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
