"""`raysuite cluster up`: start a cluster and wait until all of it is there."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli.console import print_text, stderr
from raysuite.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raysuite.cluster.client import Progress
    from raysuite.cluster.files import Cluster
    from raysuite.cluster.folder import ClusterFolder

_AGENT = ("-P", "-m", "raysuite.cluster.agent")
"""-P: not from the working folder, which may be a checkout of another raysuite."""


def up(
    site: Annotated[
        str, typer.Option(help="A site's name, or the path of its YAML file.")
    ] = "local",
    nodes: Annotated[
        str | None, typer.Option(help="Nodes, as 4 or 2-4; default: what the site says.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The cluster's name; default: the site's.")
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Go on with the suites that the last one of that name left.")
    ] = False,
    keep: Annotated[
        bool, typer.Option(help="Leave it as it is when it does not come up, to look into it.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until all nodes have joined.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option(help="Print the batch script, or the command, and stop.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print its state as JSON.")] = False,
) -> None:
    """Start a Ray cluster, and an MLflow server beside it, for you alone.

    Without --site it runs on this machine, on loopback. Jobs start in the folder in which this is
    called.

    \b
    Examples:
      raysuite cluster up
      raysuite cluster up --site mysite --nodes 4
      raysuite cluster up --site mysite --nodes 4 --dry-run
      raysuite cluster up --name second
    """
    from raysuite.cluster.client import start
    from raysuite.cluster.folder import folder_of
    from raysuite.cluster.site_check import secrets_in
    from raysuite.cluster.status import status_of
    from raysuite.spec.site_values import secret_like

    cluster = _asked(site, nodes, name)
    if names := secret_like(cluster.site.environment):
        print_text(f"warning: environment: {'; '.join(secrets_in(names))}", error=True)
    folder = folder_of(cluster.name)
    command = _command(cluster, folder)
    if dry_run:
        print_text(_text(cluster, folder, command))
        return
    folder = start(cluster, command, resume, lambda text: print_text(text, error=True))
    if wait:
        _wait(folder, keep)
    if as_json:
        from raysuite.cli.cluster.words import as_data

        print_text(json.dumps(as_data(status_of(folder)), indent=2))
        return
    print_text(_how_to_go_on(cluster, wait), error=not wait)


def _asked(site_name: str, nodes: str | None, name: str | None) -> Cluster:
    from raysuite.cluster.files import Cluster
    from raysuite.cluster.sites import find_site
    from raysuite.spec.site import LocalSite
    from raysuite.spec.site_values import node_range

    site = find_site(site_name)
    try:
        least, most = node_range(nodes or (1 if isinstance(site, LocalSite) else site.nodes))
    except ValueError as error:
        raise UserError(f"--nodes: {error}") from error
    if isinstance(site, LocalSite) and most > 1:
        raise UserError(f"given were {nodes} nodes; the site {site.name!r} is this machine alone")
    return Cluster(
        name=name or site.name,
        site=site,
        nodes=least,
        most_nodes=most if most > least else 0,
        created=time.time(),
        working_folder=_working_folder(),
    )


def _working_folder() -> str:
    """This folder, in which jobs start; the home folder where runs could not write into this one,
    as into a checkout of another user's."""
    here, home = Path.cwd(), Path.home()
    if os.access(here, os.W_OK) or not os.access(home, os.W_OK):
        return str(here)
    print_text(f"warning: {here} cannot be written; jobs start in {home}", error=True)
    return str(home)


def _command(cluster: Cluster, folder: ClusterFolder) -> tuple[str, ...]:
    """What runs on each node."""
    site = cluster.site
    if site.image is None:
        return (site.python or sys.executable, *_AGENT, str(folder.path))
    from raysuite.images.exec_line import exec_line

    # the home folder is there in every image
    folders = (str(folder.path), cluster.working_folder)
    outside = [path for path in folders if not Path(path).is_relative_to(Path.home())]
    line = exec_line(
        site.image,
        binds=[*site.binds, *outside],
        gpus=site.has_gpus,
        rocm=site.rocm,
        scratch=_scratch(cluster),
    )
    # a batch script has no login's PATH; a site's modules set one of their own
    program = None if getattr(site, "modules", ()) else shutil.which(line[0])
    return (program or line[0], *line[1:], "python", *_AGENT, str(folder.path))


def _scratch(cluster: Cluster) -> str | None:
    """What the command binds; None where each node's own variables name it."""
    from raysuite.spec.site_values import expand

    scratch = cluster.site.scratch
    if cluster.backend == "slurm":
        return None if "$" in scratch else scratch
    return expand(scratch, os.environ)


def _text(cluster: Cluster, folder: ClusterFolder, command: tuple[str, ...]) -> str:
    import shlex

    from raysuite.cluster.slurm import script

    if cluster.backend == "local":
        return shlex.join(command)
    return script(folder, cluster, command).rstrip("\n")


def _wait(folder: ClusterFolder, keep: bool) -> None:
    from raysuite.cluster.client import NotStartedError, wait
    from raysuite.cluster.teardown import down

    try:
        with _shown(folder.name) as tell:
            wait(folder, tell)
    except NotStartedError:
        if not keep:
            for line in down(folder, grace_s=0.0):
                print_text(line, error=True)
        raise
    except KeyboardInterrupt:
        print_text(
            f"not waiting any longer; it goes on: `raysuite cluster status {folder.name}` tells "
            f"how far it is, `raysuite cluster down {folder.name}` ends it",
            error=True,
        )
        raise


@contextmanager
def _shown(name: str) -> Iterator[Callable[[Progress], None]]:
    """Progress on stderr: one line that changes on a terminal, else a line for each change."""
    console = stderr()
    last = ""

    def line(progress: Progress) -> str:
        job = progress.job
        if job.phase == "waiting":
            return f"{name}: {job.state}, {job.reason}"
        return f"{name}: {progress.joined} of {progress.wanted} nodes joined"

    if console.is_terminal:
        with console.status(name) as status:
            yield lambda progress: status.update(f"{line(progress)}, {progress.seconds:.0f} s")
        return

    def tell(progress: Progress) -> None:
        nonlocal last
        if line(progress) != last:
            last = line(progress)
            console.print(f"{last}, {progress.seconds:.0f} s")

    yield tell


def _how_to_go_on(cluster: Cluster, is_up: bool) -> str:
    name, spec = cluster.name, "experiments/quickstart.yaml"
    if not (Path(cluster.working_folder) / spec).exists():
        spec = "SPEC.yaml"
    if not is_up:
        return f"{name} is starting; `raysuite cluster status {name}` tells how far it is"
    return "\n".join(
        (
            f"{name} is up. Go on with:",
            f'  eval "$(raysuite cluster env {name})"',
            f"  ray job submit -- raysuite run {spec}",
            f"  raysuite cluster down {name}",
        )
    )
