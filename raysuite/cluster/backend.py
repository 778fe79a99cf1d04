"""The state of a cluster's job, and the results of site checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

JobPhase = Literal["waiting", "running", "gone", "unknown"]
"""`unknown`: SLURM did not answer, or the cluster's process is on another host."""


@dataclass(frozen=True)
class JobState:
    """The state of a cluster's SLURM job or, without SLURM, of its process."""

    phase: JobPhase
    state: str = ""
    """SLURM's state, such as PENDING."""
    reason: str = ""
    """Why the job is in this state: SLURM's reason, such as Priority or JobLaunchFailure, or a text
    of raysuite."""
    hosts: tuple[str, ...] = ()
    nodes: int = 0
    """Number of nodes in the allocation; 0 if unknown."""


class State(StrEnum):
    """The result of a check."""

    WORKS = "works"
    UNSURE = "unsure"
    """There may be a problem, or the check is not possible from this host. The cluster's start will
    show the result."""
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One check of a site: its subject, its result, a note and, for a problem, how to fix it."""

    what: str
    state: State
    note: str = ""
    fix: str = ""


def works(what: str, note: str) -> Finding:
    """A check that passed."""
    return Finding(what, State.WORKS, note)


def unsure(what: str, note: str, fix: str = "") -> Finding:
    """A check that found a possible problem, or that is not possible from this host."""
    return Finding(what, State.UNSURE, note, fix)


def wrong(what: str, note: str, fix: str) -> Finding:
    """A check that failed, so that no cluster can start on the site."""
    return Finding(what, State.WRONG, note, fix)
