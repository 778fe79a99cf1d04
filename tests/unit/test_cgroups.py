"""What is left in control groups, by hand, in folders as the kernel shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.cgroups import memory_left

V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def group(folder: Path, names: tuple[str, str, str], limit: str, used: int, cache: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\nactive_file 5\n{names[2]} {cache}\n")


@pytest.mark.parametrize(
    ("own", "below", "names"),
    [
        ("0::/slurm/job_7/step_0\n", "", V2),
        ("8:pids:/x\n4:cpu,memory:/slurm/job_7/step_0\n0::/\n", "memory", V1),
    ],
)
def test_each_limit_counts_and_a_cache_that_can_be_dropped_is_free(
    tmp_path: Path, own: str, below: str, names: tuple[str, str, str]
) -> None:
    (tmp_path / "own").write_text(own)
    top = tmp_path / "fs" / below
    assert memory_left(tmp_path / "fs", tmp_path / "own") == []
    job = top / "slurm" / "job_7"
    group(job / "step_0", names, "max", 300, 100)
    group(job, names, "1000", 700, 200)
    group(job.parent, names, "2000", 700, 200)
    group(top / "another", names, "1", 0, 0)
    (job.parent / "memory.stat").unlink()
    assert memory_left(tmp_path / "fs", tmp_path / "own") == [1000 - 700 + 200]
    group(job / "step_0", names, "350", 300, 100)
    assert memory_left(tmp_path / "fs", tmp_path / "own") == [350 - 300 + 100, 500]


def test_nothing_is_known_without_control_groups(tmp_path: Path) -> None:
    assert memory_left(tmp_path, tmp_path / "none") == []
