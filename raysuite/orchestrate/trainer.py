"""A Ray Train worker group whose processes do not join a process group when they start.

Instead, the strategy of each run joins a process group at the start of the run, and leaves it at
the end. So one worker group can serve a whole suite, in which runs use PyTorch-DDP, Horovod,
DeepSpeed, and different numbers of workers.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError, WorkerGroupError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysuite.cluster import ray_shortcuts
from raysuite.cluster.variables import RUN_SETTINGS
from raysuite.files import write_whole
from raysuite.lazy import load
from raysuite.orchestrate.controller import FailureRecorder, NodeKeeper
from raysuite.plan import RunPlan

_HALTS_S = 3.0
"""Maximum seconds that `halt` waits for `fit`: longer than two polls of the workers."""
_POLL_S = 0.5
_MOST_STARTS = 10
"""Maximum number of failed starts. A start fails if a worker dies during it, or if resources are
missing for over a minute."""
_START_FAILED = "WorkerGroupStartup"
"""If workers cannot be started, Ray Train raises an error whose class name has this prefix."""


class _Backend(Backend):
    """Connects all workers to rank 0's TCPStore, which their process groups use."""

    # as in Ray's TorchTrainer: each worker sees all of the group's GPUs on its node
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        address = worker_group.execute_single(0, _call, "open_store")
        hosts = worker_group.execute(_call, "join_store", *address)
        assert isinstance(backend_config, _Config)
        backend_config.hosts_file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(backend_config.hosts_file, json.dumps(dict(hosts)).encode())


def _call(name: str, *given: Any) -> Any:
    """Call a function of `rendezvous`, which imports torch, on a worker."""
    return load(f"raysuite.orchestrate.rendezvous:{name}")(*given)


@dataclass
class _Config(BackendConfig):
    hosts_file: Path

    @property
    def backend_cls(self) -> type[Backend]:
        return _Backend


class Workers:
    """Calls `work`, a function named as module:function, with the argument `config()` on each
    worker process. After a failure, starts new workers if any runs are left.

    The driver imports neither the function nor torch. Ray Train manages the worker group, and
    writes its own files into the folder that `run_config` gives.
    """

    def __init__(
        self,
        work: str,
        config: Callable[[], dict[str, Any]],
        scaling_config: ScalingConfig,
        run_config: RunConfig,
        recorder: FailureRecorder,
        keeper: NodeKeeper,
    ) -> None:
        run_config.failure_config = FailureConfig(max_failures=0, controller_failure_limit=0)
        self.scaling_config, self.run_config = scaling_config, run_config
        self._work, self._config = work, config
        self._recorder, self._keeper = recorder, keeper
        self._halted, self._rests = threading.Event(), threading.Event()

    def follow(self, plans: Sequence[RunPlan], deadline: float | None) -> None:
        """Execute these runs from now on. `deadline`: seconds since 1970, or None."""
        self._recorder.follow(plans)
        self._keeper.follow(plans, deadline)

    def fit(self) -> None:
        """Work until no run is left, or until the workers have been asked to stop.

        Raises NodesGoneError, StoppedError, DeadlineError, StorageError, and Ray Train's
        ControllerError if no workers can be started.
        """
        starts = 0
        while self._keeper.wait():
            error = self._attempt()
            if error is None:
                return
            if isinstance(error, WorkerGroupError):
                self._recorder.after_exception(error.worker_failures)
            elif not _start_failed(error) or (starts := starts + 1) > _MOST_STARTS:
                raise error

    def halt(self) -> None:
        """Keep the thread in `fit` from calling Ray, because a call during Ray's shutdown would end
        the process."""
        self._halted.set()
        self._rests.wait(_HALTS_S)

    def _attempt(self) -> TrainingFailedError | None:
        """Run one group of workers until it has ended; return its error, if it failed."""
        settings: dict[str, Any] = {
            "train_loop_config": {**self._config(), "work": self._work},
            "backend_config": _Config(self._keeper.hosts_file),
            "scaling_config": self.scaling_config,
            "run_config": self.run_config,
        }
        try:
            return ray_shortcuts.fit_in_driver(run_work, settings, self._poll)
        except ray_shortcuts.UnavailableError:
            return self._fit_beside(settings)

    def _fit_beside(self, settings: dict[str, Any]) -> TrainingFailedError | None:
        """Run one group of workers. Its controller runs in a Ray task, in another process. When
        that process ends, Ray ends the controller and the workers."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        task = ray.remote(_fit).options(num_cpus=0, max_retries=0, scheduling_strategy=here)
        fitted = task.remote(settings)
        try:
            while not ray.wait([fitted], timeout=_POLL_S)[0]:
                self._poll()
        except BaseException:
            ray.cancel(fitted, force=True)
            raise
        try:
            return ray.get(fitted)
        except RayError as error:
            return ControllerError(error)

    def _poll(self) -> None:
        """Called twice per second. Raises StoppedError if the workers have not stopped in time
        after a request, and DeadlineError after the deadline."""
        if self._halted.is_set():
            self._rests.set()
            threading.Event().wait()  # for ever: the thread ends with the process
        self._keeper.check()


def _start_failed(error: TrainingFailedError) -> bool:
    cause = error.controller_failure if isinstance(error, ControllerError) else None
    return type(cause).__name__.startswith(_START_FAILED)


def _fit(settings: dict[str, Any]) -> TrainingFailedError | None:
    os.environ.update(RUN_SETTINGS)  # the environment of an existing cluster differs
    try:
        DataParallelTrainer(run_work, **settings).fit()
    except TrainingFailedError as error:
        return error
    return None


def run_work(config: dict[str, Any]) -> None:
    """The function that Ray Train runs on each worker."""
    load(config["work"])(config)
