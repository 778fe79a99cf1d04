"""What is found of a site from its login node, where SLURM's commands are the test's own."""

from __future__ import annotations

import json
import platform
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raysuite.cli import app, cluster
from raysuite.cluster import sites
from raysuite.cluster.backend import Finding, State
from raysuite.cluster.sites import check_site, file_system
from raysuite.cluster.slurm import COMMANDS, megabytes, node_groups
from raysuite.spec.site import LocalSite, SlurmSite

SINFO = """\
gpu*|up|1-00:00:00|100|48|515000|gpu:a100:4(S:0-1),nvme:1
gpu*|up|1-00:00:00|4|96|1030000|gpu:a100:8
wide|up|infinite|1024|1024|1048576|(null)
debug|up|30:00|2|48|515000|(null)
old|down|infinite|8|16|64000|(null)
"""
TAKEN = "sbatch: Job 9 to start at 2026-01-01T00:00:00 using 4 processors on nodes n[1-4]"


class Login:
    """A folder that is the whole PATH."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in COMMANDS:
            self.command(name, "exit 0")
        # as the real one writes 1,024, and nodes that differ
        self.command(
            "sinfo",
            "case $* in --version) echo slurm 23.02;; *--exact*--noconvert*)"
            f" echo '{SINFO.strip()}'"
            ";; *) echo 'gpu*|up|infinite|1K|48+|1K+|(null)';; esac",
        )
        self.command("sbatch", f"/bin/cat >{path}/script; echo '{TAKEN}' >&2")
        self.command("sacctmgr", "printf 'physics|normal,long\\nphysics2|normal\\n'")

    def command(self, name: str, does: str) -> None:
        file = self.path / name
        file.write_text(f"#!/bin/sh\n{does}\n")
        file.chmod(0o755)


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Login:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path / "home"))
    return Login(tmp_path / "bin")


def look(**site: Any) -> dict[str, Finding]:
    return {found.what: found for found in check_site(SlurmSite(**site), sys.executable)}


def test_a_python_without_raysuite_is_named_with_its_last_line(login: Login) -> None:
    login.command("bare", "printf 'Traceback:\nNo module named raysuite\n' >&2; exit 1")
    python = str(login.path / "bare")
    assert (
        look(python=python)["python"].note == f"{python} has no raysuite: No module named raysuite"
    )


def test_a_sound_site(login: Login) -> None:
    found = look(nodes=4, gpus_per_node=4, account="physics", qos="long", time="1-0")
    assert {finding.what for finding in found.values() if finding.state is State.WRONG} == set()
    assert found["SLURM"].note == "slurm 23.02"
    assert found["partition"].note == "gpu", "the default one"
    assert "at most 24 h" in found["time"].note
    assert found["nodes"].note.startswith("104 nodes are suitable; the partition has 104 nodes")
    assert found["account"].state is found["qos"].state is State.WORKS
    assert found["the script"].note == TAKEN.removeprefix("sbatch: ")
    script = (login.path / "script").read_text()
    assert "#SBATCH --account=physics" in script


@pytest.mark.parametrize(
    ("site", "what", "words"),
    [
        ({"partition": "gpus"}, "partition", "no partition is called 'gpus'"),
        ({"time": "1-00:00:01"}, "time", "at most 24 h"),
        ({"partition": "debug", "time": "31"}, "time", "at most 0.5 h"),
        ({"nodes": 105}, "nodes", "asked for 105 nodes; 104 nodes are suitable"),
        ({"nodes": 5, "gpus_per_node": 8}, "nodes", "4 nodes are suitable"),
        ({"nodes": 5, "memory_per_node": "600G"}, "nodes", "4 nodes are suitable"),
        ({"cpus_per_node": 97}, "nodes", "0 nodes are suitable"),
        ({"account": "physics3"}, "account", "not yours"),
        ({"qos": "short"}, "qos", "not yours"),
        ({"image": "/nowhere/a.sif"}, "image", "No such file"),
        ({"python": "/nowhere/python"}, "python", "does not run"),
        ({"scratch": "/" + 40 * "x"}, "scratch", "41 characters"),
        ({"mlflow": {"backend": "postgresql", "url_file": "/nowhere"}}, "mlflow", "No such file"),
    ],
)
def test_what_is_wrong(login: Login, site: dict[str, Any], what: str, words: str) -> None:
    finding = look(**site)[what]
    assert finding.state is State.WRONG
    assert words in finding.note
    assert finding.fix


@pytest.mark.parametrize(
    ("site", "what", "words"),
    [
        ({"nodes": 104}, "nodes", "104 nodes are suitable; the partition has 104 nodes"),
        (
            {
                "nodes": "4-200",
                "memory_per_node": "1030000",
                "cpus_per_node": 96,
                "gpus_per_node": 8,
            },
            "nodes",
            "4 nodes are suitable; the partition has 104 nodes of up to 96 CPUs, 8 GPUs and "
            "1030000 MB",
        ),
        ({"partition": "debug", "time": "30"}, "time", "30; at most 0.5 h"),
        ({"partition": "debug,wide", "time": "99-0"}, "time", "99-0; no limit"),
        ({"partition": "debug,wide"}, "partition", "wide, debug"),
        ({"partition": "gpu"}, "time", "the partition's default; at most 24 h"),
        ({}, "account", "your default of physics, physics2"),
        ({}, "qos", "your default of long, normal"),
    ],
)
def test_what_just_fits_works(login: Login, site: dict[str, Any], what: str, words: str) -> None:
    finding = look(**site)[what]
    assert finding.state is State.WORKS
    assert finding.note.startswith(words)


def test_a_second_partition_that_is_unknown_is_named_and_a_closed_one_is_no_mistake(
    login: Login,
) -> None:
    assert look(partition="gpu,none")["partition"].note == "no partition is called 'none'"
    assert look(partition="old")["partition"].state is State.UNSURE
    assert look(partition="old,debug")["partition"].state is State.WORKS


@pytest.mark.parametrize(
    ("keys", "what", "local", "slurm"),
    [
        ({"scratch": "/nowhere"}, "scratch", State.WRONG, State.UNSURE),
        ({"scratch": "/" + 39 * "x"}, "scratch", State.WRONG, State.UNSURE),
        ({"scratch": "$JOB_TMP/x"}, "scratch", State.UNSURE, State.UNSURE),
        ({"scratch": "/proc/self/status"}, "scratch", State.WRONG, State.UNSURE),
        ({"binds": ["/nowhere"]}, "bind", State.WRONG, State.UNSURE),
        ({"interface": "lo"}, "interface", State.WORKS, State.WORKS),
        ({"interface": "none0"}, "interface", State.WRONG, State.UNSURE),
        ({"client_interface": "none0"}, "client_interface", State.WRONG, State.UNSURE),
        ({"environment": {"DB_PASS": "x"}}, "environment", State.UNSURE, State.UNSURE),
        ({"image": "/nowhere.sif"}, "apptainer", State.WRONG, State.UNSURE),
    ],
)
def test_what_compute_nodes_may_have_is_no_mistake_of_a_site_elsewhere(
    login: Login, keys: dict[str, Any], what: str, local: State, slurm: State
) -> None:
    python = str(login.path / "sinfo")
    for kind, state in ((LocalSite, local), (SlurmSite, slurm)):
        site = kind.model_validate({"scratch": "/tmp", **keys})
        found = {each.what: each for each in check_site(site, python)}
        assert found[what].state is state
        assert ("python" in found) == ("image" not in keys), "an image has its own"


def test_an_engine_of_srun_is_one_of_its_options(login: Login) -> None:
    site = {"engine": "pyxis", "image": "docker://x"}
    login.command("srun", "echo '  --container-image=...'")
    found = look(**site)
    assert (found["pyxis"].state, "image" in found) == (State.WORKS, False)
    login.command("srun", "echo '  --container=...'")
    assert look(**site)["pyxis"].state is State.WRONG
    login.command("srun", "echo '--container-image'; exit 1")
    assert look(**site)["pyxis"].state is State.WRONG


def test_a_folder_on_a_disk_of_this_machine_is_doubted(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, state in (("ext4", State.UNSURE), ("nfs4", State.WORKS)):
        monkeypatch.setattr(sites, "file_system", lambda _, kind=kind: kind)
        assert look()["shared folder"].state is state
    local = [each.what for each in check_site(LocalSite(scratch="/tmp"), "/nowhere/python")]
    assert local == ["scratch", "python"]


def test_without_slurm_nothing_more_is_asked_of_it(login: Login) -> None:
    (login.path / "squeue").unlink()
    found = look()
    assert found["SLURM's commands"].note == "not on PATH: squeue"
    assert "the script" not in found


def test_a_controller_that_is_silent(login: Login) -> None:
    login.command("sinfo", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert look()["controller"].note == "Unable to contact slurm controller"


def test_a_script_that_slurm_refuses(login: Login) -> None:
    login.command("sbatch", "echo 'sbatch: error: Invalid feature' >&2; exit 1")
    finding = look(constraint="nonsense")["the script"]
    assert (finding.state, finding.note) == (State.WRONG, "sbatch: error: Invalid feature")


def test_a_site_without_books(login: Login) -> None:
    (login.path / "sacctmgr").unlink()
    found = look(account="physics")
    assert found["account"].state is State.UNSURE
    assert "qos" not in found


def test_a_new_site_is_offered_the_partitions_and_the_users_accounts(login: Login) -> None:
    login.command("sacctmgr", "printf 'b|x\\nc|x\\na|x\\nd|x\\n'")
    hints = cluster._hints()
    assert hints["partition"].startswith("gpu (default): ")
    assert hints["account"] == "a, b, c, d"


def test_rows_of_sinfo(login: Login) -> None:
    first, second, wide, third, fourth = node_groups()
    assert (wide.nodes, wide.cpus, wide.memory_mb) == (1024, 1024, 1048576)
    assert (first.partition, first.default, first.gpus, first.cpus) == ("gpu", True, 4, 48)
    assert (second.memory_mb, second.gpus) == (1030000, 8)
    assert (third.limit_s, third.gpus, third.default) == (1800, 0, False)
    assert (fourth.up, fourth.limit_s) == (False, float("inf"))


def test_another_slurm_cluster_is_looked_at(login: Login) -> None:
    login.command("sinfo", f'echo "$*" >>{login.path}/asked; echo "p*|up|infinite|1|1|1|(null)"')
    look(sbatch_lines=("#SBATCH -M alpha",))
    assert "--clusters=alpha" in (login.path / "asked").read_text("utf-8")


def test_megabytes() -> None:
    assert [megabytes(text) for text in ("512", "1k", "2048K", "3M", "4G", "1t")] == [
        512,
        0,
        2,
        3,
        4096,
        1048576,
    ]


@pytest.mark.parametrize(
    ("header", "state"),
    [
        (b"#!/bin/x\n".ljust(32, b"\0") + b"SIF_MAGIC\x0001\x00%s\x00", State.WORKS),
        (b"#!/bin/x\n".ljust(32, b"\0") + b"SIF_MAGIC\x0001\x0012\x00", State.UNSURE),
        (b"something else", State.WRONG),
    ],
)
def test_an_images_kind(tmp_path: Path, header: bytes, state: State) -> None:
    machine = {"x86_64": b"02", "aarch64": b"04"}[platform.machine()]
    file = tmp_path / "a.sif"
    file.write_bytes(header.replace(b"%s", machine) + bytes(64))
    site = LocalSite(image=str(file), scratch="/tmp")
    found = {finding.what: finding for finding in check_site(site, sys.executable)}
    assert found["image"].state is state


@pytest.mark.parametrize("target", ["", ":/data", ":/data:ro"])
def test_a_bind_is_looked_up_by_its_source(tmp_path: Path, target: str) -> None:
    absent = tmp_path / "absent"
    site = LocalSite(python="/nowhere/python", binds=(f"{tmp_path}{target}", f"{absent}{target}"))
    found = [each for each in check_site(site, sys.executable) if each.what == "bind"]
    assert [(each.state, each.note) for each in found] == [
        (State.WORKS, str(tmp_path)),
        (State.WRONG, f"{absent} is not there"),
    ]


def test_a_secret_that_others_can_read(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.touch(mode=0o600)
    site = LocalSite(mlflow={"backend": "postgresql", "url_file": str(file)})  # type: ignore[arg-type]
    assert {each.what: each.state for each in check_site(site, sys.executable)}["mlflow"] == "works"
    file.chmod(stat.S_IRUSR | stat.S_IRGRP)
    assert {each.what: each.state for each in check_site(site, sys.executable)}["mlflow"] == "wrong"


def test_the_file_system_of_a_path() -> None:
    assert file_system(Path("/proc/self")) == "proc"
    assert file_system(Path("/proc/no/such/path")) == "proc"


def test_the_command(login: Login) -> None:
    good = CliRunner().invoke(app, ["doctor", "--site", "slurm-generic", "--json"])
    assert good.exit_code == 0, good.output
    said = json.loads(good.stdout)
    assert (said["site"], said["ok"]) == ("slurm-generic", True)
    assert {"what", "state", "note", "fix"} == set(said["findings"][0])
    bad = CliRunner().invoke(app, ["doctor", "--site", "juwels-booster"])
    assert (bad.exit_code, "To fix: partition." in bad.stdout) == (1, True)
