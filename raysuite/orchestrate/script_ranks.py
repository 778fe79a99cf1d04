"""Run a user's own training script on the workers of a Ray cluster, with one rank on each worker.

A worker starts its rank as a child of a guard process (`raysuite.cluster.guard`), watches the rank,
and sends the rank's measurements and the tail of its output to rank 0's worker, which writes the
Records. All messages go through the worker group's store. When a worker finds the key `over` in
this store, it ends its rank. The key is set when a rank has failed, when no rank takes steps any
longer, and when the driver requests the end.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from raysuite.cluster import guard, private
from raysuite.measure.script_steps import rank_file
from raysuite.orchestrate.rendezvous import awaited, serve_store
from raysuite.orchestrate.script_launch import (
    MODULE,
    Ended,
    Stall,
    begin,
    kept_outputs,
    variables,
    write_end,
)
from raysuite.orchestrate.stopping import requested_stop
from raysuite.plan import RunPlan
from raysuite.records import Results
from raysuite.records.script_records import RankLog
from raysuite.spec.script import numbers_of

_POLL_S = 0.1
_LOOK_S = 1.0
"""Seconds between two queries of the store, which one process serves for all workers."""
_CHUNK = 2**22
"""Maximum size in bytes of a value; the store needs up to twice as much memory for it."""
_STOPPED, _FAILED, _STALLED = "stopped", "failed", "stalled"


def run_rank(
    plan: RunPlan, place: Mapping[str, str], node: str, results: Results, store: Store
) -> None:
    """Run one rank of a plan's script; on rank 0, also wait for the other ranks, and write the
    Records. Each worker with a rank must call this function.

    `place`: torchrun's variables of this rank. `node`: the id of this rank's node. No other run
    uses `store`. If the run was asked to stop, no end of the run is written into its journal: a
    resumed suite starts this run again from its beginning.
    """
    rank = int(place["RANK"])
    if rank == 0:
        begin(plan, results)
    # As with torchrun's agent, scripts join this store, so rank 0 of a script need not find a free
    # port for a store.
    served, host = serve_store() if rank == 0 else (None, "")
    meeting = _meet(store, plan.workers, rank, node, [host, served.port] if served else None)
    watch = _Watch(plan, results, store, rank)
    with private.temporary_folder("rs-script-") as scratch, kept_outputs([]) as (kept, output):
        names = numbers_of(plan.workers, meeting["nodes"])
        environment = variables(plan, results, scratch, names)
        launched = time.perf_counter()
        script = plan.spec.script
        assert script is not None
        process = guard.start(
            [sys.executable, "-m", MODULE, *script.words(names)],
            scratch,
            output,
            environment | dict(place) | _torchrun(plan, place, meeting),
        )
        own = watch.until_ended(process, rank_file(scratch, rank))
        end = guard.ended(process, scratch)
        code = end.code if own else 0
        if code:
            watch.end(_FAILED)
        found = rank_file(scratch, rank)
        log = found.read_text("utf-8") if found.exists() else ""
    (tail,) = kept.values()
    begun = {"host": socket.gethostname()}
    _send(store, rank, [code, end.at - launched, log, tail.decode(errors="replace"), begun])
    if rank == 0:
        parts = watch.until_all_sent()
        if watch.why() != _STOPPED:
            write_end(plan, results, _ended(parts, watch.why() == _STALLED, meeting["nodes"]))


def _ended(parts: Sequence[Sequence[Any]], stalled: bool, nodes: int) -> Ended:
    codes = {rank: (code, at) for rank, (code, at, *_) in enumerate(parts) if code}
    logs = [RankLog.parsed(log) for _, _, log, _, _ in parts]
    for log, part in zip(logs, parts, strict=True):
        log.begin = part[4] | log.begin  # a rank may end before it writes its host
    first = min(codes.values(), key=lambda each: each[1], default=(0, 0.0))
    return Ended(logs, [part[3].encode() for part in parts], first[0], codes, stalled, nodes)


def _torchrun(
    plan: RunPlan, place: Mapping[str, str], meeting: Mapping[str, Any]
) -> dict[str, str]:
    """The variables of torchrun that are not in `place`, and the address of the store.

    (torch's documentation, "torchrun (Elastic Launch)", environment variables.)
    """
    host, port = meeting["address"]
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "ROLE_NAME": "default",
        "ROLE_RANK": place["RANK"],
        "ROLE_WORLD_SIZE": place["WORLD_SIZE"],
        "GROUP_WORLD_SIZE": str(meeting["nodes"]),
        "TORCHELASTIC_RUN_ID": plan.run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _meet(store: Store, size: int, rank: int, node: str, address: Any) -> dict[str, Any]:
    """Wait until all workers have arrived. Return the address of the script's store, which rank 0
    gives as `address`, and the number of nodes."""
    store.set(f"here/{rank}", node)
    if rank == 0:
        nodes = {store.get(f"here/{other}") for other in range(size)}
        store.set("go", json.dumps({"address": address, "nodes": len(nodes)}))
    found: dict[str, Any] = awaited(store, "go")
    return found


def _send(store: Store, rank: int, part: Any) -> None:
    packed = zlib.compress(json.dumps(part).encode())
    pieces = [packed[place : place + _CHUNK] for place in range(0, len(packed), _CHUNK)]
    for number, piece in enumerate(pieces):
        store.set(f"part/{rank}/{number}", piece)  # type: ignore[arg-type]  # it accepts bytes too
    store.set(f"sent/{rank}", json.dumps(len(pieces)))


def _received(store: Store, rank: int) -> Any:
    count = json.loads(store.get(f"sent/{rank}"))
    packed = b"".join(store.get(f"part/{rank}/{number}") for number in range(count))
    return json.loads(zlib.decompress(packed))


class _Watch:
    """Finds out, on one rank, whether all ranks have to end."""

    def __init__(self, plan: RunPlan, results: Results, store: Store, rank: int) -> None:
        assert plan.spec.script is not None
        self._results, self._store, self._rank, self._size = results, store, rank, plan.workers
        self._stall = Stall(plan.spec.script.stall_s)
        self._looked = time.monotonic()
        self._grown = -1

    def end(self, why: str) -> None:
        """Make all ranks end for the reason `why`; later reasons are ignored."""
        self._store.compare_set("over", "", why)

    def why(self) -> str:
        """The reason why all ranks have to end; empty while no rank has to end."""
        return self._store.get("over").decode() if self._store.check(["over"]) else ""

    def until_ended(self, process: subprocess.Popen[bytes], file: Path) -> bool:
        """Wait until this rank, which writes `file`, has ended; request its end if all ranks have
        to end. Return whether it ended by itself."""
        while process.poll() is None:
            time.sleep(_POLL_S)
            if self._is_over(file.stat().st_size if file.exists() else 0):
                guard.ask(process)
                return False
        return True

    def until_all_sent(self) -> list[Any]:
        """Wait for the messages of all ranks; return them in rank order."""
        keys = [f"sent/{rank}" for rank in range(self._size)]
        while not self._store.check(keys):
            time.sleep(_POLL_S)
            self._is_over(self._grown)
        return [_received(self._store, rank) for rank in range(self._size)]

    def _is_over(self, size: int) -> bool:
        """Query the store for whether all ranks have to end; return False if the last query was
        less than a second ago. Before a query, this rank reports whether it took steps, and rank 0
        checks whether the run has to end."""
        if time.monotonic() < self._looked + _LOOK_S:
            return False
        self._looked = time.monotonic()
        if size != self._grown:
            self._grown = size
            self._store.add("grown", 1)
        if self._rank == 0:
            if requested_stop(self._results.folder) is not None:
                self.end(_STOPPED)
            elif self._stall.seen(self._store.add("grown", 0)):
                self.end(_STALLED)
        return bool(self.why())
