"""`raysuite check`: compare a site's throughput with that of earlier checks."""

from __future__ import annotations

import shlex
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysuite.cli.cluster import bring_up
from raysuite.cli.console import print_json, print_text
from raysuite.cli.run_options import AsJson
from raysuite.errors import RunError
from raysuite.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raysuite.cluster.client import Status
    from raysuite.cluster.folder import ClusterFolder

_MOST_GPUS = 16
"""Largest number of GPUs that the check uses: with more GPUs, the global batch would be too large
for the digits data set."""
_BATCH = 240
"""Global batch size without GPUs. If the number of workers does not divide it, the next smaller
multiple of the number of workers is used."""


def suite_of(gpus: int, cpus: int, nodes: int) -> dict[str, Any]:
    """The spec of the check. With GPUs it trains ResNet-50 on random images of 224x224 pixels,
    without GPUs ResNet-20 on the digits data set.

    If this spec changes, the variants' names must change too: checks are compared by these names.
    """
    workers = min(gpus, _MOST_GPUS) or min(cpus, 2 * nodes, _BATCH // 2) or 1
    large = {
        "model": {"name": "resnet50", "options": {"stem": "large"}},
        "data": {"name": "digits", "image_size": 224, "channels": 3},
        "loader": "synthetic",
        "training": {"epochs": 4 * workers, "global_batch": 64 * workers, "precision": "bf16"},
    }
    small = {
        "model": "resnet20",
        "data": {"name": "digits", "image_size": 16},
        "training": {"epochs": 4, "global_batch": _BATCH - _BATCH % workers},
    }
    return {
        "name": "check",
        **(large if gpus else small),
        "strategy": "ddp",
        "repeats": 3,
        "resources": {"workers": workers, "device": "gpu" if gpus else "cpu"},
    }


def check(
    site: Annotated[str, typer.Argument(metavar="SITE", help="A site's name, or its file.")],
    nodes: Annotated[
        str | None,
        typer.Option(help="Number of nodes; default: the site's key `nodes`, or all its hosts."),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Accepted loss of throughput, as a fraction of the reference."
        ),
    ] = 0.1,
    expected: Annotated[
        float | None,
        typer.Option(
            help="Expected throughput per worker, in images/s: a reference in addition to earlier "
            "checks, and in place of a published throughput."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a small fixed suite on a site, and compare its throughput with earlier checks.

    Starts its own cluster, measures every node, trains with ddp, and ends the cluster. Prints a
    line `check: NAME = VALUE (REFERENCE) ok|wrong` for each figure, so that programs can find it.
    Exits with 1 if a throughput is below the reference by more than the tolerance, if a node is
    slow, or if NCCL fell back to sockets on a node with a faster network.

    \b
    Examples:
      raysuite check mysite
      raysuite check mysite --nodes 4 --expected 980
    """
    import yaml

    from raysuite.cluster.folder import home
    from raysuite.records import Results
    from raysuite.records.node_checks import FILE as NODES
    from raysuite.records.node_checks import read_checks
    from raysuite.records.verdicts import FILE, earlier_checks, judge, published, site_check

    began = time.time()
    with _cluster(site, nodes) as (folder, status):
        above = home() / "checks" / status.cluster.site.name
        own = above / time.strftime("%Y%m%d-%H%M%S", time.localtime(began))
        own.mkdir(parents=True)
        alive = status.alive
        gpus, cpus = (int(alive.gpus), int(alive.cpus)) if alive else (0, 1)
        suite = suite_of(gpus, cpus, status.alive_count)
        write_whole(own / "check.yaml", yaml.safe_dump(suite, sort_keys=False).encode())
        nodes_file = own / NODES
        measure = ["raysuite", "cluster", "check", "--results", str(nodes_file)]
        train = ["raysuite", "run", str(own / "check.yaml"), "--results", str(own)]
        train += ["--quiet", "--no-mlflow"]  # MLflow's server may take minutes to start
        _job(folder, status, f"{shlex.join(measure)} || [ $? = 1 ]; {shlex.join(train)}")
    now = site_check(Results.open(own), began)
    known = published(now.hardware) if gpus else None
    earlier, damaged = earlier_checks(above, now)
    for file in damaged:
        print_text(f"{file} is damaged, so it is not compared; remove the file", error=True)
    verdicts = judge(now, earlier, read_checks(nodes_file), tolerance, expected, known)
    write_whole(own / FILE, now.model_dump_json(indent=1).encode())
    right = all(each.ok for each in verdicts)
    if as_json:
        found: dict[str, Any] = {"site": status.cluster.site.name, "ok": right, "folder": str(own)}
        print_json(found | {"figures": [each.model_dump() for each in verdicts]})
    else:
        for each in verdicts:
            beside = "" if each.reference is None else f"{each.reference:.4g}, "
            print_text(
                f"check: {each.what} = {each.value:.4g} ({beside}{each.source}) "
                f"{'ok' if each.ok else 'wrong'}"
            )
        print_text(f"check: {'ok' if right else 'wrong'}; written to {own}")
    if not right:
        raise typer.Exit(1)


@contextmanager
def _cluster(site: str, nodes: str | None) -> Iterator[tuple[ClusterFolder, Status]]:
    """Start a cluster, and end it when the context ends, also on SIGTERM or SIGHUP."""
    from raysuite.cluster.client import down, status_of
    from raysuite.cluster.process import in_order

    with in_order():
        folder = bring_up(site, nodes, f"check-{Path(site).stem}")
        try:
            yield folder, status_of(folder)
        finally:
            for line in down(folder, grace_s=0.0):
                print_text(line, error=True)


def _job(folder: ClusterFolder, status: Status, command: str) -> None:
    """Run a command on the cluster, with its output on stderr. Raises RunError if it fails."""
    from raysuite.orchestrate.jobs import JobServer

    assert status.head is not None
    server = JobServer(status.head.dashboard, folder.token_file)
    name = server.submit(f"bash -c {shlex.quote(command)}")
    for text in server.follow(name):
        print_text(text.rstrip("\n"), error=True)
    if (job := server.job(name)).code:
        raise RunError(
            f"the check's job ended with code {job.code}: {job.message}; its output is above"
        )
