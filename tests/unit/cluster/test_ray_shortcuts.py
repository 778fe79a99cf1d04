"""What raysuite takes from Ray that is not public: it is there, and can be left out."""

from __future__ import annotations

import inspect
import os
import subprocess
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ray._private import services
from ray._private.node import Node
from ray._private.ray_constants import (
    PROCESS_TYPE_DASHBOARD_AGENT,
    PROCESS_TYPE_RUNTIME_ENV_AGENT,
)
from ray.train.v2._internal.callbacks.accelerators import AcceleratorSetupCallback
from ray.train.v2._internal.callbacks.backend_setup import BackendSetupCallback
from ray.train.v2._internal.execution.controller.controller import TrainController
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import state, worker_group
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError, WorkerGroupError

from raysuite.cluster import ray_shortcuts, worker_fork
from raysuite.cluster.ray_shortcuts import SHORTCUTS, UnavailableError, fit_in_driver
from tests.waiting import until


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHORTCUTS, raising=False)
    monkeypatch.setattr(ray_shortcuts, "_differing", set())


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
    source = inspect.getsource(services.start_raylet)
    assert "PROCESS_TYPE_DASHBOARD_AGENT, session_dir" in source
    assert 'f"--runtime_env_agent_port={runtime_env_agent_port}"' in source
    assert "runtime_env_agent_port=self._ray_params" in inspect.getsource(Node.start_raylet)
    assert "worker_path" in parameters(services.start_raylet)
    assert issubclass(services.ConsolePopen, subprocess.Popen)
    assert "= ConsolePopen(" in inspect.getsource(services.start_ray_process)
    for callback in (AcceleratorSetupCallback, BackendSetupCallback):
        assert callback.__name__ in inspect.getsource(DataParallelTrainer._create_default_callbacks)


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


@pytest.mark.parametrize("error", [TimeoutError, RuntimeError, WorkerGroupError])
def test_workers_whose_backend_does_not_start_are_ended(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    ended: list[str] = []

    def fails(group: Any) -> None:
        group._worker_group_state = SimpleNamespace(shutdown=lambda: ended.append("workers"))
        raise error.__new__(error)

    monkeypatch.setattr(WorkerGroup, "_start", fails)
    monkeypatch.setattr(WorkerGroup, "_clear_state", lambda group: ended.append("state"))
    group = object.__new__(ray_shortcuts._worker_group())
    with pytest.raises(error):
        group._start()
    assert ended == ["workers", "state"]


def test_errors_of_a_start_that_failed_have_these_names() -> None:
    from ray.train.v2._internal.execution.failure_handling.default import (
        RETRYABLE_CONTROLLER_ERRORS,
    )

    from raysuite.orchestrate.trainer import _START_FAILED

    assert all(each.__name__.startswith(_START_FAILED) for each in RETRYABLE_CONTROLLER_ERRORS)


def _lookup(find: Any) -> Any:
    return lambda *_: "found"


def test_a_lookup_is_replaced_within_the_context() -> None:
    before = services.get_node
    with ray_shortcuts.node_lookup(_lookup):
        assert services.get_node("127.0.0.1:1", "e5") == "found"  # type: ignore[comparison-overlap]
    assert services.get_node is before


def test_the_raylet_is_given_a_port_and_a_placeholder_for_the_dashboards_agent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raylet(address: str, worker_path: str, runtime_env_agent_port: int, head: bool) -> Any:
        given = address, worker_path, runtime_env_agent_port, head
        return given, os.environ[worker_fork.PROGRAM]

    monkeypatch.setattr(services, "start_raylet", raylet)
    command = services._build_python_executable_command_memory_profileable
    with ray_shortcuts.fewest_processes(20_000) as replaced:
        assert replaced
        started: Any = services.start_raylet(
            "address", "worker.py", runtime_env_agent_port=0, head=True
        )
        build = services._build_python_executable_command_memory_profileable
        program = build(PROCESS_TYPE_DASHBOARD_AGENT, "session")
        other = build(PROCESS_TYPE_RUNTIME_ENV_AGENT, "session")
    assert started == (("address", worker_fork.__file__, 20_000, True), "worker.py")
    assert worker_fork.PROGRAM not in os.environ
    assert other == ["nice", "-n", "10", *command(PROCESS_TYPE_RUNTIME_ENV_AGENT, "session")]
    parent = ["sh", "-c", '"$@" >&2 & echo $!; sleep 1', "sh"]
    ended = subprocess.run([*parent, *program, "--head"], stdout=subprocess.PIPE, check=True)
    pid = int(ended.stdout)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", 20.0)


def test_nothing_is_replaced_where_the_setting_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHORTCUTS, "0")
    before = services.get_node, Node.start_monitor
    with ray_shortcuts.node_lookup(_lookup), ray_shortcuts.fewest_processes(20_000) as replaced:
        assert not replaced
        assert (services.get_node, Node.start_monitor) == before
    with pytest.raises(UnavailableError):
        fit_in_driver(lambda config: None, {}, lambda: None)


def test_a_part_that_is_gone_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(Node, "start_log_monitor")
    before = Node.start_monitor
    for _ in range(2):
        with ray_shortcuts.fewest_processes(20_000):
            assert Node.start_monitor is before
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "start_log_monitor" in caplog.text


def _ending_with(error: Exception) -> Any:
    """In the place of a trainer's class, whose Ray differs."""

    def fit() -> None:
        raise error

    return lambda work, **_: SimpleNamespace(fit=fit)


@pytest.mark.parametrize(
    "error",
    [
        AttributeError("no attribute '_create_default_callbacks'"),
        TypeError("unexpected keyword argument 'controller_actor'"),
        ControllerError(TypeError("unexpected keyword argument 'controller_actor'")),
    ],
)
def test_a_controller_that_differs_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    monkeypatch.setattr(ray_shortcuts, "_trainer", lambda poll: _ending_with(error))
    for _ in range(2):
        with pytest.raises(UnavailableError):
            fit_in_driver(lambda config: None, {}, lambda: None)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "error",
    [ControllerError(ValueError("wrong")), WorkerGroupError("died", {0: TypeError("the user's")})],
)
def test_other_failures_are_the_trainings(
    monkeypatch: pytest.MonkeyPatch, error: TrainingFailedError
) -> None:
    monkeypatch.setattr(ray_shortcuts, "_trainer", lambda poll: _ending_with(error))
    assert fit_in_driver(lambda config: None, {}, lambda: None) is error
