"""The training loop: an epoch of steps, one exact validation, a checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raysuite.data import Loader, Prepared, make_loader, prepare
from raysuite.data.base import Batch, Slice
from raysuite.data.formats import open_source
from raysuite.data.order import balanced, permutation, rank_slices, step_sizes, step_weights
from raysuite.data.reading import label_of
from raysuite.measure.clock import StepClock, now
from raysuite.measure.processor import OtherPrograms
from raysuite.optim.average import WeightAverage
from raysuite.optim.schedule import factor
from raysuite.parallel.base import (
    Engine,
    Strategy,
    World,
    read_state,
    restore_draws,
    seed_draws,
    whole_state,
)
from raysuite.parallel.comm import Comm, average_buffers
from raysuite.parallel.precision import Autocast, local_part
from raysuite.plan import RunPlan
from raysuite.records import EpochFinished
from raysuite.records.classes import ClassFigures, class_figures
from raysuite.records.live import LiveProgress
from raysuite.records.power import joined
from raysuite.train.building import build_engine
from raysuite.train.checkpoint import LoopState, SoFar, load_rank, save_rank
from raysuite.train.costs import EpochPower
from raysuite.train.stopping import Asked, Watch
from raysuite.train.waiting import layers_named


class TrainingLoop:
    """One RunPlan on one rank."""

    def __init__(self, plan: RunPlan, world: World, strategy: Strategy) -> None:
        self.plan = plan
        self.world = world
        self.epoch = 0
        self.step = 0
        self.time_to_accuracy: float | None = None
        self.best: float | None = None
        """For early stopping: the best value of its metric so far, and the epoch that had it."""
        self.best_epoch = 0
        self.first_step_at: float | None = None
        """Monotonic time at the end of the first optimiser step of this attempt."""
        self.steps_here = 0
        """Steps of this attempt: a fresh process warms up anew."""
        self.so_far = SoFar()
        """The finished part of the present epoch."""
        self._order: tuple[int, NDArray[np.int64]] | None = None
        """The epoch whose samples were put in order last, and that order."""
        self.diverged_at: int | None = None
        """The first optimiser step, from 1, at which losses or weights were found not finite."""
        self._draws: dict[str, Tensor] | None = None
        self._elapsed_before = 0.0
        self._began: float | None = None
        self.engine, self.average = build_engine(plan, world, strategy)
        self.prepared = prepare(plan.spec.data, plan.dataset)
        self.skipped: dict[str, NDArray[np.bool_]] = {}
        """Split -> [samples], True for what is left out on all ranks; set before the first epoch"""
        last, options = plan.memory_format == "channels_last", plan.spec.loader
        train = self.engine.takes_images
        self.train_loader = make_loader(self.prepared, "train", options, world.device, last, train)
        # averaged weights are validated as a whole network on every rank
        val = train or self.average is not None
        self._val = make_loader(self.prepared, "val", options, world.device, last, val)
        self.power = EpochPower(plan, world)
        self.live = LiveProgress()
        self._confusion: Tensor | None = None
        """Of the last validation of this attempt, by this rank."""
        self._labels: NDArray[np.int64] | None = None
        """Of the training samples, below 0 for what is left out; None where they are not needed."""
        self._weights: NDArray[np.float64] | None = None
        """Of each training sample in the loss."""

    def read_labels(self) -> None:
        """Once, before the first epoch, where weights or the order depend on labels. All ranks must
        call it. Raises DataError for a label that cannot be read or is none."""
        training, classes = self.plan.spec.training, self.plan.dataset.classes
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

    def run_epoch(self, watch: Watch) -> EpochFinished | Asked:
        """Train what is left of an epoch, and validate. The Record is the same on all ranks.

        The request, where it is to stop: `save` then keeps the finished part of the epoch.
        """
        plan = self.plan
        self.so_far, stop = train_rest(self, watch)
        if stop is not None:
            return stop
        ended, compiler = now(self.world.device), self.engine.compiler
        compiled = compiler.seconds
        found = validate(
            plan, self.world, self.engine, self._val, self.average, self.skipped.get("val"), watch
        )
        if isinstance(found, Asked):
            return found
        validated = now(self.world.device)
        compiled = self.slowest([compiler.seconds - compiled])[0] if compiler.enabled else 0.0
        elapsed = self.slowest([self._elapsed_before + self._elapsed()])[0]
        target = plan.spec.training.target_accuracy
        if target is not None and found.top1 >= target and self.time_to_accuracy is None:
            self.time_to_accuracy = elapsed
        self._compare(found)
        self._confusion = found.confusion
        done, self.so_far = self.so_far, SoFar()
        self.epoch += 1
        sizes = self.step_sizes(self.epoch - 1)
        sums = torch.tensor(done.loss_sums, dtype=torch.float64)
        weights = self._step_weights(self.epoch - 1)
        first_step = self.step - done.steps
        self.diverged_at = self._diverged_at(done.loss_sums, first_step, found.loss)
        return EpochFinished(
            run_id=plan.run_id,
            epoch=self.epoch - 1,
            first_step=first_step,
            losses=(sums / torch.tensor(weights)).tolist(),  # not a number where none counts
            learning_rates=[self.learning_rate(first_step + index) for index in range(len(sizes))],
            skipped_steps=done.skipped_steps,
            attempts=done.attempts,
            images=sum(sizes),
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
            val_accuracy=found.top1,
            val_top5=found.top5,
            elapsed_seconds=elapsed,
            power=done.power,
            other_cores=done.other_cores,
        )

    def class_figures(self) -> ClassFigures | None:
        """Of the last validation; None where this attempt made none, or there are too many classes.
        All ranks must call it."""
        if self._confusion is None:
            return None
        matrix = self.engine.comm.all_reduce(self._confusion.cpu(), "sum").tolist()
        return class_figures(self.prepared.classes, matrix)

    def _compare(self, found: Validated) -> None:
        early = self.plan.spec.training.early_stopping
        if early is None:
            return
        value, sign = (found.loss, -1) if early.metric == "val_loss" else (found.top1, 1)
        if self.best is None or sign * (value - self.best) > early.min_delta:
            self.best, self.best_epoch = value, self.epoch

    @property
    def stops_early(self) -> bool:
        """Whether validation has not got better for `early_stopping.patience` epochs."""
        early = self.plan.spec.training.early_stopping
        return early is not None and self.epoch - self.best_epoch > early.patience

    def _diverged_at(self, sums: Sequence[float], first: int, val_loss: float) -> int | None:
        """The step at which the run diverged, by an epoch's summed losses, the weights after it and
        the validation loss, which also shows running means and sharded weights; None if it did not.
        """
        for step, loss in enumerate(sums, start=first + 1):
            # a step of fp16 whose numbers overflow is skipped
            if not math.isfinite(loss) and self.plan.spec.training.precision != "fp16":
                return step
        parts = [local_part(each.detach()) for each in self.engine.model.parameters()]
        weights = [each.isfinite().all() for each in parts]
        whole = bool(torch.stack(weights).all()) if weights else True
        fine = whole and math.isfinite(val_loss)
        return self.step if self.slowest([float(not fine)])[0] else None

    def has_begun(self, when: float) -> None:
        """Call before the first sample of an epoch is read, at the monotonic time `when`."""
        if self._began is None:
            self._began = when

    def restore_draws(self) -> None:
        """Before the first step of an epoch, or the first after a checkpoint in its midst."""
        if self.so_far.steps:
            assert self._draws is not None, "load() read them"
            restore_draws(self.world.device, self._draws)
        else:
            seed_draws(first_draws(self.plan.seed, self.epoch, self.world.rank))

    def _elapsed(self) -> float:
        """Seconds since this attempt touched its first sample."""
        return 0.0 if self._began is None else time.perf_counter() - self._began

    def slices(self, epoch: int) -> tuple[list[list[Slice]], list[int]]:
        """This rank's micro-batches of each step of an epoch, and each step's samples in all."""
        plan, skipped = self.plan, self.skipped.get("train")
        draw = (plan.seed, epoch)
        batch, engine = plan.global_batch, self.engine
        order = self._order_of(epoch)
        weights = self._weights
        steps = rank_slices(
            order, batch, engine.replicas, engine.replica, plan.accumulate, draw, skipped, weights
        )
        return list(steps), self.step_sizes(epoch)

    def step_sizes(self, epoch: int) -> list[int]:
        """The samples of each step of an epoch, over all ranks."""
        return step_sizes(self._order_of(epoch), self.plan.global_batch, self.skipped.get("train"))

    def _step_weights(self, epoch: int) -> list[float]:
        """What the summed loss of each step of an epoch is divided by."""
        order, skipped = self._order_of(epoch), self.skipped.get("train")
        return step_weights(order, self.plan.global_batch, self._weights, skipped)

    def _order_of(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            plan = self.plan
            if self._labels is None:
                order = permutation(plan.dataset.train_samples, plan.seed, epoch)
            else:
                order = balanced(self._labels, plan.seed, epoch)
            self._order = epoch, order
        return self._order[1]

    def train_step(self, micro_batches: Sequence[Batch], rate: float) -> Tensor:
        """One optimiser step; the summed loss of this rank's samples, on the device."""
        with layers_named(self.engine.model, self.world):
            loss = self.engine.step(micro_batches, rate)
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
        """The largest of each over all ranks, on all of them."""
        largest: list[float] = self.engine.comm.all_reduce(
            torch.tensor(seconds, dtype=torch.float64), "max"
        ).tolist()
        return largest

    def per_worker(self, value: float) -> list[float]:
        """`value` of every rank, in the order of ranks, on all of them."""
        values: list[float] = (
            self.engine.comm.all_gather(torch.tensor([value], dtype=torch.float64))
            .flatten()
            .tolist()
        )
        return values

    def save(self, folder: Path) -> None:
        """Write a checkpoint; every rank calls it, with a folder of all of them or its own."""
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
        """Rank 0 writes the `state_dict` of the model that was validated, with whole `weights`.
        All ranks must call it."""
        if self.average is not None:
            state = whole_state(self.average.model, self.average.weights())
        else:
            state = self.engine.whole_state(weights)
        if self.world.rank == 0:
            torch.save(state, file)

    def close(self) -> None:
        """Free the loaders and the engine."""
        self.live.close()
        self.power.close()
        self.train_loader.close()
        self._val.close()
        self.engine.close()


def train_labels(
    prepared: Prepared, world: World, comm: Comm, skipped: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """The label of each training sample, -1 for what is `skipped`; each rank reads its share.

    All ranks must call it. Raises DataError for a label that is none of the set's.
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
    """[classes] samples / (classes * samples of the class), as scikit-learn's `balanced`; 1 for a
    class without samples."""
    counts = np.bincount(labels[labels >= 0], minlength=classes)
    weights = counts.sum() / (classes * np.maximum(counts, 1))
    return np.where(counts, weights, 1.0).astype(np.float32)


# The steps of one epoch, from where an earlier attempt stopped, and what they took.


def train_rest(loop: TrainingLoop, watch: Watch) -> tuple[SoFar, Asked | None]:
    """Take the steps that are left of the loop's epoch, or those until it is asked to stop.

    The finished part of the epoch then is the same on all ranks, which all call it.
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
    # the ranks of a pipeline wait for the one that takes images
    width = loop.plan.spec.strategy.model_workers
    waits = np.array(waits).reshape(-1, width).max(1).repeat(width).tolist()
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
    after a checkpoint is loaded."""
    return int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1, np.uint64)[0] >> 1)


# One exact pass over the validation set, shared among all ranks.

_FIVE = 5
MOST_CLASSES = 1000
"""Up to which validation counts by class: that takes 8 MB on each device."""


@dataclass(frozen=True)
class Validated:
    """Results of a whole validation set."""

    loss: float
    """Mean over samples."""
    top1: float
    """In [0, 1], as top-5."""
    top5: float | None
    """None where there are no more than five classes: it would always be 1."""
    confusion: Tensor | None
    """[classes, classes] of this rank's samples, by true class (row) and predicted class (column),
    on the device; None where there are too many classes."""


def validate(
    plan: RunPlan,
    world: World,
    engine: Engine,
    loader: Loader,
    average: WeightAverage | None,
    skipped: NDArray[np.bool_] | None,
    watch: Watch,
) -> Validated | Asked:
    """Over every validation sample but `skipped`, from all ranks, unless asked to stop meanwhile.

    Of the averaged weights where there is an `average`. All ranks must call it.
    """
    engine.average_buffers()
    engine.model.eval()
    forward = engine.forward
    if average is not None:
        engine.complete(average.model)
        average_buffers(average.model, engine.comm)
        settings = engine.settings
        forward = Autocast(average.model, settings.precision, world.device, settings.memory_format)
    replicas, replica = engine.replicas, engine.replica
    order, global_batch = np.arange(plan.dataset.val_samples), plan.micro_batch * replicas
    steps = rank_slices(order, global_batch, replicas, replica, skipped=skipped)
    # on the device: to read it at every batch would have the host wait for each
    sums = torch.zeros(3, dtype=torch.float64, device=world.device)
    classes = plan.dataset.classes
    few = classes <= _FIVE
    confusion = None
    if classes <= MOST_CLASSES:
        confusion = torch.zeros(classes * classes, dtype=torch.int64, device=world.device)
    watch.anew()
    with torch.no_grad():
        for batch in loader.batches([part for step in steps for part in step]):
            logits = forward(batch.images)[: batch.real].float()
            labels = batch.labels[: batch.real]
            loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            predicted = logits.argmax(1)
            correct = (predicted == labels).sum()
            if confusion is not None:  # not by bincount, for which the host waits
                confusion.scatter_add_(0, labels * classes + predicted, torch.ones_like(labels))
            first = logits.topk(1 if few else _FIVE).indices
            among = (first == labels.unsqueeze(1)).sum()
            sums += torch.stack([loss.double(), correct.double(), among.double()])
            if stop := watch.step():
                return stop
    if not engine.counts:
        sums.zero_()
        confusion = None if confusion is None else confusion.zero_()
    samples = sum(step_sizes(order, global_batch, skipped))
    loss, top1, top5 = (engine.comm.all_reduce(sums.cpu(), "sum") / samples).tolist()
    square = None if confusion is None else confusion.view(classes, classes)
    return Validated(loss, top1, None if few else top5, square)
