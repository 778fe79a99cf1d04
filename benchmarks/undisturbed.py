"""`python -m raysuite.train` for a machine that other programs use too: it trains and profiles at
real-time priority, so that the other programs wait for some seconds.

    python benchmarks/undisturbed.py SPEC [key=value ...]          as root; or by torchrun
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from raysuite.train import loop as training
from raysuite.train import run
from raysuite.train.__main__ import main

ALONE = os.environ.get("WORLD_SIZE", "1") == "1"
BUSY = (
    "import os, time\nos.sched_setaffinity(0, {1})\n"
    "os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))\n"
    "end = time.time() + 60\nwhile time.time() < end: pass"
)
"""If there is one training process: keep programs that use the memory off the other core."""


def set_priority(real_time: bool) -> None:
    """Set it for every thread; threads that load or communicate precede the one that trains."""
    own = threading.get_native_id()
    for each in map(int, os.listdir("/proc/self/task")):
        policy = os.SCHED_RR if real_time else os.SCHED_OTHER
        priority = 0 if not real_time else 1 if each == own else 2
        try:
            os.sched_setscheduler(each, policy, os.sched_param(priority))
        except ProcessLookupError:  # the thread has just ended
            continue


@contextmanager
def undisturbed(comm: Any) -> Iterator[None]:
    comm.all_reduce(torch.zeros(1), "max")
    other = None
    if ALONE and torch.get_num_threads() == 1:
        other = subprocess.Popen([sys.executable, "-S", "-c", BUSY])
        os.sched_setaffinity(0, {0})
        time.sleep(0.3)
    set_priority(True)
    try:
        yield
    finally:
        set_priority(False)
        if other is not None:
            other.kill()
            other.wait()


train_rest, profile = training.train_rest, run.profile


def train(loop: Any, watch: Any) -> Any:
    with undisturbed(loop.engine.comm):
        return train_rest(loop, watch)


def profiled(loop: Any, trace: Any) -> Any:
    with undisturbed(loop.engine.comm):
        return profile(loop, trace)


if __name__ == "__main__":
    training.train_rest, run.profile = train, profiled
    sys.exit(main())
