"""Where each rank stands, in Horovod's own environment variables, and its Gloo rendezvous.

Horovod is made for `horovodrun`; this gives it what it needs under torchrun and under Ray.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence
from typing import Any

TIMELINE = {"HOROVOD_TIMELINE": "DYNAMIC"}
"""Lets a timeline be started later on. Its writer takes a processor core from the start, and NCCL's
all-reduces wait for the host (Horovod 0.28.1), so only runs with a profile have it."""


def rank_variables(hosts: Sequence[str]) -> list[dict[str, str]]:
    """HOROVOD_* variables of each rank; `hosts[r]` names the node of rank r.

    local rank: place among the ranks of one node. cross rank: place among the ranks with the
    same local rank, one a node.
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

    def variables(self, address: str) -> dict[str, str]:
        """What every rank must know to reach this server at `address`."""
        return {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self.port),
        }

    def stop(self) -> None:
        """End the server; ranks must have shut Horovod down before."""
        self._server.stop()


def join_from_torchrun(rank: int, size: int) -> Rendezvous | None:
    """Set this rank's HOROVOD_* variables through torchrun's store; rank 0 runs the rendezvous.

    Does nothing where they are set already (by horovodrun).
    """
    if "HOROVOD_GLOO_RENDEZVOUS_PORT" in os.environ:
        return None
    if size == 1:
        os.environ.update(rank_variables(["localhost"])[0])
        alone = Rendezvous(["localhost"])
        os.environ.update(alone.variables("127.0.0.1"))
        return alone

    from raysuite.parallel.comm import shared_store  # torch, which the driver does without

    store = shared_store("horovod", rank, size)
    store.set(f"host/{rank}", socket.gethostname())
    hosts = [store.get(f"host/{other}").decode() for other in range(size)]
    server = Rendezvous(hosts) if rank == 0 else None
    if server is not None:
        store.set("port", str(server.port))
    os.environ.update(rank_variables(hosts)[rank])
    os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = os.environ["MASTER_ADDR"]
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = store.get("port").decode()
    # the server lives in rank 0's process, and the store in the one that torchrun chose: both
    # must outlast the other ranks' start-up, and one process answers the requests of all
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(max(60, math.ceil(size / 2))))
    return server
