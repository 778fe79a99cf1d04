"""Every exception that raysuite raises on purpose.

RaysuiteError
├── UserError            bad input; the command line prints it and exits with 2
│   ├── SpecError        one or more mistakes in a spec, all listed
│   ├── DataError        a data set that is missing or unreadable
│   └── MissingPartError an optional part (Horovod, DALI, ...) that is not installed
├── HeadLostError        the cluster's head has ended; the next head resumes the suite
├── RayStartError        Ray's own processes did not start on this machine: it may be too busy
├── StorageError         the results cannot be written: the disk is full, or read-only
├── GateError            a strategy whose arithmetic is wrong; its speed is not reported
└── RunError             a run that failed; the other runs continue
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_TORCH_CANNOT_WRITE = ("iostream error", "PytorchStreamWriter failed", "] . unexpected pos ")
"""Parts of the messages of RuntimeErrors that torch.save raises for a failed write, without errno
(caffe2/serialize/inline_container.cc)."""


class RaysuiteError(Exception):
    """Base of all of raysuite's own errors."""


class HeadLostError(RaysuiteError):
    """The head of the Ray cluster has ended; the current run does not count as failed."""


class RayStartError(RaysuiteError):
    """Ray's own processes did not start on this machine; the current run does not count as
    failed."""


class StorageError(RaysuiteError):
    """The results' disk is full or read-only; the current run does not count as failed."""


def is_full(error: BaseException) -> bool:
    """Whether an error, or one of its causes, comes from a full or read-only file system."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno in _FULL:
            return True
        if any(words in str(found) for words in _TORCH_CANNOT_WRITE):
            return True
        found = found.__cause__ or found.__context__
    return False


def how_to_write(error: BaseException) -> str:
    """Advice for an error for which `is_full` is True: mount the file system for writing, or free
    disk space."""
    read_only = os.strerror(errno.EROFS)  # a worker's error arrives here as text
    found: BaseException | None = error
    while found is not None:
        if read_only in str(found):
            return "mount the file system for writing"
        found = found.__cause__ or found.__context__
    return "free disk space"


class UserError(RaysuiteError):
    """Bad input: the message names what was given, what is valid and what to do."""


@dataclass(frozen=True)
class Mistake:
    """One mistake in a spec: its place, what was given, and what would be valid."""

    message: str
    key: str = ""
    file: str = ""
    line: int | None = None
    further_lines: tuple[int, ...] = ()

    def __str__(self) -> str:
        place = self.file
        if self.line is not None:
            place += ":" + ", ".join(map(str, (self.line, *self.further_lines)))
        return ": ".join(part for part in (place, self.key, self.message) if part)


class SpecError(UserError):
    """All mistakes of a spec, in the order of their lines. Equal mistakes are merged into one."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        lines: dict[Mistake, set[int]] = {}
        for each in mistakes:
            found = {*each.further_lines} | ({each.line} if each.line is not None else set())
            lines.setdefault(replace(each, line=None, further_lines=()), set()).update(found)
        once = [
            replace(each, line=min(found, default=None), further_lines=tuple(sorted(found)[1:]))
            for each, found in lines.items()
        ]
        self.mistakes = tuple(sorted(once, key=lambda each: each.line or 0))
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))

    def __reduce__(self) -> tuple[type[SpecError], tuple[tuple[Mistake, ...]]]:
        return SpecError, (self.mistakes,)  # pickle would otherwise call SpecError with the text


class DataError(UserError):
    """A data set that is missing or cannot be read."""


class MissingPartError(UserError):
    """An optional part that is not installed; the message names the command that installs it."""


class GateError(RaysuiteError):
    """The weights of a rank differ from those of rank 0, or from those that a single process
    computes."""


class RunError(RaysuiteError):
    """A run that failed."""


def unmatched(patterns: Iterable[str], parameters: Iterable[str]) -> str:
    """A message with the patterns that match no parameter's name; empty if there are none."""
    names = list(parameters)
    idle = [each for each in patterns if not any(fnmatchcase(name, each) for name in names)]
    if not idle:
        return ""
    matched = ", ".join(map(repr, idle))
    return f"no parameter matches {matched}; the model has {some(names, 8)}"


def some(items: Sequence[str], most: int) -> str:
    """`a, b and 3 more`: the first `most` items, for a message."""
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more} more" if more > 0 else "")
