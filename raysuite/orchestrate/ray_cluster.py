"""Start a Ray cluster for runs on this machine, or join an existing cluster by its address."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import raysuite
from raysuite.cluster import binding, private, ray_shortcuts, ray_start, worker_fork
from raysuite.cluster.agent.ray_process import check_temp
from raysuite.cluster.ports import held_port
from raysuite.cluster.process import TEMP, ProcessTree, kill_left_behind
from raysuite.cluster.variables import INTERFACES, LOOPBACK_ONLY, RUN_SETTINGS
from raysuite.compiled import LibraryError
from raysuite.errors import RayStartError, UserError
from raysuite.lazy import load
from raysuite.orchestrate.capacity import Capacity

# A Ray that `raysuite run` starts itself is only for the processes of that command. It has a new
# token. By default, Ray would use one token for all of the user's clusters, from ~/.ray/auth_token,
# a file that is readable for all users whom the umask allows. The TCPStore, Gloo and Horovod's
# rendezvous of its workers use loopback, because they have no authentication.

_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
PREFIX = "rs-"
EARLY = "torch._dynamo,pandas,raysuite.train.run"
"""Modules that are imported once for all workers. (Optimisers import torch._dynamo, and Ray Train
imports pandas.) Ray Train itself is left out: it draws ids when it is imported, so all workers
would have equal ids."""
log = logging.getLogger(__name__)


@contextmanager
def own_folder() -> Iterator[Path]:
    """Temporary folder of an embedded Ray that requires a token and listens on loopback.

    The token and the preloaded library are outside Ray's own folder, which has mode 0777: in it,
    another user could replace the library and so run code as this user.
    """
    with private.temporary_folder(PREFIX) as folder, own_token(folder), own_loopback(folder):
        # folder for compiled code; other users can guess the name of torch's default folder
        compiled = os.environ.get(_COMPILED, str(folder / "inductor"))
        with _environment({TEMP: str(folder), _COMPILED: compiled}):
            try:
                with _worker_server(folder):
                    yield folder
            finally:
                kill_left_behind(str(folder))  # else they recreate the folder, readable for others


@contextmanager
def _worker_server(folder: Path) -> Iterator[None]:
    """Run a server that forks workers, with files in `folder`. The server and its workers end with
    the context."""
    if not ray_shortcuts.enabled():
        yield
        return
    path = os.fspath(folder / "workers")
    own = ["--serve", path, str(raysuite.__file__), EARLY, "ray"]
    command = [sys.executable, worker_fork.__file__, *own]
    # Ray would start workers before they are needed, and the driver would wait for them
    variables = {worker_fork.SOCKET: path, "RAY_prestart_worker_first_driver": "0"}
    with _environment(variables), open(folder / "workers.log", "w+b") as output:
        process = ProcessTree(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            yield
        finally:
            if process.poll() is not None:
                output.seek(0)
                why = output.read().decode(errors="replace").splitlines()
                log.warning(
                    "the server that forks workers has ended, so each worker imported its modules "
                    "itself: %s",
                    (why or [""])[-1],
                )
            process.terminate()
            process.wait()


@contextmanager
def own_token(folder: Path) -> Iterator[Path]:
    """Make the Ray that starts within the context require a new token; yield the token's file.

    The file is made in `folder` with mode 0600; `folder` belongs to the user and has mode 0700. The
    environment's previous token variables are restored afterwards.
    """
    file = folder / "token"
    private.create(file, private.new_token())
    ours = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}
    try:
        # for Ray, a token in the environment has priority over one in a file
        with _environment({**ours, "RAY_AUTH_TOKEN": None}):
            ray_shortcuts.reread_environment()
            yield file
    finally:
        ray_shortcuts.reread_environment()


@contextmanager
def own_loopback(folder: Path) -> Iterator[None]:
    """Make processes of a Ray that starts within the context listen on loopback only.

    If the library for this cannot be built, for example without a C compiler, torch's TCPStore and
    Horovod's rendezvous listen on every interface. An interface that the user has set for Gloo or
    NCCL is not changed.
    """
    ours = LOOPBACK_ONLY | {name: "lo" for name in INTERFACES if name not in os.environ}
    try:
        ours |= binding.bound("127.0.0.1", folder)
    except LibraryError as error:
        log.info("torch's TCPStore and Horovod's rendezvous listen on all interfaces: %s", error)
    with _environment(ours), ray_shortcuts.single_machine():
        yield


@contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables within the context; None removes a variable."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# The module search path of Ray's workers: raysuite as installed for the driver, then the spec's
# folder. Ray puts the driver's working folder first in its workers' search path. In a checkout of
# raysuite, workers would import that checkout, even if the driver runs another version, such as the
# version in an image.


@contextmanager
def search_path() -> Iterator[dict[str, Any] | None]:
    """The runtime environment for `ray.init`, within the context; None if the working folder
    contains no other raysuite."""
    here, ours = Path.cwd(), Path(raysuite.__file__).resolve().parents[1]
    if ours == here.resolve() or not (here / "raysuite" / "__init__.py").exists():
        yield None
        return
    path = os.pathsep.join(filter(None, (os.fspath(ours), os.environ.get("PYTHONPATH"))))
    # Ray omits the working folder from the path if `working_dir` is set
    with tempfile.TemporaryDirectory() as empty:
        (Path(empty) / "empty").touch()
        yield {"working_dir": empty, "env_vars": {"PYTHONPATH": path}}


# otherwise a thread that calls Ray after Ray's end would join any cluster, or start a new one
_NO_OTHER = {"RAY_ENABLE_AUTO_CONNECT": "0"}
_CONNECT_S = 10.0
_TRAINER = "raysuite.orchestrate.trainer:Workers"
_TOKEN_FILE = Path.home() / ".ray" / "auth_token"


@contextmanager
def ending(joined: ExitStack) -> Iterator[None]:
    """Leave the cluster by closing `joined`, in a thread that runs in parallel with this context.

    Releasing one of Ray's references while Ray shuts down would end the process. So garbage is
    collected before the shutdown, and not during it.
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

    Raises UserError for `auto`, which may find another user's cluster, and for an address at which
    no Ray answers. Raises RayStartError if no cluster can be started.
    """
    if address == "auto":
        raise UserError(
            "with the address 'auto', Ray joins any cluster that it finds, maybe another user's; "
            "give a cluster's address, such as 10.0.0.1:6379, or give none to start a new cluster"
        )
    settings = {**RUN_SETTINGS, **_NO_OTHER, **(_token() if address else {})}
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    # Importing Ray Train takes seconds, as does the start of Ray's processes: both run in parallel.
    # The import ends before anything else imports parts of Ray: with Ray's circular imports, two
    # threads would see incomplete modules.
    beside = ThreadPoolExecutor(1, "import")
    with (
        beside,
        nullcontext() if address else own_folder() as own,
        nullcontext(0) if address else held_port() as agent_port,
        _without_rays_lines(),
    ):
        import ray  # Ray reads the settings on import

        try:
            imported = beside.submit(load, _TRAINER)
            if address:
                _join(address)
            elif own:
                _start(own, agent_port)
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
            f"no Ray cluster answers at {address!r}: {error}; give HOST:PORT of a running head"
        ) from error


def _start(folder: Path, agent_port: int) -> None:
    """Start Ray below `folder`, on loopback, for this user only.

    `agent_port` is reserved for one of Ray's agents. `folder` is used because /tmp/ray belongs to
    the user who was the first to start Ray on this machine (ray#4593). Raises UserError if the
    paths of sockets would be too long (ray#17161).
    """
    import ray

    temp = folder / "r"
    check_temp(temp)
    for attempt in range(1, ray_start.TRIES + 1):
        try:
            with (
                ray_shortcuts.fewest_processes(agent_port) as no_agent,
                ray_start.patience(temp, no_agent=no_agent),
            ):
                _initialize(
                    address="local",
                    include_dashboard=False,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=str(temp),
                )
        except Exception as error:  # Ray raises a bare Exception at a timeout
            why = ray_start.reason(temp) or str(error)
            log.warning("Ray did not start, in attempt %d: %s", attempt, why)
            ray.shutdown()
            kill_left_behind(str(folder))
            shutil.rmtree(temp, ignore_errors=True)
        else:
            return
    raise RayStartError(
        f"Ray did not start on this machine in {ray_start.TRIES} attempts, at a load of "
        f"{os.getloadavg()[0]:.0f} on {os.cpu_count()} processors: {why}; run the command again "
        "when the machine is less busy, or check Ray with `raysuite doctor`"
    )


def _initialize(**options: Any) -> None:
    """Start Ray, or join it, without changing this process's signal handlers.

    Ray's processes inherit a mask that blocks SIGTERM and SIGHUP. `timeout`, a closing terminal and
    `scancel` send these signals to every process of the group or of the job step. Only the driver
    should handle them, because workers need time for a checkpoint.
    """
    import ray

    is_main = threading.current_thread() is threading.main_thread()
    ours = signal.getsignal(signal.SIGTERM)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    try:
        with interrupted_afterwards(), search_path() as runtime_env:
            ray.init(
                log_to_driver=False, logging_level=logging.ERROR, runtime_env=runtime_env, **options
            )
    finally:
        if is_main:
            # Ray's Python handler exits at once with code 15; its C++ handler aborts after 3 s
            signal.signal(signal.SIGTERM, ours)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    # Ray Train's controller runs in this process, but the journals already record how runs ended
    logging.getLogger("ray.train").setLevel(logging.CRITICAL)


@contextmanager
def interrupted_afterwards() -> Iterator[None]:
    """Delay the first Ctrl-C until the end of this context; a second Ctrl-C interrupts at once.

    A KeyboardInterrupt during Ray's start may leave an orphaned Ray process, or a lock of `logging`
    that is never released.
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


def check_listening(address: str, timeout_s: float = 3.0) -> None:
    """Raise OSError if no program listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()


class _Output:
    """A text stream without output from Ray's threads."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, or log it if a thread of Ray writes it."""
        if not threading.current_thread().name.startswith("ray_"):
            return int(self._stream.write(text))
        log.debug("ray: %s", text.rstrip())
        return len(text)


@contextmanager
def _without_rays_lines() -> Iterator[None]:
    """Keep Ray's lines out of stdout, which is for Records. Even without log_to_driver, Ray prints
    there which processes failed; the journals already have these failures."""
    before: Any = sys.stdout
    sys.stdout = within = _Output(before)
    try:
        yield
    finally:
        if sys.stdout is within:
            sys.stdout = before


def _token() -> dict[str, str]:
    """The setting that makes Ray's driver send a token, if the user has one. A cluster that was
    started with a token requires it, but Ray's driver sends none by default."""
    named = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    return {"RAY_AUTH_MODE": "token"} if named or _TOKEN_FILE.exists() else {}
