"""What environments differ in: machines and code, and nothing that one run's nodes differ in."""

from __future__ import annotations

from typing import Any

import pytest

from raysuite.report import collect
from raysuite.report.summary import differing
from tests.fake_results import ENVIRONMENT, write_results

WHOLE: dict[str, Any] = {
    **ENVIRONMENT,
    "time": 1.0,
    "cpu": {"model": "Made-up CPU", "logical_cores": 8, "usable_cores": 8},
    "source": {"commit": "0123abc", "dirty": False},
    "image": None,
    "variables": {"NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "0"},
}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"fingerprint": "cafe"}, "hardware or versions"),
        ({"cpu": WHOLE["cpu"] | {"usable_cores": 4}}, "usable cores"),
        ({"cpu": WHOLE["cpu"] | {"logical_cores": 16}}, "logical cores"),
        ({"memory_bytes": 4 * 2**30}, "memory"),
        ({"source": {"commit": "4567def", "dirty": False}}, "raysuite's commit"),
        ({"source": {"commit": "0123abc", "dirty": True}}, "uncommitted changes to raysuite"),
        ({"image": {"digest": "abc"}}, "image"),
        ({"variables": {"NCCL_ALGO": "Tree"}}, "NCCL_ALGO"),
        ({"variables": {}}, "NCCL_ALGO"),
        ({"variables": dict.fromkeys("FCEABD", "1")}, "A, B, C, D, E, F, NCCL_ALGO"),
    ],
)
def test_what_differs_is_named_in_order(other, said):
    assert ", ".join(differing([WHOLE, WHOLE | other])) == said


@pytest.mark.parametrize(
    "other",
    [
        {"hostname": "another", "time": 2.0, "slurm_job_id": "7"},
        {"memory_bytes": 8 * 2**30 - 2**20},
        {"variables": {"NCCL_ALGO": "Ring", "CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "4"}},
        {"source": None},
        {"source": {"commit": "0123abc", "dirty": None}},
    ],
)
def test_nodes_and_workers_of_one_run_may_differ(other):
    assert differing([WHOLE, WHOLE | other]) == []


def test_what_is_not_on_record_is_no_difference():
    assert differing([WHOLE, {"fingerprint": WHOLE["fingerprint"]}]) == []
    assert differing([]) == []


def test_runs_with_other_cores_are_a_caveat(tmp_path, monkeypatch):
    write_results(tmp_path, missing=range(6, 12))
    monkeypatch.setitem(ENVIRONMENT, "cpu", ENVIRONMENT["cpu"] | {"logical_cores": 4})
    report = collect(write_results(tmp_path, missing=range(6)))
    said = "\n".join(sentence.text for sentence in report.summary)
    assert "The runs come from environments that differ in logical cores: " in said
