"""A worker group of Ray Train whose processes join no process group by themselves.

The strategies join and leave theirs, run by run, so that one group of processes serves a whole
suite: PyTorch-DDP, Horovod and DeepSpeed, and worlds of several sizes.

Ray Train V2 starts its controller and five helpers (for data sets, preemptions, placement groups,
reports and resources) as actors, each a process that imports Ray. Here the controller runs in the
driver, in the thread that calls `fit`, and the helpers, which raysuite does not need, are left out.
This uses classes of Ray that are not public: tests/unit/orchestrate/test_trainer.py fails where a
version of Ray changes them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import ray
from ray.train import ScalingConfig
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.callbacks.accelerators import AcceleratorSetupCallback
from ray.train.v2._internal.callbacks.backend_setup import BackendSetupCallback
from ray.train.v2._internal.callbacks.user_callback import UserCallbackHandler
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import state, worker_group
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.callback import RayTrainCallback, UserCallback
from ray.train.v2.api.config import RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from raysuite.lazy import load

if TYPE_CHECKING:
    from raysuite.orchestrate.groups import Began

_HALTS_S = 3.0
"""Longer than two polls of the workers."""


class _Backend(Backend):
    """Gives all workers the store of their runs' process groups, in rank 0's process."""

    # as in Ray's TorchTrainer: every worker sees all GPUs of its node that the group has
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        address = worker_group.execute_single(0, _open_store)
        worker_group.execute(_join_store, *address)
        if isinstance(backend_config, _Config) and backend_config.began is not None:
            backend_config.began(*address)


def _open_store() -> tuple[str, int]:
    from raysuite.orchestrate.rendezvous import open_store

    return open_store()


def _join_store(host: str, port: int) -> None:
    from raysuite.orchestrate.rendezvous import join_store

    join_store(host, port)


@dataclass
class _Config(BackendConfig):
    began: Began | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"began": None}  # it is called in this process alone

    @property
    def backend_cls(self) -> type[Backend]:
        return _Backend


class _NoActor:
    """Replaces Ray's SynchronizationActor, which is needed by `ray.train.report` only."""

    @classmethod
    def options(cls, **_: Any) -> type[_NoActor]:
        return cls

    @classmethod
    def remote(cls, **_: Any) -> type[_NoActor]:
        return cls


@contextmanager
def _no_actor() -> Iterator[None]:
    with (
        patch.object(worker_group, "SynchronizationActor", _NoActor),
        patch.object(state, "_shutdown_sync_actor", lambda actor: None),
    ):
        yield


class _Workers(WorkerGroup):
    def _start(self) -> None:
        """As Ray's, which forgets a group whose backend could not start, as where a node is lost
        then: its workers would keep their processors, and no other group could start."""
        with _no_actor():
            try:
                super()._start()
            except Exception:
                if self._worker_group_state is not None:
                    self._worker_group_state.shutdown()
                    self._clear_state()
                raise

    def shutdown(self) -> None:
        with _no_actor():
            super().shutdown()

    def abort(self) -> None:
        with _no_actor():
            super().abort()

    def _init_train_context_on_workers(
        self, workers: Sequence[Any], sync_actor: Any, train_context_args: dict[str, list[Any]]
    ) -> None:
        """As Ray's, which asks for the actor that the controller is: here it is none."""
        ray.get(
            [
                worker.actor.init_train_context.remote(
                    train_run_context=self._train_run_context,
                    distributed_context=worker.distributed_context,
                    synchronization_actor=None,
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
    trainer: WorkersTrainer

    async def _run_control_loop_iteration(self) -> None:
        if self.trainer.halted.is_set():
            self.trainer.rests.set()
            await asyncio.Event().wait()  # for ever, in a thread that ends with the process
        await super()._run_control_loop_iteration()


class _Fixed(FixedScalingPolicy):
    """Always as many workers. Ray's own also registers them with an actor of Ray Data's."""

    def _maybe_send_resource_request(self) -> None:
        pass

    def _send_resource_request(self) -> None:
        pass

    def after_controller_start(self, train_run_context: Any) -> None:
        pass


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
        began: Began | None = None,
    ) -> None:
        self.halted, self.rests = threading.Event(), threading.Event()
        super().__init__(
            _work,
            train_loop_config={**config, "work": work},
            backend_config=_Config(began),
            scaling_config=scaling_config,
            run_config=run_config,  # type: ignore[arg-type]  # V1's is what Ray's types name
        )

    def halt(self) -> None:
        """Make the thread that calls `fit` stop calling Ray: a call while Ray shuts down ends the
        process, with code 1."""
        self.halted.set()
        self.rests.wait(_HALTS_S)

    def _create_default_callbacks(self) -> list[RayTrainCallback]:
        given: list[Any] = list(self.run_config.callbacks or [])
        users = [each for each in given if isinstance(each, UserCallback)]
        scaling: Any = self.scaling_config
        return [
            AcceleratorSetupCallback(self.backend_config, scaling),
            BackendSetupCallback(self.backend_config),
            UserCallbackHandler(user_callbacks=users, train_run_context=self.train_run_context),
            *(each for each in given if not isinstance(each, UserCallback)),
        ]

    def _initialize_and_run_controller(self, **settings: Any) -> Any:
        settings["scaling_policy"] = _Fixed(settings["scaling_policy"].scaling_config)
        controller = _Controller(**settings)
        controller.trainer = self
        asyncio.run(controller.run())
        return controller.get_result()


def _work(config: dict[str, Any]) -> None:
    load(config["work"])(config)
