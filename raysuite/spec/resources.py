"""The section `resources` of a spec."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Annotated, Literal

from pydantic import Field

from raysuite.spec.base import Options, later

CpuList = Annotated[str, Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$")]


def gpus_in(visible: str) -> int:
    """The number of GPUs in a value of CUDA_VISIBLE_DEVICES.

    CUDA ignores the list from the first invalid name on, as in `-1` or SLURM's `NoDevFiles`. (CUDA
    C++ Programming Guide, CUDA environment variables.)
    """
    names = map(str.strip, visible.split(","))
    return sum(1 for _ in takewhile(re.compile(r"\d+$|(GPU|MIG)-").match, names))


class ResourceOptions(Options):
    """The resources of a run."""

    workers: int = Field(default=1, ge=1)
    """World size: number of ranks, each with one device: a GPU, or `cpus_per_worker` CPUs."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """`auto`: GPUs if there is one for each worker, else CPUs."""
    cpus_per_worker: int = Field(default=1, ge=1)
    """Number of CPUs of each worker, and of torch threads of each worker."""
    binding: Literal["auto", "none"] | tuple[CpuList, ...] = later("auto")
    """CPUs on which each worker's threads and loaders may run. `auto`: on a host with several NUMA
    nodes, the CPUs next to the worker's GPU or, without GPUs, an equal share of the CPUs; on any
    other host, all CPUs. A list gives the CPUs of each worker of a host: [0-11, 12-23]."""
    retries: int = Field(default=2, ge=0)
    """Largest number of times that a run is resumed from its last checkpoint because a worker
    died."""
    fresh_workers: bool = False
    """Start new worker processes for every run instead of sharing them between runs with equal
    resources."""
    placement: Literal["pack", "spread"] = "pack"
    """`pack`: workers on as few nodes as possible; `spread`: on as many nodes as possible."""
    wait_for_nodes_s: float = Field(default=300.0, ge=0)
    """Seconds to wait until the cluster again has the resources of all workers, after a node was
    lost; then the run fails."""
    elastic: bool = False
    """If a lost node does not return, start a new run with as many workers as still fit. The new
    run begins at the first epoch, keeps the global batch, and has its own row in the report."""
    min_workers: int = Field(default=1, ge=1)
    """Smallest number of workers with which an elastic run is started again."""
    elastic_of: int | None = Field(default=None, ge=2)
    """Number of workers of the original run, which this run replaces with fewer workers; raysuite
    sets the key."""
