"""The lab's command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Annotated, NoReturn

import typer

from lab import apptainer, hosts, network, site
from lab.layout import LOGIN, USERS, Lab, LabError, default_folder, load

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False
)
PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}
Host = Annotated[str, typer.Argument(help="A host of the lab, such as node1.")]
Command = Annotated[list[str] | None, typer.Argument(help="What to run; a shell otherwise.")]


def fail(message: object) -> NoReturn:
    """End with one clear message."""
    typer.echo(f"lab: {message}", err=True)
    raise typer.Exit(2)


def the_lab() -> Lab:
    """The existing lab."""
    lab = load(default_folder())
    if lab is None:
        fail(f"there is no lab in {default_folder()}; `make lab-up` starts one")
    return lab


@app.command()
def up(
    nodes: Annotated[int, typer.Option(min=1, max=32, help="Hosts beside the login host.")] = 3,
    cpus: Annotated[int, typer.Option(min=1, help="CPUs that SLURM believes a host has.")] = 4,
    images: Annotated[
        bool, typer.Option("--apptainer/--no-apptainer", help="Install Apptainer, if it is not.")
    ] = True,
) -> None:
    """Start the lab, or the parts of it that are not running."""
    try:
        if images:
            apptainer.install()
        lab = site.up(default_folder(), nodes, cpus)
    except LabError as error:
        fail(error)
    typer.echo(f"lab: {len(lab.hosts)} hosts on {lab.subnet}; users {', '.join(USERS)}")
    typer.echo("lab: python deploy/lab as hpc1 sinfo")


@app.command("apptainer")
def install_apptainer() -> None:
    """Install Apptainer for this machine's users if it is missing, and print its path."""
    try:
        typer.echo(apptainer.install() / "bin" / "apptainer")
    except LabError as error:
        fail(error)


@app.command()
def down() -> None:
    """End everything that belongs to the lab, homes included."""
    try:
        there = site.down(default_folder())
    except LabError as error:
        fail(error)
    typer.echo("lab: down" if there else f"lab: there is none in {default_folder()}")


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Hosts, addresses, and what SLURM says of them."""
    lab = the_lab()
    rows = [
        {"host": host, "address": lab.address(host), "on": hosts.alive(lab, host)}
        for host in (LOGIN, *lab.hosts)
    ]
    if as_json:
        typer.echo(json.dumps({"folder": str(lab.folder), "hosts": rows}, indent=2))
        return
    for row in rows:
        typer.echo(f"{row['host']:8} {row['address']:15} {'on' if row['on'] else 'off'}")
    if hosts.alive(lab, LOGIN):
        subprocess.run(hosts.entering(lab, LOGIN, ["sinfo", "-N", "-l"]), check=False)
        subprocess.run(hosts.entering(lab, LOGIN, ["squeue", "-l"]), check=False)


@app.command("as", context_settings=PASS_ON)
def as_user(
    who: Annotated[str, typer.Argument(metavar="USER[@HOST]", help=f"One of {', '.join(USERS)}.")],
    command: Command = None,
) -> None:
    """Run a command as an ordinary user, on the login host unless another is named.

    python deploy/lab as hpc1 sbatch job.sh

    python deploy/lab as hpc1@node2 hostname
    """
    user, _, host = who.partition("@")
    if user not in USERS:
        fail(f"no user '{user}'; valid: {', '.join(USERS)}")
    _run_on(host or LOGIN, command, user)


@app.command("host", context_settings=PASS_ON)
def on_host(host: Host, command: Command = None) -> None:
    """Run a command on a host as root."""
    _run_on(host, command, None)


@app.command(context_settings=PASS_ON)
def link(
    host: Host,
    what: Annotated[list[str], typer.Argument(help="up, down, clear, or words of tc netem.")],
) -> None:
    """Cut, mend or shape a host's cable.

    python deploy/lab link node2 down

    python deploy/lab link node2 rate 100mbit

    python deploy/lab link node2 clear
    """
    lab = the_lab()
    try:
        lab.check_host(host)
        if what in (["up"], ["down"]):
            network.set_link(lab, host, up=what == ["up"])
        else:
            netem = [] if what == ["clear"] else what
            network.shape(lab, host, hosts.inner_pid(lab, host), netem)
    except LabError as error:
        fail(error)


@app.command()
def power(host: Host, state: Annotated[str, typer.Argument(help="on or off.")]) -> None:
    """Pull a host's plug, or start it again."""
    lab = the_lab()
    try:
        lab.check_host(host)
        if state not in ("on", "off"):
            fail(f"no state '{state}'; valid: on, off")
        with site.locked():
            if state == "off":
                hosts.stop(lab, [host])
            elif not hosts.alive(lab, host):
                hosts.start(lab, host)
    except LabError as error:
        fail(error)


def _run_on(host: str, command: list[str] | None, user: str | None) -> NoReturn:
    lab = the_lab()
    try:
        lab.check_host(host, login=True)
        words = command[1:] if command and command[0] == "--" else command
        argv = hosts.entering(lab, host, words or ["bash"], user)
    except LabError as error:
        fail(error)
    sys.stdout.flush()
    os.execv(argv[0], argv)
