"""A Horovod trainer for Ray Train V2.

Ray's own HorovodTrainer raises under V2. What V2 does take is a BackendConfig and its Backend:
here the backend starts Horovod's Gloo rendezvous in the trainer's controller, tells every worker
its place in HOROVOD_* variables, and starts and ends Horovod in the worker processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from raysuite.parallel.horovod_env import TIMELINE, Rendezvous, rank_variables
from raysuite.units import MIB


@dataclass
class HorovodConfig(BackendConfig):
    """How Horovod is started.

    fusion_threshold_mb: tensors are fused up to this many MiB. cycle_time_ms: milliseconds
    between two looks at the queue. interface: network interface for Gloo, where nodes have
    several. start_timeout_s: how long ranks wait for each other at the start.
    """

    fusion_threshold_mb: float = 128.0
    cycle_time_ms: float = 1.0
    interface: str | None = None
    start_timeout_s: int = 60

    @property
    def backend_cls(self) -> type[Backend]:
        """The backend that this configures."""
        return HorovodBackend

    def variables(self) -> dict[str, str]:
        """Horovod's environment variables for these settings."""
        variables = {
            "HOROVOD_FUSION_THRESHOLD": str(int(self.fusion_threshold_mb * MIB)),
            "HOROVOD_CYCLE_TIME": str(self.cycle_time_ms),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(self.start_timeout_s),
        }
        if self.interface is not None:
            variables["HOROVOD_GLOO_IFACE"] = self.interface
        return variables


class HorovodBackend(Backend):
    """Starts Horovod on a worker group, and ends it before the workers end."""

    # the backend is one object per process, and a controller serves one worker group at a time
    _rendezvous: Rendezvous | None = None

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        """Give each worker its rank and the rendezvous's address, and start Horovod."""
        assert isinstance(backend_config, HorovodConfig)
        self._end_rendezvous()  # of an attempt whose workers died
        nodes = [worker.metadata.node_id for worker in worker_group.get_workers()]
        self._rendezvous = Rendezvous(nodes)
        shared = {
            **backend_config.variables(),
            **self._rendezvous.variables(ray.util.get_node_ip_address()),
        }
        ray.get(
            [
                worker_group.execute_single_async(rank, _start, {**own, **shared})
                for rank, own in enumerate(rank_variables(nodes))
            ]
        )

    def on_shutdown(self, worker_group: Any, backend_config: BackendConfig) -> None:
        """End Horovod on each worker, then the rendezvous."""
        try:
            worker_group.execute(_stop)
        finally:
            self._end_rendezvous()

    def _end_rendezvous(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.stop()
            self._rendezvous = None


def _start(variables: dict[str, str]) -> None:
    import horovod.torch as hvd

    os.environ.update({**TIMELINE, **os.environ, **variables})
    hvd.init()


def _stop() -> None:
    import horovod.torch as hvd

    if hvd.is_initialized():
        hvd.shutdown()


class HorovodTrainer(DataParallelTrainer):
    """Runs a function on every Horovod rank of a Ray worker group.

    In the function, `hvd.init()` has been called. Failure policy and checkpoints are Ray Train's.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        horovod_config: HorovodConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=horovod_config or HorovodConfig(),
            scaling_config=scaling_config,
            run_config=run_config,
        )
