"""Shortcuts through private parts of Ray, which only this file imports.

Without them, everything works, but more slowly. RAYSUITE_RAY_SHORTCUTS=0 turns all of them off. A
shortcut is also off, with a warning, if the installed version of Ray lacks a part that the shortcut
needs (tests/unit/cluster/test_ray_shortcuts.py lists the shortcuts).
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysuite.cluster import worker_fork
from raysuite.cluster.process import ProcessTree

if TYPE_CHECKING:
    from ray.train.v2.api.exceptions import TrainingFailedError

SHORTCUTS = "RAYSUITE_RAY_SHORTCUTS"
"""Environment variable: 0 turns all shortcuts off."""
_DIFFERS = (ImportError, AttributeError, TypeError)
"""The errors raised if a part of Ray is missing, or has another interface."""
_Target = tuple[Any, str, Any]
_differing: set[str] = set()
log = logging.getLogger(__name__)


class UnavailableError(Exception):
    """A shortcut is off, or this version of Ray lacks a part that it needs."""


def enabled() -> bool:
    """Whether the environment variable leaves the shortcuts on."""
    return os.environ.get(SHORTCUTS, "1") != "0"


def _usable(what: str) -> bool:
    return enabled() and what not in _differing


def _leave_out(what: str, error: BaseException) -> None:
    import ray

    _differing.add(what)
    log.warning(
        "%s: this shortcut is off, because Ray %s lacks a part that it needs (%s)",
        what,
        ray.__version__,
        error,
    )


@contextmanager
def _replaced(what: str, targets: Callable[[], Sequence[_Target]]) -> Iterator[bool]:
    """Replace attributes in Ray within the context; yield whether they are replaced."""
    before: list[_Target] = []
    try:
        if _usable(what):
            try:
                found = targets()
                before = [(owner, name, getattr(owner, name)) for owner, name, _ in found]
            except _DIFFERS as error:
                _leave_out(what, error)
            else:
                for owner, name, value in found:
                    setattr(owner, name, value)
        yield bool(before)
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


# The start of Ray on a machine.

_PLACEHOLDER = Path(__file__).with_name("placeholder.py")
_YIELDING = ("nice", "-n", "10")
"""The command prefix that gives the agent of runtime environments a lower priority: the agent must
not slow the imports of workers, and few workers need a runtime environment of their own."""
_COMMAND = "_build_python_executable_command_memory_profileable"


def _fewest(agent_port: int) -> list[_Target]:
    from ray._private import ray_constants, services, utils
    from ray._private.node import Node

    command, raylet = getattr(services, _COMMAND), services.start_raylet
    form = inspect.signature(raylet)
    if "worker_path" not in form.parameters:
        raise AttributeError("no program of a worker")

    def not_started(node: Any, **_: Any) -> None:
        pass

    def command_of(component: str, *args: Any, **options: Any) -> list[str]:
        if component == ray_constants.PROCESS_TYPE_DASHBOARD_AGENT:
            return [sys.executable, "-I", "-S", str(_PLACEHOLDER)]
        yielding = component == ray_constants.PROCESS_TYPE_RUNTIME_ENV_AGENT
        return [*(_YIELDING if yielding else ()), *command(component, *args, **options)]

    def start_raylet(*args: Any, **options: Any) -> Any:
        given = form.bind(*args, **options)
        given.arguments["runtime_env_agent_port"] = agent_port
        os.environ[worker_fork.PROGRAM] = given.arguments["worker_path"]
        given.arguments["worker_path"] = worker_fork.__file__
        try:
            return raylet(*given.args, **given.kwargs)
        finally:
            del os.environ[worker_fork.PROGRAM]

    no_dashboard = ImportError("not started")
    return [
        *(
            (Node, f"start_{name}", not_started)
            for name in ("monitor", "log_monitor", "api_server")
        ),
        (utils, "get_dashboard_dependency_error", lambda: no_dashboard),
        (services, "ConsolePopen", ProcessTree),
        (services, _COMMAND, command_of),
        (services, "start_raylet", start_raylet),
    ]


@contextmanager
def fewest_processes(agent_port: int) -> Iterator[bool]:
    """Within the context, Ray starts without its autoscaler, its log monitor, its dashboard server
    and the dashboard's agent, and starts all other processes as ProcessTree. Yield whether this
    shortcut is on.

    The agent of runtime environments listens on `agent_port`, so that the raylet does not wait
    until the agent has chosen a port; this saves 0.9 s of the 2.1 s of Ray's start. In place of
    workers, the raylet starts clients of worker_fork.
    """
    with _replaced("Ray with the fewest processes", lambda: _fewest(agent_port)) as replaced:
        yield replaced


@contextmanager
def node_lookup(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Within the context, replace Ray's function get_node by `wrap(get_node)`. Ray's Python code
    calls get_node after the start of a raylet, with the GCS's address and the node's id."""

    def targets() -> list[_Target]:
        from ray._private import services

        return [(services, "get_node", wrap(services.get_node))]

    with _replaced("more time for Ray's start", targets):
        yield


def reread_environment() -> None:
    """Make Ray read the environment variables of its token again: by itself, Ray reads them only on
    import."""
    what = "another token in one process"
    if "ray" not in sys.modules or not _usable(what):
        return
    try:
        from ray._raylet import (  # type: ignore[attr-defined]
            AuthenticationTokenLoader,
            Config,
        )

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
    except _DIFFERS as error:
        _leave_out(what, error)


@contextmanager
def single_machine() -> Iterator[None]:
    """Within the context, apply LOOPBACK_ONLY also if Ray was imported before: Ray itself reads
    this setting only on import. Otherwise, Ray's driver would look for the GCS at an address on
    which the GCS does not listen."""

    def targets() -> list[_Target]:
        constants = sys.modules.get("ray._private.ray_constants")
        return [] if constants is None else [(constants, "ENABLE_RAY_CLUSTER", False)]

    with _replaced("loopback for a Ray that was imported before", targets):
        yield


# Ray Train's controller in the driver.

_CONTROLLER = "Ray Train's controller in the driver"


def fit_in_driver(
    work: Callable[[dict[str, Any]], None], settings: Mapping[str, Any], poll: Callable[[], None]
) -> TrainingFailedError | None:
    """Fit a DataParallelTrainer with these settings; return the error that ended training, or None.
    `poll` is called about twice per second; its exceptions end the workers and are raised.

    Raises UnavailableError if this shortcut is off; no training has then taken place.
    """
    if not _usable(_CONTROLLER):
        raise UnavailableError
    from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError

    try:
        _trainer(poll)(work, **settings).fit()
    except TrainingFailedError as error:
        cause = error.controller_failure if isinstance(error, ControllerError) else None
        if not isinstance(cause, _DIFFERS):
            return error
        _leave_out(_CONTROLLER, cause)
        raise UnavailableError from error
    except _DIFFERS as error:
        _leave_out(_CONTROLLER, error)
        raise UnavailableError from error
    return None


def _trainer(poll: Callable[[], None]) -> Any:
    import asyncio

    from ray.train.v2._internal.callbacks.accelerators import AcceleratorSetupCallback
    from ray.train.v2._internal.callbacks.backend_setup import BackendSetupCallback
    from ray.train.v2._internal.execution.controller.controller import TrainController
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    class Controller(TrainController):
        worker_group_cls = _worker_group()

        async def _run_control_loop_iteration(self) -> None:
            try:
                poll()
            except BaseException:
                if self._worker_group is not None:
                    self._worker_group.abort()
                raise
            await super()._run_control_loop_iteration()

    class Fixed(FixedScalingPolicy):
        """Keeps the number of workers fixed. Unlike Ray's class, it does not register the workers
        with Ray Data's AutoscalingCoordinator."""

        def _maybe_send_resource_request(self) -> None:
            pass

        def _send_resource_request(self) -> None:
            pass

        def after_controller_start(self, train_run_context: Any) -> None:
            pass

    class Trainer(DataParallelTrainer):
        def _create_default_callbacks(self) -> list[Any]:
            scaling: Any = self.scaling_config
            return [
                AcceleratorSetupCallback(self.backend_config, scaling),
                BackendSetupCallback(self.backend_config),
            ]

        def _initialize_and_run_controller(self, **settings: Any) -> Any:
            settings["scaling_policy"] = Fixed(settings["scaling_policy"].scaling_config)
            controller = Controller(**settings)
            asyncio.run(controller.run())
            return controller.get_result()

    return Trainer


class _NoActor:
    """Replaces Ray's SynchronizationActor, which only `ray.train.report` needs."""

    @classmethod
    def options(cls, **_: Any) -> type[_NoActor]:
        return cls

    @classmethod
    def remote(cls, **_: Any) -> type[_NoActor]:
        return cls


def _worker_group() -> Any:
    import ray
    from ray.train.v2._internal.execution.worker_group import state, worker_group

    def no_actor() -> list[_Target]:
        return [
            (worker_group, "SynchronizationActor", _NoActor),
            (state, "_shutdown_sync_actor", lambda actor: None),
        ]

    class WorkerGroup(worker_group.WorkerGroup):
        def _start(self) -> None:
            """Call Ray's method, and end the group if its backend cannot start, for example because
            a node was lost. Ray's method alone would leave the group's workers running: they would
            keep their CPUs, and no other group could start."""
            with _replaced(_CONTROLLER, no_actor):
                try:
                    super()._start()
                except Exception:
                    if self._worker_group_state is not None:
                        self._worker_group_state.shutdown()
                        self._clear_state()
                    raise

        def shutdown(self) -> None:
            with _replaced(_CONTROLLER, no_actor):
                super().shutdown()

        def abort(self) -> None:
            with _replaced(_CONTROLLER, no_actor):
                super().abort()

        def _init_train_context_on_workers(
            self, workers: Sequence[Any], sync_actor: Any, train_context_args: dict[str, list[Any]]
        ) -> None:
            """Like Ray's method, but without the controller's actor, which does not exist here."""
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
            """Leave out Ray Train's variables, so that idle worker processes can be reused."""
            return custom_runtime_env

    return WorkerGroup
