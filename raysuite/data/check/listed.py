"""What is known of a data set before its content is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from raysuite.data.check.report import Finding, Part
from raysuite.data.processes import Count


@dataclass(frozen=True)
class Listed:
    """Tasks for `work`, each of which can be done by another process."""

    work: Callable[[Any, Count], Part]
    tasks: tuple[Any, ...]
    total: int
    unit: Literal["images", "bytes"]
    """What `work` counts, and how much there is of it."""
    names: dict[int, str]
    """Of the classes, by label as the files tell it; empty where they are not known."""
    findings: tuple[Finding, ...]


def reason(error: Exception, place: str) -> str:
    """What an error says beside its place."""
    return str(error).removeprefix(f"{place}: ")
