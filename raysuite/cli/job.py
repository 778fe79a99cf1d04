"""`raysuite job`: submit, follow and cancel jobs; `raysuite cluster status` lists them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli.cluster import exports
from raysuite.cli.console import print_json, print_text
from raysuite.cli.run_options import AsJson, group
from raysuite.errors import RunError, UserError

if TYPE_CHECKING:
    from raysuite.cluster.folder import ClusterFolder
    from raysuite.orchestrate.jobs import Job, JobServer

# The cluster of a `raysuite job` command: on this machine, or reached through a login node.

ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster", "-c", metavar="NAME", help="Name of the cluster, if there are several."
    ),
]
ViaOption = Annotated[
    str | None,
    typer.Option(
        metavar="LOGIN",
        help="Reach a cluster on another machine by `ssh LOGIN`, such as me@login.site.org.",
    ),
]
JobArgument = Annotated[
    str | None, typer.Argument(metavar="JOB", help="The job; default: the newest.")
]


@contextmanager
def job_server(cluster: str | None, via: str | None) -> Iterator[JobServer]:
    """The job server of the chosen cluster. Raises UserError if the choice is ambiguous."""
    from raysuite.cluster.forward import forwarded
    from raysuite.orchestrate.jobs import JobServer

    with forwarded(via, cluster) if via else nullcontext(_chosen(cluster)) as folder:
        head = folder.head()
        if head is None:
            raise UserError(
                f"cluster {folder.name!r} is not up: its head has not answered yet; "
                f"`raysuite cluster status {folder.name}` shows more"
            )
        yield JobServer(head.dashboard, folder.token_file)


def _chosen(name: str | None) -> ClusterFolder:
    """The cluster `name`, else the cluster of this process, else the only running cluster."""
    from raysuite.cluster.client import find_folder
    from raysuite.cluster.folder import current_folder

    current = current_folder()
    return current if name is None and current is not None else find_folder(name)


def follow_to_end(server: JobServer, name: str, silent: bool = False) -> Job:
    """Print the job's output, unless `silent`, until the job has ended; then print its final state.

    Raises KeyboardInterrupt on Ctrl-C, after printing how to follow the job again.
    """
    try:
        for text in server.follow(name):
            if not silent:
                sys.stdout.write(text)
                sys.stdout.flush()
    except KeyboardInterrupt:
        print_text(
            f"job {name} continues; follow it by `raysuite job logs -f {name}`, "
            f"cancel it by `raysuite job cancel {name}`",
            error=True,
        )
        raise
    job = server.job(name)
    print_text(ending(job), error=True)
    return job


def ending(job: Job) -> str:
    """One line that states how a job ended."""
    if job.status == "SUCCEEDED":
        return f"job {job.id} succeeded"
    if job.status == "STOPPED":
        return f"job {job.id} was cancelled"
    if job.status != "FAILED":
        return f"job {job.id} is {job.status.lower()}"
    if job.code == os.EX_TEMPFAIL:  # `raysuite run` was stopped
        return f"job {job.id} was stopped and can continue later: exit code {job.code}"
    reason = f"exit code {job.exit_code}" if job.exit_code is not None else job.message
    return f"job {job.id} failed: {reason}"


def submit(
    words: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="The command to run.", show_default=False),
    ],
    cluster: ClusterOption = None,
    via: ViaOption = None,
    follow: Annotated[
        bool, typer.Option(help="Print the job's output, and exit with its code.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Run a command on a cluster's head node, in the folder in which `cluster up` ran.

    The arguments are passed on unchanged; no shell splits them. The exit code is the job's: 0, or
    75 if the job was stopped and can continue later, or another code if it failed. After Ctrl-C the
    job continues.

    \b
    Examples:
      raysuite job submit -- raysuite run experiments/aach2023-throughput.yaml
      raysuite job submit --no-follow -- raysuite run experiments/quickstart.yaml repeats=5
      raysuite job submit --via me@login.site.org -- raysuite run experiments/quickstart.yaml
    """
    with job_server(cluster, via) as server:
        name = server.submit(shlex.join(words))
        print_text(f"job {name} is submitted", error=True)
        if not follow:
            if as_json:
                print_json(asdict(server.job(name)))
            else:
                print_text(name)
            return
        ended = follow_to_end(server, name, silent=as_json)
        if as_json:
            print_json(asdict(ended))
    raise typer.Exit(ended.code)


def logs(
    name: JobArgument = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Print until the job ends; exit with the job's code."),
    ] = False,
    cluster: ClusterOption = None,
    via: ViaOption = None,
) -> None:
    """Print the output of a job.

    \b
    Examples:
      raysuite job logs
      raysuite job logs -f job-1122-093000-a1b2c3
    """
    with job_server(cluster, via) as server:
        wanted = server.job(name) if name else server.newest()
        if not follow:
            sys.stdout.write(server.logs(wanted.id))
            return
        ended = follow_to_end(server, wanted.id)
    raise typer.Exit(ended.code)


def cancel(
    name: Annotated[str, typer.Argument(metavar="JOB", help="The job.", show_default=False)],
    cluster: ClusterOption = None,
    via: ViaOption = None,
    patience_s: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", help="How long to wait for the job to end."),
    ] = 90.0,
) -> None:
    """Ask a job to end, and wait until it has ended.

    Finished runs are kept: `raysuite run --resume` continues with the others.

    \b
    Example:
      raysuite job cancel job-1122-093000-a1b2c3
    """
    with job_server(cluster, via) as server:
        job = server.cancel(name, patience_s)
    if not job.ended_already:
        raise RunError(f"job {name} has not ended {patience_s:g} s after the request to end it")
    print_text(ending(job))


def forward(
    login: Annotated[
        str,
        typer.Argument(
            metavar="LOGIN", help="Login as for ssh, such as me@login.site.org.", show_default=False
        ),
    ],
    cluster: ClusterOption = None,
) -> None:
    """Forward a cluster's dashboard and MLflow to this machine's loopback, until Ctrl-C.

    Paste the printed lines into another terminal of this machine: `ray job submit`, `raysuite sync`
    and MLflow then use the cluster. ssh asks for passwords in this terminal.

    \b
    Example:
      raysuite job forward me@login.site.org
    """
    from raysuite.cluster.forward import forwarded
    from raysuite.cluster.variables import client_environment

    with forwarded(login, cluster) as folder:
        head = folder.head()
        assert head is not None  # `forwarded` has checked this
        print_text(exports(client_environment(folder, head)))
        print_text("the tunnel is open until Ctrl-C", error=True)
        folder.wait()


about = "Submit jobs to a cluster, follow and cancel them; from a laptop too, through SSH."
job = group(about, submit, logs, cancel, forward)
