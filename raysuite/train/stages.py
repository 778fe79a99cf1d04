"""Measure the stages of a pipeline in extra steps after the timed training, and report the cost of
each block of the network.

These steps change the weights, but only after the trained model has been saved.
"""

from __future__ import annotations

from functools import partial

import torch

from raysuite.measure.clock import now
from raysuite.parallel.comm import gather_plain
from raysuite.parallel.pipeline.engine import Measured, PipelineEngine
from raysuite.records import Slot, StagesMeasured
from raysuite.spec.schedules import bubble, timeline
from raysuite.train.loop import TrainingLoop
from raysuite.train.profiling import Steps

_WARM_UP, _STEPS = 2, 5


def measure_stages(loop: TrainingLoop) -> StagesMeasured | None:
    """Measure the stages in extra steps after training. All ranks must call it; the Record is the
    same on all of them. None if the strategy is not a pipeline."""
    engine = loop.engine
    if not isinstance(engine, PipelineEngine):
        return None
    schedule = engine.schedule
    before = _WARM_UP + schedule.steps_to_fill
    steps = Steps(loop, before + 2 * (1 + schedule.steps_to_fill) + _STEPS)
    clock = partial(now, loop.world.device)
    steps.take(before)
    engine.measured = counted = Measured(clock, memory=True)
    steps.take(1 + schedule.steps_to_fill)  # all micro-batches in flight are then counted
    engine.measured = None
    engine.comm.all_reduce(torch.zeros(1), "max")
    engine.measured = timed = Measured(clock)
    began = clock()
    steps.take(_STEPS)
    engine.measured = None
    own = clock() - began
    engine.drain()
    seconds = {"forward": 0.0, "backward": 0.0, "update": 0.0}
    for operation, begin, end, wait in timed.slots:
        seconds[operation.kind] += end - begin - wait
    waited = sum(wait for *_, wait in timed.slots)
    parameters = sum(each.numel() * each.element_size() for each in engine.model.parameters())
    each = loop.per_worker
    window, busy = max(each(own)), each(sum(seconds.values()))
    ideal = 0.0 if schedule.asynchronous else bubble(timeline(schedule.operations()))
    return StagesMeasured(
        run_id=loop.plan.run_id,
        schedule=schedule.name,
        stages=schedule.stages,
        micro_batches=schedule.micro_batches,
        steps=_STEPS,
        partition=list(engine.sizes),
        window_seconds=window,
        forward_seconds=each(seconds["forward"]),
        backward_seconds=each(seconds["backward"]),
        update_seconds=each(seconds["update"]),
        wait_seconds=each(waited),
        bubble=[max(0.0, 1 - one / window) for one in busy],
        ideal_bubble=ideal,
        weight_bytes=each(parameters),
        versions=each(engine.versions),
        activation_bytes=each(counted.activation_bytes),
        sent_bytes=each(timed.sent_bytes // _STEPS),
        slots=_first_step(engine, timed, began),
        block_seconds=[(one.forward_s, one.backward_s) for one in engine.costs or ()],
    )


def _first_step(engine: PipelineEngine, timed: Measured, began: float) -> list[list[Slot]]:
    """The operations of the first measured step, for each worker of the first replica."""
    own = [
        Slot(each.kind, each.micro_batch, each.stage, begin + wait - began, end - began)
        for each, begin, end, wait in timed.slots[: len(timed.slots) // _STEPS]
    ]
    workers = gather_plain(engine.comm, own)[: engine.schedule.workers]
    return [[Slot(*each) for each in worker] for worker in workers]
