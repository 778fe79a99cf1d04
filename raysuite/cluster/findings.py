"""One thing that was looked at on a site, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How it stands with it."""

    WORKS = "works"
    UNSURE = "unsure"
    """It cannot be known from here; the cluster's start will tell."""
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was found, and how to mend it where it is wrong."""

    what: str
    state: State
    note: str = ""
    mend: str = ""


def works(what: str, note: str = "") -> Finding:
    """It is as it should be."""
    return Finding(what, State.WORKS, note)


def unsure(what: str, note: str, mend: str = "") -> Finding:
    """It cannot be known from here."""
    return Finding(what, State.UNSURE, note, mend)


def wrong(what: str, note: str, mend: str) -> Finding:
    """No cluster can start so."""
    return Finding(what, State.WRONG, note, mend)
