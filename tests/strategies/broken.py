"""A strategy of one's own, right or with one flaw: what the gate must let pass, and what not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from raysuite.data.base import Batch
from raysuite.parallel.base import (
    Engine,
    MakeOptimizer,
    StepSettings,
    TorchEngine,
    TorchGroupStrategy,
    World,
    set_lr,
)
from raysuite.parallel.comm import Comm, NoComm, TorchComm
from raysuite.spec.strategies import Lossy

FLAWS = {
    "no_sync": "the ranks hold different weights",
    "sum": "differ by",
    "divides_twice": "differ by",
    "unweighted": "differ by",
    "ignores_rate": "differ by",
    "clips_before": "differ by",
    "wrong_loss": "losses differ by",
    "other_logits": "logits differ by",
    "first_weights": "differ by",
    "nan": "not finite",
    "lacks_weights": "other names or shapes",
    "comm_of_one": "does not reach all ranks",
    "comm_of_echoes": "does not reach all ranks",
}
"""Flaw -> what the gate says of it."""


class Broken(TorchGroupStrategy):
    """Averages gradients by hand; `flaw` says what is wrong with that.

    `mark`: a file that is made when the flaw `hangs` begins to hang.
    """

    def __init__(self, flaw: str = "none", lossy: Lossy | None = None, mark: str = "") -> None:
        self.flaw = flaw
        self.lossy = lossy
        self.mark = mark

    def comm(self) -> Comm:
        """The collectives of an engine."""
        return TorchComm(self.world.device)

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        return BrokenEngine(model, make_optimizer, self.world, settings, self)


class BrokenEngine(TorchEngine):
    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        world: World,
        settings: StepSettings,
        strategy: Broken,
    ) -> None:
        comm = NoComm() if strategy.flaw == "comm_of_one" else strategy.comm()
        if strategy.flaw == "comm_of_echoes":  # each rank gets its own number from all others
            comm.all_gather = lambda value: torch.stack([value] * comm.size)  # type: ignore[method-assign]
        super().__init__(model, comm, world, settings)
        self.flaw = strategy.flaw
        self.mark = strategy.mark
        self.optimizer = make_optimizer(model.parameters())
        self.steps = 0
        self.first = super().weights()

    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        if self.flaw == "raises" and self.world.rank == 1:
            raise ValueError("rank 1 has had enough")
        if self.flaw == "hangs" and self.world.rank == 1:
            Path(self.mark).touch()
            time.sleep(600)
        if self.flaw != "ignores_rate":
            set_lr(self.optimizer, lr)
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for batch in micro_batches:
            loss, summed = self.loss(batch, self.autocast(batch.images))
            if self.flaw == "unweighted" and batch.real:
                loss = summed_mean(self, batch)
            if self.flaw == "divides_twice":
                loss = loss / len(micro_batches)
            loss.backward()
            total += summed
        if self.flaw == "clips_before":
            self.clip()
        self._synchronise()
        if self.flaw != "clips_before":
            self.clip()
        self.optimizer.step()
        self.steps += 1
        if self.flaw == "nan":
            next(iter(self.model.parameters())).data.fill_(float("nan"))
        return total / len(micro_batches[0].images) if self.flaw == "wrong_loss" else total

    def _synchronise(self) -> None:
        tires = self.flaw == "tires" and self.steps >= 5  # after more steps than the gate makes
        if self.flaw in ("no_sync", "comm_of_one", "comm_of_echoes") or tires:
            return
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad = self.comm.all_reduce(parameter.grad, "sum")
            if self.flaw != "sum":
                parameter.grad /= self.world.size

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        return logits * 1.001 if self.flaw == "other_logits" else logits

    def weights(self) -> dict[str, Tensor]:
        if self.flaw == "first_weights":
            return self.first
        weights = super().weights()
        if self.flaw == "lacks_weights":
            weights.popitem()
        return weights


def summed_mean(engine: TorchEngine, batch: Batch) -> Tensor:
    """The mean over the rank's own samples, as most training scripts have it."""
    logits = engine.autocast(batch.images)[: batch.real]
    loss = nn.functional.cross_entropy(logits, batch.labels[: batch.real])
    return loss / engine.settings.accumulate
