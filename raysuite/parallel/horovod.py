"""Horovod (Sergeev and Del Balso 2018, arXiv:1802.05799)."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]

from raysuite.errors import MissingPartError, UserError
from raysuite.parallel.base import BaseStrategy, FrameworkEngine, TorchEngine, World
from raysuite.parallel.comm import Comm, Pending, Reduction, shared_store
from raysuite.parallel.marks import communication
from raysuite.spec.strategies import HorovodOptions
from raysuite.units import MIB

# Set each rank's place in Horovod's environment variables, and run Horovod's Gloo rendezvous.
# `horovodrun` would do both, but here torchrun or Ray starts the ranks.

TIMELINE = {"HOROVOD_TIMELINE": "DYNAMIC"}
"""The variable that allows Horovod to start a timeline later. Only profiled runs set it: the
timeline's writer uses a CPU core, and NCCL's all-reduces wait for the host (Horovod 0.28.1)."""


def rank_variables(hosts: Sequence[str]) -> list[dict[str, str]]:
    """The HOROVOD_* variables of each rank; `hosts[r]` names the node of rank r.

    local rank: the index among the ranks of one node. cross rank: the index among the ranks with
    the same local rank on all nodes.
    """
    seen: dict[str, int] = {}
    local = []
    for host in hosts:
        local.append(seen.get(host, 0))
        seen[host] = local[-1] + 1
    order = list(seen)
    variables = []
    for rank, host in enumerate(hosts):
        peers = [other for other in order if seen[other] > local[rank]]
        variables.append(
            {
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(len(hosts)),
                "HOROVOD_LOCAL_RANK": str(local[rank]),
                "HOROVOD_LOCAL_SIZE": str(seen[host]),
                "HOROVOD_CROSS_RANK": str(peers.index(host)),
                "HOROVOD_CROSS_SIZE": str(len(peers)),
                "HOROVOD_HOSTNAME": host,
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
            }
        )
    return variables


class Rendezvous:
    """Horovod's Gloo rendezvous server, for the ranks of one world."""

    def __init__(self, hosts: Sequence[str]) -> None:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousServer

        slots = {host: list(hosts).count(host) for host in dict.fromkeys(hosts)}
        plan = get_host_assignments(
            parse_hosts(",".join(f"{host}:{count}" for host, count in slots.items())), len(hosts)
        )
        self._server: Any = RendezvousServer(0)
        self.port: int = self._server.start()
        self._server.init(plan)

    def stop(self) -> None:
        """Stop the server; all ranks must have shut Horovod down before."""
        self._server.stop()


def join_from_torchrun(rank: int, size: int) -> Rendezvous | None:
    """Set this rank's HOROVOD_* variables; ranks exchange their hosts through torchrun's store.
    Rank 0 runs the rendezvous server and returns it.

    Does nothing if horovodrun has set the variables already.
    """
    if "HOROVOD_GLOO_RENDEZVOUS_PORT" in os.environ:
        return None
    # a single process needs neither torchrun's store nor its address
    store: Any = shared_store("horovod", rank, size) if size > 1 else HashStore()
    store.set(f"host/{rank}", socket.gethostname() if size > 1 else "localhost")
    hosts = [store.get(f"host/{other}").decode() for other in range(size)]
    server = Rendezvous(hosts) if rank == 0 else None
    if server is not None:
        store.set("port", str(server.port))
    os.environ.update(
        rank_variables(hosts)[rank],
        HOROVOD_GLOO_RENDEZVOUS_ADDR=os.environ["MASTER_ADDR"] if size > 1 else "127.0.0.1",
        HOROVOD_GLOO_RENDEZVOUS_PORT=store.get("port").decode(),
    )
    if size > 1:
        # rank 0, which runs the server, and the process that has torchrun's store must both run
        # until all ranks have started. One process answers all requests, so the timeout grows with
        # the ranks.
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(max(60, math.ceil(size / 2))))
    return server


def _horovod() -> Any:
    try:
        import horovod.torch
    except ImportError as error:
        raise MissingPartError(
            f"Horovod cannot be loaded ({error}); `make setup` builds it, and `raysuite doctor` "
            "lists what is missing for the build"
        ) from error
    return horovod.torch


_CHUNK = 2**22
"""Maximum number of values in one reduction, to limit the memory of Horovod's copies."""


class HorovodComm:
    """Collectives of Horovod's own group."""

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd
        self.size: int = hvd.size()

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        hvd = self._hvd
        how = {"sum": hvd.Sum, "max": hvd.Max, "min": hvd.Min}[reduction]
        own = value.detach().contiguous()
        reduced = torch.empty_like(own)
        parts = zip(own.view(-1).split(_CHUNK), reduced.view(-1).split(_CHUNK), strict=True)
        with communication():
            for part, result in parts:
                small = part.dtype in (torch.uint8, torch.int8, torch.int16)
                # Horovod cannot reduce these dtypes
                result.copy_(hvd.allreduce(part.int() if small else part, op=how))
        return reduced

    def all_gather(self, value: Tensor) -> Tensor:
        with communication():
            gathered: Tensor = self._hvd.allgather(value.detach().unsqueeze(0).contiguous())
        return gathered

    def begin_max(self, value: Tensor) -> Pending:
        handle = self._hvd.allreduce_async(value.detach().contiguous(), op=self._hvd.Max)

        def wait() -> Tensor:
            reduced: Tensor = self._hvd.synchronize(handle)
            return reduced

        return wait


def _tuning(options: HorovodOptions) -> dict[str, str]:
    """The variables for options that differ from Horovod's defaults."""
    default, variables = HorovodOptions(), {}
    if options.fusion_threshold_mb != default.fusion_threshold_mb:
        variables["HOROVOD_FUSION_THRESHOLD"] = str(int(options.fusion_threshold_mb * MIB))
    if options.cycle_time_ms != default.cycle_time_ms:
        variables["HOROVOD_CYCLE_TIME"] = str(options.cycle_time_ms)
    return variables


_both_given: dict[int, bool] = {}
"""Process id -> whether both tuning options were set when Horovod was started in this process."""


def _refuse_what_crashes(options: HorovodOptions) -> None:
    """Raise UserError if Horovod 0.28.1 would crash (SIGSEGV). It crashes when it is started for
    the second time in a process, if one of the two starts sets both tuning options."""
    before, now = _both_given.get(os.getpid()), len(_tuning(options)) > 1
    if before or (now and before is not None):
        raise UserError(
            "Horovod cannot be started a second time in a process if one of the two runs changes "
            "both fusion_threshold_mb and cycle_time_ms from their defaults; start each run in a "
            "new process, or use `raysuite run`"
        )
    _both_given[os.getpid()] = now


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}


class HorovodEngine(FrameworkEngine, TorchEngine):
    """A training step that averages the gradients in its last backward pass."""

    def make_comm(self, world: World) -> Comm:
        return HorovodComm(_horovod())

    def wrap(self) -> None:
        hvd, model = _horovod(), self.model
        # Horovod accepts only contiguous gradients; gradients have the layout of their weights
        model.to(memory_format=torch.contiguous_format)
        # Booleans and modules' extra states are left out: Horovod 0.28.1 cannot broadcast them, and
        # they are equal on all ranks already.
        state = model.state_dict().items()
        tensors = {key: each for key, each in state if isinstance(each, Tensor)}
        sent = {key: each for key, each in tensors.items() if each.dtype != torch.bool}
        hvd.broadcast_parameters(sent, root_rank=0)
        self.optimizer = hvd.DistributedOptimizer(
            self.optimizer,
            named_parameters=model.named_parameters(),
            compression=getattr(hvd.Compression, self.options.compression),
            backward_passes_per_step=self.settings.accumulate,
            op=hvd.Average,
        )
        self.scale.guard(self.optimizer)

    def take_step(self) -> None:
        optimizer: Any = self.optimizer
        with communication():
            optimizer.synchronize()
        with optimizer.skip_synchronize():
            super().take_step()

    @contextmanager
    def timeline(self, file: Path) -> Iterator[None]:
        hvd = _horovod()
        if os.environ.get("HOROVOD_TIMELINE") != "DYNAMIC":  # the user has set a timeline file
            yield
            return
        hvd.start_timeline(str(file))
        try:
            yield
        finally:
            hvd.stop_timeline()


class Horovod(BaseStrategy):
    """Gradients are averaged during the backward pass, in buffers with several tensors each."""

    engine = HorovodEngine

    def __init__(self, options: HorovodOptions, timeline: bool = False) -> None:
        super().__init__(options)
        self._timeline = timeline
        self._server: Rendezvous | None = None
        self._joined = False
        self._variables_before: dict[str, str] = {}

    def start(self, world: World) -> None:
        """Join Horovod's group.

        Raises MissingPartError if Horovod is absent, and UserError if Horovod would crash.
        """
        hvd = _horovod()
        super().start(world)
        if hvd.is_initialized():
            return
        _refuse_what_crashes(self.options)
        self._variables_before = _variables()
        self._server = join_from_torchrun(world.rank, world.size)
        timeline = TIMELINE if self._timeline else {}
        os.environ.update({**timeline, **self._variables_before})
        for name in ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME"):
            os.environ.pop(name, None)  # the recorded options apply, even if they are defaults
        os.environ.update(_tuning(self.options))
        hvd.init()
        self._joined = True

    def stop(self) -> None:
        if self._joined:
            _horovod().shutdown()
            self._joined = False
            for name in _variables():
                del os.environ[name]
            os.environ.update(self._variables_before)
        if self._server is not None:
            self._server.stop()
            self._server = None
