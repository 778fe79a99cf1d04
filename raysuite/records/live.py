"""The position of a run within the current epoch: RESULTS/runs/RUN_ID/progress.json.

Rank 0 replaces the file at most once a second. No figure is derived from the position.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raysuite.files import write_whole
from raysuite.spec.base import Frozen

PERIOD_S = 1.0
"""Shortest time between two writes, in seconds."""
_WRITES = 6
"""Number of the latest writes from which the images/s are computed."""

_log = logging.getLogger(__name__)


class LivePosition(Frozen):
    """The position of a run's rank 0."""

    time: float
    """Seconds since 1970 (UTC)."""
    epoch: int
    """Counted from 0."""
    step: int
    """Optimiser steps taken in this epoch."""
    steps: int
    """Optimiser steps of the whole epoch; during the validation, `step` equals `steps`."""
    images: int
    """Images of the steps taken, over all workers."""
    images_per_second: float | None = None
    """Throughput over all workers in the last seconds; None until the position has been written
    twice in this epoch, with a step in between."""
    loss: float | None = None
    """Mean loss of rank 0's samples in the last step; None on a GPU, and if it is not finite."""


class LiveProgress:
    """Store the training loop's position at each step, and write it in a separate thread.

    At each step the loop only assigns a tuple; slow disks and file servers delay only the thread.
    """

    def __init__(self) -> None:
        self._epoch: tuple[int, Sequence[int]] = (0, [0])
        """The epoch, and the number of images done after 0, 1, 2, ... steps (steps + 1 values)."""
        self._at: tuple[int, Sequence[int], int, Callable[[], float | None], float] | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, epoch: int, step: int, sizes: Sequence[int]) -> None:
        """Note the beginning of an epoch. `step` is the number of steps already taken; `sizes` is
        the number of images in each step of the epoch."""
        self._epoch = epoch, [0, *accumulate(sizes)]
        self.step(step, lambda: None)

    def step(self, done: int, loss: Callable[[], float | None]) -> None:
        """Note that `done` steps are taken. The thread calls `loss`, which must not wait for the
        device."""
        self._at = *self._epoch, done, loss, time.perf_counter()

    def start(self, file: Path, period_s: float = PERIOD_S) -> None:
        """Write to `file` until `close`, which removes the file. After a disk error the run
        continues without the file."""
        self._thread = threading.Thread(
            target=self._write, args=(file, period_s), name="progress", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def _write(self, file: Path, period_s: float) -> None:
        last: tuple[Any, ...] | None = None
        recent: deque[tuple[float, int]] = deque(maxlen=_WRITES)
        try:
            while not self._ending.wait(period_s):
                if (at := self._at) is None or at is last:
                    continue
                epoch, images, done, loss, when = at
                if last is None or epoch != last[0]:
                    recent.clear()
                last = at
                recent.append((when, images[done]))
                seconds, count = recent[-1][0] - recent[0][0], recent[-1][1] - recent[0][1]
                position = LivePosition(
                    time=time.time(),
                    epoch=epoch,
                    step=done,
                    steps=len(images) - 1,
                    images=images[done],
                    images_per_second=count / seconds if seconds > 0 and count else None,
                    loss=loss(),
                )
                if not file.parent.is_dir():  # the results folder was removed
                    raise FileNotFoundError(file.parent)
                write_whole(file, position.model_dump_json().encode(), flush=False)
            file.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("live progress ends: %s: %s", type(error).__name__, error)


def live_file(journal: Path) -> Path:
    """The progress file of the run with this journal."""
    return journal.with_name("progress.json")


def live_position(file: Path) -> LivePosition | None:
    """The position that was written last; None if no position is stored."""
    try:
        return LivePosition.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None
