"""Which process a file means."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

from raysuite.cluster.process import ProcessTree, age_s, birth_of, find_process


def test_a_process_is_found_by_its_id_and_birth() -> None:
    us = psutil.Process()
    birth = birth_of(us.pid)
    assert find_process(us.pid, birth) == us
    assert find_process(us.pid, f"{birth}0") is None, "another of that id"
    boot, tick = birth.split(":")
    assert find_process(us.pid, f"{boot[::-1]}:{tick}") is None, "of an earlier boot"


def test_a_name_that_looks_like_fields_changes_nothing(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b c"
    shutil.copy(shutil.which("sleep") or "", program)
    with subprocess.Popen([program, "600"]) as plain, subprocess.Popen(["sleep", "600"]) as other:
        ticks = [int(birth_of(each.pid).split(":")[1]) for each in (plain, other)]
        plain.kill()
        other.kill()
    assert abs(ticks[0] - ticks[1]) < 60 * os.sysconf("SC_CLK_TCK")


def test_one_that_has_ended_is_not_found() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        psutil.Process(ended.pid)
        birth = birth_of(ended.pid)
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert find_process(ended.pid, birth) is None, "a zombie"
    assert find_process(ended.pid, birth) is None
    assert birth_of(ended.pid) == ""


def test_the_age_of_a_process_is_exact_to_the_tick() -> None:
    before = time.time()
    with subprocess.Popen(["sleep", "600"]) as process:
        after = time.time()
        began = time.time() - age_s(process.pid)
        process.kill()
    assert before - 0.02 <= began <= after + 0.02


def test_a_tree_ends_with_grandchildren_in_groups_of_their_own() -> None:
    code = "sh -c 'setsid sleep 60 & echo $!; wait'; true"
    with ProcessTree(["sh", "-c", code], stdout=subprocess.PIPE) as tree:
        assert tree.stdout is not None
        grandchild = psutil.Process(int(tree.stdout.readline()))
        tree.terminate()
        assert psutil.wait_procs([grandchild], 10)[1] == []
