"""Lightning Fabric around PyTorch's DDP: shows the wrapper's cost over plain DDP."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from raysuite.errors import MissingPartError
from raysuite.parallel.base import (
    Engine,
    MakeOptimizer,
    StepSettings,
    TorchEngine,
    TorchGroupStrategy,
    World,
    set_lr,
)
from raysuite.parallel.comm import TorchComm
from raysuite.spec.strategies import FabricOptions

if TYPE_CHECKING:
    from raysuite.data.base import Batch


def _fabric() -> Any:
    try:
        import lightning_fabric
    except ImportError as error:
        raise MissingPartError(f"Lightning Fabric cannot be loaded ({error})") from error
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    return lightning_fabric


class Fabric(TorchGroupStrategy):
    """Gradients are averaged by the DDP that Fabric sets up."""

    def __init__(self, options: FabricOptions) -> None:
        self.options = options

    def start(self, world: World) -> None:
        """Join torch's group, which Fabric then finds. Raises MissingPartError without Fabric."""
        _fabric()
        super().start(world)

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        return FabricEngine(model, make_optimizer, self.world, settings, self.options)


def _environment(world: World) -> Any:
    """One process on each of Fabric's nodes, whichever hosts they are on: it starts none."""
    from lightning_fabric.plugins.environments import ClusterEnvironment

    class Started(ClusterEnvironment):
        creates_processes_externally = True
        main_address, main_port = "", 0  # the group is joined already

        @staticmethod
        def detect() -> bool:
            return False

        def world_size(self) -> int:
            return world.size

        def set_world_size(self, size: int) -> None:
            pass

        def global_rank(self) -> int:
            return world.rank

        def set_global_rank(self, rank: int) -> None:
            pass

        def local_rank(self) -> int:
            return 0

        def node_rank(self) -> int:
            return world.rank

    return Started()


class FabricEngine(TorchEngine):
    """A training step through Fabric's module, optimiser and backward pass."""

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        world: World,
        settings: StepSettings,
        options: FabricOptions,
    ) -> None:
        super().__init__(model, TorchComm(world.device), world, settings, whole_gradients=True)
        from lightning_fabric.strategies import DDPStrategy

        on_gpu = world.device.type == "cuda"
        self._fabric = _fabric().Fabric(
            accelerator="cuda" if on_gpu else "cpu",
            devices=[world.device.index] if on_gpu else 1,
            num_nodes=world.size,
            strategy=DDPStrategy(
                cluster_environment=_environment(world),
                bucket_cap_mb=options.bucket_mb,
                broadcast_buffers=False,  # as bare DDP has it here
                gradient_as_bucket_view=True,
            ),
        )
        self._fabric.launch()
        self.optimizer = make_optimizer(model.parameters())
        self.scale.guard(self.optimizer)
        with warnings.catch_warnings():
            # newer versions of torch call broadcast_buffers forward_sync_buffers
            warnings.simplefilter("ignore", FutureWarning)
            self._module, self._optimizer = self._fabric.setup(self.autocast, self.optimizer)

    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        set_lr(self.optimizer, lr)
        self._optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.world.device)
        for index, batch in enumerate(micro_batches):
            more = index < len(micro_batches) - 1
            with self._fabric.no_backward_sync(self._module, enabled=more):
                loss, summed = self.loss(batch, self._module(batch.images))
                self._fabric.backward(loss)
            total += summed
        self.scale.decide()
        if self.settings.clip_norm is not None:
            self._fabric.clip_gradients(
                self._module,
                self._optimizer,
                max_norm=self.settings.clip_norm,
                error_if_nonfinite=False,
            )
        self._optimizer.step()
        self.scale.update()
        return total
