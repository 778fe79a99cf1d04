"""A Ray cluster to run on: one of our own, or one that an address names."""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from raysuite.cluster.environment import RUN_SETTINGS
from raysuite.errors import UserError
from raysuite.lazy import load
from raysuite.orchestrate.own_ray import own_folder
from raysuite.orchestrate.search_path import job_config

# what a thread still asks of a Ray that has ended would join whichever it finds, or begin one
_NO_OTHER = {"RAY_ENABLE_AUTO_CONNECT": "0"}
_KNOCK_S = 10.0
_TRAINER = "raysuite.orchestrate.trainer:WorkersTrainer"
_TOKEN_FILE = Path.home() / ".ray" / "auth_token"


@dataclass(frozen=True)
class Node:
    """What one node has."""

    cpus: float
    gpus: float
    memory: float = math.inf
    """Bytes that Ray gives out there."""


@dataclass(frozen=True)
class Capacity:
    """What the cluster has."""

    each: tuple[Node, ...]

    @classmethod
    def now(cls) -> Capacity:
        """The nodes that Ray counts as alive."""
        import ray

        alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
        return cls(
            tuple(
                Node(has.get("CPU", 0.0), has.get("GPU", 0.0), has.get("memory", math.inf))
                for has in alive
            )
        )

    @property
    def cpus(self) -> float:
        return sum(node.cpus for node in self.each)

    @property
    def gpus(self) -> float:
        return sum(node.gpus for node in self.each)

    @property
    def nodes(self) -> int:
        return len(self.each)

    def holds(self, cpus: int, gpu: bool) -> int:
        """How many workers with so many CPUs, and a GPU, each; none is spread over two nodes."""
        return sum(
            min(int(node.cpus // cpus), int(node.gpus) if gpu else int(node.cpus))
            for node in self.each
        )


@contextmanager
def ending(joined: ExitStack) -> Iterator[None]:
    """Leave the cluster that `joined` holds, in a thread beside what is done in this context.

    Whoever lets go of one of Ray's references while Ray shuts down has the process ended: what
    the runs left is collected before, and nothing while it goes on.
    """
    gc.collect()
    gc.disable()
    thread = threading.Thread(target=joined.close, name="ray-end")
    thread.start()
    try:
        yield
    finally:
        thread.join()
        gc.enable()


@contextmanager
def connect(address: str | None) -> Iterator[Capacity]:
    """Join the cluster at `address`, or start one on this machine that ends with the context.

    Raises UserError for `auto`, which may answer with another user's cluster, and for an address
    at which no Ray answers.
    """
    if address == "auto":
        raise UserError(
            "address 'auto' joins whichever Ray it finds, maybe another user's; give the "
            "cluster's own address, such as 10.0.0.1:6379, or none for a cluster of your own"
        )
    settings = {**RUN_SETTINGS, **_NO_OTHER, **(_token() if address else {})}
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    import ray

    # Ray Train takes seconds to import, and Ray's processes take them to start
    threading.Thread(target=load, args=(_TRAINER,), name="import", daemon=True).start()
    with nullcontext() if address else own_folder() as own:
        try:
            _start(address, own)
            yield Capacity.now()
        finally:
            ray.shutdown()


def _start(address: str | None, own: Path | None) -> None:
    import ray
    from ray._private import utils, worker

    # it writes on stdout, amid our records, what the journals tell: log_to_driver has no say in it
    worker.print_to_stdstream = _log_instead
    try:
        if address:
            _knock(address)
        with (
            _fewest_processes() if own else nullcontext(),
            # Ray's own handler exits at once, with 15
            patch.object(utils, "set_sigterm_handler", lambda handler: None),
            interrupted_afterwards(),
        ):
            ray.init(
                address=address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                job_config=job_config(),
                **(_embedded(own) if own else {}),
            )
    except (OSError, RuntimeError, ValueError) as error:
        if address is None:
            raise UserError(f"Ray cannot be started: {error}") from error
        raise UserError(
            f"no Ray cluster answers at {address!r}: {error}; give HOST:PORT of one whose head runs"
        ) from error
    # its controller runs in this process; how runs ended stands in their journals
    logging.getLogger("ray.train").setLevel(logging.CRITICAL)


@contextmanager
def interrupted_afterwards() -> Iterator[None]:
    """Have the first Ctrl-C end this context only at its end, the second one at once.

    Amid Ray's start, KeyboardInterrupt may leave a lock of `logging` taken, or a process of Ray
    without an owner.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = 0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


class _RayProcess(subprocess.Popen[bytes]):
    """A process of Ray that SIGTERM and SIGHUP do not end, and none of its children either.

    `timeout`, a terminal that closes and `scancel` send them to every process of the group or of
    the job step: the driver alone handles them, since workers need time for a checkpoint.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        of_ray = options["preexec_fn"]

        def before_it_runs() -> None:
            of_ray()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})

        options |= {"preexec_fn": before_it_runs, "process_group": 0}
        super().__init__(*args, **options)

    def terminate(self) -> None:
        """End it and its children, of which some have process groups of their own."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            process.suspend()  # so that it starts no other meanwhile
            for each in (*process.children(recursive=True), process):
                with suppress(psutil.NoSuchProcess):
                    each.kill()


@contextmanager
def _fewest_processes() -> Iterator[None]:
    """Have Ray start neither its autoscaler, nor its log monitor, nor the server of its dashboard,
    which it waits for also where there is none; and the others as _RayProcess (Ray 2.60;
    tests/unit/orchestrate/test_trainer.py fails where these names change)."""
    from ray._private import services
    from ray._private.node import Node

    with ExitStack() as stack:
        for name in ("start_monitor", "start_log_monitor", "start_api_server"):
            stack.enter_context(patch.object(Node, name, lambda node, **_: None))
        stack.enter_context(patch.object(services, "ConsolePopen", _RayProcess))
        yield


def _knock(address: str) -> None:
    """Raise OSError where nothing listens: Ray itself would try for ten minutes."""
    from ray._private.services import canonicalize_bootstrap_address_or_die

    host, _, port = canonicalize_bootstrap_address_or_die(address).rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()


def _log_instead(data: dict[str, Any], ignore_prefix: bool) -> None:
    logging.getLogger(__name__).debug("ray: %s", "\n".join(data["lines"]))


def _token() -> dict[str, str]:
    """A cluster asks for a token wherever there was one when it began; Ray's driver offers none."""
    named = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    return {"RAY_AUTH_MODE": "token"} if named or _TOKEN_FILE.exists() else {}


def _embedded(folder: Path) -> dict[str, Any]:
    """For this user on this machine alone: nothing listens beyond loopback, no shared folder.

    /tmp/ray belongs to whoever came first (ray#4593); socket paths must stay short (ray#17161).
    """
    return {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "_temp_dir": str(folder)}
