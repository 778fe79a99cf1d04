"""One process, no distribution: the baseline, and the gate's reference."""

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
    """No distribution."""

    engine = SingleEngine
