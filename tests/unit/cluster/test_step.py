"""Whether SLURM still holds the part of a step that an agent belongs to."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from raysuite.cluster.agent.node import Step
from raysuite.cluster.process import age_s

CHILD = """
import sys, time
from raysuite.cluster.agent.node import Step
step = Step()
assert not step.is_lost()
print("held", flush=True)
while not step.is_lost():
    time.sleep(0.01)
print("lost", flush=True)
"""
HOLDER = """
import os, subprocess, sys, time
task = subprocess.Popen(["env", sys.executable, "-c", sys.argv[1]], stdin=subprocess.DEVNULL,
    preexec_fn=lambda: os.environ.update(SLURM_TASK_PID=str(os.getpid()), SLURM_STEP_ID="0"))
time.sleep(600)
"""


def test_a_task_whose_holder_is_killed_is_lost() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, CHILD], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder.stdout as said:
        assert said.readline() == "held\n"
        holder.kill()
        assert said.readline() == "lost\n"
    holder.wait()


def test_a_task_that_is_gone_is_lost() -> None:
    task = subprocess.Popen(["sleep", "600"])
    step = Step({"SLURM_STEP_ID": "0", "SLURM_TASK_PID": str(task.pid)})
    assert not step.is_lost()
    assert step.began == pytest.approx(time.time() - age_s(task.pid), abs=0.1)
    task.kill()
    task.wait()
    assert step.is_lost()


def test_without_slurm_nothing_is_lost() -> None:
    assert not Step({}).is_lost()
    assert Step({}).began is None
    assert not Step({"SLURM_STEP_ID": "0", "SLURM_TASK_PID": ""}).is_lost()
