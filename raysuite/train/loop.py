"""The training loop: one epoch of steps, one exact validation, a checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysuite import models, optim
from raysuite.data import make_loader, prepare
from raysuite.data.base import Batch, Slice
from raysuite.data.order import permutation, rank_slices, step_sizes
from raysuite.measure.clock import now
from raysuite.optim.average import WeightAverage
from raysuite.optim.schedule import factor
from raysuite.parallel.base import StepSettings, Strategy, World
from raysuite.plan import RunPlan
from raysuite.records import EpochFinished
from raysuite.train.costs import EpochPower
from raysuite.train.validation import validate


class TrainingLoop:
    """One RunPlan on one rank."""

    def __init__(self, plan: RunPlan, world: World, strategy: Strategy) -> None:
        self.plan = plan
        self.world = world
        self.epoch = 0
        self.step = 0
        self.time_to_accuracy: float | None = None
        self.first_step_at: float | None = None
        """Monotonic time at the end of the first optimiser step of this attempt."""
        self._steps_here = 0  # in this attempt: a fresh process warms up anew
        self._elapsed_before = 0.0
        self._began: float | None = None
        training = plan.spec.training
        torch.manual_seed(plan.seed)  # the same weights on all ranks
        model = models.build(plan.spec.model, plan.dataset).to(world.device)
        # a copy of the bare model: frameworks replace weights, or put hooks on them
        self.average = WeightAverage(model, training.ema_decay) if training.ema_decay else None
        self.engine = strategy.prepare(
            model,
            lambda parameters: optim.build_optimizer(plan.spec.optimizer, parameters, plan.peak_lr),
            StepSettings(
                micro_batch=plan.micro_batch,
                accumulate=plan.accumulate,
                clip_norm=training.clip_norm,
                precision=training.precision,
                label_smoothing=training.label_smoothing,
            ),
        )
        self.prepared = prepare(plan.spec.data, plan.dataset)
        self.skipped: dict[str, NDArray[np.bool_]] = {}
        """Split -> [samples], True for what is left out on all ranks; set before the first epoch"""
        self.train_loader = make_loader(self.prepared, "train", plan.spec.loader, world.device)
        self._val = make_loader(self.prepared, "val", plan.spec.loader, world.device)
        self.power = EpochPower(plan, world)

    def run_epoch(self) -> EpochFinished:
        """Train one epoch and validate. The Record is the same on all ranks."""
        plan, device, first_step = self.plan, self.world.device, self.step
        steps, sizes = self.slices(self.epoch)
        rates = [self.learning_rate(first_step + index) for index in range(len(steps))]
        steady_from = max(0, plan.spec.measure.warmup_steps - self._steps_here)

        # dropout: other draws on each rank, and the same ones after a checkpoint is taken up
        torch.manual_seed(_draws(plan.seed, self.epoch, self.world.rank))
        self.engine.model.train()
        self.power.begin()
        began = steady_began = now(device)
        if self._began is None:
            self._began = began
        losses: list[Tensor] = []
        waited = 0.0
        batches = self.train_loader.batches([part for step in steps for part in step])
        for index, (step, rate) in enumerate(zip(steps, rates, strict=True)):
            if index == steady_from and index > 0:
                steady_began = now(device)
            asked = time.perf_counter()
            micro_batches = [next(batches) for _ in step]
            waited += time.perf_counter() - asked
            losses.append(self.train_step(micro_batches, rate))
            self.step += 1
            self._steps_here += 1
            if self.first_step_at is None:
                self.first_step_at = now(device)
        ended = now(device)
        self.power.end()

        steady = max(0, len(steps) - steady_from)
        seconds, steady_seconds = self._slowest(
            [ended - began, ended - steady_began if steady else 0.0]
        )
        sums = self.engine.comm.all_reduce(torch.stack(losses).double().cpu(), "sum")
        means = (sums / torch.tensor(sizes)).tolist()  # not a number where none counts
        val_loss, val_accuracy, val_top5 = validate(
            plan, self.world, self.engine, self._val, self.average, self.skipped.get("val")
        )
        validated = now(device)
        elapsed = self._slowest([self._elapsed_before + self._elapsed()])[0]
        target = plan.spec.training.target_accuracy
        if target is not None and val_accuracy >= target and self.time_to_accuracy is None:
            self.time_to_accuracy = elapsed
        self.epoch += 1
        return EpochFinished(
            run_id=plan.run_id,
            epoch=self.epoch - 1,
            first_step=first_step,
            losses=means,
            learning_rates=rates,
            images=sum(sizes),
            seconds=seconds,
            steady_images=sum(sizes[steady_from:]),
            steady_seconds=steady_seconds,
            data_wait_seconds=self.per_worker(waited),
            validation_seconds=self._slowest([validated - ended])[0],
            train_loss=float(sums.sum() / sum(sizes)),
            val_loss=val_loss,
            val_accuracy=val_accuracy,
            val_top5=val_top5,
            elapsed_seconds=elapsed,
            power=self.power.use(self.engine.comm),
        )

    def _elapsed(self) -> float:
        """Seconds since this attempt touched its first sample."""
        return 0.0 if self._began is None else time.perf_counter() - self._began

    def slices(self, epoch: int) -> tuple[list[list[Slice]], list[int]]:
        """This rank's micro-batches of each step of an epoch, and each step's samples in all."""
        plan, skipped = self.plan, self.skipped.get("train")
        order = permutation(plan.dataset.train_samples, plan.seed, epoch)
        draw = (plan.seed, epoch)
        batch, ranks, rank = plan.global_batch, plan.workers, self.world.rank
        steps = rank_slices(order, batch, ranks, rank, plan.accumulate, draw, skipped)
        return list(steps), step_sizes(order, batch, skipped)

    def train_step(self, micro_batches: Sequence[Batch], rate: float) -> Tensor:
        """One optimiser step; the summed loss of this rank's samples, on the device."""
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

    def _slowest(self, seconds: list[float]) -> list[float]:
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
        if self.world.rank == 0:
            if self.average is not None:
                self.average.save(folder / "average.pt")
            state = {
                "run_id": self.plan.run_id,
                "epoch": self.epoch,
                "step": self.step,
                "elapsed_seconds": self._elapsed_before + self._elapsed(),
                "time_to_accuracy": self.time_to_accuracy,
            }
            (folder / "loop.json").write_text(json.dumps(state))

    def load(self, folder: Path) -> None:
        """Take up a checkpoint."""
        self.engine.load(folder)
        if self.average is not None:
            self.average.load(folder / "average.pt")
        state = json.loads((folder / "loop.json").read_text())
        self.epoch, self.step = state["epoch"], state["step"]
        self._elapsed_before = state["elapsed_seconds"]
        self.time_to_accuracy = state["time_to_accuracy"]

    def save_model(self, file: Path, weights: dict[str, Tensor]) -> None:
        """Write the whole state of the model that was validated: its weights and its buffers."""
        model = self.engine.model
        if self.average is not None:
            model, weights = self.average.model, self.average.weights()
        buffers = {name: value.cpu() for name, value in model.named_buffers()}
        torch.save({**weights, **buffers}, file)

    def close(self) -> None:
        """Free the loaders and the engine."""
        self.power.close()
        self.train_loader.close()
        self._val.close()
        self.engine.close()


def _draws(seed: int, epoch: int, rank: int) -> int:
    """A seed of its own for each epoch of each rank."""
    return int(np.random.SeedSequence([seed, epoch, rank]).generate_state(1, np.uint64)[0] >> 1)


def checkpoint_run_id(folder: Path) -> str:
    """Which run a checkpoint belongs to; empty if it is none."""
    try:
        return str(json.loads((folder / "loop.json").read_text())["run_id"])
    except (OSError, ValueError, KeyError):
        return ""
