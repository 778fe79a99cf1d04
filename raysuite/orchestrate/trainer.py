"""A worker group of Ray Train whose processes join no process group by themselves.

The strategies join and leave theirs, run by run, so that one group of processes serves a whole
suite: PyTorch-DDP, Horovod and DeepSpeed, and worlds of several sizes.

Ray Train V2 starts its controller in an actor, and an actor each for data sets, preemptions and
the cleaning of placement groups; each is a process that imports Ray. Here the controller runs in
the driver, in the thread that calls `fit`, and the others, which raysuite does not need, are left
out. This uses classes of Ray that are not public: tests/unit/orchestrate/test_trainer.py fails
where a version of Ray changes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.train import ScalingConfig
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.callbacks.accelerators import AcceleratorSetupCallback
from ray.train.v2._internal.callbacks.user_callback import UserCallbackHandler
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.callback import RayTrainCallback, UserCallback
from ray.train.v2.api.config import RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from raysuite.lazy import load


class _Backend(Backend):
    # as in Ray's TorchTrainer: every worker sees all GPUs of its node that the group has
    share_cuda_visible_devices = True


@dataclass
class _Config(BackendConfig):
    @property
    def backend_cls(self) -> type[Backend]:
        return _Backend


class _Workers(WorkerGroup):
    def _init_train_context_on_workers(
        self, workers: Sequence[Any], sync_actor: Any, train_context_args: dict[str, list[Any]]
    ) -> None:
        """As Ray's, which asks for the actor that the controller is: here it is none."""
        ray.get(
            [
                worker.actor.init_train_context.remote(
                    train_run_context=self._train_run_context,
                    distributed_context=worker.distributed_context,
                    synchronization_actor=sync_actor,
                    storage_context=self._storage_context,
                    worker_callbacks=self._worker_callbacks_to_propagate,
                    controller_actor=None,
                    **{name: values[place] for name, values in train_context_args.items()},
                )
                for place, worker in enumerate(workers)
            ]
        )

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:
        """Without Ray Train's own variables, so that workers may be processes that wait already."""
        return custom_runtime_env


class _Controller(TrainController):
    worker_group_cls = _Workers


class WorkersTrainer(DataParallelTrainer):
    """Runs a function of the worker processes, named as module:function, with `config` on each.

    The driver does not import it, nor torch with it. Failure policy and worker group are Ray
    Train's.
    """

    def __init__(
        self,
        work: str,
        config: dict[str, Any],
        scaling_config: ScalingConfig,
        run_config: RunConfig,
    ) -> None:
        super().__init__(
            _work,
            train_loop_config={**config, "work": work},
            backend_config=_Config(),
            scaling_config=scaling_config,
            run_config=run_config,  # type: ignore[arg-type]  # V1's is what Ray's types name
        )

    def _create_default_callbacks(self) -> list[RayTrainCallback]:
        given: list[Any] = list(self.run_config.callbacks or [])
        users = [each for each in given if isinstance(each, UserCallback)]
        scaling: Any = self.scaling_config
        return [
            AcceleratorSetupCallback(self.backend_config, scaling),
            UserCallbackHandler(user_callbacks=users, train_run_context=self.train_run_context),
            *(each for each in given if not isinstance(each, UserCallback)),
        ]

    def _initialize_and_run_controller(self, **settings: Any) -> Any:
        controller = _Controller(**settings)
        asyncio.run(controller.run())
        return controller.get_result()


def _work(config: dict[str, Any]) -> None:
    load(config["work"])(config)
