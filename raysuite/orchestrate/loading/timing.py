"""One timing, in the process that was made for it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import psutil
import torch

from raysuite.data import Batch, Loader, Prepared, Slice, make_loader, permutation, rank_slices
from raysuite.data.bench import DecodingLimit, ReadingLimit
from raysuite.measure.clock import now
from raysuite.measure.processor import family_seconds, machine_seconds
from raysuite.orchestrate.cluster import connect
from raysuite.plan.loading import LoadingPlan, loader_options
from raysuite.records.loading import Candidate, Timing

_WARM_S = 0.5
"""What comes first is not counted: at least so long, and until the first batches, which piled up
while the loader started, are gone."""
_HELD = 3
"""Images of the limits, over those of a batch and thread, that are decoded again and again."""
_PASS = 1024
"""Batches that a loader is asked for at once, at least: epochs of small sets are joined."""


@dataclass(frozen=True)
class Trial:
    """What one process shall time."""

    plan: LoadingPlan
    prepared: Prepared
    candidate: Candidate
    repeat: int
    seed: int
    """Each trial has an order of its own, so that none finds in memory what another read."""


def timed(trial: Trial) -> Timing:
    """Start the candidate, warm it up, time it, close it. Raises what the candidate raises."""
    torch.set_num_threads(1)  # the candidate's own threads are what is compared
    with ExitStack() as stack:
        if trial.candidate.kind == "loader":
            return _loader(trial, stack)
        return _limit(trial, stack)


def _loader(trial: Trial, stack: ExitStack) -> Timing:
    plan, began = trial.plan, time.perf_counter()
    options = loader_options(trial.candidate)
    if options.needs_ray:
        stack.enter_context(connect(None))
    device = torch.device("cuda" if plan.device == "gpu" else "cpu")
    loader = make_loader(trial.prepared, plan.split, options, device)
    stack.callback(loader.close)
    batches = _endless(loader, trial)
    stack.callback(batches.close)
    next(batches)
    first = now(device)
    piled = 2 * max(1, trial.candidate.width) * getattr(options, "prefetch", 1)
    for number, _ in enumerate(batches, 1):
        if number >= piled and time.perf_counter() - first >= _WARM_S:
            break
    images, watch = 0, _Watch(device)
    for batch in batches:
        images += batch.real
        # not the device's clock: to wait for each batch would keep copies from running ahead
        if _enough(plan, images, time.perf_counter() - watch.began):
            break
    return watch.timing(trial, images, first - began)


def _endless(loader: Loader, trial: Trial) -> Generator[Batch]:
    """Batches of one epoch after the other, each in its own order, as training asks for them."""
    plan = trial.plan
    samples = trial.prepared.samples(plan.split)
    steps = -(-samples // plan.batch)
    joined = max(1, -(-_PASS // steps))

    def epoch(number: int) -> Iterator[Slice]:
        draw = (trial.seed, number) if plan.split == "train" else None
        order = permutation(samples, trial.seed, number)
        return itertools.chain(*rank_slices(order, plan.batch, 1, 0, draw=draw))

    for first in itertools.count(0, joined):
        together = [epoch(number) for number in range(first, first + joined)]
        yield from loader.batches(list(itertools.chain(*together)))


def _limit(trial: Trial, stack: ExitStack) -> Timing:
    plan, width, began = trial.plan, trial.candidate.width, time.perf_counter()
    subject: DecodingLimit | ReadingLimit
    if trial.candidate.kind == "decoding":
        held = _HELD * width * plan.batch
        subject = DecodingLimit(trial.prepared, width, held, plan.split)
    else:
        subject = ReadingLimit(trial.prepared, width, plan.split)
    stack.enter_context(closing(subject))
    part = width * plan.batch
    first = 0.0
    for epoch in itertools.count(trial.seed):  # warm-up
        subject.run(part, epoch)
        first = first or time.perf_counter()
        if time.perf_counter() - first >= _WARM_S:
            break
    images, watch = 0, _Watch(torch.device("cpu"))
    for epoch in itertools.count(trial.seed + 1):
        asked = time.perf_counter()
        images += subject.run(part, epoch)
        # more at a time where little time passes: threads wait for each other at the end of each
        if time.perf_counter() - asked < plan.seconds / 10:
            part *= 2
        if _enough(plan, images, time.perf_counter() - watch.began):
            break
    return watch.timing(trial, images, first - began)


def _enough(plan: LoadingPlan, images: int, seconds: float) -> bool:
    return seconds >= plan.seconds if plan.images is None else images >= plan.images


class _Watch:
    """Wall clock, and the processor time of the candidate's processes and of the machine."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own, self._machine = _own_s(), machine_seconds()
        self.began = now(device)

    def timing(self, trial: Trial, images: int, start_seconds: float) -> Timing:
        """What passed since the beginning."""
        seconds = now(self._device) - self.began
        return Timing(
            candidate=trial.candidate.name,
            repeat=trial.repeat,
            images=images,
            seconds=seconds,
            cpu_seconds=_own_s() - self._own,
            machine_seconds=machine_seconds() - self._machine,
            start_seconds=start_seconds,
        )


def _own_s() -> float:
    """Of all processes of the fork server, which works for one candidate at a time: loading
    processes are its children too, not their loader's."""
    return family_seconds(psutil.Process(os.getppid()), itself=False)
