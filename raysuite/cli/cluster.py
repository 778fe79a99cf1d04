"""`raysuite cluster`: start, watch and stop Ray clusters; describe their sites."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysuite.cli.console import print_json, print_text, stdout, table
from raysuite.cli.run_options import Address, AsJson, DryRun, group
from raysuite.errors import RaysuiteError, SpecError, UserError
from raysuite.files import write_whole
from raysuite.units import count, human_seconds

if TYPE_CHECKING:
    from raysuite.cluster.client import Status
    from raysuite.cluster.dashboard import RayJob
    from raysuite.cluster.folder import ClusterFolder
    from raysuite.cluster.state_files import Cluster, Head

ClusterName = Annotated[
    str | None,
    typer.Argument(help="Name of the cluster; default: the only one.", show_default=False),
]

# Describe clusters as text and as JSON.


def in_words(status: Status) -> str:
    return f"{status.state} ({status.why})" if status.why else status.state


def node_in_words(status: Status, index: int) -> str:
    """The state that a node's agent wrote. In place of `joined`: `gone` if the cluster has ended,
    `lost` if the cluster is up, but Ray does not count the node as alive."""
    node = status.nodes[index]
    if node.state == "joined" and not status.lives:
        return "gone"
    if status.state == "up" and node.state == "joined" and not status.is_alive(node):
        return "lost"
    return f"{node.state} ({node.message})" if node.message else node.state


def as_data(status: Status) -> dict[str, Any]:
    """A cluster's state as plain data for --json, without secrets."""
    cluster, head = status.cluster, status.head
    return {
        "name": cluster.name,
        "state": status.state,
        "why": status.why,
        "site": cluster.site.name,
        "backend": cluster.backend,
        "job": cluster.job,
        "slurm_state": status.job.state,
        "slurm_reason": status.job.reason,
        "created": cluster.created,
        "working_folder": cluster.working_folder,
        "nodes_wanted": status.wanted,
        "nodes_alive": status.alive_count,
        "cpus": status.alive.cpus if status.alive else 0.0,
        "gpus": status.alive.gpus if status.alive else 0.0,
        **{key: getattr(head, key, None) for key in ("gcs", "client", "dashboard", "mlflow")},
        "mlflow_answers": bool(head and head.mlflow_answers),
        "mlflow_error": head.mlflow_error if head else "",
        "nodes": [
            {
                "host": node.host,
                "address": node.address,
                "state": node_in_words(status, index),
                "alive": status.is_alive(node),
                "seconds": node.seconds,
            }
            for index, node in enumerate(status.nodes)
        ],
    }


def exports(variables: Mapping[str, str]) -> str:
    """`export` lines for a POSIX shell, with quoted values."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


# The questions of `raysuite cluster site new` at a terminal.

QUESTIONS = {
    "slurm": {
        "partition": "partition",
        "account": "account that pays",
        "time": "time limit (HH:MM:SS or D-HH:MM:SS)",
        "nodes": "nodes, unless --nodes gives others",
        "cpus_per_node": "CPUs of a node",
        "gpus_per_node": "GPUs of a node",
        "memory_per_node": "memory of a node (480G; 0 for all)",
        "interface": "network interface between nodes (ib0, ...)",
        "modules": "modules to load, separated by commas",
        "scratch": "folder on each node's own disk",
        "image": "Apptainer image (a path)",
    },
    "local": {"scratch": "folder for temporary files", "image": "Apptainer image (a path)"},
}
"""Key -> question; an empty answer keeps the default, and leaves out a key without a default."""


def ask_all(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for the value of each key, and validate each answer; `given` has the default answers."""
    hints = _hints() if kind == "slurm" else {}
    print_text("An empty answer keeps the value in brackets; - leaves a key out.", error=True)
    answers: dict[str, Any] = {}
    for key, question in QUESTIONS.get(kind, {}).items():
        if hints.get(key):
            print_text(f"  {key}: {hints[key]}", error=True)
        default = given.get(key, "")
        shown = ", ".join(default) if isinstance(default, list | tuple) else str(default)
        answers[key] = typer.prompt(
            question,
            default=shown,
            show_default=bool(shown),
            err=True,
            value_proc=partial(_answer, kind, key),
        )
    return answers


def _answer(kind: str, key: str, text: str) -> Any:
    """The value of an answer. Raises BadParameter if it is invalid: Typer then asks again."""
    from raysuite.spec.checking import validate_as
    from raysuite.spec.site import SITES

    value: Any = text.strip()
    if value in ("", "-"):
        return None
    if key == "modules":
        value = [name.strip() for name in value.split(",") if name.strip()]
    elif value.isdecimal() and key in ("nodes", "cpus_per_node", "gpus_per_node"):
        value = int(value)
    try:
        validate_as(SITES[kind], {key: value}, lambda path: ("", None))
    except SpecError as error:
        raise typer.BadParameter(error.mistakes[0].message) from error
    return value


def _hints() -> dict[str, str]:
    """The partitions and accounts of SLURM, if this machine has SLURM."""
    from raysuite.cluster.slurm import SlurmError, accounts, node_groups

    hints = {}
    try:
        rows = {
            f"{group.partition}{' (default)' if group.default else ''}: "
            f"{group.cpus} CPUs, {group.gpus} GPUs, {group.memory_mb} MB a node": None
            for group in node_groups()
        }
        hints["partition"] = "; ".join(rows)
    except SlurmError as error:
        hints["partition"] = f"sinfo cannot list the partitions: {error}"
    try:
        mine, _ = accounts()
        hints["account"] = ", ".join(sorted(mine))
    except SlurmError:
        pass  # many sites have no SLURM accounting
    return hints


def new(
    name: Annotated[str, typer.Argument(help="Name of the new site.")],
    start: Annotated[
        str, typer.Option("--from", metavar="NAME|FILE", help="The site to copy and change.")
    ] = "slurm-generic",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the site; may be repeated."),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="SLURM partition.")] = None,
    account: Annotated[str | None, typer.Option(help="SLURM account.")] = None,
    image: Annotated[str | None, typer.Option(help="Path of an Apptainer image.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for values.")] = False,
    force: Annotated[bool, typer.Option(help="Overwrite your own site of that name.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Write a site of your own to $RAYSUITE_HOME/sites (~/.raysuite/sites), and show it.

    Asks for the values of keys that differ between sites. To set other keys, use --set, or edit the
    file.

    \b
    Examples:
      raysuite cluster site new mysite
      raysuite cluster site new mysite --yes --partition gpu --account physics \\
        --set gpus_per_node=4 --set time=12:00:00
      raysuite cluster site new mybooster --from juwels-booster --account myproject
    """
    import yaml

    from raysuite.cluster.sites import own_sites, site_file
    from raysuite.spec.document import read_document
    from raysuite.spec.site import site_of

    file = own_sites() / f"{name}.yaml"
    if file.exists() and not force:
        raise UserError(f"{file} already exists; edit it, use another name, or give --force")
    document = read_document(site_file(start), settings or [])
    document.overrides["name"] = name
    options = {"partition": partition, "account": account, "image": image}
    document.overrides.update({key: value for key, value in options.items() if value is not None})
    keys = {**document.data, "description": f"Begun from {start}.", **document.overrides}
    if not yes and sys.stdin.isatty():
        answers = ask_all(str(keys.get("kind")), keys)
        document.overrides.update(answers)
        keys.update(answers)
    document.data = {key: value for key, value in keys.items() if value is not None}
    site_of(document, name)
    text = f"# Written by `raysuite cluster site new {name}`; every key: docs/how-to/sites.md.\n"
    text += yaml.safe_dump(document.data, sort_keys=False, allow_unicode=True, width=100)
    if not dry_run:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(file, text.encode())
        print_text(f"wrote {file}; next: raysuite doctor --site {name}", error=True)
    print_text(text.rstrip("\n"))


def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE", help="A site's name, or its file; default: list all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show every key of a site, with defaults; without a name, list all sites for `--site`.

    \b
    Examples:
      raysuite cluster site show
      raysuite cluster site show juwels-booster
      raysuite cluster site show ./mysite.yaml --json
    """
    import yaml

    from raysuite.cluster.sites import find_site, site_file

    if name is None:
        _list_sites(as_json)
        return
    values = find_site(name).model_dump(mode="json")
    if as_json:
        print_json(values)
        return
    print_text(f"# {site_file(name)}")
    print_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100).rstrip())


def _list_sites(as_json: bool) -> None:
    from raysuite.cluster.sites import find_site, site_files

    rows = []
    for name, file in site_files().items():
        try:
            found = find_site(name)
            row = {"kind": found.kind, "description": found.description, "ok": True}
        except SpecError as error:
            mistakes = count(len(error.mistakes), "mistake")
            words = f"{mistakes}; `raysuite cluster site show {name}` lists them"
            row = {"kind": "?", "description": words, "ok": False}
        rows.append({"name": name, **row, "file": str(file)})
    if as_json:
        print_json(rows)
        return
    headings = ("name", "kind", "description", "file")
    stdout().print(table(headings, ([str(row[key]) for key in headings] for row in rows)))


# `raysuite cluster check`: find slow nodes.


def check(
    address: Address = None,
    results: Annotated[
        Path | None, typer.Option(help="The file to write; default: a new one in RAYSUITE_HOME.")
    ] = None,
    disk: Annotated[
        Path, typer.Option(help="Folder on the disk whose read speed is measured.")
    ] = Path("."),
    as_json: AsJson = False,
) -> None:
    """Measure every node of a cluster for a few seconds, and name those that are slow.

    Times a matrix product, a copy in memory, reading a file, exchanges with other nodes, and an
    all-reduce over all nodes. Exits with 1 if a node is slow (its best value of six tries is far
    below the median of all nodes; at least three nodes are needed to find a slow one), or if NCCL
    fell back to sockets on a node with InfiniBand or Slingshot.

    \b
    Examples:
      ray job submit -- raysuite cluster check
      raysuite cluster check --address 10.0.0.1:6379 --json
    """
    from raysuite.cluster.folder import home
    from raysuite.orchestrate.node_check import check_nodes
    from raysuite.orchestrate.ray_cluster import connect
    from raysuite.records.node_checks import CHECKS, FEWEST, findings, slow_nodes, write_checks

    with connect(address):
        rows = check_nodes(disk.resolve())
    file = results or home() / "checks" / f"{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_checks(file, rows)
    slow = slow_nodes(rows)
    fallen = [row for row in rows if row.fell_back]
    if as_json:
        found = {
            "slow": [{**asdict(each), "share": each.share} for each in slow],
            "fell_back": [row.host for row in fallen],
        }
        print_json({"nodes": [row.model_dump() for row in rows], **found, "file": str(file)})
    else:
        columns = ("node", *(f"{each.title} {each.unit}" for each in CHECKS.values()))
        lines = [
            (row.host, *(f"{row.figures[x]:.4g}" if x in row.figures else "-" for x in CHECKS))
            for row in rows
        ]
        stdout().print(table(columns, lines))
        if carried := sorted({name for row in rows for name in row.transports}):
            by = "; ".join(carried)
            print_text(f"all-reduce over all nodes: {rows[0].all_reduce_s:.4g} s, by {by}")
        for line in findings(rows):
            print_text(line)
        if len(rows) < FEWEST:
            print_text(f"got {len(rows)} nodes; at least {FEWEST} are needed to find a slow node")
        print_text(f"written to {file}")
    if slow or fallen:
        raise typer.Exit(1)


# `raysuite cluster up`: start a cluster and wait until all nodes have joined.

_AGENT = ("-P", "-m", "raysuite.cluster.agent")
"""Python's arguments for an agent; with -P, it imports nothing from the working folder."""


def up(
    site: Annotated[
        str, typer.Option(help="A site's name, or the path of its YAML file.")
    ] = "local",
    nodes: Annotated[
        str | None,
        typer.Option(
            help="Number of nodes, such as 4 or 2-4; default: the site's key `nodes`, or all its "
            "hosts."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the cluster; default: the site's name.")
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|A,B",
            help="For a site of kind hosts: the hosts, or a file that lists them.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Resume the unfinished suites of the last cluster of that name.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until all nodes have joined.")
    ] = True,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Start a Ray cluster that only you can use, with an MLflow server.

    Without --site, the cluster runs on this machine, and listens only on loopback. Jobs start in
    the folder in which this command is called.

    \b
    Examples:
      raysuite cluster up
      raysuite cluster up --site mysite --nodes 4
      raysuite cluster up --site mysite --nodes 4 --dry-run
      raysuite cluster up --site myhosts --hosts $PBS_NODEFILE
    """
    from raysuite.cluster.client import start, status_of
    from raysuite.cluster.folder import folder_of
    from raysuite.cluster.sites import secrets_in
    from raysuite.spec.site_values import secret_like

    cluster = _requested(site, nodes, name, hosts)
    if names := secret_like(cluster.site.environment):
        print_text(f"warning: environment: {'; '.join(secrets_in(names))}", error=True)
    folder = folder_of(cluster.name)
    command = _command(cluster, folder)
    if dry_run:
        text = _text(cluster, folder, command)
        if as_json:
            print_json({"name": cluster.name, "backend": cluster.backend, "command": text})
        else:
            print_text(text)
        return
    folder = start(cluster, command, resume, partial(print_text, error=True))
    if wait:
        _wait(folder)
    if as_json:
        print_json(as_data(status_of(folder)))
        return
    print_text(_how_to_go_on(cluster, wait), error=not wait)


def bring_up(site: str, nodes: str | None, name: str) -> ClusterFolder:
    from raysuite.cluster.client import start
    from raysuite.cluster.folder import folder_of

    cluster = _requested(site, nodes, name, None)
    command = _command(cluster, folder_of(name))
    folder = start(cluster, command, tell=partial(print_text, error=True))
    _wait(folder)
    return folder


def _requested(site_name: str, nodes: str | None, name: str | None, hosts: str | None) -> Cluster:
    from raysuite.cluster.hosts import find_hosts
    from raysuite.cluster.sites import find_site
    from raysuite.cluster.state_files import Cluster
    from raysuite.spec.site import HostsSite, LocalSite, SlurmSite
    from raysuite.spec.site_values import node_range

    site = find_site(site_name)
    found = find_hosts(site, hosts, os.environ) if isinstance(site, HostsSite) else {}
    if hosts and not found:
        raise UserError(f"--hosts: site {site.name!r} is of kind {site.kind}; leave --hosts out")
    usual = site.nodes if isinstance(site, SlurmSite) else max(1, len(found))
    try:
        least, most = node_range(nodes or usual)
    except ValueError as error:
        raise UserError(f"--nodes: {error}") from error
    if isinstance(site, LocalSite) and most > 1:
        raise UserError(
            f"got {nodes} nodes; the site {site.name!r} has only this machine; leave --nodes out"
        )
    if found and most > len(found):
        raise UserError(
            f"got {nodes} nodes; the list of hosts has {len(found)}: {', '.join(found)}"
        )
    return Cluster(
        name=name or site.name,
        site=site,
        nodes=least,
        most_nodes=most if most > least and not found else 0,
        hosts=tuple(found)[:least],
        host_indices=tuple(found.values())[:least],
        created=time.time(),
        working_folder=_working_folder(),
    )


def _working_folder() -> str:
    """The folder in which jobs start: the working folder, or the home folder if only the home
    folder can be written."""
    here, home = Path.cwd(), Path.home()
    if os.access(here, os.W_OK) or not os.access(home, os.W_OK):
        return str(here)
    print_text(f"warning: {here} cannot be written; jobs start in {home}", error=True)
    return str(home)


def _command(cluster: Cluster, folder: ClusterFolder) -> tuple[str, ...]:
    """The command that starts a node's agent or, for a site of kind `hosts`, all nodes' agents."""
    from raysuite.cluster.in_image import launched

    site = cluster.site
    python = "python" if site.image else site.python or sys.executable
    mine = (python, *_AGENT, str(folder.path))
    scratch = _scratch(cluster)
    folders = (str(folder.path), cluster.working_folder, *([scratch] if scratch else []))
    line = launched(site, mine, folders)
    if cluster.backend == "hosts":
        return (sys.executable, "-P", "-m", "raysuite.cluster.hosts", str(folder.path), *line)
    # a batch script lacks the login shell's PATH, but the site's modules may set PATH
    program = None if getattr(site, "modules", ()) else shutil.which(line[0])
    return (program or line[0], *line[1:])


def _scratch(cluster: Cluster) -> str | None:
    """The scratch folder to bind into the image; None for a SLURM site if the path contains
    variables, because each node expands them itself."""
    from raysuite.spec.site_values import expand

    scratch = cluster.site.scratch
    if cluster.backend == "slurm":
        return None if "$" in scratch else scratch
    return expand(scratch, os.environ)


def _text(cluster: Cluster, folder: ClusterFolder, command: tuple[str, ...]) -> str:
    from raysuite.cluster.slurm import script

    if cluster.backend == "local":
        return shlex.join(command)
    if cluster.backend == "hosts":
        from raysuite.cluster.hosts import launch_lines

        return "\n".join(map(shlex.join, launch_lines(cluster, command[5:], "START")))
    return script(folder, cluster, command).rstrip("\n")


def _wait(folder: ClusterFolder) -> None:
    from raysuite.cluster.client import NotStartedError, down, wait

    try:
        write = _printer(folder.name)
        wait(folder, lambda status: write(_progress_text(status)))
    except NotStartedError:
        for line in down(folder, grace_s=0.0):
            print_text(line, error=True)
        raise
    except KeyboardInterrupt:
        print_text(
            "not waiting any longer; the start continues: `raysuite cluster status "
            f"{folder.name}` shows its state, `raysuite cluster down {folder.name}` ends it",
            error=True,
        )
        raise


def _progress_text(status: Status) -> str:
    if status.job.phase == "waiting":
        return f"{status.job.state}, {status.job.reason}"
    return f"{status.alive_count} of {status.wanted} nodes joined"


def _how_to_go_on(cluster: Cluster, is_up: bool) -> str:
    name, spec = cluster.name, "experiments/quickstart.yaml"
    if not is_up:
        return f"{name} is starting; `raysuite cluster status {name}` shows its progress"
    if not (Path(cluster.working_folder) / spec).exists():
        spec = "SPEC.yaml"
    return (
        f"{name} is up. Continue with:\n"
        f'  eval "$(raysuite cluster status {name} --env)"\n'
        f"  ray job submit -- raysuite run {spec}\n"
        f"  raysuite cluster down {name}"
    )


def status(
    name: ClusterName = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List all clusters, also those that have ended.")
    ] = False,
    env: Annotated[
        bool,
        typer.Option(
            "--env",
            help="Print `export` lines that let `ray job submit` and MLflow find the cluster. They "
            "contain paths of files with secrets, but no secrets.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a cluster: its state, nodes, addresses and jobs, and how long its start took.

    Without a name, several clusters are listed, the newest first. A cluster whose agents died
    without shutting it down is called stale; `raysuite cluster down NAME` removes its leftovers on
    this machine. Leftovers on other nodes are removed by the next cluster of that name that uses
    these nodes, or must be removed by hand.

    \b
    Examples:
      raysuite cluster status
      raysuite cluster status mysite --json
      raysuite cluster status --all
      eval "$(raysuite cluster status --env)"
    """
    from raysuite.cluster.client import all_status, find_folder, status_of

    if everything and (name or env):
        raise UserError(f"--all lists all clusters; leave {repr(name) if name else '--env'} out")
    if name is None and not env:
        known = [x for x in all_status() if everything or x.lives or x.state == "stale"]
        living = [each.cluster.name for each in known if each.lives]
        if everything or (known and len(living) != 1):
            _list(known, as_json)
            return
        name = living[0] if living else None
    folder = find_folder(name)
    found = status_of(folder)
    if env:
        variables = _environment(folder, found)
        if as_json:
            print_json(variables)
        else:
            print_text(exports(variables))
        return
    jobs = _jobs(folder, found)
    if as_json:
        listed = [{"id": job.id, "status": job.status} for job in jobs]
        print_json(as_data(found) | {"jobs": listed, "timings": folder.timings()})
        return
    _show(folder, found, jobs)


def _list(found: Sequence[Status], as_json: bool) -> None:
    if as_json:
        print_json([as_data(status) for status in found])
        return
    if not found:
        print_text("there is no cluster; `raysuite cluster up` starts one", error=True)
        return
    rows = [
        (
            status.cluster.name,
            in_words(status),
            status.cluster.site.name,
            f"{status.alive_count} of {status.wanted}",
            status.cluster.job,
            human_seconds(time.time() - status.cluster.created),
        )
        for status in found
    ]
    stdout().print(table(("name", "state", "site", "nodes", "job", "age"), rows))


def _environment(folder: ClusterFolder, found: Status) -> dict[str, str]:
    """The variables with which clients find the cluster. Raises UserError if the cluster does not
    run, or may run on another host."""
    from raysuite.cluster.client import check_here
    from raysuite.cluster.variables import client_environment

    check_here(found)
    if found.head is None or not found.lives:
        hint = "wait until it is up" if found.lives else "`raysuite cluster up` starts it"
        raise UserError(f"the cluster {folder.name!r} is {found.state}; {hint}")
    return client_environment(folder, found.head)


def _jobs(folder: ClusterFolder, found: Status) -> list[RayJob]:
    from raysuite.cluster.dashboard import Dashboard, NoAnswerError

    if found.head is None or found.state not in ("up", "stopping"):
        return []
    try:
        return Dashboard(found.head.dashboard, folder.token()).jobs()
    except (NoAnswerError, OSError):
        return []


def _show(folder: ClusterFolder, found: Status, jobs: list[RayJob]) -> None:
    cluster, head, out = found.cluster, found.head, stdout()
    facts = {
        "state": in_words(found),
        "site": f"{cluster.site.name} ({cluster.backend}, job {cluster.job or '-'})",
        "age": human_seconds(time.time() - cluster.created),
        "nodes": f"{found.alive_count} of {found.wanted} alive",
        "folder": str(folder.path),
        "jobs start in": cluster.working_folder,
    }
    if head:
        facts |= {
            "ray": head.gcs,
            "ray client": head.client,
            "dashboard": head.dashboard,
            "mlflow": _mlflow_in_words(folder, head, any_runs=bool(jobs)),
        }
    if seconds := folder.timings():
        facts["start took"] = ", ".join(f"{what} {value:.1f} s" for what, value in seconds.items())
    out.print(f"{cluster.name}")
    for what, value in facts.items():
        out.print(f"  {what:14}{value}", soft_wrap=True)
    if found.nodes:
        nodes = enumerate(found.nodes)
        rows = [(node.host, node.address, node_in_words(found, index)) for index, node in nodes]
        out.print(table(("node", "address", "state"), rows))
    if jobs:
        rows = [(job.id, job.status, job.entrypoint) for job in jobs]
        out.print(table(("job", "status", "command"), rows))


_MLFLOW_S = 10
"""Longest time to wait for MLflow's answer, in seconds."""


def _mlflow_in_words(folder: ClusterFolder, head: Head, any_runs: bool) -> str:
    """The address of MLflow's page with the newest results, or with all experiments; or the reason
    why there is no page."""
    from raysuite.cluster.variables import client_environment
    from raysuite.track.store import experiments_page, runs_page

    if not head.mlflow:
        return f"none ({head.mlflow_error})" if head.mlflow_error else "none"
    if not head.mlflow_answers:
        return f"{head.mlflow} (starting)"
    page = experiments_page()
    if any_runs:
        patience = {"TIMEOUT": f"{_MLFLOW_S}", "MAX_RETRIES": "0"}
        os.environ.update({f"MLFLOW_HTTP_REQUEST_{name}": each for name, each in patience.items()})
        os.environ.update(client_environment(folder, head))
        with suppress(Exception):  # show the rest of the status although the server fails
            page = runs_page(head.mlflow)
    return f"{head.mlflow.rstrip('/')}/{page}"


# `raysuite cluster logs`: the output of Ray, the agents and MLflow.


def logs(
    node: Annotated[
        str | None,
        typer.Argument(
            help="Log to show: a host, mlflow, slurm or agent; default: all.", show_default=False
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Name of the cluster; default: the only one.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Lines to print from the end of each log.")
    ] = 100,
) -> None:
    """Show the logs of a cluster.

    \b
    Examples:
      raysuite cluster logs
      raysuite cluster logs node2 -n 20
      raysuite cluster logs mlflow -f
    """
    from raysuite.cluster.client import find_folder

    folder = find_folder(cluster)
    found = {file.stem: str(file) for file in sorted(folder.logs.glob("*.log"))}
    if not found:
        raise UserError(f"the cluster {folder.name!r} has no logs yet")
    if node is not None and node not in found:
        raise UserError(f"no log is called {node!r}; valid: {', '.join(found)}")
    files = list(found.values()) if node is None else [found[node]]
    follows = ["--follow"] if follow else []
    subprocess.run(["tail", f"--lines={lines}", *follows, *files], check=False)


def down(
    name: ClusterName = None,
    everything: Annotated[bool, typer.Option("--all", help="End all running clusters.")] = False,
    grace: Annotated[
        float,
        typer.Option(
            min=0, help="Longest wait for runs to write a checkpoint and stop, in seconds."
        ),
    ] = 30.0,
    remove: Annotated[
        bool, typer.Option(help="Also remove the cluster's folder, with logs and MLflow database.")
    ] = False,
) -> None:
    """End a cluster: stop its jobs and processes, and remove its temporary folders.

    Its logs and its MLflow database stay in its folder; the next cluster of that name uses the
    database again.

    \b
    Examples:
      raysuite cluster down
      raysuite cluster down second --grace 120
      raysuite cluster down --all
    """
    from raysuite.cluster.client import all_status, find_folder
    from raysuite.cluster.client import down as take_down

    if everything and name:
        raise UserError(f"got {name!r} and --all; give one of them")
    names = (
        [each.cluster.name for each in all_status() if each.lives or each.state == "stale"]
        if everything
        else [find_folder(name).name]
    )
    left = []
    for each in names:
        try:
            lines = take_down(find_folder(each), grace, _printer(each), remove)
        except RaysuiteError as error:
            if not everything:
                raise
            lines = [str(error)]  # continue with the other clusters
        left += lines
        if not lines:
            print_text(f"{each} is down")
    if everything and not names:
        print_text("no cluster is running")
    if left:
        print_text("\n".join(left), error=True)
        raise typer.Exit(1)


def _printer(name: str) -> Callable[[str], None]:
    last = ""

    def write(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            print_text(f"{name}: {text}", error=True)

    return write


about = (
    "Start, watch and stop a Ray cluster of your own: on this machine, on the nodes of a SLURM "
    "site, or on a list of hosts."
)
cluster = group(about, up, status, check, logs, down)
about = "Describe the machines on which clusters are started."
cluster.add_typer(group(about, new, show), name="site")
