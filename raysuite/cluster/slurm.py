"""The batch script that starts a cluster inside a SLURM allocation: pure text, nothing is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from raysuite.cluster.slurm_body import BODY, HEAD, MODULES
from raysuite.errors import UserError
from raysuite.spec.site import SlurmSite
from raysuite.spec.site_values import one_line

_PLAIN = re.compile(r"[A-Za-z0-9_.,/+:@%=-]+")


@dataclass(frozen=True)
class Job:
    """A cluster on some nodes of a SLURM site."""

    name: str
    """The cluster's."""
    site: SlurmSite
    nodes: int
    folder: str
    """The cluster's folder, on a file system that all nodes share."""
    working_folder: str
    """Where the cluster's jobs start."""
    command: tuple[str, ...]
    """What runs once on each node: the agent, in an image or not, with its arguments."""


def render(job: Job) -> str:
    """The script that `sbatch` takes.

    Each value stands in it as data: in the header quoted as sbatch reads it, below quoted as bash
    does. Raises UserError for a value that cannot stand in either.
    """
    _check(job)
    header = [f"#SBATCH {option}" for option in _header(job)]
    title = f"# The Ray cluster {job.name} of raysuite, site {job.site.name or '-'}."
    top = ["#!/bin/bash", *header, *job.site.sbatch_lines, "", title]
    modules = [f"module load {shlex.quote(module)}" for module in job.site.modules]
    parts = [_lines(top), HEAD, MODULES if modules else "", _lines(modules), _settings(job), BODY]
    return "".join(parts)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def quote_option(value: str) -> str:
    """A value as `sbatch` reads it in an #SBATCH line.

    Its own rules: quotes group, a backslash makes the next character plain, also inside quotes,
    and what follows a bare # is a comment (slurm, src/sbatch/opt.c, _get_argument).
    """
    if _PLAIN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _check(job: Job) -> None:
    values = {
        "the cluster's name": job.name,
        "the cluster's folder": job.folder,
        "the working folder": job.working_folder,
        **{f"word {number} of the command": word for number, word in enumerate(job.command)},
    }
    for what, value in values.items():
        try:
            one_line(value)
        except ValueError as error:
            raise UserError(f"{what} cannot stand in a batch script: {error}") from error
    for what, folder in (("cluster's", job.folder), ("working", job.working_folder)):
        if not folder.startswith("/") or "\\" in folder:
            raise UserError(
                f"the {what} folder is {folder!r}; SLURM needs an absolute path without "
                "backslashes; choose another, by RAYSUITE_HOME or by `cd`"
            )
    if job.nodes < 1:
        raise UserError(f"given were {job.nodes} nodes; it should be 1 or more")


def _header(job: Job) -> Iterator[str]:
    site = job.site
    gpus = ":".join(["gpu", *([site.gpu_type] if site.gpu_type else []), str(site.gpus_per_node)])
    log = f"{job.folder}/logs/slurm.log".replace("%", "%%")  # sbatch replaces %j and its like
    options = {
        "job-name": f"raysuite-{job.name}",
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": site.cpus_per_node,
        "gres": gpus if site.gpus_per_node else None,
        "mem": site.memory_per_node,
        "time": site.time,
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "constraint": site.constraint,
        "reservation": site.reservation,
        "chdir": job.working_folder,
        "output": log,
        "open-mode": "append",
        "signal": f"B:USR1@{site.warn_seconds}",
        "export": "NONE",
    }
    for name, value in options.items():
        if value is not None:
            yield f"--{name}={quote_option(str(value))}"
    if site.exclusive:
        yield "--exclusive"
    yield "--no-kill"
    yield "--requeue" if site.requeue else "--no-requeue"


def _settings(job: Job) -> str:
    site = job.site
    step = [
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        *([f"--cpus-per-task={site.cpus_per_node}"] if site.cpus_per_node else []),
        "--export=ALL",  # of this script, which has none of the submitting shell's
        "--cpu-bind=none",
        "--mpi=none",
        "--input=none",
        "--label",
        "--no-kill",  # a node that is lost, or an agent that fails, leaves the others be
        "--wait=0",
        "--kill-on-bad-exit=0",
    ]
    # by `env`, for some names mean something to bash itself: IFS, UID, POSIXLY_CORRECT
    setting = ["env", *(f"{name}={value}" for name, value in site.environment.items())]
    command = [*(setting if site.environment else []), *job.command]
    return _lines(
        [
            f"folder={shlex.quote(job.folder)}",
            f"command=({shlex.join(command)})",
            f"step=({shlex.join(step)})",
            f"warn_seconds={site.warn_seconds}",
            f"head_restarts={site.head_restarts}",
            f"requeue={int(site.requeue)}",
        ]
    )
