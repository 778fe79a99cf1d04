"""A cluster on hosts by ssh: a run on both, a second user, a resumed suite and a lost host."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from lab import hosts

from raysuite.records import Results, RunFinished
from raysuite.records.node_checks import FILE as NODES_FILE
from raysuite.records.node_checks import read_checks, slow_nodes
from raysuite.report.provenance import nodes_sheet, provenance
from tests.lab.closed import check_files_and_sockets, check_processes
from tests.lab.listening import listening
from tests.lab.place import LabPlace
from tests.lab.residents import NODES, Resident, bring_up, status_of
from tests.marks import LAB_MARKS
from tests.require import require

pytestmark = [*LAB_MARKS, pytest.mark.thorough, pytest.mark.timeout(1500)]

USER, OTHER = "hpc1", "hpc2"
HOSTS = (*NODES, "node3")
SITE = """\
kind: hosts
description: hosts of the lab, by ssh
hosts: [node1, node2, node3]
launcher: ssh
client_interface: clients0
cpus_per_node: 1
start_timeout_seconds: 900
"""
CLIENTS = "10.198.7.1"
NETWORK = f"""\
set -e
ip link add clients0 type veth peer name clients1
ip address add {CLIENTS}/32 dev clients0
ip link set clients1 up
ip link set clients0 up
"""
"""Of the head: an interface on which no other node is."""
SSHD = """\
mkdir -p /run/sshd /tmp/sshd && chmod 755 /run/sshd
ssh-keygen -q -t ed25519 -N "" -f /tmp/sshd/key
/usr/sbin/sshd -o HostKey=/tmp/sshd/key -o UsePAM=no -o PidFile=/tmp/sshd/pid \\
  -o PasswordAuthentication=no
"""
KEYS = """\
set -e
mkdir -p -m 700 ~/.ssh
ssh-keygen -q -t ed25519 -N "" -f ~/.ssh/id_ed25519
cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys
echo "StrictHostKeyChecking accept-new" >~/.ssh/config
chmod 600 ~/.ssh/*
"""
RUN = """
set -e
eval "$(raysuite cluster status --env)"
ray job submit {options} -- raysuite run tiny.yaml --quiet {overrides}
"""


def submit(lab: LabPlace, options: str, overrides: str = "") -> None:
    script = RUN.format(options=options, overrides=overrides)
    lab.run("bash", "-c", script, user=USER, timeout_s=600)


@pytest.fixture(scope="module")
def resident(whole_lab: LabPlace) -> Iterator[Resident]:
    """The user, with a cluster that no scheduler knows."""
    require("sshd")
    lab = whole_lab
    for host in HOSTS:
        lab.run("bash", "-c", SSHD, host=host, user=None)
    lab.run("bash", "-c", KEYS, user=USER)
    lab.run("bash", "-c", NETWORK, host="node1", user=None)
    lab.run("ip", "route", "add", CLIENTS, "via", lab.lab.address("node1"), user=None)
    try:
        variables = bring_up(lab, USER, "byssh", SITE)
        yield Resident(lab, USER, status_of(lab, USER), variables, {})
    finally:
        down = ("raysuite", "cluster", "down", "--all", "--grace", "0")
        lab.run(*down, user=USER, check=False, timeout_s=200)
        for host in HOSTS:
            lab.run("bash", "-c", "kill $(</tmp/sshd/pid)", host=host, user=None, check=False)


def test_hosts_by_ssh_are_up_at_their_own_addresses(resident: Resident) -> None:
    assert resident.status["state"] == "up"
    assert {node["host"] for node in resident.status["nodes"]} == set(HOSTS)
    assert resident.status["nodes_alive"] == len(HOSTS)
    for node in resident.status["nodes"]:
        found = {address for address, _ in listening(resident.lab, node["host"], USER)} - {CLIENTS}
        assert found == {node["address"], "127.0.0.1"}


def test_clients_reach_the_head_by_an_interface_of_their_own(resident: Resident) -> None:
    urls = {resident.status[name] for name in ("dashboard", "mlflow")}
    urls.add(resident.variables["RAYSUITE_RAY_CLIENT"])
    there = listening(resident.lab, "node1", USER)
    ports = {port for address, port in there if address == CLIENTS}
    assert {urlsplit(url).netloc for url in urls} == {f"{CLIENTS}:{port}" for port in ports}
    assert len(ports) == 3
    assert not any(address == CLIENTS for address, _ in listening(resident.lab, "node2", USER))
    assert resident.variables["RAY_ADDRESS"] == resident.status["dashboard"]  # jobs go there below


def test_a_run_on_hosts_has_a_worker_on_each(resident: Resident) -> None:
    submit(resident.lab, "--submission-id trains")
    results = Results.open(resident.lab.lab.home(USER) / "results" / "tiny")
    (plan,) = results.plans()
    assert isinstance(results.end_of(plan["run_id"]), RunFinished)
    rows = read_checks(results.folder / NODES_FILE)  # before its first run
    print(*rows, sep="\n")
    assert {row.host for row in rows} == set(HOSTS)
    assert all(row.when < results.records(plan["run_id"])[0].time for row in rows)
    sheet = nodes_sheet(provenance(results.folder, [], {}, {}))
    assert sheet is not None
    print(sheet)
    assert [line[0] for line in sheet.cells] == sorted(HOSTS)
    assert {"Imports", "Ray"} < set(sheet.header)


def checked(lab: LabPlace) -> tuple[int, dict[str, list[str]]]:
    """Exit code of `raysuite cluster check`, and by which figures each node is slow."""
    script = (
        'eval "$(raysuite cluster status --env)"; '
        "ray job submit -- raysuite cluster check --results c.jsonl"
    )
    done = lab.run("bash", "-c", script, user=USER, check=False, timeout_s=600)
    rows = read_checks(lab.lab.home(USER) / "c.jsonl")
    print(*rows, sep="\n")
    slow = slow_nodes(rows)
    return done.returncode, {
        row.host: [x.check for x in slow if x.host == row.host] for row in rows
    }


def test_a_host_behind_a_slow_cable_is_named(resident: Resident) -> None:
    lab = resident.lab
    lab.shape("node3", "rate", "40mbit")
    try:
        status, slow = checked(lab)
    finally:
        lab.shape("node3")
    assert (status != 0, "pairs" in slow.get("node3", [])) == (True, True), slow
    assert [host for host, checks in slow.items() if "pairs" in checks] == ["node3"]


def test_checks_without_a_slow_host_name_none(resident: Resident) -> None:
    """50 of them; 2 may name one: other programs of this machine slow a host as well."""
    lab = resident.lab
    script = """
    eval "$(raysuite cluster status --env)"
    ray job submit -- bash -c '
      for i in {1..50}; do
        code=0; raysuite cluster check --results many/$i.jsonl || code=$?
        echo $code $(date +%s) >>many.txt
      done'
    """
    lab.run("bash", "-c", script, user=USER, timeout_s=1400)
    home = lab.lab.home(USER)
    ends = (home / "many.txt").read_text().split()[::2]
    slow = [slow_nodes(read_checks(home / f"many/{number}.jsonl")) for number in range(1, 51)]
    print((home / "many.txt").read_text(), *filter(None, slow), sep="\n")
    assert ends == ["1" if each else "0" for each in slow]
    assert sum(map(bool, slow)) <= 2


@contextlib.contextmanager
def busy(lab: LabPlace, host: str, loops: int = 4) -> Iterator[None]:
    """So many endless loops on a host, all of whose processes together have at most one CPU, and
    the weight of one process of this one's niceness: the loops slow that host alone."""
    group = Path(f"/sys/fs/cgroup/cpu/raysuite-lab-{os.getpid()}")
    group.mkdir()
    spin = f"for i in {{1..{loops}}}; do while :; do :; done & done; wait"
    enter = hosts.entering(lab.lab, host, ["bash", "-c", spin])
    join = ["bash", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "-", *enter]
    inner = psutil.Process(hosts.inner_pid(lab.lab, host))
    try:
        (group / "cpu.cfs_quota_us").write_text((group / "cpu.cfs_period_us").read_text())
        (group / "cpu.shares").write_text(str(round(1024 / 1.25 ** os.nice(0))))
        for each in [inner, *inner.children(recursive=True)]:
            with contextlib.suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(each.pid))
        with subprocess.Popen(join) as spinning:
            try:
                yield
            finally:
                for each in psutil.Process(spinning.pid).children(recursive=True):
                    each.kill()
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()


def test_a_busy_host_is_named(resident: Resident) -> None:
    with busy(resident.lab, "node3"):
        status, slow = checked(resident.lab)
    computing = {host for host, checks in slow.items() if {"matrix", "memory"} & set(checks)}
    assert (status, computing) == (1, {"node3"}), slow


def test_hosts_by_ssh_are_closed_to_another_user(resident: Resident) -> None:
    check_files_and_sockets(resident, OTHER)
    check_processes(resident, OTHER)


def test_a_suite_that_was_stopped_is_resumed_on_hosts(resident: Resident) -> None:
    lab = resident.lab
    submit(lab, "--no-wait", "training.epochs=40 name=long")
    folder = lab.lab.home(USER) / "results" / "long"
    lab.wait(lambda: any(folder.rglob("journal.jsonl")), 300)
    lab.run("raysuite", "cluster", "down", "byssh", user=USER, timeout_s=300)
    up = "raysuite cluster up --site ./site.yaml --name byssh --resume"
    lab.run(*shlex.split(up), user=USER, timeout_s=1000)
    lab.wait(lambda: finished(folder), 600)


def finished(folder: object) -> bool:
    with contextlib.suppress(Exception):  # files that are being written
        results = Results.open(folder)  # type: ignore[arg-type]
        (plan,) = results.plans()
        return isinstance(results.end_of(plan["run_id"]), RunFinished)
    return False


def test_a_lost_host_is_named_and_down_leaves_nothing(resident: Resident) -> None:
    lab = resident.lab
    lab.power("node2", on=False)
    try:
        lab.wait(lambda: status_of(lab, USER)["nodes_alive"] == 2, 300)
        states = {node["host"]: node["state"] for node in status_of(lab, USER)["nodes"]}
        assert states["node2"] == "lost"
        lab.run("raysuite", "cluster", "down", "byssh", user=USER, timeout_s=300)
        for host in ("login", "node1", "node3"):
            left = ("pgrep", "-u", USER, "-f", "raysuite.cluster|raylet|gcs_server")
            assert lab.run(*left, host=host, user=None, check=False).stdout == ""
            assert lab.out("find", "/tmp", "/dev/shm", "-user", USER, host=host) == ""
    finally:
        lab.power("node2", on=True)
