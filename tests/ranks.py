"""Run a module of this repository on some ranks that are forked from a process with torch loaded.

The ranks have torchrun's variables and its store, and end with the first of them that fails, as
under torchrun. Only the start differs: importing torch takes a process some four seconds, a fork
takes none of them. Each launch has processes of its own, so that nothing is left of another.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from raysuite.cluster.ports import held_port

ROOT = Path(__file__).parents[1]
LOADED = ("raysuite.train.__main__", "torch._dynamo", "torchvision", "torch.profiler")
"""What every rank imports."""
DEEPSPEED = ("deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer")
"""What those of DeepSpeed import beside it; its Muon brings torch's compiler."""
TIMED_OUT = 124
_POLL_SECONDS = 0.02
_GRACE_SECONDS = 30
"""As torchrun's, between SIGTERM and SIGKILL."""


def ranks(
    workers: int,
    module: str,
    *arguments: object,
    loaded: tuple[str, ...] = (),
    timeout_s: float = 240,
    fails: bool = False,
) -> str:
    """Run `python -m MODULE ARGUMENTS` on `workers` ranks; what all of them wrote.

    `loaded`: modules beside LOADED that are imported before the ranks are forked.
    """
    with tempfile.TemporaryDirectory() as folder, held_port() as port:
        log = Path(folder) / "log"
        request = {
            "workers": workers,
            "module": module,
            "arguments": [str(each) for each in arguments],
            "environment": {**os.environ, **_ENVIRONMENT},
            "port": port,
            "log": str(log),
            "timeout_s": timeout_s,
        }
        code = _asked(loaded, request)
        written = log.read_text(errors="replace")
    assert code != TIMED_OUT, f"not ended after {timeout_s:g} s:\n{written[-6000:]}"
    assert (code != 0) == fails, written[-6000:]
    return written


_ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@functools.cache
def _server(loaded: tuple[str, ...]) -> subprocess.Popen[str]:
    """A process that has those modules and forks ranks, until this one ends."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.ranks", *loaded],
        cwd=ROOT,
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that all of its processes can be ended together
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
    server.communicate()


def _asked(loaded: tuple[str, ...], request: dict[str, Any]) -> int:
    """The exit code of a launch."""
    server = _server(loaded)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline())
    except BaseException:  # also pytest's timeout: what is left would be in the next one's way
        _end(server)
        _server.cache_clear()
        raise


# The server's side


def serve() -> dict[str, Any]:
    """Fork a launcher for each request that is read; returns in a rank, with what it is to run."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # some packages print while they are imported
    for name in (*LOADED, *sys.argv[1:]):
        importlib.import_module(name)
    gc.freeze()  # so that the ranks' garbage collectors leave the pages of it shared
    for line in sys.stdin:
        launcher = os.fork()
        if launcher == 0:
            return _launch(json.loads(line))
        _, status = os.waitpid(launcher, 0)
        print(os.waitstatus_to_exitcode(status), file=answers)
    sys.exit()


def _launch(request: dict[str, Any]) -> dict[str, Any]:
    """Fork the ranks and wait for them; returns in a rank."""
    with open(request["log"], "wb") as log, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(request["environment"])
    running: set[int] = set()
    for rank in range(request["workers"]):
        pid = os.fork()
        if pid == 0:
            os.environ.update(_variables(rank, request["workers"], request["port"]))
            return request
        running.add(pid)
    code = _waited(running, request)
    sys.stderr.flush()
    os._exit(code)  # there is nothing to finalise, and to do so takes half a second


def _variables(rank: int, workers: int, port: int) -> dict[str, str]:
    """https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables"""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _waited(running: set[int], request: dict[str, Any]) -> int:
    """Serve the ranks' store until they have ended: 0, 1 or TIMED_OUT."""
    from torch.distributed import TCPStore

    # not before the forks: it has threads
    store = TCPStore("127.0.0.1", request["port"], is_master=True, wait_for_workers=False)
    code, deadline = 0, time.monotonic() + request["timeout_s"]
    while running:
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.remove(pid)
                if status != 0 and code == 0:
                    code = 1
                    print(f"a rank ended with {os.waitstatus_to_exitcode(status)}", file=sys.stderr)
                    _send(running, signal.SIGTERM)
                    deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        if time.monotonic() > deadline:
            code = code or TIMED_OUT
            _send(running, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    del store
    return code


def _send(running: set[int], number: signal.Signals) -> None:
    for pid in running:
        os.kill(pid, number)


if __name__ == "__main__":
    asked = serve()
    sys.argv[1:] = asked["arguments"]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
