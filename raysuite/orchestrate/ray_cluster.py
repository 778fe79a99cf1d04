"""A Ray cluster to run on: an embedded one, or an existing one by its address."""

from __future__ import annotations

import gc
import logging
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import raysuite
from raysuite.cluster import binding, private, ray_shortcuts, ray_start
from raysuite.cluster.agent.ray_process import check_temp
from raysuite.cluster.process import TEMP, kill_left_behind
from raysuite.cluster.variables import LOOPBACK_ONLY, RUN_SETTINGS
from raysuite.compiled import LibraryError
from raysuite.errors import RayStartError, UserError
from raysuite.lazy import load
from raysuite.plan.resolve import local_gpus

# A Ray that `raysuite run` starts for itself is for its processes only.
#
# Its token is fresh. Left alone, Ray asks for one too, but for one that all of the user's clusters
# share, from ~/.ray/auth_token, which it writes readable for everyone whom the umask lets in.
#
# Its workers' TCPStore, Gloo and Horovod's rendezvous have no authentication: they
# are on loopback.

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
PREFIX = "rs-"
_PRELOADED = "raysuite.orchestrate.worker,torch._dynamo"  # optimisers import the latter
log = logging.getLogger(__name__)


@contextmanager
def own_folder() -> Iterator[Path]:
    """Temporary folder of an embedded Ray, which asks for a token and listens on loopback.

    Token and preloaded library are outside of Ray's own folder: Ray gives that one mode 0777, so
    that another user could replace the library and run code as this one.
    """
    with private.temporary_folder(PREFIX) as folder, own_token(folder), own_loopback(folder):
        defaults = {
            # compiled code; torch's own default can be guessed
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }
        if ray_shortcuts.enabled():
            # processes that wait for work import meanwhile what it needs; else most of them are
            # Ray Train's helpers, which need none of it
            defaults["RAY_preload_python_modules"] = _PRELOADED
        defaults = {name: value for name, value in defaults.items() if name not in os.environ}
        with _environment({TEMP: str(folder), **defaults}):
            try:
                yield folder
            finally:
                kill_left_behind(str(folder))  # they would make it again, open to others


@contextmanager
def own_token(folder: Path) -> Iterator[Path]:
    """Have the Ray that starts within the context ask for a new token; yields the token's file.

    `folder` is the user's own (0700) and holds the file, which is created with mode 0600. What the
    environment had of tokens before is restored afterwards.
    """
    file = folder / "token"
    private.create(file, private.new_token())
    ours = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}
    # Ray prefers a token in the environment to one in a file
    before = {name: os.environ.pop(name, None) for name in (*ours, "RAY_AUTH_TOKEN")}
    try:
        _set(ours)
        yield file
    finally:
        _set(before)


@contextmanager
def own_loopback(folder: Path) -> Iterator[None]:
    """Make processes of a Ray that starts within the context listen on loopback only.

    Where that is impossible, as without a C compiler, torch's TCPStore and Horovod's rendezvous
    listen on every interface. An interface that the user names for Gloo or NCCL is kept.
    """
    ours = LOOPBACK_ONLY | {name: "lo" for name in _INTERFACES if name not in os.environ}
    try:
        ours |= binding.bound("127.0.0.1", folder)
    except LibraryError as error:
        log.info("torch's TCPStore and Horovod's rendezvous listen on all interfaces: %s", error)
    with _environment(ours), ray_shortcuts.single_machine():
        yield


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables within the context."""
    before = {name: os.environ.get(name) for name in values}
    try:
        os.environ.update(values)
        yield
    finally:
        _put(before)


def _put(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _set(values: Mapping[str, str | None]) -> None:
    _put(values)
    ray_shortcuts.reread_environment()


# Where Ray's workers look for modules: for raysuite where the driver has it, then beside the spec.
#
# Ray puts the driver's working folder at the head of its workers' search path. In a checkout of
# raysuite they would import that checkout, whatever the driver runs: an image, or another version.


@contextmanager
def search_path() -> Iterator[dict[str, Any] | None]:
    """The runtime environment for `ray.init`, within the context; None where the working folder
    hides nothing."""
    here, ours = Path.cwd(), Path(raysuite.__file__).resolve().parents[1]
    if ours == here.resolve() or not (here / "raysuite" / "__init__.py").exists():
        yield None
        return
    path = os.pathsep.join(filter(None, (os.fspath(ours), os.environ.get("PYTHONPATH"))))
    # Ray leaves the working folder out where it has one to upload
    with tempfile.TemporaryDirectory() as empty:
        (Path(empty) / "empty").touch()
        yield {"working_dir": empty, "env_vars": {"PYTHONPATH": path}}


# a call of a thread after Ray has ended would join any cluster that it finds, or start one
_NO_OTHER = {"RAY_ENABLE_AUTO_CONNECT": "0"}
_CONNECT_S = 10.0
_TRAINER = "raysuite.orchestrate.trainer:Workers"
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
    place: str = "the cluster"

    @classmethod
    def here(cls) -> Capacity:
        """What this machine has; without Ray."""
        cpus = float(len(os.sched_getaffinity(0)))
        return cls((Node(cpus, float(local_gpus())),), "this machine")

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
        """How many workers with so many CPUs, and a GPU, each; each of them on a single node."""
        return sum(
            min(int(node.cpus // cpus), int(node.gpus) if gpu else int(node.cpus))
            for node in self.each
        )


@contextmanager
def ending(joined: ExitStack) -> Iterator[None]:
    """Leave the cluster that `joined` holds, in a thread beside what is done in this context.

    Releasing one of Ray's references while Ray shuts down ends the process: what
    the runs left is collected before, and nothing while it continues.
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
    at which no Ray answers; RayStartError where none can be started.
    """
    if address == "auto":
        raise UserError(
            "address 'auto' joins whichever Ray it finds, maybe another user's; give the "
            "cluster's own address, such as 10.0.0.1:6379, or none for a cluster of your own"
        )
    settings = {**RUN_SETTINGS, **_NO_OTHER, **(_token() if address else {})}
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    # Ray Train takes seconds to import, and Ray's processes take them to start. It has ended before
    # anything else imports parts of Ray: two threads in its circular imports see halves of modules.
    beside = ThreadPoolExecutor(1, "import")
    with beside, nullcontext() if address else own_folder() as own, _without_rays_lines():
        import ray  # it reads the settings now

        try:
            imported = beside.submit(load, _TRAINER)
            if address:
                _join(address)
            elif own:
                _start(own)
            imported.result()
            yield Capacity.now()
        finally:
            ray.shutdown()


def _join(address: str) -> None:
    try:
        check_listening(address, _CONNECT_S)  # Ray itself would try for ten minutes
        _initialize(address=address)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"no Ray cluster answers at {address!r}: {error}; give HOST:PORT of one whose head runs"
        ) from error


def _start(folder: Path) -> None:
    """Start Ray below `folder`, for this user on this machine alone: it listens on loopback.

    /tmp/ray belongs to the first user (ray#4593); socket paths must stay short (ray#17161), which
    raises UserError where they would not.
    """
    import ray

    temp = folder / "r"
    check_temp(temp)
    for attempt in range(1, ray_start.TRIES + 1):
        try:
            with ray_shortcuts.fewest_processes(), ray_start.patience(temp):
                _initialize(
                    address="local",
                    include_dashboard=False,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=str(temp),
                )
        except Exception as error:  # Ray raises a bare one where it is out of time
            why = ray_start.reason(temp) or str(error)
            log.warning("Ray did not start, in attempt %d: %s", attempt, why)
            ray.shutdown()
            kill_left_behind(str(folder))
            shutil.rmtree(temp, ignore_errors=True)
        else:
            return
    raise RayStartError(
        f"Ray did not start on this machine in {ray_start.TRIES} attempts, at a load of "
        f"{os.getloadavg()[0]:.0f} on {os.cpu_count()} processors: {why}; start it again when the "
        "machine is less busy, or try Ray alone with `raysuite doctor`"
    )


def _initialize(**options: Any) -> None:
    """Start Ray, or join it, with our handlers of signals.

    Its processes inherit that SIGTERM and SIGHUP are blocked. `timeout`, a terminal that closes and
    `scancel` send them to every process of the group or of the job step: the driver alone handles
    them, since workers need time for a checkpoint.
    """
    import ray

    is_main = threading.current_thread() is threading.main_thread()
    ours = signal.getsignal(signal.SIGTERM)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    try:
        with interrupted_afterwards(), search_path() as runtime_env:
            ray.init(
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env=runtime_env,
                **options,
            )
    finally:
        if is_main:
            # Ray's own exits at once, with 15; one that it put below Python's aborts after 3 s
            signal.signal(signal.SIGTERM, ours)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # its controller runs in this process; how runs ended is in their journals
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

    def note(_number: int, _frame: FrameType | None) -> None:
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


def check_listening(address: str, timeout_s: float) -> None:
    """Raise OSError where nothing listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()


class _Output:
    """A text stream without what Ray's threads write."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Log what a thread of Ray writes."""
        if not threading.current_thread().name.startswith("ray_"):
            return int(self._stream.write(text))
        log.debug("ray: %s", text.rstrip())
        return len(text)


@contextmanager
def _without_rays_lines() -> Iterator[None]:
    """Keep Ray's lines from stdout, where our records are: with log_to_driver off too it writes
    there which of its processes failed, which the journals hold."""
    before: Any = sys.stdout
    sys.stdout = within = _Output(before)
    try:
        yield
    finally:
        if sys.stdout is within:
            sys.stdout = before


def _token() -> dict[str, str]:
    """A cluster asks for a token wherever there was one when it began; Ray's driver offers none."""
    named = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    return {"RAY_AUTH_MODE": "token"} if named or _TOKEN_FILE.exists() else {}
