"""`raysuite cluster` where nothing is started."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.cli.cluster import (
    _how_to_go_on,
    _mlflow_in_words,
    _printer,
    _requested,
    _scratch,
    _wait,
    _working_folder,
    as_data,
    exports,
    node_in_words,
)
from raysuite.cluster.client import NotStartedError
from raysuite.cluster.folder import ClusterFolder, all_folders, prepare
from raysuite.cluster.state_files import Head, Node, Stop, Timings
from raysuite.errors import RunError, UserError
from raysuite.records.node_checks import NodeFigures, read_checks
from tests.living import living

CLI = CliRunner()
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_a_dry_run_leaves_nothing(own_home: Path) -> None:
    Path("far.yaml").write_text("kind: slurm\nnodes: 3\npartition: gpu\n")
    done = CLI.invoke(app, ["cluster", "up", "--site", "./far.yaml", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("#!/bin/bash")
    assert "#SBATCH --nodes=3" in done.output.splitlines()
    assert f"{own_home}/clusters/far" in done.output
    some = CLI.invoke(app, ["cluster", "up", "--site", "./far.yaml", "--nodes", "2-4", "--dry-run"])
    assert "#SBATCH --nodes=2-4" in some.output.splitlines()
    done = CLI.invoke(app, ["cluster", "up", "--dry-run"])
    assert done.output.rstrip().endswith(f" -P -m raysuite.cluster.agent {own_home}/clusters/local")
    assert not own_home.exists()


def test_the_status_as_text(own_home: Path) -> None:
    def rows() -> list[str]:
        shown = CLI.invoke(app, ["cluster", "status"]).stdout
        return [" ".join(line.split()) for line in shown.splitlines() if line.strip()]

    cluster = living("one").model_copy(update={"created": time.time() - 7260})
    folder = prepare(cluster)
    first = [
        "one",
        "state starting",
        f"site local (local, job {cluster.job})",
        "age 2 h 01 min",
        "nodes 0 of 1 alive",
        f"folder {folder.path}",
        "jobs start in /",
    ]
    assert rows() == first
    head = Head(host="a", gcs="a:1", client="ray://a:3", dashboard="http://127.0.0.1:2", mlflow="")
    folder.write(head)
    addresses = ["ray a:1", "ray client ray://a:3", "dashboard http://127.0.0.1:2"]
    assert rows() == [*first, *addresses, "mlflow none"]
    folder.write(head.model_copy(update={"mlflow": "http://m:3"}))
    folder.write(Timings(seconds={"submit": 1.25, "ray": 0.5}))
    folder.write(Node(host="n1", state="failed", address="10.0.0.1", message="no space"))
    *lines, heading, _, node = rows()
    took = "start took submit 1.2 s, ray 0.5 s"
    assert lines == [*first, *addresses, "mlflow http://m:3 (starting)", took]
    assert (heading, node) == ("node address state", "n1 10.0.0.1 failed (no space)")
    folder.write(head.model_copy(update={"mlflow": "http://m:3/", "mlflow_answers": True}))
    assert "mlflow http://m:3/#/experiments?workflowType=machine_learning" in rows()


def test_status_lists_clusters_if_several_run_or_one_is_stale() -> None:
    def states(*words: str) -> dict[str, str]:
        found = json.loads(CLI.invoke(app, ["cluster", "status", *words, "--json"]).stdout)
        return {each["name"]: each["state"] for each in found}

    none = CLI.invoke(app, ["cluster", "status", "--all"])
    assert (none.exit_code, none.stdout, states("--all")) == (0, "", {})
    folder = prepare(living("old").model_copy(update={"birth": "another"}))
    assert states() == {"old": "stale"}
    prepare(living("one"))
    assert CLI.invoke(app, ["cluster", "status"]).stdout.startswith("one\n  state ")
    prepare(living("two"))
    folder.write(Stop(reason="down", deadline=0.0))
    assert states() == {"one": "starting", "two": "starting"}
    assert states("--all") == {"old": "ended", "one": "starting", "two": "starting"}
    shown = CLI.invoke(app, ["cluster", "status"]).stdout.split()
    assert [each in shown for each in ("old", "one", "two")] == [False, True, True]


@pytest.mark.parametrize(
    ("site", "words", "said"),
    [
        ("local", "--nodes 2", "has only this machine"),
        ("local", "--hosts a,b", "leave --hosts out"),
        ("./hosts.yaml", "--hosts a,b --nodes 3", "the list of hosts has 2: a, b"),
        ("./hosts.yaml", "--hosts a,b --nodes 4-2", "--nodes: "),
    ],
)
def test_nodes_that_cannot_be_are_refused(site: str, words: str, said: str) -> None:
    Path("hosts.yaml").write_text("kind: hosts\n")
    done = CLI.invoke(app, ["cluster", "up", "--site", site, *words.split(), "--dry-run"])
    assert (done.exit_code, said in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("state", "lives", "alive", "of_node", "words"),
    [
        ("up", True, True, "joined", "joined (late)"),
        ("up", True, False, "joined", "lost"),
        ("starting", True, False, "joined", "joined (late)"),  # Ray does not count it yet
        ("ended", False, False, "joined", "gone"),
        ("up", True, False, "failed", "failed (late)"),
        ("ended", False, False, "failed", "failed (late)"),
    ],
)
def test_a_node_is_lost_or_gone_if_it_had_joined(
    state: str, lives: bool, alive: bool, of_node: str, words: str
) -> None:
    states = (("starting", ""), (of_node, "late"))
    nodes = [SimpleNamespace(state=each, message=message) for each, message in states]
    status: Any = SimpleNamespace(
        state=state, lives=lives, nodes=nodes, is_alive=lambda node: alive
    )
    assert [node_in_words(status, index) for index in (0, 1)] == ["starting", words]


def test_a_cluster_as_data_has_what_ray_counts_and_no_secrets() -> None:
    cluster = living("one").model_copy(update={"created": 5.0, "job": "77"})
    head = Head(host="a", gcs="a:1", client="ray://a:3", dashboard="http://d:2", mlflow="http://m",
                mlflow_answers=True, mlflow_error="slow", incarnation="secret")  # fmt: skip
    nodes = [
        Node(host=host, state="joined", address=host * 2, seconds={"ray": 2.5}) for host in "ab"
    ]
    status: Any = SimpleNamespace(
        cluster=cluster, head=head, nodes=nodes, state="up", why="late", lives=True, wanted=3,
        alive_count=1, alive=SimpleNamespace(cpus=8.0, gpus=2.0),
        job=SimpleNamespace(state="RUNNING", reason="Priority"),
        is_alive=lambda node: node.host == "a",
    )  # fmt: skip
    own = {"name": "one", "state": "up", "why": "late", "site": "local", "backend": "local"}
    own |= {"job": "77", "slurm_state": "RUNNING", "slurm_reason": "Priority", "created": 5.0}
    own |= {"working_folder": "/", "nodes_wanted": 3}
    ray = {"nodes_alive": 1, "cpus": 8.0, "gpus": 2.0, "gcs": "a:1", "client": "ray://a:3"}
    ray |= {"dashboard": "http://d:2", "mlflow": "http://m", "mlflow_answers": True}
    each = [("a", "aa", "joined", True), ("b", "bb", "lost", False)]
    keys = ("host", "address", "state", "alive")
    rows = [dict(zip(keys, row, strict=True)) | {"seconds": {"ray": 2.5}} for row in each]
    assert as_data(status) == own | ray | {"mlflow_error": "slow", "nodes": rows}
    status.head, status.alive = None, None
    without = dict.fromkeys(("gcs", "client", "dashboard", "mlflow"))
    without |= {"cpus": 0.0, "gpus": 0.0, "mlflow_answers": False, "mlflow_error": ""}
    assert as_data(status) == own | ray | without | {"nodes": rows}


def test_of_more_hosts_the_first_are_taken() -> None:
    Path("hosts.yaml").write_text("kind: hosts\n")
    for nodes, hosts in (("2", ("a", "b")), ("2-3", ("a", "b")), (None, ("a", "b", "c"))):
        found = _requested("./hosts.yaml", nodes, "mine", "a,b,c")
        assert (found.name, found.hosts, found.nodes) == ("mine", hosts, len(hosts))
        assert (found.host_indices, found.most_nodes) == (tuple(range(len(hosts))), 0)
    assert _requested("local", None, "", None).name == "local"


def test_what_a_cluster_does_is_told_once_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    tell = _printer("one")
    for text in ("waits", "waits", "ends"):
        tell(text)
    assert capsys.readouterr() == ("", "one: waits\none: ends\n")


def test_jobs_start_where_runs_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert _working_folder() == str(tmp_path)
    (tmp_path / "home").mkdir()
    closed = {str(tmp_path)}
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) not in closed)
    assert _working_folder() == str(tmp_path / "home")


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize(
    ("disk", "networks", "code"),
    [(900.0, [], 0), (90.0, [], 1), (900.0, ["mlx5_0"], 1), (90.0, ["mlx5_0"], 1)],
)
def test_a_check_exits_with_1_for_a_slow_node_or_one_that_fell_back_to_sockets(
    disk: float,
    networks: list[str],
    code: int,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [
        NodeFigures(
            host=host,
            when=0.0,
            figures={"disk": disk if host == "b" else 900.0},
            all_reduce_s=0.1,
            transports=["NCCL, NET/Socket"],
            networks=networks if host == "c" else [],
        )
        for host in "abc"
    ]
    monkeypatch.setattr("raysuite.orchestrate.ray_cluster.connect", lambda address: nullcontext())
    monkeypatch.setattr("raysuite.orchestrate.node_check.check_nodes", lambda folder: rows)
    done = CLI.invoke(app, ["cluster", "check", "--results", "nodes.jsonl", *options])
    assert (done.exit_code, done.stderr) == (code, "")
    assert read_checks(Path("nodes.jsonl")) == rows
    if options:
        told = json.loads(done.stdout)
        assert [each["host"] for each in told["slow"]] == (["b"] if disk == 90.0 else [])
        assert told["fell_back"] == (["c"] if networks else [])
    else:
        assert ("b is slow" in done.stdout) == (disk == 90.0)
        assert ("c fell back to sockets" in done.stdout) == bool(networks)


def test_only_a_spec_that_is_there_is_suggested(tmp_path: Path) -> None:
    cluster = living("one").model_copy(update={"working_folder": str(tmp_path)})
    assert "run SPEC.yaml" in _how_to_go_on(cluster, True)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "quickstart.yaml").touch()
    assert "run experiments/quickstart.yaml" in _how_to_go_on(cluster, True)


@pytest.mark.parametrize("modules", ["[]", "[Apptainer]"])
def test_a_script_finds_apptainer_where_this_shell_does(
    modules: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "opt" / "apptainer"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    Path("far.yaml").write_text(f"kind: slurm\nimage: /shared/r.sif\nmodules: {modules}\n")
    done = CLI.invoke(app, ["cluster", "up", "--site", "./far.yaml", "--dry-run"])
    assert done.exit_code == 0, done.output
    asked = "apptainer" if "Apptainer" in modules else str(program)
    assert f"command=({asked} --quiet exec --no-eval" in done.output


@pytest.mark.parametrize(
    ("kind", "scratch", "bound"),
    [("slurm", "/s", "/s"), ("slurm", "$TMPDIR", None), ("local", "$TMPDIR/s", "/t/s")],
)
def test_scratch_is_bound_into_the_image_unless_each_node_has_its_own(
    kind: str, scratch: str, bound: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/t")
    Path("far.yaml").write_text(f"kind: {kind}\nscratch: {scratch}\n")
    assert _scratch(_requested("./far.yaml", None, None, None)) == bound


@pytest.mark.parametrize(
    ("site", "program"),
    [("python: /nope/python", "/nope/python"), ("image: /nope/raysuite.sif", "apptainer")],
)
def test_an_agent_that_cannot_start_is_told_and_leaves_nothing_in_the_way(
    site: str, program: str, tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (own_home / "sites").mkdir(parents=True)
    (own_home / "sites" / "wrong.yaml").write_text(f"kind: local\n{site}\n")
    for _ in range(2):
        done = CLI.invoke(app, ["cluster", "up", "--site", "wrong"])
        assert done.exit_code == 2, done.output
        assert f"{program} does not start: No such file or directory" in done.output
        assert "raysuite doctor --site wrong" in done.output
    assert not [path for path in (own_home / "clusters" / "wrong").glob("*") if path.is_file()]
    assert all_folders() == []


def test_what_is_left_of_one_that_did_not_come_up_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def left(folder: ClusterFolder, grace_s: float) -> list[str]:
        return [f"the database stays in /tmp/rs-{folder.name}"]

    monkeypatch.setattr("raysuite.cluster.client.down", left)
    folder = prepare(living().model_copy(update={"birth": "another"}))
    with pytest.raises(NotStartedError):
        _wait(folder)
    assert capsys.readouterr().err.count("in /tmp/rs-mine\n") == 1


def test_env_names_files_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "a.org")
    folder = prepare(living())
    starting = CLI.invoke(app, ["cluster", "status", "--env"])
    assert (starting.exit_code, "until it" in starting.output) == (2, True)
    gcs, client, dashboard = "127.0.0.1:1", "ray://a:3", "http://127.0.0.1:2"
    head = Head(host="a", gcs=gcs, client=client, dashboard=dashboard, mlflow="http://m:3")
    folder.write(head)
    done = CLI.invoke(app, ["cluster", "status", "--env", "--json"])
    assert json.loads(done.output) == {
        "RAY_ADDRESS": "http://127.0.0.1:2",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder.token_file),
        "RAYSUITE_CLUSTER": str(folder.path),
        "MLFLOW_TRACKING_URI": "http://m:3",
        "MLFLOW_TRACKING_AUTH": "raysuite",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "NO_PROXY": "a.org,127.0.0.1,m",
        "no_proxy": "a.org,127.0.0.1,m",
        "RAYSUITE_RAY_CLIENT": client,
    }
    done = CLI.invoke(app, ["cluster", "status", "--json"])
    assert json.loads(done.stdout)["client"] == client
    folder.write(head.model_copy(update={"client": ""}))  # of an older version
    assert "RAYSUITE_RAY_CLIENT" not in CLI.invoke(app, ["cluster", "status", "--env"]).stdout


@pytest.mark.parametrize(
    ("server", "any_runs"),
    [("http://m:3", False), pytest.param("http://127.0.0.1:1", True, marks=pytest.mark.thorough)],
    ids=["no runs", "no answer"],
)
@patch.dict(os.environ)
def test_status_leads_to_mlflows_experiments_where_no_results_are_known(
    server: str, any_runs: bool
) -> None:
    addresses = {"gcs": "127.0.0.1:1", "dashboard": "http://127.0.0.1:2", "mlflow": server}
    head = Head(host="a", **addresses, mlflow_answers=True)
    page = _mlflow_in_words(prepare(living()), head, any_runs)
    assert page == f"{server}/#/experiments?workflowType=machine_learning"


@given(TEXT)
@settings(deadline=None, max_examples=25)
def test_a_shell_reads_what_was_meant(value: str) -> None:
    script = exports({"VALUE": value}) + '\nprintf %s "$VALUE"'
    said = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert said.stdout.decode() == value
    assert said.stderr == b""


def test_logs(own_home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = prepare(living())
    folder.log_of("a").write_text("one\ntwo\n")
    folder.log_of("b").write_text("three\n")
    assert CLI.invoke(app, ["cluster", "logs"]).exit_code == 0
    both = [line for line in capfd.readouterr().out.splitlines() if line]
    assert [line for line in both if line[0] != "="] == ["one", "two", "three"]
    CLI.invoke(app, ["cluster", "logs", "a", "-n", "1"])
    assert capfd.readouterr().out == "two\n"
    wrong = CLI.invoke(app, ["cluster", "logs", "c"])
    assert (wrong.exit_code, "valid: a, b" in wrong.output) == (2, True)


def test_logs_are_followed_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda words, check: asked.append(words))
    folder = prepare(living())
    files = [folder.log_of(name) for name in "ab"]
    for file in files:
        file.touch()
    CLI.invoke(app, ["cluster", "logs", "-f"])
    CLI.invoke(app, ["cluster", "logs", "b", "--cluster", "mine", "-n", "3"])
    a, b = map(str, files)
    assert asked == [["tail", "--lines=100", "--follow", a, b], ["tail", "--lines=3", b]]


@pytest.mark.parametrize("error", [RunError("it hangs"), UserError("elsewhere")])
def test_down_all_ends_the_others_if_one_fails(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    def down(folder: ClusterFolder, grace_s: float, tell: object, remove: bool) -> list[str]:
        asked.append((folder.name, grace_s, remove))
        if folder.name == "one":
            raise error
        return ["/tmp/x stays"] if folder.name == "three" else []

    monkeypatch.setattr("raysuite.cluster.client.down", down)
    assert CLI.invoke(app, ["cluster", "down", "--all"]).stdout == "no cluster is running\n"
    for name in ("old", "ended"):
        folder = prepare(living(name).model_copy(update={"birth": "another"}))
    folder.write(Stop(reason="down", deadline=0.0))
    for name in ("one", "two", "three"):
        prepare(living(name))
    done = CLI.invoke(app, ["cluster", "down", "--all", "--grace", "7", "--remove"])
    assert sorted(asked) == [(name, 7, True) for name in ("old", "one", "three", "two")]
    assert done.exit_code == 1
    assert sorted(done.stdout.splitlines()) == ["old is down", "two is down"]
    assert sorted(done.stderr.splitlines()) == ["/tmp/x stays", str(error)]
    asked.clear()
    alone = CLI.invoke(app, ["cluster", "down", "one"])
    assert (alone.exit_code, asked) == (1 + isinstance(error, UserError), [("one", 30, False)])
    assert CLI.invoke(app, ["cluster", "down", "two"]).exit_code == 0
