"""A cluster on hosts by ssh: a run on both, a second user, a resumed suite and a lost host."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator

import pytest

from raysuite.records import Results, RunFinished
from raysuite.records.node_checks import read_checks, slow_nodes
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
cpus_per_node: 1
start_timeout_seconds: 900
"""
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
eval "$(raysuite cluster env)"
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
        found = {address for address, _ in listening(resident.lab, node["host"], USER)}
        assert found == {node["address"], "127.0.0.1"}


def test_a_run_on_hosts_has_a_worker_on_each(resident: Resident) -> None:
    submit(resident.lab, "--submission-id trains")
    results = Results.open(resident.lab.lab.home(USER) / "results" / "tiny")
    (plan,) = results.plans()
    assert isinstance(results.end_of(plan["run_id"]), RunFinished)


def checked(lab: LabPlace) -> tuple[int, dict[str, list[str]]]:
    """Exit code of `raysuite cluster check`, and by which figures each node is slow."""
    script = (
        'eval "$(raysuite cluster env)"; ray job submit -- raysuite cluster check --results c.jsonl'
    )
    done = lab.run("bash", "-c", script, user=USER, check=False, timeout_s=300)
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
