"""Execute one RunPlan on one worker, from the gate to the last epoch, and yield its Records."""

from __future__ import annotations

import gc
import os
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import torch

from raysuite.gate import strategy_check
from raysuite.gate.small_network import same_on_all_ranks
from raysuite.measure.environment import environment
from raysuite.measure.peak_memory import PeakMemory
from raysuite.measure.topology import bind
from raysuite.measure.transport import Transport
from raysuite.parallel import joined
from raysuite.parallel.base import World
from raysuite.parallel.comm import Comm, gather_plain
from raysuite.plan import RunPlan
from raysuite.records import (
    GateVerdict,
    Record,
    RunFailed,
    RunFinished,
    RunPruned,
    RunStarted,
    RunStopped,
)
from raysuite.records.schema import SCHEMA
from raysuite.train.building import bind_worker, import_own, set_torch
from raysuite.train.cost_meter import run_costs
from raysuite.train.loop import TrainingLoop
from raysuite.train.profiling import profile
from raysuite.train.skipped_samples import bad_samples
from raysuite.train.stages import measure_stages
from raysuite.train.stop_together import Prune, RequestedEnd, Stop, Watch, never

_DRIFTED = (
    "the strategy passed the gate, but at the end of this run the ranks have different weights: "
    "the strategy does not synchronise every weight of this model, or not at every step"
)

_DIVERGED = (
    "losses or weights are not finite from step {} on; a lower optimizer.lr, a longer "
    "schedule.warmup_epochs or training.clip_norm may help"
)

_ALL_SKIPPED = (
    "fp16: gradients overflowed in every step, so no weight changed; lower optimizer.lr, or "
    "set training.precision to bf16 or fp32"
)

TRACE = "trace.json.gz"
"""Name of the file with a profile's trace, in the run's folder."""

Checkpoint = Callable[[TrainingLoop], None]
"""Called on all ranks after an epoch whose state is to be kept, and when a run stops."""


def execute(
    plan: RunPlan,
    world: World,
    resume: Path | None = None,
    checkpoint: Checkpoint | None = None,
    model_file: Path | None = None,
    trace_file: Path | None = None,
    requested_end: RequestedEnd = never,
    until: int | None = None,
    progress_file: Path | None = None,
    unread: str = "",
) -> Iterator[Record]:
    """Run `plan` on this rank; every rank yields the same Records.

    `resume` is the folder of a checkpoint, of this run or of another run whose weights are used.
    Rank 0 writes the trained model's state to `model_file`, for `torch.load(...,
    weights_only=True)`; its trace to `trace_file`, if the spec enables a profile; and its position
    within an epoch to `progress_file`. `unread`: the reason why a newer checkpoint is not used.

    The last Record is RunFailed if the strategy fails the gate (before any step is timed), if
    losses or weights are not finite after an epoch, if gradients overflow in fp16 until the loss
    scale is too small or in every step, or if the ranks hold different weights at the end (the
    run's figures are then not reported). If `requested_end` returns a Stop on rank 0,
    `checkpoint` is called and the last Record is RunStopped: the run can be resumed. After a Prune
    there is no checkpoint, and the last Record is RunPruned. A run with more than `until` epochs
    stops after `until` epochs, with a checkpoint and RunStopped.

    Raises ValueError for a plan whose batch size is not yet known.
    """
    if plan.undecided:
        raise ValueError(f"{plan.title}: its batch size is still to be found by trials")
    with ExitStack() as group:
        attempt = _Attempt(plan, world, group)
        verdict = attempt.gate()
        if not verdict.passed:
            yield from (attempt.started(unread), verdict, attempt.failed("gate", verdict.message))
            return
        attempt.load(resume)
        yield from (attempt.started(unread), verdict)
        yield from attempt.read_samples()
        ended = yield from attempt.train(until, requested_end, checkpoint, progress_file)
        if ended is not None:
            yield ended
            return
        yield from attempt.results(model_file, trace_file)


class _Attempt:
    """One attempt at a run on this rank, from joining its group to leaving it."""

    def __init__(self, plan: RunPlan, world: World, group: ExitStack) -> None:
        """Join the ranks of the run. Closing `group` leaves the process group, and frees model and
        data."""
        self._plan, self._world, self._group = plan, world, group
        self._began = time.perf_counter()
        self._parts: dict[str, float] = defaultdict(float)
        self._loop: TrainingLoop | None = None
        import_own(plan)
        # objects of imported modules are never garbage: exclude them from later collections
        gc.freeze()
        group.callback(self._free)
        self._transport = Transport(world.device.type == "cuda" and world.size > 1)
        with self._timed("join"):
            profiled = plan.spec.measure.profile == "torch"
            self._strategy = group.enter_context(joined(plan.spec.strategy, world, profiled))
        set_torch(plan)
        # only rank 0 finds the commit: with many ranks, all would read it from one file server
        self._facts = environment(commits=world.rank == 0)
        group.callback(bind, os.sched_getaffinity(0))
        self._binding = bind_worker(plan, world)

    def _free(self) -> None:
        # engines contain reference cycles, whose memory the next run in this process would still
        # hold
        self._loop = None
        gc.collect()
        gc.unfreeze()
        if self._world.device.type == "cuda":
            torch.cuda.empty_cache()

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._parts[part] += time.perf_counter() - began

    @property
    def loop(self) -> TrainingLoop:
        assert self._loop is not None, "load() makes it"
        return self._loop

    def gate(self) -> GateVerdict:
        """Check the strategy by the gate. Peak memory is counted from the end of this check."""
        plan = self._plan
        with self._timed("gate"):
            verdict = strategy_check.check(plan, self._world, self._strategy, self._facts)
        self._memory = PeakMemory(self._world.device)
        return verdict

    def load(self, resume: Path | None) -> None:
        """Prepare the data and the model, and restore a checkpoint."""
        with self._timed("data"):
            self._loop = TrainingLoop(self._plan, self._world, self._strategy)
            self._group.callback(self._loop.close)
        if resume is not None:
            with self._timed("checkpoints"):
                self._loop.load(resume)

    def started(self, unread: str) -> RunStarted:
        loop = self._loop
        bound = gather_plain(loop.engine.comm, self._binding) if loop else [self._binding]
        return RunStarted(
            run_id=self._plan.run_id,
            record_schema=SCHEMA,
            plan=self._plan.model_dump(mode="json"),
            # for each rank: the CPUs and memory nodes that it is bound to
            environment={**self._facts, "binding": bound if any(bound) else []},
            first_epoch=loop.epoch if loop else 0,
            first_step=loop.step if loop else 0,
            unread=unread,
            not_loaded=loop.not_loaded if loop and not loop.step else [],
            transports=self._transports(loop.engine.comm) if loop else [],
        )

    def _transports(self, comm: Comm) -> list[str]:
        """The distinct names of the transports of all ranks, sorted. All ranks must call it."""
        return sorted(
            {name for each in gather_plain(comm, self._transport.names()) for name in each}
        )

    def failed(
        self, reason: Literal["gate", "error", "diverged"], message: str, step: int | None = None
    ) -> RunFailed:
        return RunFailed(run_id=self._plan.run_id, reason=reason, message=message, step=step)

    def read_samples(self) -> Iterator[Record]:
        """Find the samples to leave out, and read the labels of the others if needed."""
        loop = self.loop
        # wait, so that no rank fails in an epoch before the Records yielded so far are written
        loop.engine.comm.all_reduce(torch.zeros(1), "max")
        for found in bad_samples(self._plan, loop.prepared, self._world, loop.engine.comm):
            loop.skipped[found.record.split] = found.mask
            yield found.record
        loop.read_labels()

    def train(
        self,
        until: int | None,
        requested_end: RequestedEnd,
        checkpoint: Checkpoint | None,
        progress_file: Path | None,
    ) -> Generator[Record, None, Record | None]:
        """Train, and yield a Record per epoch. Return the last Record if the run fails, stops or is
        pruned, else None."""
        loop, training, world = self.loop, self._plan.spec.training, self._world
        if progress_file is not None and world.rank == 0:
            loop.live.start(progress_file)
        watch = Watch(requested_end, world, loop.engine.comm)
        keep = checkpoint or (lambda _: None)
        goal = min(until or training.epochs, training.epochs)
        all_skipped = loop.epoch < goal and not loop.stops_early
        while loop.epoch < goal and not loop.stops_early:
            try:
                done = loop.run_epoch(watch)
            except FloatingPointError as error:  # fp16's loss scale is too small, on all ranks
                return self.failed("error", str(error))
            if isinstance(done, Stop):
                keep(loop)
                return _stopped(loop, done)
            if isinstance(done, Prune):
                return RunPruned(
                    run_id=self._plan.run_id,
                    by=done.by,
                    epoch=loop.epoch - 1,
                    value=done.value,
                    message=done.message,
                )
            yield done
            all_skipped = all_skipped and done.skipped_steps == len(done.losses)
            if loop.diverged_at is not None:
                message = _DIVERGED.format(loop.diverged_at)
                return self.failed("diverged", message, loop.diverged_at)
            self._parts["training"] += done.seconds
            self._parts["validation"] += done.validation_seconds
            every = training.checkpoint_every
            if every and loop.epoch % every == 0 and loop.epoch < goal:
                with self._timed("checkpoints"):
                    keep(loop)
        watch.end()
        if all_skipped:
            return self.failed("error", _ALL_SKIPPED)
        if goal < training.epochs and not loop.stops_early:
            keep(loop)
            return _stopped(loop, Stop("interval"))
        return None

    def results(self, model_file: Path | None, trace_file: Path | None) -> Iterator[Record]:
        """Check that all ranks hold equal weights, then yield the figures of the whole run."""
        plan, world, loop = self._plan, self._world, self.loop
        finished = self._finished()
        # Sharded weights are gathered only now, after training, because this takes additional
        # memory.
        weights = loop.engine.weights()
        held = [weights] if loop.average is None else [weights, loop.average.weights()]
        if not all(same_on_all_ranks(loop.engine.comm, each) for each in held):
            yield self.failed("gate", _DRIFTED)
            return
        if model_file is not None:
            loop.save_model(model_file, weights)
        yield run_costs(plan, world, loop.engine.comm)
        if plan.spec.measure.profile != "off" and (shares := profile(loop, trace_file)):
            yield shares
        if stages := measure_stages(loop):
            yield stages
        yield finished

    def _finished(self) -> RunFinished:
        loop, memory, began, parts = self.loop, self._memory, self._began, self._parts
        first_step_at = loop.first_step_at or time.perf_counter()
        parts["rest"] = time.perf_counter() - began - sum(parts.values())
        return RunFinished(
            run_id=self._plan.run_id,
            peak_process_bytes=loop.per_worker(memory.process_bytes()),
            start_process_bytes=loop.per_worker(memory.start_bytes),
            peak_device_bytes=loop.per_worker(memory.device_bytes()),
            time_to_accuracy=loop.time_to_accuracy,
            stopped_early=loop.stops_early and loop.epoch < self._plan.spec.training.epochs,
            seconds=time.perf_counter() - began,
            first_step_seconds=first_step_at - began,
            first_step_time=time.time() - (time.perf_counter() - first_step_at),
            classes=loop.class_figures(),
            parts_seconds={name: round(max(0.0, value), 6) for name, value in parts.items()},
        )


def _stopped(loop: TrainingLoop, stop: Stop) -> RunStopped:
    return RunStopped(run_id=loop.plan.run_id, reason=stop.reason, epoch=loop.epoch, step=loop.step)
