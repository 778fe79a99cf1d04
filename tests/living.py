"""A cluster that lives: this very process stands for its agent."""

from __future__ import annotations

import os

from raysuite.cluster.process import birth_of
from raysuite.cluster.state_files import Cluster
from raysuite.spec.site import LocalSite


def living(name: str = "mine") -> Cluster:
    """What `cluster up` asked for, on this machine, with this process as the agent."""
    pid = os.getpid()
    return Cluster(
        name=name,
        site=LocalSite(name="local"),
        nodes=1,
        created=1.0,
        working_folder="/",
        job=str(pid),
        birth=birth_of(pid),
    )
