"""The training loop: the steps of an epoch, a validation over all samples, and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raysuite.data import Prepared, make_loader, prepare
from raysuite.data.base import Batch, Slice
from raysuite.data.formats import open_source
from raysuite.data.formats.base import TensorSource
from raysuite.data.order import balanced, permutation, rank_slices, step_sizes, step_weights
from raysuite.data.reading import label_of
from raysuite.files import appearing
from raysuite.measure.clock import StepClock, now
from raysuite.measure.processor import OtherPrograms
from raysuite.nested import unpadded
from raysuite.optim.schedule import factor
from raysuite.parallel.base import (
    Strategy,
    World,
    read_state,
    restore_draws,
    seed_draws,
    whole_state,
)
from raysuite.parallel.comm import Comm, average_buffers, gather_plain
from raysuite.parallel.precision import Autocast, local_part
from raysuite.plan import RunPlan
from raysuite.records import EpochFinished
from raysuite.records.confusion import ClassFigures, class_figures
from raysuite.records.live import LiveProgress
from raysuite.records.power import joined
from raysuite.tasks import make_task
from raysuite.tasks.base import Total, sums_of, values_of
from raysuite.tasks.language_model import LanguageModel
from raysuite.train.building import build_engine
from raysuite.train.checkpoint import LoopState, SoFar, load_rank, save_rank
from raysuite.train.cost_meter import EpochPower
from raysuite.train.stop_together import EndRequest, Watch
from raysuite.train.waiting import layers_named

Value = TypeVar("Value", int, float)


class TrainingLoop:
    """Trains and validates the network of one RunPlan on one rank, and keeps its progress."""

    def __init__(self, plan: RunPlan, world: World, strategy: Strategy) -> None:
        self.plan = plan
        self.world = world
        self.epoch = 0
        self.step = 0
        self.time_to_accuracy: float | None = None
        self.best: float | None = None
        """Best value so far of the metric for early stopping, reached in `best_epoch`."""
        self.best_epoch = 0
        self.first_step_at: float | None = None
        """Monotonic time at the end of the first optimiser step of this attempt."""
        self.steps_here = 0
        """Number of optimiser steps of this attempt. Its first `measure.warmup_steps` steps do not
        count for the throughput, because an attempt may run in a new process."""
        self.so_far = SoFar()
        """The finished part of the current epoch."""
        self._order: tuple[int, NDArray[np.int64]] | None = None
        """(epoch, order of its samples) that was computed last."""
        self.diverged_at: int | None = None
        """The first optimiser step, counted from 1, with losses or weights that are not finite."""
        self._draws: dict[str, Any] | None = None
        self._elapsed_before = 0.0
        self._began: float | None = None
        self.engine, self.average, self.not_loaded = build_engine(plan, world, strategy)
        self.prepared = prepare(plan.spec.data, plan.dataset)
        self.task = make_task(plan.spec.task, plan.dataset)
        self.skipped: dict[str, NDArray[np.bool_]] = {}
        """Split -> [samples], True for samples left out; set before the first epoch."""
        last, options = plan.memory_format == "channels_last", plan.spec.loader
        train = self.engine.takes_images
        self.train_loader = make_loader(self.prepared, "train", options, world.device, last, train)
        # averaged weights are validated as a whole network on every rank
        val = train or self.average is not None
        self.val_loader = make_loader(self.prepared, "val", options, world.device, last, val)
        self.power = EpochPower(plan, world)
        self.live = LiveProgress()
        self._tally: Tensor | None = None
        """What the task counted over this rank's samples in the last validation of this attempt,
        such as a confusion matrix."""
        self._labels: NDArray[np.int64] | None = None
        """Labels of the training samples; negative for samples that are left out. None if labels
        are not needed."""
        self._weights: NDArray[np.float64] | None = None
        """Weight of each training sample in the loss."""

    def read_labels(self) -> None:
        """Read the training labels, if loss weights or the sample order depend on them. Call it
        once, before the first epoch, on all ranks. Raises DataError for a label that cannot be read
        or is outside the data set's classes."""
        training, classes = self.plan.spec.training, self.plan.dataset.classes
        if self.prepared.tensors:
            with closing(open_source(self.prepared, "train")) as source:
                assert isinstance(source, TensorSource)
                # a task of the user's own may count other tokens than a language model
                counts_tokens = type(self.task).weight is LanguageModel.weight
                self._weights = source.weights() if counts_tokens else None
            return
        if training.class_weights is None and training.sampler == "shuffled":
            return
        skipped = self.skipped.get("train")
        labels = train_labels(self.prepared, self.world, self.engine.comm, skipped)
        if training.sampler == "balanced":
            self._labels = labels
        if training.class_weights is None:
            return
        if training.class_weights == "auto":
            weights = balancing_weights(labels, classes)
        else:
            weights = np.array(training.class_weights, np.float32)
        self.engine.class_weights = torch.from_numpy(weights).to(self.world.device)
        self._weights = np.where(labels >= 0, weights[np.maximum(labels, 0)], 0.0).astype(
            np.float64
        )

    def run_epoch(self, watch: Watch) -> EpochFinished | EndRequest:
        """Train the rest of an epoch, and validate. All ranks return the same Record.

        If there is a request to stop, return it instead; `save` then writes the finished part of
        the epoch.
        """
        plan = self.plan
        self.so_far, stop = train_rest(self, watch)
        if stop is not None:
            return stop
        ended, compiler = now(self.world.device), self.engine.compiler
        compiled = compiler.seconds
        # a run that was stopped in its validation repeats the whole validation
        self._seed_draws()
        found = validate(self, watch)
        if isinstance(found, EndRequest):
            return found
        validated = now(self.world.device)
        compiled = self.slowest([compiler.seconds - compiled])[0] if compiler.enabled else 0.0
        elapsed = self.slowest([self._elapsed_before + self._elapsed()])[0]
        goal = plan.spec.training.goal
        value = found.metrics[plan.task.primary]
        met = goal is not None and plan.task.main.reaches(value, goal)
        if met and self.time_to_accuracy is None:
            self.time_to_accuracy = elapsed
        self._compare(found)
        self._tally = found.tally
        done, self.so_far = self.so_far, SoFar()
        self.epoch += 1
        weights = done.weights or self._step_weights(self.epoch - 1)
        counted = self.counts_weights
        units = [round(w) for w in weights] if counted else self.step_units(self.epoch - 1)
        sums = torch.tensor(done.loss_sums, dtype=torch.float64)
        first_step = self.step - done.steps
        self.diverged_at = self._diverged_at(done.loss_sums, first_step, found.loss)
        return EpochFinished(
            run_id=plan.run_id,
            epoch=self.epoch - 1,
            first_step=first_step,
            losses=(sums / torch.tensor(weights)).tolist(),  # NaN if the step's weight is 0
            learning_rates=[self.learning_rate(first_step + index) for index in range(len(units))],
            figures=done.figures,
            skipped_steps=done.skipped_steps,
            attempts=done.attempts,
            images=sum(units),
            seconds=done.seconds,
            steady_images=done.steady_images,
            steady_seconds=done.steady_seconds,
            step_seconds=done.step_seconds,
            data_wait_seconds=done.data_wait_seconds,
            validation_seconds=self.slowest([validated - ended])[0] - compiled,
            compile_seconds=done.compile_seconds + compiled,
            graphs=compiler.graphs,
            graph_breaks=compiler.graph_breaks,
            train_loss=float(sums.sum() / sum(weights)),
            val_loss=found.loss,
            **validation_fields(found.metrics),
            elapsed_seconds=elapsed,
            power=done.power,
            other_cores=done.other_cores,
        )

    def class_figures(self) -> ClassFigures | None:
        """Precision, recall and F1 of each class in the last validation; None if this attempt has
        not validated, or if the task has no classes or too many. All ranks must call it."""
        if self._tally is None:
            return None
        matrix = self.engine.comm.all_reduce(self._tally.cpu(), "sum").tolist()
        return class_figures(self.prepared.classes, matrix)

    def _compare(self, found: Validated) -> None:
        early = self.plan.spec.training.early_stopping
        if early is None:
            return
        name = early.metric.removeprefix("val_")
        value, sign = found.loss, -1
        if name != "loss":
            value, sign = found.metrics[name], self.plan.task.metric(name).sign
        if math.isnan(value):  # never an improvement
            return
        if self.best is None or sign * (value - self.best) > early.min_delta:
            self.best, self.best_epoch = value, self.epoch

    @property
    def stops_early(self) -> bool:
        """Whether validation has not improved for `early_stopping.patience` epochs."""
        early = self.plan.spec.training.early_stopping
        return early is not None and self.epoch - self.best_epoch > early.patience

    def _diverged_at(self, sums: Sequence[float], first: int, val_loss: float) -> int | None:
        """The first step of the epoch with a summed loss that is not finite (except in fp16); else
        the epoch's last step, if the weights or the validation loss are not finite; else None. The
        validation loss also shows values that are not finite in running means."""
        for step, loss in enumerate(sums, start=first + 1):
            # in fp16, a step whose gradients overflow is skipped
            if not math.isfinite(loss) and self.plan.spec.training.precision != "fp16":
                return step
        parts = [local_part(each.detach()) for each in self.engine.model.parameters()]
        weights = [each.isfinite().all() for each in parts]
        whole = bool(torch.stack(weights).all()) if weights else True
        fine = whole and math.isfinite(val_loss)
        return self.step if self.slowest([float(not fine)])[0] else None

    def has_begun(self, when: float) -> None:
        """Call this before the first sample of an epoch is read; `when` is monotonic time."""
        if self._began is None:
            self._began = when

    def restore_draws(self) -> None:
        """Set the random state before the first step of an epoch, or the first step after a
        checkpoint within an epoch. A rank that the checkpoint does not contain is seeded as for a
        new epoch."""
        if self.so_far.steps and self._draws is not None:
            restore_draws(self.world.device, self._draws)
        else:
            self._seed_draws()

    def _seed_draws(self) -> None:
        seed_draws(first_draws(self.plan.seed, self.epoch, self.world.rank))

    def _elapsed(self) -> float:
        """Seconds since this attempt read its first sample."""
        return 0.0 if self._began is None else time.perf_counter() - self._began

    def slices(self, epoch: int) -> tuple[list[list[Slice]], list[int]]:
        """For each step of an epoch: this rank's micro-batches, and the number of throughput units
        over all ranks."""
        plan, engine = self.plan, self.engine
        steps = rank_slices(
            self._order_of(epoch),
            plan.global_batch,
            engine.replicas,
            engine.replica,
            plan.accumulate,
            draw=(plan.seed, epoch),
            skipped=self.skipped.get("train"),
            weights=self._weights,
        )
        return list(steps), self.step_units(epoch)

    def step_units(self, epoch: int) -> list[int]:
        """Number of throughput units (such as images) in each step of an epoch, over all ranks."""
        if self.task.unit == "tokens":
            return [round(weight) for weight in self._step_weights(epoch)]
        order, skipped = self._order_of(epoch), self.skipped.get("train")
        return step_sizes(order, self.plan.global_batch, skipped)

    def _step_weights(self, epoch: int) -> list[float]:
        """For each step of an epoch: the divisor of the step's summed loss."""
        order, skipped = self._order_of(epoch), self.skipped.get("train")
        return step_weights(order, self.plan.global_batch, self._weights, skipped)

    def weight_of(self, step: Sequence[Slice]) -> float:
        """Divisor of this rank's summed loss in a step: the number of the rank's samples, or the
        sum of their weights. Not used if `weighs_batches`."""
        if self._weights is None:
            return sum(part.real for part in step)
        return float(sum(self._weights[part.ids[: part.real]].sum() for part in step))

    def _order_of(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            plan = self.plan
            if self._labels is None:
                order = permutation(plan.dataset.train_samples, plan.seed, epoch)
            else:
                order = balanced(self._labels, plan.seed, epoch)
            self._order = epoch, order
        return self._order[1]

    @property
    def weighs_batches(self) -> bool:
        """Whether the divisor of a step's loss is computed from the step's targets."""
        return self.task.weighted and self._weights is None

    @property
    def counts_weights(self) -> bool:
        """Whether the divisor of a step's loss is also the step's number of throughput units."""
        return self.weighs_batches and self.task.unit == "tokens"

    def weighed(self, micro_batches: Sequence[Batch]) -> tuple[list[Batch], float, float]:
        """Compute the weight of a step's global batch. Return the micro-batches with this weight as
        `of_global`, the weight, and this rank's part of the weight. All ranks must call it."""
        own = sum(
            float(self.task.weight(unpadded(each.labels, each.real))) for each in micro_batches
        )
        mine = torch.tensor([own if self.engine.counts else 0.0], dtype=torch.float64)
        weight = self.engine.comm.all_reduce(mine, "sum").item()
        return [replace(each, of_global=weight or 1.0) for each in micro_batches], weight, own

    def train_step(self, micro_batches: Sequence[Batch], rate: float) -> Tensor:
        """Take one optimiser step; return the summed loss of this rank's samples, on the device.

        `engine.figures` then has the figures of this step, or is empty if fp16 skipped the step."""
        self.engine.figures = {}
        skipped = self.engine.scale.skipped
        with layers_named(self.engine.model, self.world):
            loss = self.engine.step(micro_batches, rate)
        if self.engine.scale.skipped > skipped:
            self.engine.figures = {}
        if self.average is not None:
            self.average.update(self.engine.model)
        return loss

    def learning_rate(self, step: int) -> float:
        """The learning rate of an optimiser step, counted from 0."""
        plan = self.plan
        return plan.peak_lr * factor(
            plan.spec.schedule, step, plan.steps_per_epoch, plan.total_steps
        )

    def slowest(self, seconds: list[float]) -> list[float]:
        """The maximum of each value over all ranks, returned on all ranks."""
        largest: list[float] = self.engine.comm.all_reduce(
            torch.tensor(seconds, dtype=torch.float64), "max"
        ).tolist()
        return largest

    def per_worker(self, value: Value) -> list[Value]:
        """The `value` of each rank, a number, in rank order; all ranks get the same list."""
        return gather_plain(self.engine.comm, value)

    def save(self, folder: Path) -> None:
        """Write a checkpoint into `folder`, which may be one folder for all ranks or one for each
        rank. All ranks must call it."""
        self.engine.save(folder)
        if self.average is not None:
            self.engine.complete(self.average.model)
        if self.so_far.steps:
            save_rank(folder, self.world, self._models())
        if self.world.rank == 0:
            if self.average is not None:
                torch.save(self.average.state(), folder / "average.pt")
            LoopState(
                run_id=self.plan.run_id,
                epoch=self.epoch,
                step=self.step,
                elapsed_seconds=self._elapsed_before + self._elapsed(),
                time_to_accuracy=self.time_to_accuracy,
                best=self.best,
                best_epoch=self.best_epoch,
                so_far=self.so_far,
                classes=self.prepared.classes,
            ).write(folder)

    def load(self, folder: Path) -> None:
        """Restore a checkpoint."""
        state = LoopState.read(folder)
        state.check_classes(self.prepared.classes)
        self.engine.load(folder)
        if self.average is not None:
            self.average.load_state(read_state(folder / "average.pt"))
        self.epoch, self.step, self.so_far = state.epoch, state.step, state.so_far
        self._elapsed_before = state.elapsed_seconds
        self.time_to_accuracy = state.time_to_accuracy
        self.best, self.best_epoch = state.best, state.best_epoch
        if self.so_far.steps:
            self._draws = load_rank(folder, self.world, self._models())
            self.engine.take_buffers()

    def _models(self) -> list[nn.Module]:
        return [self.engine.model, *([self.average.model] if self.average else [])]

    def save_model(self, file: Path, weights: dict[str, Tensor]) -> None:
        """On rank 0, write the `state_dict` of the model that was validated: the average of the
        weights if there is one, else the engine's model with its unsharded `weights`. All ranks
        must call it."""
        if self.average is not None:
            state = whole_state(self.average.model, self.average.weights())
        else:
            state = self.engine.whole_state(weights)
        if self.world.rank == 0:
            with appearing(file) as part:
                torch.save(state, part)

    def close(self) -> None:
        """Free the loaders and the engine."""
        self.live.close()
        self.power.close()
        self.train_loader.close()
        self.val_loader.close()
        self.engine.close()


def train_labels(
    prepared: Prepared, world: World, comm: Comm, skipped: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """Read the label of each training sample, -1 for `skipped` samples; each rank reads its share.

    All ranks must call it. Raises DataError for a label outside the data set's classes.
    """
    samples = prepared.samples("train")
    labels = np.zeros(samples, np.int64)
    with closing(open_source(prepared, "train")) as source:
        for sample in np.array_split(np.arange(samples), world.size)[world.rank].tolist():
            if skipped is not None and skipped[sample]:
                labels[sample] = -1
                continue
            labels[sample] = label_of(source, sample, prepared.facts.classes)
    found: NDArray[np.int64] = comm.all_reduce(torch.from_numpy(labels), "sum").numpy()
    return found


def balancing_weights(labels: NDArray[np.int64], classes: int) -> NDArray[np.float32]:
    """[classes] samples / (classes * samples of the class), like scikit-learn's `balanced`; 1 for a
    class without samples."""
    counts = np.bincount(labels[labels >= 0], minlength=classes)
    weights = counts.sum() / (classes * np.maximum(counts, 1))
    return np.where(counts, weights, 1.0).astype(np.float32)


# The remaining steps of one epoch, and their measurements.


def train_rest(loop: TrainingLoop, watch: Watch) -> tuple[SoFar, EndRequest | None]:
    """Take the remaining steps of the loop's epoch, until the end or a request to stop.

    Return the finished part, the same on all ranks, and the request. All ranks must call it.
    """
    device, before = loop.world.device, loop.so_far
    whole, all_sizes = loop.slices(loop.epoch)
    steps, sizes = whole[before.steps :], all_sizes[before.steps :]
    if not steps:  # only the validation remains
        loop.has_begun(now(device))
        return before, None
    steady_from = max(0, loop.plan.spec.measure.warmup_steps - loop.steps_here)
    loop.restore_draws()
    loop.engine.train()
    loop.power.begin()
    others = OtherPrograms()
    others.begin()
    loop.live.begin(loop.epoch, before.steps, all_sizes)
    began = steady_began = now(device)
    loop.has_begun(began)
    watch.anew()
    losses: list[Tensor] = []
    figures: list[dict[str, Tensor]] = []
    weights: list[float] = []
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
        waits_since = time.perf_counter()
        micro_batches = [next(batches) for _ in step]
        waited += time.perf_counter() - waits_since
        if loop.weighs_batches:
            micro_batches, weight, own = loop.weighed(micro_batches)
            weights.append(weight)
        else:
            own = loop.weight_of(step)
        compiled = compiler.seconds
        losses.append(loop.train_step(micro_batches, loop.learning_rate(loop.step)))
        figures.append(loop.engine.figures)
        compiling.append(compiler.seconds - compiled)
        loop.step += 1
        loop.steps_here += 1
        steps_clock.mark()
        loop.live.step(before.steps + index + 1, partial(_host_loss, loop, losses[-1], own))
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
    if compiler.enabled:  # the other ranks wait for a rank that compiles
        slowest = loop.slowest(compiling)
        compile_seconds = sum(slowest)
        seconds -= compile_seconds
        steady_seconds -= sum(slowest[steady_from:])
        step_seconds = [a - b for a, b in zip(step_seconds, slowest[steady_from:], strict=True)]
    sums = loop.engine.comm.all_reduce(torch.stack(losses).double().cpu(), "sum")
    units = weights if loop.counts_weights else sizes
    waits = loop.per_worker(waited)
    # the ranks of a pipeline wait for the rank that loads images
    width = loop.plan.spec.strategy.model_workers
    waits = np.array(waits).reshape(-1, width).max(1).repeat(width).tolist()
    power = loop.power.use(loop.engine.comm)
    other_cores = others.cores(loop.engine.comm.all_gather)
    if before.attempts:
        earlier = before.data_wait_seconds
        if len(earlier) != len(waits):  # the worker count changed: use the mean
            earlier = [sum(earlier) / len(earlier)] * len(waits)
        waits = [a + b for a, b in zip(earlier, waits, strict=True)]
        power = joined([(before.power, before.seconds), (power, seconds)])
    done = SoFar(
        steps=before.steps + len(losses),
        attempts=before.attempts + 1,
        skipped_steps=before.skipped_steps + loop.engine.scale.skipped - skipped_before,
        loss_sums=[*before.loss_sums, *sums.tolist()],
        figures=joined_figures(before, figures, loop.engine.comm),
        weights=[*before.weights, *weights],
        seconds=before.seconds + seconds,
        steady_images=before.steady_images + round(sum(units[steady_from : len(losses)])),
        steady_seconds=before.steady_seconds + steady_seconds,
        step_seconds=[*before.step_seconds, *(round(each, 7) for each in step_seconds)],
        compile_seconds=before.compile_seconds + compile_seconds,
        data_wait_seconds=waits,
        power=power,
        other_cores=other_cores,
    )
    return done, stop


def joined_figures(
    before: SoFar, steps: Sequence[dict[str, Tensor]], comm: Comm
) -> dict[str, list[float]]:
    """Name of a figure -> its value at each step of the epoch: first the values of earlier
    attempts, then those in `steps`, averaged over all ranks; NaN at a step without a value. All
    ranks must call it."""
    found = {name: [math.nan] * before.steps for step in steps for name in step} | before.figures
    for name, values in found.items():
        known = [step[name] for step in steps if name in step] or [torch.zeros(())]
        nothing = torch.full_like(known[0], math.nan)
        own = torch.stack([step.get(name, nothing) for step in steps]).double().cpu()
        found[name] = [*values, *(comm.all_reduce(own, "sum") / comm.size).tolist()]
    return found


def _host_loss(loop: TrainingLoop, total: Tensor, weight: float) -> float | None:
    """Mean loss of this rank's samples, or tokens, in a step; None if the loss is on a GPU, is
    counted by another rank, is not finite, or if `weight` is 0. `weight`: the divisor of the summed
    loss `total`."""
    if total.device.type != "cpu" or not loop.engine.counts or not weight:
        return None
    mean = float(total) / weight
    return mean if math.isfinite(mean) else None


def first_draws(seed: int, epoch: int, rank: int) -> int:
    """The seed for an epoch on a rank: dropout differs between ranks, but does not change if a
    checkpoint is loaded."""
    return int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1, np.uint64)[0] >> 1)


# One exact pass over the validation set, shared by all ranks.


@dataclass(frozen=True)
class Validated:
    """Results of a whole validation set."""

    loss: float
    """Mean over samples, or tokens."""
    metrics: dict[str, float]
    """Metric of the task -> value."""
    tally: Tensor | None
    """What the task counted over this rank's samples, such as a confusion matrix, on the device."""


def validation_fields(metrics: dict[str, float]) -> dict[str, Any]:
    """The fields of EpochFinished for a task's metrics; `accuracy` and `top5` have separate
    fields."""
    known = {name: metrics[name] for name in ("accuracy", "top5") if name in metrics}
    others = {name: value for name, value in metrics.items() if name not in known}
    return {f"val_{name}": value for name, value in known.items()} | {"val_metrics": others}


def validate(loop: TrainingLoop, watch: Watch) -> Validated | EndRequest:
    """Validate on all ranks, over all samples that are not skipped, unless a stop is requested.
    Uses the averaged weights if there are any. All ranks must call it."""
    plan, task, engine, device = loop.plan, loop.task, loop.engine, loop.world.device
    skipped = loop.skipped.get("val")
    engine.average_buffers()
    engine.train(False)
    forward = engine.forward
    if loop.average is not None:
        model, settings = loop.average.model, engine.settings
        engine.complete(model)
        average_buffers(model, engine.comm)
        forward = Autocast(model, settings.precision, device, settings.memory_format)
    order, global_batch = np.arange(plan.dataset.val_samples), plan.micro_batch * engine.replicas
    steps = rank_slices(order, global_batch, engine.replicas, engine.replica, skipped=skipped)
    # on the device: reading the sums at every batch would make the host wait
    sums: Tensor | None = None
    sizes: list[int] = []
    nothing, on_host = torch.zeros((), device=device), 0
    tally = task.tally(device)
    watch.anew()
    with torch.no_grad():
        for batch in loop.val_loader.batches([part for step in steps for part in step]):
            output, targets = (
                unpadded(each, batch.real) for each in (forward(batch.images), batch.labels)
            )
            weight = task.weight(targets)
            if not isinstance(weight, Tensor):  # the host would wait for a copy to the device
                on_host, weight = on_host + weight, nothing
            parts = [torch.stack([task.loss(output, targets).double(), weight.double()])]
            parts += sums_of(task, output, targets)
            if tally is not None:
                task.count(tally, output, targets)
            sizes, found = [len(each) for each in parts], torch.cat(parts)
            sums = found if sums is None else sums + found
            if stop := watch.step():
                return stop
    assert sums is not None, "every rank has a batch, which may consist of padding"
    sums = sums.cpu()
    sums[1] += on_host
    if not engine.counts:
        sums = torch.zeros_like(sums)
        tally = None if tally is None else torch.zeros_like(tally)
    total, *others = engine.comm.all_reduce(sums, "sum").split(sizes)
    loss, weight_sum = total.tolist()
    whole = Total.of(loss, weight_sum, sum(step_sizes(order, global_batch, skipped)))
    return Validated(whole.loss, values_of(task, others, whole), tally)
