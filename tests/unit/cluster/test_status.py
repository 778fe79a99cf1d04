"""What is told of a cluster, from what its folder and SLURM say."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from raysuite.cli.cluster import node_in_words
from raysuite.cluster import client as client_module
from raysuite.cluster.backend import JobState
from raysuite.cluster.client import (
    Patience,
    Status,
    Watch,
    all_status,
    find_folder,
    missing_nodes,
    status_of,
    wait,
    why_not,
)
from raysuite.cluster.folder import ClusterFolder, folder_of, prepare
from raysuite.cluster.local import LocalBackend
from raysuite.cluster.slurm import SlurmBackend, SlurmError, parse_states
from raysuite.cluster.state_files import Alive, Cluster, Head, Node, Stop, Timings
from raysuite.errors import UserError
from raysuite.spec.site import SlurmSite
from tests.living import living


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))


@pytest.fixture
def folder() -> ClusterFolder:
    site = SlurmSite(name="far", nodes=2)
    return prepare(
        Cluster(name="mine", site=site, nodes=2, created=1.0, working_folder="/", job="17")
    )


def slurm_says(monkeypatch: pytest.MonkeyPatch, state: JobState) -> None:
    monkeypatch.setattr(client_module, "state_of", lambda _: state)


def joined(folder: ClusterFolder, *hosts: str, incarnation: str = "now") -> None:
    folder.write(
        Head(host="a", gcs="a:1", dashboard="http://a:2", mlflow="", incarnation=incarnation)
    )
    for index, host in enumerate(hosts):
        folder.write(
            Node(host=host, index=index, state="joined", address=f"1.{index}", incarnation="now")
        )


@pytest.mark.parametrize(
    ("said", "phase", "reason"),
    [
        ("PENDING|Priority|2|\n", "waiting", "Priority"),
        ("CONFIGURING|None|2|n[1-2]\n", "waiting", "None"),
        ("RUNNING|None|2|n[1-2]\n", "running", ""),
        ("COMPLETING|NonZeroExitCode|1|n1\n", "running", "NonZeroExitCode"),
        ("TIMEOUT|TimeLimit|1|n1\n", "gone", "TimeLimit"),
        ("FAILED|JobLaunchFailure|1|n1\n", "gone", "JobLaunchFailure"),
        ("RESV_DEL_HOLD|Reservation r2 was deleted|1|\n", "waiting", "Reservation r2 was deleted"),
        ("OF_A_NEWER_SLURM|None|2|n[1-2]\n", "running", ""),
        ("OF_A_NEWER_SLURM|Why|2|\n", "waiting", "Why"),
        ("", "gone", ""),
    ],
)
def test_squeue_is_read(said: str, phase: str, reason: str) -> None:
    state = parse_states(f"17|{said}" if said else said).get("17", JobState("gone"))
    assert (state.phase, state.reason) == (phase, reason)


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[], int]]:
    """Have `squeue` on PATH do what is given; the function that is returned counts its calls."""
    calls = tmp_path / "squeue-calls"
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    def install(does: str) -> Callable[[], int]:
        program = tmp_path / "bin" / "squeue"
        program.write_text(f'#!/bin/sh\necho "$*" >>"{calls}"\n{does}\n')
        program.chmod(0o755)
        return lambda: len(calls.read_text("utf-8").splitlines())

    return install


def test_a_minute_of_pending_costs_six_calls_of_squeue(
    folder: ClusterFolder,
    squeue: Callable[[str], Callable[[], int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(time=lambda: now, monotonic=lambda: now, sleep=sleep)
    monkeypatch.setattr(client_module, "time", clock)
    calls = squeue("echo '17|PENDING|Priority|2|'")
    counts: list[tuple[float, int]] = []

    def tell(_: Status) -> None:
        counts.append((now - 1000.0, calls()))
        if now > 1600.0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait(folder, tell)
    at = {second: count for second, count in counts}
    assert at[60] <= 6
    assert max(at[second + 60] - at[second] for second in range(540)) <= 6
    assert at[600] >= 600 / 30, "its start would be noticed too late"
    squeue("echo '17|RUNNING|None|2|n[1-2]'")
    joined(folder, "a", "b")
    folder.write(Alive(addresses=("1.0", "1.1"), incarnation="now"))
    began, before = now, calls()
    assert wait(folder).state == "up"
    assert (now - began, calls() - before) == (0, 1)


def test_all_nodes_of_an_allocation_are_waited_for(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_says(monkeypatch, JobState("running", "RUNNING", nodes=3))
    assert status_of(folder).wanted == 3, "of 2-4, SLURM gave three"
    slurm_says(monkeypatch, JobState("waiting", "PENDING"))
    assert status_of(folder).wanted == 2


def test_a_head_that_starts_is_asked_about_at_once(
    folder: ClusterFolder, squeue: Callable[[str], Callable[[], int]]
) -> None:
    calls = squeue("echo '17|PENDING|Priority|2|'")
    watch = Watch(folder.cluster())
    assert [watch.state(news).phase for news in ([], [], ["1"], ["1"])] == ["waiting"] * 4
    assert calls() == 2


def test_a_short_first_interval_counts_and_later_ones_double(
    folder: ClusterFolder,
    squeue: Callable[[str], Callable[[], int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter((1000.0, 1000.0, 1001.9, 1002.0, 1002.0, 1005.9, 1006.0, 1006.0))
    monkeypatch.setattr(client_module, "time", SimpleNamespace(monotonic=lambda: next(times)))
    calls = squeue("echo '17|PENDING|Priority|2|'")
    watch, counts = Watch(folder.cluster(), first_s=2.0), []
    for _ in range(5):
        watch.state()
        counts.append(calls())
    assert counts == [1, 1, 2, 2, 3]


def test_one_question_for_all_clusters(squeue: Callable[[str], Callable[[], int]]) -> None:
    site = SlurmSite(name="far")
    for number in range(3):
        name, job = f"c{number}", str(17 + number)
        prepare(Cluster(name=name, site=site, nodes=1, created=1.0, working_folder="/", job=job))
    calls = squeue("echo '17|PENDING|Priority|1|'; echo '18|RUNNING|None|1|n1'")
    states = {status.cluster.name: status.state for status in all_status()}
    assert states == {"c0": "waiting", "c1": "starting", "c2": "stale"}
    assert calls() == 1
    squeue("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    last = folder_of("c2").cluster()
    assert SlurmBackend().states([last]) == [JobState("gone")]
    squeue("echo 'Unable to contact slurm controller' >&2; exit 1")
    assert SlurmBackend().states([last])[0].phase == "unknown"


def test_a_job_of_another_slurm_cluster_is_asked_for_there(
    squeue: Callable[[str], Callable[[], int]], tmp_path: Path
) -> None:
    cancelled = tmp_path / "cancelled"
    programs = {"sbatch": "echo '17;alpha'", "scancel": f'echo "$*" >>{cancelled}'}
    for name, does in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    squeue("case $* in *--clusters=alpha*) echo '17|RUNNING|None|1|n1';; *) echo;; esac")
    lines = ("#SBATCH --clusters=alpha,beta",)
    asked = Cluster(
        name="far",
        site=SlurmSite(name="far", sbatch_lines=lines),
        nodes=1,
        created=1.0,
        working_folder="/",
    )
    backend = SlurmBackend()
    cluster = backend.start(prepare(asked), asked, ("true",))
    assert (cluster.job, cluster.slurm_cluster) == ("17", "alpha")
    here = cluster.model_copy(update={"slurm_cluster": ""})
    other = here.model_copy(update={"job": "18"})
    states = backend.states([cluster, here, other])
    assert [state.phase for state in states] == ["running", "gone", "gone"]
    asked_for = re.findall(r"--jobs=(\S+)", (tmp_path / "squeue-calls").read_text("utf-8"))
    assert asked_for == ["17", "17,18"]
    backend.kill(cluster)
    assert cancelled.read_text("utf-8") == "--clusters=alpha 17\n"


@pytest.mark.parametrize(
    ("state", "options", "refused"),
    [
        ("PENDING|Priority|1|", "17", True),
        ("RUNNING|None|1|n1", "--signal=TERM 17", True),
        ("COMPLETING|None|1|n1", "--signal=TERM 17", False),
        ("COMPLETED|None|1|n1", "--signal=TERM 17", False),
    ],
)
def test_a_job_that_runs_is_signalled_and_one_that_waits_is_cancelled(
    folder: ClusterFolder,
    squeue: Callable[[str], Callable[[], int]],
    tmp_path: Path,
    state: str,
    options: str,
    refused: bool,
) -> None:
    squeue(f"echo '17|{state}'")
    scancel = tmp_path / "bin" / "scancel"
    scancel.write_text(f'#!/bin/sh\necho "$*" >{tmp_path}/asked\n')
    scancel.chmod(0o755)
    SlurmBackend().end(folder.cluster())
    assert (tmp_path / "asked").read_text("utf-8") == f"{options}\n"
    scancel.write_text("#!/bin/sh\necho 'Job/step already completing' >&2; exit 1\n")
    with pytest.raises(SlurmError, match="completing") if refused else nullcontext():
        SlurmBackend().end(folder.cluster())


def test_states_of_a_life(folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def now() -> tuple[str, str]:
        status = status_of(folder)
        return status.state, status.why

    slurm_says(monkeypatch, JobState("waiting", "PENDING", "Resources"))
    assert now() == ("waiting", "Resources")
    slurm_says(monkeypatch, JobState("running", "RUNNING"))
    assert now() == ("starting", "")
    joined(folder, "a", "b")
    assert now() == ("starting", ""), "Ray lists no node yet"
    folder.write(Alive(addresses=("1.0",), incarnation="now"))
    assert now() == ("up", "")
    folder.write(Stop(reason="time_limit", deadline=1.0))
    assert now() == ("stopping", "the time limit")
    slurm_says(monkeypatch, JobState("gone"))
    assert now() == ("ended", "the time limit")
    folder.forget(Stop)
    assert now()[0] == "stale"
    folder.write(Node(host="a", state="ended", incarnation="now"))
    assert now() == ("ended", "")
    joined(folder, "a", "b")
    assert status_of(folder).alive_count == 0  # whatever the killed head last wrote
    assert node_in_words(status_of(folder), 0) == "gone"
    slurm_says(monkeypatch, JobState("gone", "OUT_OF_MEMORY", "OutOfMemory", ("a",)))
    assert now() == ("failed", "SLURM reports OUT_OF_MEMORY (OutOfMemory)")
    folder.write(Node(host="a", state="failed", message="no ports", incarnation="now"))
    assert now() == ("failed", "no ports")
    slurm_says(monkeypatch, JobState("unknown", reason="slurmctld is silent"))
    assert now() == ("unknown", "slurmctld is silent")


def test_a_job_that_no_node_can_launch_names_the_shared_folder(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_says(monkeypatch, JobState("gone", "FAILED", "JobLaunchFailure", ("n7",)))
    status = status_of(folder)
    assert (status.state, status.lives) == ("failed", False)
    for word in ("n7", str(folder.slurm_log), "RAYSUITE_HOME"):
        assert word in status.why


def test_a_node_that_could_write_to_slurms_log_alone_has_failed(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_says(monkeypatch, JobState("running", "RUNNING", hosts=("n1,n2",)))
    earlier = "raysuite: job 16, attempt 0, nodes n[1-2]\n0: raysuite: n1: no scratch\n"
    folder.slurm_log.write_text(earlier)
    assert status_of(folder).nodes == ()
    folder.slurm_log.write_text(
        f"{earlier}raysuite: job 17, attempt 0, nodes n[1-2]\n"
        "0: something else\n"
        "1: raysuite: n2: does not see /home/ada\n"
        "0: raysuite: a: no ports\n"
    )
    joined(folder, "a")
    folder.write(Alive(addresses=("1.0",), incarnation="now"))
    status = status_of(folder)
    assert [(node.host, node.index, node.state, node.message) for node in status.nodes] == [
        ("a", 0, "joined", ""),  # its own file is newer than the log
        ("n2", 1, "failed", "does not see /home/ada"),
    ]
    patience = Patience(600.0)
    assert not patience.is_over(status, 1.0)
    assert patience.is_over(status, 47.0)
    assert "n2 failed: does not see /home/ada" in why_not(folder, status)


def test_what_an_earlier_start_said_counts_no_more(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_says(monkeypatch, JobState("running", "RUNNING"))
    joined(folder, "a", incarnation="later")
    folder.write(Alive(addresses=("1.0",), incarnation="now"))
    status = status_of(folder)
    assert (status.state, status.nodes, status.alive_count) == ("starting", (), 0)


def test_missing_nodes_are_named_with_their_logs(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_says(monkeypatch, JobState("running", "RUNNING", hosts=("a",)))
    joined(folder, "a", "b")
    folder.write(Alive(addresses=("1.0",), incarnation="now"))
    slurm_says(monkeypatch, JobState("running", "RUNNING"))
    (folder.log_of("b")).write_text("\n".join(f"line {number}" for number in range(100)))
    (folder.log_of("a")).write_text("the head's")
    status = status_of(folder)
    assert missing_nodes(status) == ["b"]
    message = why_not(folder, status)
    assert "1 of 2 nodes joined within 600 s" in message
    assert "missing: b" in message
    assert "  line 99" in message
    assert "line 50" not in message
    assert "the head's" not in message


def test_the_newest_cluster_is_first_and_one_that_cannot_be_read_is_left_out() -> None:
    for name, created in (("b", 1.0), ("c", 3.0), ("d", 2.0), ("a", 4.0)):
        site = SlurmSite(name="far")
        made = Cluster(name=name, site=site, nodes=1, created=created, working_folder="/")
        folder = prepare(made)
    (folder.path / "cluster.json").write_text("{")
    assert [status.cluster.name for status in all_status()] == ["c", "d", "b"]


def test_durations_of_a_start_are_those_of_its_slowest_node(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_says(monkeypatch, JobState("running", "RUNNING"))
    joined(folder)
    for index, (began, ray, python) in enumerate(((25.0, 4.0, 1.0), (22.5, 3.0, 2.0))):
        seconds = {"ray": ray, "python": python}
        node = Node(host=f"n{index}", index=index, state="joined", incarnation="now", began=began)
        folder.write(node.model_copy(update={"seconds": seconds}))
    folder.write(Timings(seconds={"submit": 2.0}))
    client_module._record_timings(folder, status_of(folder), running_since=20.0, now=31.0)
    assert folder.timings() == {
        "submit": 2.0,
        "waiting": 17.0,  # from 1 + 2, when it was submitted
        "step": 2.5,
        "image": 0.0,
        "python": 2.0,
        "ray": 4.0,
        "all": 30.0,
    }


def test_the_only_living_one_needs_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no cluster is running"):
        find_folder(None)
    with pytest.raises(UserError, match=r"'x'.*none is known"):
        find_folder("x")
    for name in ("one", "two"):
        prepare(living(name))
        if name == "one":
            assert find_folder(None).name == "one"
    with pytest.raises(UserError, match="name one of one, two"):
        find_folder(None)
    with pytest.raises(UserError, match="known: one, two"):
        find_folder("three")


def test_another_process_with_that_id_is_not_the_agent() -> None:
    cluster = living("x")
    backend = LocalBackend()
    assert backend.states([cluster])[0].phase == "running"
    other = cluster.model_copy(update={"birth": "another"})
    assert backend.states([other])[0].phase == "gone"
    backend.end(other)  # ends nobody
    assert backend.states([cluster.model_copy(update={"job": ""})])[0].phase == "gone"


def test_a_job_that_waits_again_is_waited_for_anew(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, waiting = JobState("running"), JobState("waiting", reason="Priority")

    def over(state: JobState, now: float) -> bool:
        slurm_says(monkeypatch, state)
        return patience.is_over(status_of(folder), now)

    patience = Patience(600.0)
    assert not over(waiting, 1.0)
    assert not over(running, 5000.0)
    assert not over(waiting, 5500.0)
    assert not over(running, 6000.0), "its seconds began anew"
    assert over(running, 6601.0)


def test_a_node_that_failed_may_be_started_again(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_says(monkeypatch, JobState("running"))
    patience = Patience(600.0)
    joined(folder, "a", "b")
    folder.write(Node(host="b", index=1, state="failed", message="why", incarnation="now"))
    assert not patience.is_over(status_of(folder), 10.0)
    folder.forget(Head)  # the batch script starts another
    assert not patience.is_over(status_of(folder), 100.0)
    joined(folder, "a")
    assert not patience.is_over(status_of(folder), 101.0)
    assert patience.is_over(status_of(folder), 147.0), "it stays so"


def test_without_slurm_the_options_of_a_local_cluster_are_told(
    folder: ClusterFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"^squeue is not found: .* leave --site out$"):
        status_of(folder)
