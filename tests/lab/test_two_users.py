"""Two users of a site have clusters on the same nodes: neither can do anything to the other's."""

from __future__ import annotations

import base64
import json
import shlex
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lab import hosts
from lab.layout import USERS

from tests.lab.closed import check_files_and_sockets, check_processes, check_refused
from tests.lab.listening import listening
from tests.lab.place import LabPlace
from tests.lab.resident import WORD
from tests.lab.residents import NODES, Resident, move_in, visit
from tests.marks import LAB_MARKS
from tests.secrets import files_with_each, processes_with

pytestmark = [*LAB_MARKS, pytest.mark.thorough, pytest.mark.timeout(2400)]

BEGAN = time.time()


@pytest.fixture(scope="module")
def residents(whole_lab: LabPlace) -> Iterator[tuple[Resident, Resident]]:
    """hpc1 and hpc2, on the same two nodes at once."""
    try:
        with ThreadPoolExecutor() as pool:
            one, two = pool.map(lambda user: move_in(whole_lab, user), USERS)
        yield one, two
    finally:
        for user in USERS:
            down = ("raysuite", "cluster", "down", "--all", "--grace", "0")
            whole_lab.run(*down, user=user, check=False, timeout_s=200)


@pytest.fixture(scope="module")
def visits(residents: tuple[Resident, Resident]) -> dict[str, dict[str, Any]]:
    """All visits at once, and a run of the owner's meanwhile."""
    one, two = residents
    lab = one.lab
    lab.run("tee", "guessed", user="hpc2", text_in="0" * 64)
    guessed = lab.lab.home("hpc2") / "guessed"
    own = {each.user: each.folder / "token" for each in residents}
    asked = {
        "without a token": ("hpc2", one, None, "", 0),
        "with a guessed token": ("hpc2", one, guessed, "raysuite:guessed-by-chance", 0),
        "with her own token": ("hpc2", one, own["hpc2"], two.login, 0),
        "the other way round": ("hpc1", two, own["hpc1"], one.login, 0),
        "the owner": ("hpc1", one, own["hpc1"], one.login, 1),
    }
    run = 'eval "$(raysuite cluster status --env)" && ray job submit -- raysuite run tiny.yaml -q'
    with ThreadPoolExecutor() as pool:
        running = pool.submit(lab.run, "bash", "-c", run, timeout_s=900)
        started = {name: pool.submit(visit, *words) for name, words in asked.items()}
        found = {name: each.result() for name, each in started.items()}
        assert "succeeded" in running.result().stdout
    return found


def test_both_are_up_on_the_same_nodes(residents: tuple[Resident, Resident]) -> None:
    for each in residents:
        assert each.status["state"] == "up"
        assert {node["host"] for node in each.status["nodes"]} == set(NODES)
        assert each.status["nodes_alive"] == 2


def test_the_owner_gets_in(visits: dict[str, dict[str, Any]]) -> None:
    found = visits["the owner"]
    assert {name: each for name, each in found.items() if not each["got"]} == {}
    assert WORD in found["a job's logs"]["said"]
    assert WORD in found["an artifact read"]["said"]


@pytest.mark.parametrize(
    "who", ["without a token", "with a guessed token", "with her own token", "the other way round"]
)
def test_another_gets_nothing(
    residents: tuple[Resident, Resident], visits: dict[str, dict[str, Any]], who: str
) -> None:
    found = visits[who]
    check_refused(residents[1] if who == "the other way round" else residents[0], found)
    assert WORD not in json.dumps(found)


def test_what_another_would_have_stopped_goes_on(
    residents: tuple[Resident, Resident], visits: dict[str, dict[str, Any]]
) -> None:
    for each in residents:
        said = each.lab.out("raysuite", "cluster", "status", "--json", user=each.user)
        states = {job["id"]: job["status"] for job in json.loads(said)["jobs"]}
        assert states[each.has["victims"][0]] == "RUNNING"
        assert states[each.has["job"]] == "RUNNING"
    assert visits["the owner"]["a job stopped"]["said"] is True


def test_files_and_sockets_are_closed(residents: tuple[Resident, Resident]) -> None:
    for own, other in (residents, residents[::-1]):
        check_files_and_sockets(own, other.user)


def test_processes_are_closed(residents: tuple[Resident, Resident]) -> None:
    for own, other in (residents, residents[::-1]):
        check_processes(own, other.user)


def test_the_command_line_of_another_finds_no_cluster(
    residents: tuple[Resident, Resident],
) -> None:
    own, other = residents
    words = ("env", f"RAYSUITE_HOME={own.folder.parent.parent}", "raysuite", "job", "logs")
    done = own.lab.run(*words, user=other.user, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_nothing_listens_on_every_interface(
    residents: tuple[Resident, Resident], visits: dict[str, dict[str, Any]]
) -> None:
    for each in residents:
        for node in each.status["nodes"]:
            found = {address for address, _ in listening(each.lab, node["host"], each.user)}
            assert found == {node["address"], "127.0.0.1"}


def test_secrets_are_in_their_files_alone(
    residents: tuple[Resident, Resident], visits: dict[str, dict[str, Any]]
) -> None:
    lab = residents[0].lab
    roots = {
        host: Path(f"/proc/{hosts.inner_pid(lab.lab, host)}/root") for host in ("login", *NODES)
    }
    private = [part.lstrip("/") for part in hosts.PRIVATE]
    places = [lab.lab.folder, *(root / part for root in roots.values() for part in private)]
    passwords = {each.user: each.login.partition(":")[2] for each in residents}
    headers = {each.user: base64.b64encode(each.login.encode()).decode() for each in residents}
    secrets = [each.token for each in residents] + [*passwords.values(), *headers.values()]
    found = files_with_each(secrets, *places, since=BEGAN)
    for each in residents:
        password, header = passwords[each.user], headers[each.user]
        settings = Path(f"{roots['node1']}{each.temp('node1')}") / "mlflow" / "auth.ini"
        assert found[each.token] == {each.folder / "token"}
        assert found[password] == {each.folder / "mlflow.json", settings}
        assert found[header] == set()
    assert [processes_with(secret) for secret in secrets] == [[]] * len(secrets)


def test_slurm_keeps_no_secret_and_shows_no_script(residents: tuple[Resident, Resident]) -> None:
    own, other = residents
    show = ("scontrol", "write", "batch_script", own.status["job"], "-")
    script = own.lab.out(*show, user=own.user)
    assert shlex.quote(str(own.folder)) in script
    assert own.token not in script
    # its exit code is 0 all the same
    refused = own.lab.run(*show, user=other.user, check=False)
    assert str(own.folder) not in refused.stdout
