"""What raysuite takes from Ray Train that is not public is there, and means what it meant."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

from ray._private import services, worker
from ray._private.node import Node
from ray.train import ScalingConfig
from ray.train.v2._internal.callbacks.accelerators import AcceleratorSetupCallback
from ray.train.v2._internal.callbacks.backend_setup import BackendSetupCallback
from ray.train.v2._internal.callbacks.user_callback import UserCallbackHandler
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import state, worker_group
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.config import RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from raysuite.orchestrate.trainer import WorkersTrainer


def parameters(function: object) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]  # type: ignore[arg-type]


def test_what_is_replaced_has_the_same_form() -> None:
    assert parameters(WorkerGroup._init_train_context_on_workers) == [
        "workers",
        "sync_actor",
        "train_context_args",
    ]
    assert parameters(WorkerGroup._get_worker_runtime_env) == ["custom_runtime_env"]
    assert TrainController.worker_group_cls is WorkerGroup
    assert inspect.iscoroutinefunction(TrainController.run)
    source = inspect.getsource(DataParallelTrainer.fit)
    assert "self._initialize_and_run_controller(" in source
    assert "callbacks=self._create_default_callbacks()" in source
    assert "self.worker_group_cls.create(" in inspect.getsource(TrainController)
    assert callable(worker_group.SynchronizationActor.options)
    assert parameters(state._shutdown_sync_actor) == ["sync_actor"]
    for name in (
        "after_controller_start",
        "_maybe_send_resource_request",
        "_send_resource_request",
    ):
        assert callable(getattr(FixedScalingPolicy, name))
    assert parameters(FixedScalingPolicy) == ["scaling_config"]
    source = inspect.getsource(Node)
    for name in ("start_monitor", "start_log_monitor", "start_api_server"):
        assert source.count(f"self.{name}(") == 1
        assert "return " not in inspect.getsource(getattr(Node, name))
    assert "utils.get_dashboard_dependency_error() is not None" in inspect.getsource(
        services.start_raylet
    )
    assert issubclass(services.ConsolePopen, subprocess.Popen)
    assert inspect.getsource(worker).count("utils.set_sigterm_handler(") >= 2
    assert "= ConsolePopen(" in inspect.getsource(services.start_ray_process)


def test_a_worker_needs_no_more_than_it_is_given() -> None:
    found = inspect.signature(RayTrainWorker.init_train_context).parameters
    needed = {name for name, each in found.items() if each.default is inspect.Parameter.empty}
    assert needed - {"self"} == {
        "train_run_context",
        "distributed_context",
        "synchronization_actor",
        "storage_context",
        "worker_callbacks",
        "controller_actor",
    }


def test_no_callback_starts_an_actor(tmp_path: Path) -> None:
    trainer = WorkersTrainer(
        "os:getcwd", {}, ScalingConfig(num_workers=2), RunConfig(storage_path=str(tmp_path))
    )
    made = trainer._create_default_callbacks()
    kinds = [AcceleratorSetupCallback, BackendSetupCallback, UserCallbackHandler]
    assert [type(each) for each in made] == kinds
    assert trainer.backend_config.backend_cls.share_cuda_visible_devices


def test_the_driver_does_without_torch() -> None:
    """It takes seconds to import."""
    names = ("suite", "stopping", "trainer", "controller", "groups", "cluster")
    lines = [f"import raysuite.orchestrate.{name}" for name in names]
    ask = "; ".join(["import sys, raysuite.cli.driver", *lines, "print('torch' in sys.modules)"])
    assert subprocess.check_output([sys.executable, "-c", ask], text=True) == "False\n"
