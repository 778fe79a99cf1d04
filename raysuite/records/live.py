"""The position inside an epoch that is being trained: RESULTS/runs/RUN_ID/progress.json.

Rank 0 replaces the file at most once a second. It is no Record: no figure is derived from it.
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

from pydantic import BaseModel, ConfigDict, ValidationError

from raysuite.files import write_whole

PERIOD_S = 1.0
"""The shortest time between two writes."""
_WRITES = 6
"""images/s are those of the last so many writes."""

_log = logging.getLogger(__name__)


class LivePosition(BaseModel):
    """Where rank 0 of a run is."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    time: float
    """Seconds since 1970 (UTC)."""
    epoch: int
    """Counted from 0."""
    step: int
    """Optimiser steps of this epoch that were taken."""
    steps: int
    """Optimiser steps of the whole epoch; at `step == steps` it is being validated."""
    images: int
    """Images of those steps, over all workers."""
    images_per_second: float | None = None
    """Over all workers, of the last seconds; None before a step has ended."""
    loss: float | None = None
    """Mean loss of rank 0's samples of the last step; None on devices that would have to wait."""


class LiveProgress:
    """The training loop's position at each step, written by a thread beside it.

    A step costs the loop the assignment of a tuple; disks and file servers delay the thread only.
    """

    def __init__(self) -> None:
        self._epoch: tuple[int, Sequence[int]] = (0, [0])
        """Its number, and the images done after each step, from 0 on."""
        self._at: tuple[int, Sequence[int], int, Callable[[], float | None], float] | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, epoch: int, step: int, sizes: Sequence[int]) -> None:
        """Before the first step of an epoch that is taken here, `step`; `sizes` are the images of
        all steps of the epoch."""
        self._epoch = epoch, [0, *accumulate(sizes)]
        self.step(step, lambda: None)

    def step(self, done: int, loss: Callable[[], float | None]) -> None:
        """After a step, the epoch's `done`-th. `loss` is called by the other thread: it must not
        make the device wait."""
        self._at = *self._epoch, done, loss, time.perf_counter()

    def start(self, file: Path, period_s: float = PERIOD_S) -> None:
        """Write to `file` until `close`, which removes it. A disk that fails ends the writing, and
        no run."""
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
                if not file.parent.is_dir():  # the results were removed
                    raise FileNotFoundError(file.parent)
                write_whole(file, position.model_dump_json().encode(), flush=False)
            file.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("live progress ends: %s: %s", type(error).__name__, error)


def live_file(journal: Path) -> Path:
    """The file with the progress of the run that has this journal."""
    return journal.with_name("progress.json")


def live_position(file: Path) -> LivePosition | None:
    """The position that was written last; None where there is none."""
    try:
        return LivePosition.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None
