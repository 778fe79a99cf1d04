"""Which errors say that memory ran out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from raysuite.parallel.base import World
from raysuite.train.out_of_memory import figures, is_out_of_memory, kernel_kills, ray_out_of_memory
from tests.unit.train.conftest import plan_of


def test_torchs_own_allocator_says_so() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    assert is_out_of_memory(caught.value)


def test_so_does_numpys() -> None:
    with pytest.raises(MemoryError) as caught:
        np.ones(10**15)
    assert is_out_of_memory(caught.value)


def test_what_began_with_it_counts_and_what_names_it_does_not() -> None:
    error = ValueError("the model could not be built")
    error.__cause__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert is_out_of_memory(error)
    error.__cause__, error.__context__ = None, MemoryError()
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError("a model that is out of memory lanes"))
    assert not is_out_of_memory(RuntimeError("shapes do not agree"))


def test_the_figures_name_the_keys_that_ask_for_less() -> None:
    plan = plan_of(data={"name": "digits", "image_size": 32})
    told = figures(plan, World(1, 2, 1, torch.device("cpu")))
    assert "240 images of 32 x 32" in told
    assert "rank 1 used" in told
    for key in ("training.global_batch", "training.accumulate", "data.image_size"):
        assert key in told
    dataset = replace(plan.dataset, sequence=64)
    told = figures(
        plan.model_copy(update={"dataset": dataset}), World(0, 1, 0, torch.device("cpu"))
    )
    assert told.endswith("or lower data.sequence")


RAYS = """\
1 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 10.0.0.2, \
ID: 8e13) was 5.20GB used / 23.54GB limit (0.221021)
OOM kill reason: Memory usage 5578387456B exceeded threshold of 5560833024B
Considered workers: [
Selected to kill: (Actor(46ec): job ID=01, pid=14730, actual memory used=3.88GB, worker ID=624b)
(Actor(03a5): job ID=01, pid=14729, actual memory used=0.47GB, worker ID=0b39)
]
Refer to the documentation on how to address the out of memory issue: https://docs.ray.io."""
"""Of Ray 2.56, shortened."""


def test_rays_figures_are_kept() -> None:
    told = ray_out_of_memory(RAYS)
    for figure in ("5.20GB used / 23.54GB", "10.0.0.2", "3.88GB"):
        assert figure in told
    assert "0.47GB" not in told
    assert "\n" not in told
    assert ray_out_of_memory("OutOfMemoryError of another version of Ray")
    assert not ray_out_of_memory("The actor died. Look into its logs.")


@pytest.mark.parametrize(
    ("own", "file"),
    [
        ("0::/\n", "memory.events"),
        ("1:cpu:/\n0::/user.slice/a\n", "user.slice/a/memory.events"),
        ("0::/s.scope/job_7/step_0/user/task_0\n", "s.scope/job_7/memory.events"),
        ("8:pids:/x\n4:memory:/y\n0::/\n", "memory/y/memory.oom_control"),
        ("4:cpu,memory:/slurm/uid_1/job_7/step_0\n", "memory/slurm/uid_1/job_7/memory.oom_control"),
    ],
)
def test_the_kernels_kills_are_counted(tmp_path: Path, own: str, file: str) -> None:
    (tmp_path / "cgroup").write_text(own)
    assert kernel_kills(tmp_path / "fs", tmp_path / "cgroup") is None
    counts = tmp_path / "fs" / file
    counts.parent.mkdir(parents=True)
    counts.write_text("oom 9\noom_kill 3\noom_group_kill 4\n")
    assert kernel_kills(tmp_path / "fs", tmp_path / "cgroup") == 3
    assert kernel_kills(tmp_path / "fs", tmp_path / "none") is None
