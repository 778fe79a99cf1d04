"""One RunPlan on one worker, from the gate to the last epoch, as a stream of Records."""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from raysuite.measure.environment import environment
from raysuite.measure.memory import PeakMemory
from raysuite.measure.transport import Transport
from raysuite.parallel import joined
from raysuite.parallel.base import World
from raysuite.parallel.comm import Comm, gather_plain
from raysuite.plan import RunPlan
from raysuite.records import Record, RunFailed, RunFinished, RunPruned, RunStarted, RunStopped
from raysuite.records.schema import SCHEMA
from raysuite.train import gate
from raysuite.train.building import import_own, set_torch
from raysuite.train.costs import run_costs
from raysuite.train.gate_check import same_on_all_ranks
from raysuite.train.loop import TrainingLoop
from raysuite.train.profiling import profile
from raysuite.train.skipping import bad_samples
from raysuite.train.stages import measure_stages
from raysuite.train.stopping import AskedToStop, Prune, Stop, Watch, never

_DRIFTED = (
    "the strategy passed the gate, and yet the ranks hold different weights at the end of this "
    "run: it does not synchronise every weight of this model, or not at every step"
)

_ALL_SKIPPED = (
    "fp16: gradients overflowed in every step, so no weight changed; lower optimizer.lr, or "
    "set training.precision to bf16 or fp32"
)

TRACE = "trace.json.gz"
"""The trace of a profile, in the run's folder."""

Checkpoint = Callable[[TrainingLoop], None]
"""Called on all ranks after an epoch that is to be kept, and where a run stops."""


def execute(
    plan: RunPlan,
    world: World,
    resume: Path | None = None,
    checkpoint: Checkpoint | None = None,
    model_file: Path | None = None,
    trace_file: Path | None = None,
    asked_to_stop: AskedToStop = never,
    until: int | None = None,
    progress_file: Path | None = None,
    unread: str = "",
) -> Iterator[Record]:
    """Run `plan` on this rank; every rank yields the same Records, and one of them writes them.

    `resume` is the folder of a checkpoint, of this run or of another whose weights it takes; the
    trained model's state goes into `model_file`, which `torch.load(..., weights_only=True)` reads,
    and rank 0's trace, where the spec asks for a profile, into `trace_file`. A strategy that fails
    the gate ends the run with RunFailed before a single step is timed; so does a run at whose end
    the ranks hold different weights, and none of its figures is reported; and so does an epoch
    after which losses or weights are not finite. Where rank 0 is `asked_to_stop`, `checkpoint` is
    called and the last Record is RunStopped: the run can be resumed. Asked to prune it, there is
    none, and the last Record is RunPruned. With `until`, it stops like that after so many of its
    epochs, if it has more of them. Rank 0 writes its position inside an epoch into `progress_file`.
    `unread`: why a newer checkpoint is not resumed.

    Raises ValueError for a plan whose batch is still to be found.
    """
    if plan.undecided:
        raise ValueError(f"{plan.title}: its batch is still to be found by trial")
    began = time.perf_counter()
    import_own(plan)
    # objects of modules are no garbage: the collection at the end need not traverse them
    gc.freeze()
    parts: dict[str, float] = defaultdict(float)
    transport = Transport(world.device.type == "cuda" and world.size > 1)
    loop: TrainingLoop | None = None
    group = ExitStack()
    try:
        with _timed(parts, "join"):
            profiled = plan.spec.measure.profile == "torch"
            strategy = group.enter_context(joined(plan.spec.strategy, world, profiled))
        set_torch(plan)
        # rank 0 writes the Record; a thousand ranks would ask one file server for the commit
        facts = environment(commits=world.rank == 0)
        with _timed(parts, "gate"):
            verdict = gate.check(plan, world, strategy, facts)
        memory = PeakMemory(world.device)  # not of the gate, whose verdict may come from a cache
        if verdict.passed:
            with _timed(parts, "data"):  # and the model
                loop = TrainingLoop(plan, world, strategy)
            if resume is not None:
                with _timed(parts, "checkpoints"):
                    loop.load(resume)
        yield RunStarted(
            run_id=plan.run_id,
            record_schema=SCHEMA,
            plan=plan.model_dump(mode="json"),
            environment=facts,
            first_epoch=loop.epoch if loop else 0,
            first_step=loop.step if loop else 0,
            unread=unread,
            transports=_of_all_ranks(transport.names(), loop.engine.comm) if loop else [],
        )
        yield verdict
        if loop is None:
            yield RunFailed(run_id=plan.run_id, reason="gate", message=verdict.message)
            return
        # what was yielded is on record before any rank can fail in an epoch
        loop.engine.comm.all_reduce(torch.zeros(1), "max")
        for found in bad_samples(plan, loop.prepared, world, loop.engine.comm):
            loop.skipped[found.record.split] = found.mask
            yield found.record
        loop.read_labels()
        training = plan.spec.training
        if progress_file is not None and world.rank == 0:
            loop.live.start(progress_file)
        watch = Watch(asked_to_stop, world, loop.engine.comm)
        goal = min(until or training.epochs, training.epochs)
        all_skipped = loop.epoch < goal and not loop.stops_early
        while loop.epoch < goal and not loop.stops_early:
            try:
                done = loop.run_epoch(watch)
            except FloatingPointError as error:  # of fp16's loss scale, on all ranks
                yield RunFailed(run_id=plan.run_id, reason="error", message=str(error))
                return
            if isinstance(done, Stop):
                if checkpoint:
                    checkpoint(loop)
                yield _stopped(loop, done)
                return
            if isinstance(done, Prune):
                yield _pruned(loop, done)
                return
            yield done
            all_skipped = all_skipped and done.skipped_steps == len(done.losses)
            if loop.diverged_at is not None:
                yield _diverged(loop, loop.diverged_at)
                return
            parts["training"] += done.seconds
            parts["validation"] += done.validation_seconds
            every = training.checkpoint_every
            if checkpoint and every and loop.epoch % every == 0 and loop.epoch < goal:
                with _timed(parts, "checkpoints"):
                    checkpoint(loop)
        watch.end()
        if all_skipped:
            yield RunFailed(run_id=plan.run_id, reason="error", message=_ALL_SKIPPED)
            return
        if goal < training.epochs and not loop.stops_early:
            if checkpoint:
                checkpoint(loop)
            yield _stopped(loop, Stop("interval"))
            return
        first_step_at = loop.first_step_at or time.perf_counter()
        parts["rest"] = time.perf_counter() - began - sum(parts.values())
        finished = RunFinished(
            run_id=plan.run_id,
            peak_process_bytes=[int(n) for n in loop.per_worker(memory.process_bytes())],
            start_process_bytes=[int(n) for n in loop.per_worker(memory.start_bytes)],
            peak_device_bytes=[int(n) for n in loop.per_worker(memory.device_bytes())],
            time_to_accuracy=loop.time_to_accuracy,
            stopped_early=loop.stops_early and loop.epoch < training.epochs,
            seconds=time.perf_counter() - began,
            first_step_seconds=first_step_at - began,
            first_step_time=time.time() - (time.perf_counter() - first_step_at),
            classes=loop.class_figures(),
            parts_seconds={name: round(max(0.0, value), 6) for name, value in parts.items()},
        )
        # only now are sharded weights gathered: that takes memory which training does not
        weights = loop.engine.weights()
        held = [weights] if loop.average is None else [weights, loop.average.weights()]
        if not all(same_on_all_ranks(loop.engine.comm, each) for each in held):
            yield RunFailed(run_id=plan.run_id, reason="gate", message=_DRIFTED)
            return
        if model_file is not None:
            loop.save_model(model_file, weights)
        yield run_costs(plan, world, loop.engine.comm)
        if plan.spec.measure.profile != "off" and (shares := profile(loop, trace_file)):
            yield shares
        if stages := measure_stages(loop):
            yield stages
        yield finished
    finally:
        if loop is not None:
            loop.close()
        group.close()
        # engines hold cycles: without this, the next run in this process would begin with them
        loop = None
        gc.collect()
        gc.unfreeze()
        if world.device.type == "cuda":
            torch.cuda.empty_cache()


def _of_all_ranks(names: list[str], comm: Comm) -> list[str]:
    """Every name that some rank gives, on all of them."""
    return sorted({name for each in gather_plain(comm, names) for name in each})


@contextmanager
def _timed(parts: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    parts[name] += time.perf_counter() - began


def _stopped(loop: TrainingLoop, stop: Stop) -> RunStopped:
    return RunStopped(run_id=loop.plan.run_id, reason=stop.reason, epoch=loop.epoch, step=loop.step)


def _diverged(loop: TrainingLoop, step: int) -> RunFailed:
    message = (
        f"losses or weights are not finite from step {step} on; a lower optimizer.lr, a longer "
        "schedule.warmup_epochs or training.clip_norm may help"
    )
    return RunFailed(run_id=loop.plan.run_id, reason="diverged", message=message, step=step)


def _pruned(loop: TrainingLoop, asked: Prune) -> RunPruned:
    return RunPruned(
        run_id=loop.plan.run_id,
        by=asked.by,
        epoch=loop.epoch - 1,
        value=asked.value,
        message=asked.message,
    )
