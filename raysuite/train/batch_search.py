"""Search for the batch size of a run on its own ranks, before the run.

A size is first tried by a forward and a backward pass of one micro-batch on each rank, without
communication. The ranks exchange the result only afterwards, so a rank that runs out of memory does
not block the others. Sizes that fit are then tried in complete steps, with the optimiser's state
and the strategy's buffers. A rank that runs out of memory in such a step ends, because the other
ranks may wait in a collective that cannot be cancelled. The driver starts the ranks again; rank 0
reads from a file which sizes were tried, and the search continues with smaller sizes.

On a GPU, an allocation that does not fit raises an error. On a CPU, it may raise none, so a larger
size is tried only if the memory use at smaller sizes predicts that it fits.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from socket import gethostname

import torch

from raysuite.data.base import Batch
from raysuite.gate.strategy_check import comm_of
from raysuite.measure.clock import now
from raysuite.measure.peak_memory import PeakMemory, available_bytes
from raysuite.nested import unpadded
from raysuite.parallel import joined
from raysuite.parallel.base import Strategy, World
from raysuite.parallel.comm import Comm, gather_plain
from raysuite.parallel.precision import Autocast
from raysuite.plan import RunPlan
from raysuite.plan.batch_candidates import decided, search_of
from raysuite.records.batch_trials import BatchTried, Stage, TriedFile
from raysuite.tasks import make_task
from raysuite.train.building import build_engine, build_model, draw, import_own, set_torch
from raysuite.train.out_of_memory import is_out_of_memory
from raysuite.units import human_bytes

_WARM_STEPS = 2
"""Steps before the timed steps; the optimiser creates its state in the first step."""
_TIMED_S, _FEWEST, _MOST = 0.5, 3, 50
"""Target duration of a timing in seconds, and its minimum and maximum number of steps."""


def search_batch(
    plan: RunPlan, world: World, tried: TriedFile, stopped: Callable[[], bool] = lambda: False
) -> int:
    """Continue the search for the batch size of `plan`, recorded in `tried`, to its end.

    Return the chosen micro-batch; 0 if no size fits, or if `stopped` returned True on rank 0. Only
    rank 0 reads and writes `tried`. All ranks must call it.

    Raises any exception of the model or the strategy. Raises MemoryError if one of several ranks
    runs out of memory in a complete step: the ranks then have to be started again.
    """
    import_own(plan)
    with joined(plan.spec.strategy, world) as strategy:
        set_torch(plan)
        comm = comm_of(plan.spec.strategy, world, strategy)
        ranks = _Ranks(plan, world, strategy, comm)
        while (wanted := _next_of_all(plan, world, comm, tried, stopped)) is not None:
            stage, size = wanted
            found = ranks.alone(size) if stage == "alone" else ranks.together(size)
            if world.rank == 0:
                tried.end(found)
        search = search_of(plan, tried.read() if world.rank == 0 else [])
        taken = search.chosen or 0 if search.next() is None else 0
        return int(gather_plain(comm, taken)[0])


def _next_of_all(
    plan: RunPlan, world: World, comm: Comm, file: TriedFile, stopped: Callable[[], bool]
) -> tuple[Stage, int] | None:
    """The next trial, chosen by rank 0 and returned on all ranks; None at the end."""
    wanted = None
    if world.rank == 0 and not stopped() and (wanted := _next(plan, world, file)):
        file.begin(*wanted)
    found = gather_plain(comm, wanted)[0]
    return found and tuple(found)


def _next(plan: RunPlan, world: World, file: TriedFile) -> tuple[Stage, int] | None:
    """The next size to try. On CPUs, sizes for which `too_much` predicts too little memory are
    recorded as not fitting, without a trial."""
    while True:
        tried = file.read()
        wanted = search_of(plan, tried).next()
        if wanted is None or wanted[0] == "together" or world.device.type != "cpu":
            return wanted
        refused = too_much(tried, wanted[1])
        if refused is None:
            return wanted
        file.begin(*wanted)
        file.end(refused)


def too_much(tried: Sequence[BatchTried], size: int) -> BatchTried | None:
    """A record that `size` does not fit, if the memory at smaller sizes predicts this; else None.

    The peak memory is extrapolated linearly from two tried sizes that fit: the largest one, and the
    largest one of at most half its size or, if there is none, a size of 0 without any memory.
    """
    known = sorted(
        (each for each in tried if each.stage == "alone" and each.fits and each.peak_bytes),
        key=lambda each: each.micro_batch,
    )
    if not known:
        return None
    last = known[-1]
    before = [each for each in known if 2 * each.micro_batch <= last.micro_batch]
    peaks = []
    for worker, peak in enumerate(last.peak_bytes):
        base = before[-1].peak_bytes[worker] if before else 0
        samples = last.micro_batch - (before[-1].micro_batch if before else 0)
        growth = max(0, peak - base) / samples
        peaks.append(round(peak + growth * (size - last.micro_batch)))
    wanted, limit = max(zip(peaks, last.limit_bytes, strict=True), key=lambda two: two[0] - two[1])
    if wanted <= limit:
        return None
    return BatchTried(
        stage="alone",
        micro_batch=size,
        fits=False,
        message=f"not tried: it would need about {human_bytes(wanted)}, more than the limit of "
        f"{human_bytes(limit)}",
    )


class _Ranks:
    """Tries a size on all ranks; every method returns the same result on all of them."""

    def __init__(self, plan: RunPlan, world: World, strategy: Strategy, comm: Comm) -> None:
        self._plan, self._world, self._strategy, self._comm = plan, world, strategy, comm
        self._task = make_task(plan.spec.task, plan.dataset)
        auto = plan.spec.auto
        assert auto is not None, "this plan has no batch size that trials must find"
        self._held = PeakMemory(world.device).start_bytes
        sharing = 1
        if world.device.type == "cpu":
            sharing = gather_plain(comm, gethostname()).count(gethostname())
        self._limit = int(auto.memory_share * available_bytes(world.device) / sharing)

    def alone(self, size: int) -> BatchTried:
        """Run a forward and a backward pass of `size` samples on each rank, separately."""
        memory, fits = PeakMemory(self._world.device), True
        try:
            self._pass(size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        return self._agreed("alone", size, fits, memory, None)

    def _pass(self, size: int) -> None:
        plan, world = self._plan, self._world
        model = build_model(plan, world)
        model.train()
        precision = plan.spec.training.precision
        wrapped = Autocast(model, precision, world.device, plan.memory_format)
        batch = self._batch(size, size)
        output = unpadded(wrapped(batch.images), size)
        self._task.loss(output, unpadded(batch.labels, size)).backward()
        now(world.device)

    def together(self, size: int) -> BatchTried:
        """Run full steps with micro-batches of `size` samples, timed after a warm-up."""
        memory = PeakMemory(self._world.device)
        speed = None
        try:
            speed = self._steps(size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if self._world.size > 1:
                raise MemoryError(f"out of memory in steps of {size} samples") from error
        return self._agreed("together", size, speed is not None, memory, speed)

    def _steps(self, size: int) -> float:
        """Run full steps, and return the samples per second over all ranks."""
        plan = decided(self._plan, size)
        engine, average, _ = build_engine(plan, self._world, self._strategy)
        try:
            engine.train()
            batches = [self._batch(size, plan.global_batch)] * plan.accumulate

            def steps(count: int) -> float:
                """Seconds for `count` steps on the slowest rank."""
                began = now(self._world.device)
                for _ in range(count):
                    engine.step(batches, plan.peak_lr)
                    if average is not None:
                        average.update(engine.model)
                own = torch.tensor([now(self._world.device) - began], dtype=torch.float64)
                return engine.comm.all_reduce(own, "max").item()

            steps(_WARM_STEPS)
            count = min(max(_FEWEST, math.ceil(_TIMED_S / max(steps(1), 1e-6))), _MOST)
            seconds = steps(count)
            engine.drain()
            return plan.global_batch * count / seconds
        finally:
            engine.close()

    def _batch(self, size: int, of_global: int) -> Batch:
        padded = max(2, size)  # loaders also pad a single sample to two
        generator = torch.Generator(self._world.device)
        inputs, targets = draw(self._plan, padded, generator)
        return Batch(inputs, targets, size, of_global)

    def _agreed(
        self, stage: Stage, size: int, fits: bool, memory: PeakMemory, speed: float | None
    ) -> BatchTried:
        """Free the memory of the trial, and return its result over all ranks."""
        gc.collect()
        on_gpu = self._world.device.type == "cuda"
        peak = memory.device_bytes() if on_gpu else memory.process_bytes() - self._held
        if on_gpu:
            torch.cuda.empty_cache()
        rows = gather_plain(self._comm, (fits, max(0, peak), self._limit))
        out = [rank for rank, (fit, _, _) in enumerate(rows) if not fit]
        above = [rank for rank, (_, taken, limit) in enumerate(rows) if taken > limit]
        message = ""
        if out:
            message = f"out of memory on {_ranks(out)}"
        elif above:
            _, taken, limit = rows[above[0]]
            message = (
                f"{human_bytes(taken)}, over the limit of {human_bytes(limit)}, on {_ranks(above)}"
            )
        return BatchTried(
            stage=stage,
            micro_batch=size,
            fits=not message,
            peak_bytes=[taken for _, taken, _ in rows],
            limit_bytes=[limit for _, _, limit in rows],
            images_per_second=speed,
            message=message,
        )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
