"""Synthetic data sets on the nodes' own disks: one task per node makes the set there."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raysuite.data.synthesis import Made, SyntheticSet, make
from raysuite.errors import RaysuiteError
from raysuite.orchestrate.capacity import alive_nodes
from raysuite.spec.datasets import default_path


@dataclass(frozen=True)
class NodeEnd:
    """The result of making the set on one node."""

    node: str
    made: Made | None
    error: str
    """Why `made` is None."""


def make_on_nodes(
    synthetic: SyntheticSet,
    folder: Path | None,
    workers: int | None,
    force: bool,
    count: Callable[[int], None],
) -> list[NodeEnd]:
    """Make the set on every node of the joined cluster; return results in order of node names.

    `folder` defaults to the node's `default_path`, `workers` to all CPUs of the node. No CPUs are
    reserved with Ray: on a node that trains, the task would otherwise wait without any message.
    `count` is called with 1 for each finished node. On a shared file system, the first node writes
    the set; the other nodes wait for it, and write nothing.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(_make_here)
    pending = {}
    for node in alive_nodes():
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        started = task.options(scheduling_strategy=there)
        pending[started.remote(synthetic, folder, workers, force)] = name
    ends = []
    while pending:
        [ended], _ = ray.wait(list(pending), num_returns=1)
        try:
            made, error = ray.get(ended)
        except ray.exceptions.RayError as lost:
            made, error = None, str(lost).strip().splitlines()[-1]
        ends.append(NodeEnd(pending.pop(ended), made, error))
        count(1)
    return sorted(ends, key=lambda end: end.node)


def _make_here(
    synthetic: SyntheticSet, folder: Path | None, workers: int | None, force: bool
) -> tuple[Made | None, str]:
    """Make the set on this node; return it, or the reason why it could not be made."""
    folder = folder or default_path(synthetic.name, synthetic.form)
    try:
        return make(synthetic, folder, workers or len(os.sched_getaffinity(0)), force), ""
    except RaysuiteError as error:  # no traceback is needed
        return None, str(error)
