"""Time shares of a step, from extra steps that are profiled after the timed training.

These steps change the weights, but only after the trained model has been saved.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path

import torch
from torch.profiler import record_function

from raysuite.data.base import Batch, Slice
from raysuite.measure.clock import now
from raysuite.measure.shares import (
    DATA,
    KERNELS,
    STEP,
    WINDOW,
    Parts,
    Profiler,
    horovod_collectives,
    parts_of,
)
from raysuite.parallel.comm import Comm, gather_plain
from raysuite.parallel.marks import COMMUNICATION
from raysuite.records import TimeShares
from raysuite.train.loop import TrainingLoop
from raysuite.train.script import SETTLING_STEPS

_AHEAD_STEPS = 4
"""Number of steps that the loader gets in addition to the measured steps, so that it loads ahead as
in training."""

_UNSEEN = (
    "no time shares: the profiler saw no kernel on a GPU; the driver may deny users access to the "
    "GPU's performance counters (NVIDIA's ERR_NVGPUCTRPERM), or CUPTI is missing"
)


def profile(loop: TrainingLoop, trace: Path | None = None) -> TimeShares | None:
    """Measure time shares of `measure.profile_steps` steps, after `measure.warmup_steps` steps.

    All ranks must call it, after training, and all get the same Record. Rank 0 writes `trace`.
    Returns None under nsys, which records these steps itself.
    """
    began = time.perf_counter()
    measure = loop.plan.spec.measure
    steps = Steps(loop, measure.warmup_steps + SETTLING_STEPS + measure.profile_steps)
    if measure.profile == "nsight":
        steps.take(measure.warmup_steps + SETTLING_STEPS)
        with torch.cuda.profiler.profile():
            steps.take(measure.profile_steps)
            now(loop.world.device)
        return None
    profiler, lost = Profiler(loop.world.device), ""
    with tempfile.TemporaryDirectory() as folder:
        timeline = Path(folder) / "timeline.json"
        with loop.engine.timeline(timeline):
            steps.take(measure.warmup_steps)
            with profiler.watching():
                steps.take(SETTLING_STEPS)
                now(loop.world.device)
                with record_function(WINDOW):
                    steps.take(measure.profile_steps)
                    now(loop.world.device)
                # In torch 2.15, memory is corrupted if a Gloo send that began under the profiler is
                # waited for after the profiler has stopped.
                loop.engine.drain()
        found = horovod_collectives(timeline) if timeline.exists() else []
        if trace is not None and loop.world.rank == 0:
            try:
                profiler.write_trace(trace)
                if found:
                    shutil.copy(timeline, trace.with_name("horovod-timeline.json"))
            except OSError as error:  # a full disk must not lose the finished run
                trace, lost = None, f"the trace could not be written: {error}"
    # only rank 0 has a timeline; the ranks' clocks are treated as equal
    shared = [(begin, end) for begin, end in gather_plain(loop.engine.comm, found)[0]]
    parts = parts_of(profiler.events(), COMMUNICATION, shared)
    return _record(loop, parts, trace, began, lost)


def lacks_kernels(parts: Parts, device: torch.device, comm: Comm) -> bool:
    """Whether on any rank a GPU computed but the profiler recorded none of its kernels.

    The time of computation is then unknown: operators on the host only launch kernels.
    """
    lacks = device.type == "cuda" and not parts.kernels
    return bool(comm.all_reduce(torch.tensor([int(lacks)]), "max"))


def _record(
    loop: TrainingLoop, parts: Parts, trace: Path | None, began: float, lost: str
) -> TimeShares:
    measure = loop.plan.spec.measure
    unseen = lacks_kernels(parts, loop.world.device, loop.engine.comm)

    def each(value: float) -> list[float]:
        return [] if unseen else loop.per_worker(value)

    return TimeShares(
        run_id=loop.plan.run_id,
        steps=measure.profile_steps,
        warmup_steps=measure.warmup_steps + SETTLING_STEPS,
        window_seconds=each(parts.window),
        computation_seconds=each(parts.computation),
        communication_seconds=each(parts.communication),
        communication_exposed_seconds=each(parts.communication_exposed),
        data_seconds=each(parts.data),
        data_exposed_seconds=each(parts.data_exposed),
        # in the same order on all ranks, because each value needs a collective
        kernel_seconds={name: each(parts.kernels[name]) for name in KERNELS if parts.kernels},
        sources=list(parts.sources),
        trace=trace.name if trace is not None else "",
        seconds=max(loop.per_worker(time.perf_counter() - began)),
        message="; ".join(why for why in (_UNSEEN if unseen else "", lost) if why),
    )


class Steps:
    """Training steps that continue where the last epoch ended."""

    def __init__(self, loop: TrainingLoop, steps: int) -> None:
        self._loop = loop
        self._steps = list(islice(_full_steps(loop), steps + _AHEAD_STEPS))
        self._rate = loop.learning_rate(loop.plan.total_steps - 1)
        self._batches: Iterator[Batch] = loop.train_loader.batches(
            [part for step in self._steps for part in step]
        )
        self._taken = 0
        loop.engine.train()

    def take(self, steps: int) -> None:
        for step in self._steps[self._taken : self._taken + steps]:
            with record_function(DATA):
                micro_batches = [next(self._batches) for _ in step]
            with record_function(STEP):
                self._loop.train_step(micro_batches, self._rate)
        self._taken += steps


def _full_steps(loop: TrainingLoop) -> Iterator[Sequence[Slice]]:
    """Steps of further epochs; the last step of an epoch is left out if it is smaller than the
    others."""
    for epoch in count(loop.epoch):
        steps, sizes = loop.slices(epoch)
        yield from (step for step, size in zip(steps, sizes, strict=True) if size == max(sizes))
