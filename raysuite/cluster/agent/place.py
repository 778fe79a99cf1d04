"""Which node of the cluster this process is, and what of the host the allocation gives it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass

from raysuite.spec.site import LocalSite, SlurmSite

_MEGABYTE = 2**20


@dataclass(frozen=True)
class Place:
    """A node of the cluster. None: Ray finds out by itself."""

    host: str
    index: int
    """0 is the head."""
    attempt: int
    incarnation: str
    """Differs with every start of the step; the same on all nodes."""
    cpus: int | None
    gpus: int | None
    memory: int | None
    """Bytes."""

    @property
    def is_head(self) -> bool:
        return self.index == 0


def find_place(site: LocalSite | SlurmSite, variables: Mapping[str, str] = os.environ) -> Place:
    """This process's place: from SLURM's variables, or the one node of a local cluster."""
    if isinstance(site, LocalSite):
        return Place(
            host=_file_name(platform.node()),
            index=0,
            attempt=0,
            incarnation=f"pid-{os.getpid()}",
            cpus=site.cpus,
            gpus=site.gpus,
            memory=None,
        )
    cpus = _number(variables, "SLURM_CPUS_ON_NODE")
    attempt = _number(variables, "SLURM_RESTART_COUNT") or 0
    step = variables.get("SLURM_STEP_ID") or variables.get("SLURM_STEPID") or ""
    return Place(
        host=_file_name(variables.get("SLURMD_NODENAME") or platform.node()),
        index=_number(variables, "SLURM_NODEID") or 0,
        attempt=attempt,
        incarnation=f"{variables.get('SLURM_JOB_ID', '')}-{attempt}-{step}",
        cpus=cpus,
        gpus=_gpus(site, variables),
        memory=_memory(variables, cpus),
    )


def _gpus(site: SlurmSite, variables: Mapping[str, str]) -> int:
    """What SLURM says; it can be empty (SLURM_GPUS_PER_TASK), and then the site's word counts."""
    said = _number(variables, "SLURM_GPUS_ON_NODE")
    if said is not None:
        return said
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return len([each for each in visible.split(",") if each.strip()])
    return site.gpus_per_node


def _memory(variables: Mapping[str, str], cpus: int | None) -> int | None:
    node = _number(variables, "SLURM_MEM_PER_NODE")  # 0: all of the node's
    each = _number(variables, "SLURM_MEM_PER_CPU")
    if node:
        return node * _MEGABYTE
    return each * cpus * _MEGABYTE if each and cpus else None


def _number(variables: Mapping[str, str], name: str) -> int | None:
    value = variables.get(name, "").strip()
    return int(value) if value.isdecimal() else None


def _file_name(host: str) -> str:
    short = host.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]", "_", short) or "node"
