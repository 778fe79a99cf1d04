"""Hosts of an allocation: their list, the launcher's words, and what keeps the agents."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from raysuite.cluster.agent import __main__ as agent
from raysuite.cluster.agent.place import find_place
from raysuite.cluster.backend import State
from raysuite.cluster.folder import ClusterFolder, prepare
from raysuite.cluster.hosts import PLACE, Keeper, check_hosts, find_hosts, launch_lines
from raysuite.cluster.state_files import Cluster, Head
from raysuite.errors import UserError
from raysuite.spec.site import LAUNCHERS, HostsSite

AGENT = ("/my python/bin/python", "-m", "agent", "it's $(id)")
MINE = "env RAYSUITE_PLACE=1:S '/my python/bin/python' -m agent 'it'\"'\"'s $(id)'"
LINES = {
    "ssh": ["ssh", "-n", "-o", "BatchMode=yes", "n2", f"exec {MINE}"],
    "pbsdsh": ["pbsdsh", "-n", "4", "--"],
    "blaunch": ["blaunch", "n2"],
    "flux": ["flux", "run", "--nodes=1", "--ntasks=1", "--requires=host:n2"],
    "mpirun": ["mpirun", "--host", "n2", "-n", "1"],
    "mpiexec": ["mpiexec", "-n", "1", "--ppn", "1", "--hosts", "n2"],
}


def cluster_of(site: HostsSite, *hosts: str) -> Cluster:
    indices = tuple(range(0, 4 * len(hosts), 4))
    return Cluster(name="a", site=site, nodes=len(hosts), created=0.0, working_folder="/",
                   hosts=hosts, host_indices=indices)  # fmt: skip


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_line_of_a_launcher(launcher: str) -> None:
    cluster = cluster_of(HostsSite(launcher=launcher), "n1", "n2")
    words = launch_lines(cluster, AGENT, "S")[1]
    mine = [] if launcher == "ssh" else ["env", f"{PLACE}=1:S", *AGENT]
    assert words == LINES[launcher] + mine


def test_the_shell_behind_ssh_reads_what_was_meant() -> None:
    (words,) = launch_lines(cluster_of(HostsSite(), "n1"), ("printf", "%s\\0", *AGENT), "S")
    said = subprocess.check_output(["sh", "-c", words[-1]], text=True)
    assert said.split("\0")[:-1] == list(AGENT)


def test_no_value_is_taken_for_a_placeholder() -> None:
    site = HostsSite(launcher=("on", "{host}", "sh -c {line}"))
    (words,) = launch_lines(cluster_of(site, "n1"), ("{index}", "{host}"), "S")
    assert words[2] == "sh -c env RAYSUITE_PLACE=0:S '{index}' '{host}'"


@pytest.mark.parametrize(
    ("site", "given", "variables", "wanted"),
    [
        ({}, "b,a", {"LSB_HOSTS": "x"}, {"b": 0, "a": 1}),
        ({}, "b, a c", {}, {"b": 0, "a": 1, "c": 2}),
        ({"hosts": ["a", "b"]}, None, {"LSB_HOSTS": "x"}, {"a": 0, "b": 1}),
        ({}, None, {"PBS_NODEFILE": "FILE"}, {"n1.site.org": 0, "n2": 2, "n3": 3, "n4": 4}),
        ({}, "FILE", {}, {"n1.site.org": 0, "n2": 2, "n3": 3, "n4": 4}),
        ({"hosts_file": "FILE"}, None, {}, {"n1.site.org": 0, "n2": 2, "n3": 3, "n4": 4}),
        ({}, None, {"LSB_HOSTS": "a a b"}, {"a": 0, "b": 2}),
    ],
)
def test_where_the_hosts_come_from(
    tmp_path: Path, site: Any, given: str | None, variables: dict[str, str], wanted: dict[str, int]
) -> None:
    file = tmp_path / "nodes"
    file.write_text("\ufeffn1.site.org\n # a comment\nn1.site.org\nn2 slots=4\nn3:2\n\nn4 #\n")
    keys, variables = (
        {name: str(file) if value == "FILE" else value for name, value in each.items()}
        for each in (site, variables)
    )
    given = str(file) if given == "FILE" else given
    assert find_hosts(HostsSite.model_validate(keys), given, variables) == wanted


def test_a_list_that_is_closer_to_the_user_goes_first(tmp_path: Path) -> None:
    """All lists are there, and then one less each time."""
    files = {name: tmp_path / name for name in ("given", "site", "pbs", "lsf")}
    for name, file in files.items():
        file.write_text(f"{name}\n")
    variables = {
        "PBS_NODEFILE": str(files["pbs"]),
        "LSB_DJOB_HOSTFILE": str(files["lsf"]),
        "LSB_HOSTS": "words",
    }
    keys = {"hosts_file": str(files["site"])}
    found = [
        find_hosts(HostsSite.model_validate(keys | {"hosts": ["list"]}), given, variables)
        for given in (str(files["given"]), None)
    ]
    found.append(find_hosts(HostsSite.model_validate(keys), None, variables))
    for name in (None, *variables):
        variables.pop(name or "", None)
        if variables:
            found.append(find_hosts(HostsSite(), None, variables))
    assert found == [{name: 0} for name in ("given", "list", "site", "pbs", "lsf", "words")]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "no list of hosts"),
        ("/no/file", "No such file"),
        ("a,-oProxyCommand=x", "begin with"),
        ("2001:db8::1,b", "IPv4"),
        ("node[1-3]", "show hostnames"),
        ("user@node1:22", "begin with"),
    ],
)
def test_a_list_that_is_none_is_refused(given: str | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        find_hosts(HostsSite(), given, {})


@pytest.mark.parametrize("line", [b"node1,node2", b"n\xf6de1", b"2001:db8::1"])
def test_a_line_of_a_file_that_is_no_single_host_is_refused(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "nodes"
    file.write_bytes(b"node0\n" + line + b"\n")
    with pytest.raises(UserError, match="one host"):
        find_hosts(HostsSite(), str(file), {})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"launcher": "shh"}, "did you mean 'ssh'"),
        ({"launcher": ["on", "{host}"]}, "must be {command}"),
        ({"launcher": ["on", "{command}"]}, "{host} or {index}"),
        ({"hosts": ["-x"]}, "the name or IPv4 address"),
        ({"time": "1", "warn_seconds": 60}, "the warning must come after"),
        ({"engine": "pyxis", "image": "x"}, "only a site of kind slurm"),
    ],
)
def test_mistakes_of_a_site_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        HostsSite.model_validate(keys)


@pytest.mark.parametrize(
    ("keys", "wrong", "states"),
    [
        ({"launcher": ["no-such", "{host}", "{command}"]}, ["launcher"], 1),
        ({}, [], 2),  # of the list nothing is known
        ({"hosts": ["0", "1", "0x"]}, ["1", "0x"], 5),
    ],
)
def test_a_check_tries_the_launcher_then_the_list_then_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: Any, wrong: list[str], states: int
) -> None:
    """The launcher is a shell here, and a host the exit status of its command."""
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"], "RAYSUITE_HOME": str(tmp_path)})
    launcher = ["bash", "-c", "{line} && exit $0", "{host}"]
    found = [*check_hosts(HostsSite.model_validate({"launcher": launcher} | keys))]
    assert [each.what for each in found if each.state is State.WRONG] == wrong
    assert len(found) == states


def test_an_agent_knows_its_place() -> None:
    place = find_place(HostsSite(cpus_per_node=4), {PLACE: "3:77-0"})
    assert (place.index, place.incarnation, place.cpus, place.gpus) == (3, "77-0", 4, None)
    with pytest.raises(UserError, match=PLACE):
        find_place(HostsSite(), {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterFolder]:
    """Of a cluster of two `hosts`, whose launcher is a shell here."""
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("raysuite.cluster.hosts._LOOK_S", 0.02)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    launcher = ["bash", "-c", "exec {line}", "{host}"]
    site = HostsSite.model_validate(
        {"name": "a", "launcher": launcher, "time": "2", "warn_seconds": 119}
    )
    yield prepare(cluster_of(site, "n1", "n2"))
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_agent_without_a_place_ends_with_a_message(
    folder: ClusterFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PLACE, raising=False)
    before = os.umask(0o077)
    code = agent.main([str(folder.path)])
    os.umask(before)
    assert (code, PLACE in capsys.readouterr().err) == (2, True)


def keep(folder: ClusterFolder, agent: str) -> tuple[int, list[str]]:
    """Keep agents that are a line of bash; the status, and each agent's place."""
    program = f'echo "$RAYSUITE_PLACE" >>{folder.path}/places; {agent}'
    status = Keeper(folder, folder.cluster(), ("bash", "-c", program)).run()
    return status, sorted((folder.path / "places").read_text("utf-8").split())


def waits(folder: ClusterFolder, *files: str) -> str:
    there = " || ".join(f"-e {folder.path}/{file}" for file in files)
    return f"until [[ {there} ]]; do sleep 0.02; done"


def test_a_head_that_dies_is_started_again_with_all_others(
    folder: ClusterFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = f"[[ $RAYSUITE_PLACE == 0:* ]] && exit 9; {waits(folder, 'end')}"
    status, places = keep(folder, agent)
    assert status == 9
    assert [place[:2] for place in places] == ["0:"] * 3 + ["1:"] * 3
    assert len({place[2:] for place in places}) == 3, "each start has a name of its own"
    told = [line.partition("; ")[2] for line in capsys.readouterr().out.splitlines()]
    assert told == ["start 1 of 2", "start 2 of 2", "no start is left of 2"]
    assert folder.over.exists()


def test_no_address_of_a_head_that_died_is_read_while_the_next_one_starts(
    folder: ClusterFolder,
) -> None:
    folder.write(Head(host="n1", gcs="a:1", dashboard="http://a:2", mlflow=""))
    [file] = folder.path.glob("head*.json")
    stale = f"ls {file} {folder.over} >>{folder.path}/stale 2>/dev/null"
    keep(folder, f"[[ $RAYSUITE_PLACE == 0:* ]] && {{ {stale}; touch {file}; exit 9; }}")
    assert (folder.path / "stale").read_text() == ""


def test_another_host_that_is_lost_is_not(folder: ClusterFolder) -> None:
    gone = f"{folder.path}/gone"
    agent = f"[[ $RAYSUITE_PLACE == 1:* ]] && {{ touch {gone}; exit 9; }}; {waits(folder, 'gone')}"
    status, places = keep(folder, agent)
    assert (status, len(places)) == (0, 2)


def test_a_time_limit_is_told_in_time(folder: ClusterFolder) -> None:
    status, places = keep(folder, f"{waits(folder, 'stop.json')}; exit 3")
    stop = folder.stop()
    assert stop is not None
    assert (status, len(places), stop.reason) == (0, 2, "time_limit")
    assert stop.deadline == pytest.approx(time.time() + 119, abs=30)


def test_a_warning_of_the_scheduler_is_passed_on(folder: ClusterFolder) -> None:
    cluster = folder.cluster()
    site = cluster.site.model_copy(update={"time": None})
    folder.write(cluster.model_copy(update={"site": site}))
    warn = f"[[ $RAYSUITE_PLACE == 0:* ]] && kill -USR1 $PPID; {waits(folder, 'stop.json')}; exit 3"
    status, places = keep(folder, warn)
    assert (status, len(places), getattr(folder.stop(), "reason", "")) == (0, 2, "time_limit")


def test_a_signal_asks_all_agents_to_end(folder: ClusterFolder) -> None:
    end = f"[[ $RAYSUITE_PLACE == 0:* ]] && kill -TERM $PPID; {waits(folder, 'end')}; exit 1"
    status, places = keep(folder, end)
    assert (status, len(places)) == (0, 2)
    assert folder.end.exists()
