"""The steps of one epoch, from where an earlier attempt stopped, and what they took."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from raysuite.data.base import Slice
from raysuite.measure.clock import StepClock, now
from raysuite.measure.processor import OtherPrograms
from raysuite.records.power import joined
from raysuite.train.checkpoint import SoFar
from raysuite.train.stopping import Asked, Watch

if TYPE_CHECKING:
    from raysuite.train.loop import TrainingLoop


def train_rest(loop: TrainingLoop, watch: Watch) -> tuple[SoFar, Asked | None]:
    """Take the steps that are left of the loop's epoch, or those until it is asked to stop.

    What is behind of the epoch then is the same on all ranks, which all call it.
    """
    device, before = loop.world.device, loop.so_far
    whole, all_sizes = loop.slices(loop.epoch)
    steps, sizes = whole[before.steps :], all_sizes[before.steps :]
    if not steps:  # its validation is left
        loop.has_begun(now(device))
        return before, None
    steady_from = max(0, loop.plan.spec.measure.warmup_steps - loop.steps_here)
    loop.restore_draws()
    loop.engine.model.train()
    loop.power.begin()
    others = OtherPrograms()
    others.begin()
    loop.live.begin(loop.epoch, before.steps, all_sizes)
    began = steady_began = now(device)
    loop.has_begun(began)
    watch.anew()
    losses: list[Tensor] = []
    compiler, compiling = loop.engine.compiler, []
    skipped_before = loop.engine.scale.skipped
    waited, stop = 0.0, None
    steps_clock = StepClock(device)
    steps_clock.restart()
    batches = loop.train_loader.batches([part for step in steps for part in step])
    for index, step in enumerate(steps):
        if index == steady_from and index > 0:
            steady_began = now(device)
            steps_clock.restart()
        asked = time.perf_counter()
        micro_batches = [next(batches) for _ in step]
        waited += time.perf_counter() - asked
        compiled = compiler.seconds
        losses.append(loop.train_step(micro_batches, loop.learning_rate(loop.step)))
        compiling.append(compiler.seconds - compiled)
        loop.step += 1
        loop.steps_here += 1
        steps_clock.mark()
        loop.live.step(before.steps + index + 1, partial(_host_loss, loop, losses[-1], step))
        if loop.first_step_at is None:
            loop.first_step_at = now(device)
        if stop := watch.step():
            break
    loop.engine.drain()
    ended = now(device)
    loop.power.end()
    others.end()

    steady = len(losses) > steady_from
    times = [ended - began, ended - steady_began if steady else 0.0]
    seconds, steady_seconds = loop.slowest(times)
    step_seconds = loop.slowest(steps_clock.seconds()) if steady else []
    compile_seconds = 0.0
    if compiler.enabled:  # a rank that compiles has the others wait
        slowest = loop.slowest(compiling)
        compile_seconds = sum(slowest)
        seconds -= compile_seconds
        steady_seconds -= sum(slowest[steady_from:])
        step_seconds = [a - b for a, b in zip(step_seconds, slowest[steady_from:], strict=True)]
    sums = loop.engine.comm.all_reduce(torch.stack(losses).double().cpu(), "sum")
    waits = loop.per_worker(waited)
    power = loop.power.use(loop.engine.comm)
    other_seconds = others.seconds(loop.engine.comm.all_gather)
    if before.attempts:
        waits = [a + b for a, b in zip(before.data_wait_seconds, waits, strict=True)]
        power = joined([(before.power, before.seconds), (power, seconds)])
    done = SoFar(
        steps=before.steps + len(losses),
        attempts=before.attempts + 1,
        skipped_steps=before.skipped_steps + loop.engine.scale.skipped - skipped_before,
        loss_sums=[*before.loss_sums, *sums.tolist()],
        seconds=before.seconds + seconds,
        steady_images=before.steady_images + sum(sizes[steady_from : len(losses)]),
        steady_seconds=before.steady_seconds + steady_seconds,
        step_seconds=[*before.step_seconds, *(round(each, 7) for each in step_seconds)],
        compile_seconds=before.compile_seconds + compile_seconds,
        data_wait_seconds=waits,
        power=power,
        other_cores=[each / seconds for each in other_seconds],
    )
    return done, stop


def _host_loss(loop: TrainingLoop, total: Tensor, step: Sequence[Slice]) -> float | None:
    """Mean loss of this rank's samples of a step; None where it is on a device, or another rank's,
    or not finite."""
    samples = sum(part.real for part in step)
    if total.device.type != "cpu" or not loop.engine.counts or not samples:
        return None
    mean = float(total) / samples
    return mean if math.isfinite(mean) else None


def first_draws(seed: int, epoch: int, rank: int) -> int:
    """A seed of its own for each epoch of each rank: other dropout on each rank, the same ones
    after a checkpoint is taken up."""
    return int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1, np.uint64)[0] >> 1)
