"""Which trials fit beside each other: no worker and no GPU is counted twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raysuite.orchestrate.cluster import Capacity, Node
from raysuite.orchestrate.nodes import Need


def fits(nodes: Sequence[Node], running: Iterable[Need], wanted: Need) -> bool:
    """Whether the nodes hold the workers of all running trials and those that are wanted.

    Workers are laid onto nodes the largest first, each onto the first that has room. Ray may lay
    them otherwise, and a trial's workers then wait until there is room: it never gives more than
    there is.
    """
    left = [[node.cpus, node.gpus] for node in nodes]
    each = [(need.cpus, int(need.gpu)) for need in (*running, wanted) for _ in range(need.workers)]
    for cpus, gpus in sorted(each, key=lambda worker: (worker[1], worker[0]), reverse=True):
        # a worker without a GPU leaves the nodes with GPUs to those that need one
        room = [node for node in left if node[0] >= cpus and node[1] >= gpus]
        if not room:
            return False
        chosen = min(room, key=lambda node: node[1])
        chosen[0] -= cpus
        chosen[1] -= gpus
    return True


def nodes_now() -> list[Node]:
    """What each node that is alive has."""
    return [*Capacity.now().each]
