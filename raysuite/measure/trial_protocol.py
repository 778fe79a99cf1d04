"""How a trial tells its findings to the process that started it."""

from __future__ import annotations

MARK = "raysuite-trial: "
"""Begins the line that carries a trial's note (stdout) or error (stderr)."""

MISSING = 3
"""Exit status of a trial whose part is not there; 0 is one that works, all else is broken."""


class PartMissingError(Exception):
    """The part is not on this machine; the message says what was looked for."""


def expect(found: object, expected: object) -> None:
    """Raises AssertionError where a part computed something else; unlike `assert`, under -O too."""
    if found != expected:
        raise AssertionError(f"got {found}, expected {expected}")
