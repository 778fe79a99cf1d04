"""Run a cluster on the listed hosts of an existing allocation, with an agent on each host.

`python -P -m raysuite.cluster.hosts FOLDER COMMAND...` starts COMMAND, the agent, on each host with
the launcher of the site. If the head has died, this process restarts all agents. Before the site's
time limit, and on SIGUSR1, it writes a stop request to FOLDER.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from raysuite.cluster.backend import Finding, JobState, unsure, works, wrong
from raysuite.cluster.folder import ClusterFolder, home
from raysuite.cluster.local import LocalBackend
from raysuite.cluster.state_files import Cluster, Head, Stop
from raysuite.ending import end_group
from raysuite.errors import UserError
from raysuite.spec.engines import COMMAND
from raysuite.spec.site import HostsSite
from raysuite.spec.site_values import slurm_seconds

PLACE = "RAYSUITE_PLACE"
"""Environment variable of an agent: the index of its host in the cluster (0 for the head), a colon,
and the id of the cluster's start."""
_LISTS = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE")
"""Environment variables with the path of a scheduler's host list."""
_HOST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(:\d+)?(\s.*)?")
"""A line of a list: the host, its number of slots, and other text."""


def find_hosts(site: HostsSite, given: str | None, variables: Mapping[str, str]) -> dict[str, int]:
    """The listed hosts, in order, each with the index of its first entry in the list.

    `given` is a file, or names separated by commas. Raises UserError if there is no list, or if an
    entry does not begin with a host's name.
    """
    file = next((variables[name] for name in _LISTS if variables.get(name)), None)
    lines: Sequence[str]
    if given is not None:
        lines = (
            _lines(given) if "/" in given or Path(given).exists() else re.split(r"[,\s]+", given)
        )
    elif site.hosts:
        lines = site.hosts
    elif site.hosts_file or file:
        lines = _lines(site.hosts_file or file or "")
    else:
        lines = variables.get("LSB_HOSTS", "").split()
    found: dict[str, int] = {}
    for index, line in enumerate(lines):
        match = _HOST.fullmatch(line.strip())
        if match is None:
            raise UserError(
                f"the list of hosts has the invalid entry {line!r}; each line of a file, or each "
                "entry of --hosts, must begin with the name or IPv4 address of one host, as in "
                "node3 or node3:4; `scontrol show hostnames` expands ranges such as node[1-3]"
            )
        found.setdefault(match[1], index)
    if not found:
        raise UserError(
            "there is no list of hosts: give --hosts A,B or --hosts FILE, set `hosts` in the site, "
            f"or call raysuite in an allocation that sets {', '.join(_LISTS)} or LSB_HOSTS"
        )
    return found


def _lines(file: str) -> list[str]:
    try:
        text = Path(file).read_text("utf-8-sig", errors="replace")
    except OSError as error:
        raise UserError(f"the list of hosts {file} cannot be read: {error.strerror}") from error
    return [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]


def launch_lines(cluster: Cluster, command: Sequence[str], start: str) -> list[list[str]]:
    """The launcher's command line for each host; only the text for {line} is quoted for a shell."""
    assert isinstance(cluster.site, HostsSite)
    found = []
    for number, (host, index) in enumerate(zip(cluster.hosts, cluster.host_indices, strict=True)):
        mine = ("env", f"{PLACE}={number}:{start}", *command)
        values = {"{host}": host, "{index}": str(index), "{line}": shlex.join(mine)}
        words: list[str] = []
        for word in cluster.site.launcher_words:
            # values are not searched for placeholders
            parts = re.split(r"({host}|{index}|{line})", word)
            words += mine if word == COMMAND else ["".join(values.get(x, x) for x in parts)]
        found.append(words)
    return found


class HostsBackend(LocalBackend):
    """Backend for clusters on listed hosts; a cluster's job is a process that runs this module."""

    ask_s = (0.5, 2.0)

    def states(self, clusters: Sequence[Cluster]) -> list[JobState]:
        found = super().states(clusters)
        return [
            replace(state, hosts=(), nodes=len(cluster.hosts)) if state.hosts else state
            for cluster, state in zip(clusters, found, strict=True)
        ]


_LOOK_S = 0.5
_ENDS_S = 60.0
"""Seconds for agents to end by themselves, before their launchers are ended."""


class Keeper:
    """Starts the agents, and watches the head's agent."""

    def __init__(self, folder: ClusterFolder, cluster: Cluster, command: Sequence[str]) -> None:
        assert isinstance(cluster.site, HostsSite)
        self._folder, self._cluster, self._command = folder, cluster, command
        self._site = cluster.site
        self._ended = self._warned = False
        limit = slurm_seconds(self._site.time) if self._site.time else float("inf")
        self._warning = time.time() + limit - self._site.warn_seconds
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        signal.signal(signal.SIGUSR1, self._warn)

    def _end(self, *_: object) -> None:
        self._ended = True

    def _warn(self, *_: object) -> None:
        self._warned = True

    def run(self) -> int:
        """Run until the cluster has ended; return 0 if its end was requested, else the exit status
        of the launcher of its last head."""
        most = self._site.head_restarts
        for restart in range(most + 1):
            status = self._start(f"{os.getpid()}-{restart}")
            if status == 0 or self._ended or self._folder.stop() or self._folder.end.exists():
                return 0
            then = f"start {restart + 1} of" if restart < most else "no start is left of"
            print(f"raysuite: the cluster ended with status {status}; {then} {most}", flush=True)
        return status

    def _start(self, start: str) -> int:
        folder = self._folder
        folder.over.unlink(missing_ok=True)
        folder.forget(Head)
        launchers = [
            subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
            for words in launch_lines(self._cluster, self._command, start)
        ]
        while launchers[0].poll() is None and not self._ended:
            time.sleep(_LOOK_S)
            if (self._warned or time.time() > self._warning) and folder.stop() is None:
                deadline = time.time() + self._site.warn_seconds
                folder.write(Stop(reason="time_limit", deadline=deadline))
        asked = self._ended or folder.end.exists()
        folder.end.touch(0o600)  # ends agents whose launcher was lost
        deadline = time.monotonic() + _ENDS_S
        while any(each.poll() is None for each in launchers) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        for each in launchers:
            if each.poll() is None:
                end_group(each, _LOOK_S)
        folder.over.touch(0o600)
        if not asked:
            folder.end.unlink(missing_ok=True)
        return launchers[0].returncode or 0


def main(arguments: list[str]) -> int:
    """Run the cluster whose folder is the first argument; return what `Keeper.run` returns."""
    os.umask(0o077)
    folder = ClusterFolder(Path(arguments[0]))
    return Keeper(folder, folder.cluster(), arguments[1:]).run()


_TRIED = 4
_PATIENCE_S = 20.0


def check_hosts(site: HostsSite) -> Iterator[Finding]:
    """Check the launcher, the host list, and whether the first hosts can write to `home()`."""
    program = site.launcher_words[0]
    if shutil.which(program) is None:
        yield wrong(
            "launcher", f"{program} is not on PATH", "load its module, or give another launcher"
        )
        return
    yield works("launcher", program)
    try:
        found = find_hosts(site, None, os.environ)
    except UserError as error:
        yield unsure("hosts", str(error))
        return
    yield works("hosts", ", ".join(found))
    names = list(found)[:_TRIED]
    cluster = Cluster(
        name="doctor",
        site=site,
        nodes=len(names),
        created=0.0,
        working_folder=str(home()),
        hosts=tuple(names),
        host_indices=tuple(found.values())[:_TRIED],
    )
    lines = launch_lines(cluster, ["test", "-w", str(home())], "")
    for name, words in zip(names, lines, strict=True):
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
            )
            note = "" if done.returncode == 0 else f"{done.stderr.strip()} ({done.returncode})"
        except subprocess.TimeoutExpired:
            note = f"no answer within {_PATIENCE_S:.0f} s"
        if note:
            fix = (
                f"{program} must be able to start commands on {name}; if {name} cannot write to "
                f"{home()}, set RAYSUITE_HOME to a folder that all hosts share"
            )
            yield wrong(name, note, fix)
        else:
            yield works(name, f"sees {home()}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
