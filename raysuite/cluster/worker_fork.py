"""Start Ray's workers as forks of one process that has already imported their modules.

A worker needs seconds of processor time to import torch. A server imports it once, while Ray
starts, and makes each worker by fork(2). Instead of a worker, the raylet starts a client. The
client sends its arguments, environment and standard streams to the server, and ends when the worker
ends. If the server does not make a worker for the client, the client itself becomes the worker.

`worker_fork.py --serve SOCKET RAYSUITE EARLY LATE` runs the server; `worker_fork.py ARGUMENT ...`
runs a client. EARLY and LATE are comma-separated modules: see `_serve`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PROGRAM = "RAYSUITE_WORKER_PROGRAM"
"""Environment variable of clients: the path of Ray's own worker program."""
SOCKET = "RAYSUITE_WORKER_SERVER"
"""Environment variable of clients: the server's socket."""
_LENGTH = struct.Struct("!Q")
_FORKED, _CRASHED = b"f", b"c"
"""The server's messages to a client about its worker. When the worker ends, the server closes the
connection."""
_STARTS_S = 20.0
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)
"""Signals that end a process that crashes; a failed check in Ray, for example, raises SIGABRT."""
_SAFE_THREADS = {"jemalloc_bg_thd"}
"""Names of threads that do not prevent a fork, because their libraries handle fork(2) themselves
(jemalloc, in PyArrow)."""


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        path, raysuite, early, late = sys.argv[2:]
        _serve(path, raysuite, early.split(","), late.split(","))
    elif not _forked():
        program = os.environ[PROGRAM]
        os.execv(sys.executable, [sys.executable, program, *sys.argv[1:]])


def _forked() -> bool:
    """Wait for the end of the worker that the server makes for this client. Return False if the
    server makes no worker, if the worker crashes at its start, or if a program other than the
    raylet, such as nsys, started this client."""
    if os.environ.get("RAY_RAYLET_PID") != str(os.getppid()):
        return False
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    request = {
        "argv": [os.environ[PROGRAM], *sys.argv[1:]],
        "environ": dict(os.environ),
        "folder": os.getcwd(),
        "mask": [int(number) for number in mask],
        "pid": os.getpid(),
        "leads": os.getpgrp() == os.getpid(),
    }
    message = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError, KeyError):
        connection.connect(os.environ[SOCKET])
        socket.send_fds(connection, [_LENGTH.pack(len(message))], [0, 1, 2])
        connection.sendall(message)
        if connection.recv(1) == _FORKED:
            return connection.recv(1) != _CRASHED
    return False


def _serve(path: str, raysuite: str, early: Sequence[str], late: Sequence[str]) -> None:
    """Make a worker for each client, until the parent ends.

    The modules `early` are imported at once. Ray reads the environment when it is imported, so
    `late`, Ray's modules, are imported with the environment of the first client, and clients with
    another environment are not served. No module may, while it is imported, draw from a random
    generator that is not seeded again after a fork, such as Ray's generator of ids: the workers
    would then draw the same numbers. Exit if a fork would differ from a new process: if `raysuite`
    is not the path of the imported package, if the variables of the first client differ from those
    of this server, if a library has a thread, or if CUDA's driver is loaded.
    """
    import gc
    import importlib
    import runpy

    parent, before = os.getppid(), dict(os.environ)
    sys.path.pop(0)  # this file's folder: a worker has the folder of Ray's program there
    from raysuite.cluster.process import end_with_parent

    end_with_parent(signal.SIGKILL)
    found = sys.modules["raysuite"].__file__
    if found != raysuite:
        sys.exit(f"{found} is imported, not {raysuite}")
    if os.getppid() != parent:
        return
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)  # clients wait while modules are imported
    for name in early:
        importlib.import_module(name)
    connection, _ = listener.accept()
    request, streams = _received(connection)
    environment: dict[str, str] = request["environ"]
    if _shared(environment) != _shared(before):
        sys.exit("workers have another environment")
    os.environ.update({name: v for name, v in environment.items() if before.get(name) != v})
    for name in late:
        importlib.import_module(name)
    if why := _unsafe():
        sys.exit(why)
    gc.collect()
    gc.freeze()  # otherwise the first garbage collection of each worker would copy every page
    forks = _Forks()
    while request["environ"] != environment or forks.make(connection) != 0:
        connection.close()
        for each in streams:
            os.close(each)
        forks.wait(listener)
        connection, _ = listener.accept()
        request, streams = _received(connection)
    listener.close()
    _become(request, streams)
    runpy.run_path(request["argv"][0], run_name="__main__")


class _Forks:
    """Workers of a server, and the connections to their clients."""

    def __init__(self) -> None:
        self._workers: dict[int, tuple[socket.socket, float]] = {}
        self._ended, signals = os.pipe()
        os.set_blocking(signals, False)
        signal.set_wakeup_fd(signals)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def make(self, connection: socket.socket) -> int:
        """Fork a worker; return its process id or, in the worker itself, 0."""
        if (pid := os.fork()) != 0:
            connection.send(_FORKED)
            self._workers[pid] = connection.dup(), time.monotonic()
            return pid
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(signal.set_wakeup_fd(-1))
        os.close(self._ended)
        for each, _ in self._workers.values():
            each.close()
        return 0

    def wait(self, listener: socket.socket) -> None:
        """Wait for another client; release the clients whose workers end meanwhile.

        The client of a worker that crashes at its start becomes the worker. Raises SystemExit if no
        other worker is alive then: forks of Ray may not work at all.
        """
        both: list[Any] = [listener, self._ended]
        while listener not in select.select(both, [], [])[0]:
            os.read(self._ended, 1024)
            while self._workers and (found := os.waitpid(-1, os.WNOHANG))[0]:
                client, began = self._workers.pop(found[0])
                number = os.WTERMSIG(found[1])  # 0 if the worker exited
                crashed = number in _CRASHES and time.monotonic() < began + _STARTS_S
                with client, suppress(OSError):
                    if crashed:
                        client.send(_CRASHED)
                if crashed and not self._workers:
                    sys.exit(f"a worker crashed at its start, by signal {number}")


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    with connection.makefile("rb") as message:
        return json.loads(message.read(_LENGTH.unpack(head)[0])), streams


def _shared(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that may differ between the server and a client. Ray
    Tune sets PL_DISABLE_FORK, which only PyTorch Lightning reads."""
    ours = ("RAY_", PROGRAM, "SPT_NOENV", "PL_DISABLE_FORK")
    return {name: each for name, each in environment.items() if not name.startswith(ours)}


def _unsafe() -> str:
    """Why a fork would lack a thread, or could not use CUDA; empty if there is no reason."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)  # OpenBLAS ended its threads for this fork; it starts them again on use
    tasks = Path("/proc/self/task").iterdir()
    names = {(each / "comm").read_text().strip() for each in tasks if each.name != str(os.getpid())}
    if names - _SAFE_THREADS:
        return f"imported modules have threads: {', '.join(sorted(names - _SAFE_THREADS))}"
    if "/libcuda.so" in Path("/proc/self/maps").read_text():
        return "imported modules have loaded CUDA's driver"
    return ""


def _become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Make this fork equal to a new process of the client's program."""
    if request["leads"]:
        os.setpgid(0, 0)  # the raylet ends the process group of a worker that has ended
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    os.chdir(request["folder"])
    sys.argv[:] = request["argv"]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    # seed NumPy and torch again; Python's module `random` seeds itself after a fork
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    with suppress(OSError):  # the client's value: when memory is short, workers are killed first
        score = Path(f"/proc/{request['pid']}/oom_score_adj").read_text()
        Path("/proc/self/oom_score_adj").write_text(score)


if __name__ == "__main__":
    main()
