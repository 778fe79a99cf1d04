"""Train on one process: the baseline of speed-ups, and the reference of the gate."""

from __future__ import annotations

from torch import nn

from raysuite.parallel.base import BaseStrategy, MakeOptimizer, StepSettings, TorchEngine, World
from raysuite.parallel.comm import NoComm


class SingleEngine(TorchEngine):
    """A plain training step."""

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        world: World,
        settings: StepSettings,
        options: object = None,
    ) -> None:
        super().__init__(model, NoComm(), world, settings, whole_gradients=True)
        self.optimizer = make_optimizer(model.parameters())
        self.scale.guard(self.optimizer)


class Single(BaseStrategy):
    """Training on one process; no gradients are exchanged."""

    engine = SingleEngine
