"""Train with Lightning Fabric, which wraps PyTorch's DDP. The comparison with the strategy ddp
shows the cost of the wrapper."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

import lightning_fabric
from lightning_fabric.plugins.environments import ClusterEnvironment
from lightning_fabric.strategies import DDPStrategy
from torch import Tensor

from raysuite.parallel.base import FrameworkEngine, TorchEngine, TorchGroupStrategy, World

if TYPE_CHECKING:
    from raysuite.data.base import Batch


logging.getLogger("lightning_fabric").setLevel(logging.ERROR)


class _Started(ClusterEnvironment):
    """A cluster environment for Fabric in which all processes have started already. Fabric sees
    each process as a separate node, even if several run on one host."""

    creates_processes_externally = True
    main_address, main_port = "", 0  # unused: the process is already in the group

    def __init__(self, world: World) -> None:
        self._world = world

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._world.size

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return self._world.rank

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return self._world.rank


class FabricEngine(FrameworkEngine, TorchEngine):
    """A training step through Fabric's module, optimiser and backward pass."""

    def wrap(self) -> None:
        device = self.world.device
        on_gpu = device.type == "cuda"
        self._fabric = lightning_fabric.Fabric(
            accelerator="cuda" if on_gpu else "cpu",
            devices=[device.index] if on_gpu else 1,
            num_nodes=self.world.size,
            strategy=DDPStrategy(
                cluster_environment=_Started(self.world),
                bucket_cap_mb=self.options.bucket_mb,
                broadcast_buffers=False,  # as in raysuite's plain DDP
                gradient_as_bucket_view=True,
            ),
        )
        self._fabric.launch()
        with warnings.catch_warnings():
            # newer versions of torch call broadcast_buffers forward_sync_buffers
            warnings.simplefilter("ignore", FutureWarning)
            self._module, self._optimizer = self._fabric.setup(self.autocast, self.optimizer)

    def add_gradients(self, batch: Batch, last: bool) -> Tensor:
        with self._fabric.no_backward_sync(self._module, enabled=not last):
            loss, summed = self.loss(batch, self._module(batch.images))
            self._fabric.backward(loss)
        return summed

    def update_weights(self) -> None:
        self._optimizer.step()

    def clip_to(self, limit: float) -> Tensor:
        norm: Tensor | None = self._fabric.clip_gradients(
            self._module, self._optimizer, max_norm=limit, error_if_nonfinite=False
        )
        assert norm is not None, "Fabric returns the norm for this strategy"
        return norm


class Fabric(TorchGroupStrategy):
    """Gradients are averaged by the DDP that Fabric sets up, on torch's group."""

    engine = FabricEngine
