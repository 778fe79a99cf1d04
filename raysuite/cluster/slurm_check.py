"""What SLURM says of a site's wishes: partition, limits, accounts, and the whole script."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from raysuite.cluster.findings import Finding, unsure, works, wrong
from raysuite.cluster.slurm import Job, render
from raysuite.cluster.slurm_ask import (
    NodeGroup,
    SlurmError,
    accounts,
    ask,
    megabytes,
    node_groups,
)
from raysuite.spec.checking import suggest
from raysuite.spec.site import SlurmSite
from raysuite.spec.site_values import slurm_seconds

COMMANDS = ("sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol")


def check_slurm(site: SlurmSite, folder: Path) -> Iterator[Finding]:
    """From the commands to a trial of the script, as far as each makes sense after the last.

    `folder` is where clusters are kept. Nothing is queued.
    """
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        yield wrong(
            "SLURM's commands",
            f"not on PATH: {', '.join(missing)}",
            "run this on a login node of the site, or load the module that has them",
        )
        return
    try:
        version = ask(["sinfo", "--version"]).strip()
        groups = node_groups()
    except SlurmError as error:
        yield wrong("controller", str(error), "ask the site whether SLURM is up: `scontrol ping`")
        return
    yield works("SLURM", version)
    yield from _partitions(site, groups)
    yield from _books(site)
    yield _trial(site, folder)


def _partitions(site: SlurmSite, groups: Sequence[NodeGroup]) -> Iterator[Finding]:
    wanted = site.partition.split(",") if site.partition else []
    known = list(dict.fromkeys(group.partition for group in groups))
    unknown = [name for name in wanted if name not in known]
    if unknown:
        note = f"no partition is called {unknown[0]!r}"
        yield wrong("partition", note, suggest(unknown[0], known))
        return
    mine = [group for group in groups if (group.partition in wanted if wanted else group.default)]
    names = ", ".join(dict.fromkeys(group.partition for group in mine))
    if not mine:
        yield wrong(
            "partition", "the cluster has no default", f"give `partition`: {', '.join(known)}"
        )
        return
    if not any(group.up for group in mine):
        note = f"{names} takes no jobs now"
        yield unsure("partition", note, "jobs wait in the queue until the site opens it again")
    else:
        yield works("partition", names)
    yield _time(site, mine)
    yield _nodes(site, mine)


def _time(site: SlurmSite, groups: Sequence[NodeGroup]) -> Finding:
    longest = max(group.limit_s for group in groups)
    limit = "no limit" if longest == float("inf") else f"at most {longest / 3600:g} h"
    if site.time is None:
        return works("time", f"the partition's default; {limit}")
    if slurm_seconds(site.time) > longest:
        return wrong("time", f"{site.time} is too long; the partition gives {limit}", "shorten it")
    return works("time", f"{site.time}; {limit}")


def _nodes(site: SlurmSite, groups: Sequence[NodeGroup]) -> Finding:
    memory = megabytes(site.memory_per_node) if site.memory_per_node else 0
    fitting = sum(
        group.nodes
        for group in groups
        if group.cpus >= (site.cpus_per_node or 1)
        and group.gpus >= site.gpus_per_node
        and group.memory_mb >= memory
    )
    asked = [
        f"{site.nodes} nodes",
        *([f"{site.cpus_per_node} CPUs"] if site.cpus_per_node else []),
        *([f"{site.gpus_per_node} GPUs"] if site.gpus_per_node else []),
        *([f"{memory} MB"] if memory else []),
    ]
    most = max(groups, key=lambda group: (group.gpus, group.cpus))
    there = (
        f"{sum(group.nodes for group in groups)} nodes of up to {most.cpus} CPUs, "
        f"{most.gpus} GPUs and {most.memory_mb} MB"
    )
    if fitting < site.nodes:
        note = f"asked for {' with '.join(asked[:2])}{''.join(f', {each}' for each in asked[2:])}"
        return wrong("nodes", f"{note}; {fitting} fit", f"the partition has {there}")
    return works("nodes", f"{fitting} of the partition's {there} fit")


def _books(site: SlurmSite) -> Iterator[Finding]:
    try:
        mine, qos = accounts()
    except SlurmError as error:
        mine, qos, why = set[str](), set[str](), str(error)
    else:
        why = "the site's books name none of yours"
    wishes = [("account", site.account, mine), ("qos", site.qos, qos)]
    for what, wish, known in wishes:
        if not known:
            if wish is not None:
                yield unsure(what, f"{wish} cannot be looked up: {why}")
        elif wish is None:
            yield works(what, f"your default of {', '.join(sorted(known))}")
        elif wish in known:
            yield works(what, wish)
        else:
            yield wrong(what, f"{wish!r} is not yours", suggest(wish, sorted(known)))


def _trial(site: SlurmSite, folder: Path) -> Finding:
    """What the controller itself says of the script, without taking it."""
    job = Job("doctor", site, site.nodes, str(folder / "doctor"), str(Path.cwd()), ("true",))
    try:
        said = ask(["sbatch", "--test-only"], text=render(job)).strip().splitlines()
    except SlurmError as error:
        return wrong("the script", str(error), "SLURM refuses it: change what it names above")
    return works("the script", said[-1].removeprefix("sbatch: ") if said else "SLURM takes it")
