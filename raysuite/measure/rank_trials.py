"""Trials of what takes several processes: two ranks on the loopback address."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from raysuite.measure.trial_protocol import MARK, PartMissingError, expect

RANKS = 2
_LOOPBACK = "127.0.0.1"


def gloo() -> str:
    """An all-reduce over Gloo."""
    with tempfile.TemporaryDirectory() as folder:
        _run_ranks("gloo", lambda rank: _store_variables(folder, rank))
    return f"{RANKS} processes"


def _gloo_rank(rank: int) -> None:
    import torch as t
    import torch.distributed as dist

    dist.init_process_group("gloo", os.environ["STORE"], rank=rank, world_size=RANKS)
    total = t.full((4,), rank + 1.0)
    dist.all_reduce(total)
    expect(total.tolist(), [3.0] * 4)
    dist.destroy_process_group()


def horovod() -> str:
    """An all-reduce over Horovod, Gloo beneath it."""
    import threading

    import horovod.torch  # noqa: F401  (a broken build fails here, with its own message)
    from horovod.runner.common.util import hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    # horovod.runner's own start-up listens on every interface; this one on the loopback alone.
    server = RendezvousHTTPServer((_LOOPBACK, 0), RendezvousHandler, 0)
    plan = hosts.get_host_assignments(hosts.parse_hosts(f"localhost:{RANKS}"), RANKS)
    server.init(plan)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def variables(rank: int) -> dict[str, str]:
        return {
            "HOROVOD_HOSTNAME": "localhost",
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(RANKS),
            "HOROVOD_LOCAL_RANK": str(rank),
            "HOROVOD_LOCAL_SIZE": str(RANKS),
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": _loopback_name(),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": _LOOPBACK,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_address[1]),
        }

    try:
        _run_ranks("horovod", variables)
    finally:
        server.shutdown()
    return f"{RANKS} processes, Gloo"


def _horovod_rank(rank: int) -> None:
    import horovod.torch as hvd
    import torch as t

    hvd.init()
    total = hvd.allreduce(t.full((4,), rank + 1.0), op=hvd.Sum)
    expect(total.tolist(), [3.0] * 4)
    hvd.shutdown()


def deepspeed() -> str:
    """A step under ZeRO stage 1, after which both ranks hold the same weights."""
    import importlib.util

    if importlib.util.find_spec("deepspeed") is None:
        raise PartMissingError("no module named deepspeed")
    with tempfile.TemporaryDirectory() as folder:
        _run_ranks(
            "deepspeed", lambda rank: _store_variables(folder, rank) | {"DS_ACCELERATOR": "cpu"}
        )
    return f"{RANKS} processes, ZeRO stage 1"


def _deepspeed_rank(rank: int) -> None:
    import deepspeed as ds
    import torch as t
    import torch.distributed as dist

    # Its own shared-memory all-reduce for CPUs needs a C++ compiler at run time; Gloo does not.
    ds.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    dist.init_process_group("gloo", os.environ["STORE"], rank=rank, world_size=RANKS)
    t.manual_seed(0)
    model = t.nn.Linear(4, 1)
    before = model.weight.detach().clone()
    engine, *_ = ds.initialize(
        model=model,
        model_parameters=model.parameters(),
        optimizer=t.optim.SGD(model.parameters(), lr=0.1),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_clipping": 0.0,  # DeepSpeed's own default clips to a norm of 1
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        },
    )
    loss = engine(t.full((2, 4), rank + 1.0)).sum()
    engine.backward(loss)
    engine.step()
    # d(sum of 2 rows)/dw = 2 (rank + 1), whose mean over the ranks is 3; times the rate, 0.3.
    moved = (before - model.weight.detach()).flatten()
    assert t.allclose(moved, t.full((4,), 0.3), atol=1e-5), f"moved by {moved.tolist()}, not 0.3"
    dist.destroy_process_group()


RANK_TRIALS = {"gloo": _gloo_rank, "horovod": _horovod_rank, "deepspeed": _deepspeed_rank}


def _loopback_name() -> str:
    return "lo0" if sys.platform == "darwin" else "lo"


def _store_variables(folder: str, rank: int) -> dict[str, str]:
    # DeepSpeed reads RANK and its kin even where the process group exists already.
    return {
        "STORE": f"file://{Path(folder, 'store')}",
        "GLOO_SOCKET_IFNAME": _loopback_name(),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
    }


def _run_ranks(name: str, variables: Callable[[int], dict[str, str]]) -> None:
    """Run a rank trial in RANKS processes; raises RuntimeError with a failing rank's last line."""
    command = [sys.executable, "-m", "raysuite.measure.trials", name, "--rank"]
    with contextlib.ExitStack() as stack:
        # Files, not pipes: a pipe that nobody reads stops a talkative rank.
        logs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(RANKS)]
        ranks = [
            subprocess.Popen(
                [*command, str(rank)],
                env=os.environ | {"OMP_NUM_THREADS": "1"} | variables(rank),
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
            for rank, log in enumerate(logs)
        ]
        # A rank that fails leaves its peer waiting for it, so none is waited for alone.
        states = [rank.poll() for rank in ranks]
        while None in states and not any(states):
            time.sleep(0.05)
            states = [rank.poll() for rank in ranks]
        for rank in ranks:
            rank.kill()
            rank.wait()
        for number, (status, log) in enumerate(zip(states, logs, strict=True)):
            if status:
                log.seek(0)
                lines = log.read().decode(errors="replace").strip().splitlines()
                said = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
                last = (said or lines or [f"exit status {status}"])[-1]
                raise RuntimeError(f"rank {number}: {last}")
