"""Synthetic data sets on the nodes' own disks: one task a node makes the set there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from raysuite.data.synthesis import Made, SyntheticSet, make
from raysuite.errors import RaysuiteError
from raysuite.spec.datasets import default_path

_TELL_EVERY_S = 0.5


@dataclass(frozen=True)
class NodeEnd:
    """The result of one node."""

    node: str
    made: Made | None
    error: str
    """Why `made` is None."""


@dataclass(frozen=True)
class _Refused:
    """An error of raysuite, which needs no traceback."""

    message: str


def make_on_nodes(
    synthetic: SyntheticSet,
    folder: Path | None,
    workers: int | None,
    force: bool,
    count: Callable[[int], None],
) -> list[NodeEnd]:
    """Make the set on every node of the cluster that this process has joined; results by node name.

    `folder` defaults to each node's own `default_path`, `workers` to all of its CPUs. They are not
    reserved with Ray: on a node that trains, the task would wait without a sign.
    `count` gets images of all nodes. Where nodes share a file system the first one writes, and
    the others wait and find the set complete.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    task = ray.remote(num_cpus=0, max_retries=0, num_returns="streaming")(_make_here)
    pending: dict[Any, str] = {
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            synthetic, folder, workers, force
        ): node
        for node in nodes
    }
    ends: dict[str, NodeEnd] = {}
    while pending:
        told: Any = ray.wait(list(pending), num_returns=1)[0][0]  # a generator of references
        node = pending[told]
        name = f"{nodes[node]['NodeManagerHostname']} ({nodes[node]['NodeManagerAddress']})"
        try:
            found: Any = ray.get(next(told))
        except StopIteration:
            del pending[told]
        except ray.exceptions.RayError as error:
            ends[node] = NodeEnd(name, None, str(error).strip().splitlines()[-1])
            del pending[told]
        else:
            if isinstance(found, int):
                count(found)
            elif isinstance(found, _Refused):
                ends[node] = NodeEnd(name, None, found.message)
            else:
                ends[node] = NodeEnd(name, found, "")
    return sorted(ends.values(), key=lambda end: end.node)


def _make_here(
    synthetic: SyntheticSet, folder: Path | None, workers: int | None, force: bool
) -> Iterator[int | Made | _Refused]:
    """On the node: yields images as they are done, then the result."""
    told: SimpleQueue[int | Made | Exception] = SimpleQueue()

    def run() -> None:
        try:
            told.put(
                make(
                    synthetic,
                    folder or default_path(synthetic.name, synthetic.form),
                    workers or len(os.sched_getaffinity(0)),
                    force,
                    told.put,
                )
            )
        except Exception as error:
            told.put(error)

    threading.Thread(target=run, daemon=True).start()
    done, last = 0, time.monotonic()
    while True:
        item = told.get()
        if isinstance(item, int):
            done += item
            if time.monotonic() - last > _TELL_EVERY_S:
                yield done
                done, last = 0, time.monotonic()
            continue
        yield done
        if isinstance(item, RaysuiteError):
            yield _Refused(str(item))
            return
        if isinstance(item, Exception):
            raise item
        yield item
        return
