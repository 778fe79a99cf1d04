"""One process, no distribution: the baseline, and the gate's reference."""

from __future__ import annotations

from torch import nn

from raysuite.parallel.base import Engine, MakeOptimizer, StepSettings, TorchEngine, World
from raysuite.parallel.comm import NoComm
from raysuite.spec.strategies import SingleOptions


class Single:
    """No distribution."""

    lossy = False

    def __init__(self, options: SingleOptions | None = None) -> None:
        self._world: World | None = None

    def start(self, world: World) -> None:
        self._world = world

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        assert self._world is not None, "start() comes first"
        return SingleEngine(model, make_optimizer, self._world, settings)

    def stop(self) -> None:
        self._world = None


class SingleEngine(TorchEngine):
    """A plain training step."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, world: World, settings: StepSettings
    ) -> None:
        super().__init__(model, NoComm(), world, settings, whole_gradients=True)
        self.optimizer = make_optimizer(model.parameters())
        self.scale.guard(self.optimizer)
