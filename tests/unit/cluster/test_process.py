"""Which process a file means, also after a step of the system clock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from raysuite.cluster import process
from raysuite.cluster.local import LocalBackend
from raysuite.cluster.process import ProcessTree, birth_of, find_process
from tests.living import living

proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")


@proc
def test_a_step_of_the_clock_makes_no_other_process() -> None:
    us = psutil.Process()
    birth, began = birth_of(us.pid), us.create_time()
    assert find_process(us.pid, birth, began - 3600) == us
    assert find_process(us.pid, f"{birth}0", began) is None, "another of that id"
    boot, tick = birth.split(":")
    assert find_process(us.pid, f"{boot[::-1]}:{tick}", began) is None, "of an earlier boot"


@proc
def test_a_name_that_looks_like_fields_changes_nothing(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b c"
    shutil.copy(shutil.which("sleep") or "", program)
    with subprocess.Popen([program, "600"]) as plain, subprocess.Popen(["sleep", "600"]) as other:
        ticks = [int(birth_of(each.pid).split(":")[1]) for each in (plain, other)]
        plain.kill()
        other.kill()
    assert abs(ticks[0] - ticks[1]) < 60 * os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("known", ["then", "now", "never"])
def test_without_a_birth_the_start_counts(known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    us = psutil.Process()
    birth = birth_of(us.pid) if known == "then" else ""
    if known != "now":
        monkeypatch.setattr(process, "_BOOT", Path("/nowhere"))
    assert find_process(us.pid, birth, us.create_time()) == us
    assert find_process(us.pid, birth, us.create_time() - 60) is None


def test_one_that_has_ended_is_not_found() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        psutil.Process(ended.pid)
        birth = birth_of(ended.pid)
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert find_process(ended.pid, birth, 0.0) is None, "a zombie"
    assert find_process(ended.pid, birth, 0.0) is None
    assert birth_of(ended.pid) == ""


@proc
def test_a_cluster_lives_on_when_the_clock_is_stepped() -> None:
    cluster = living()
    stepped = cluster.model_copy(
        update={"birth": birth_of(int(cluster.job)), "started": cluster.started - 3600}
    )
    assert LocalBackend().states([stepped])[0].phase == "running"


def test_a_tree_ends_with_grandchildren_in_groups_of_their_own() -> None:
    code = "sh -c 'setsid sleep 60 & echo $!; wait'; true"
    with ProcessTree(["sh", "-c", code], stdout=subprocess.PIPE) as tree:
        assert tree.stdout is not None
        grandchild = psutil.Process(int(tree.stdout.readline()))
        tree.terminate()
        assert psutil.wait_procs([grandchild], 10)[1] == []
