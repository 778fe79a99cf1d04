"""What of a plan and of the environment reaches Ray Train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysuite.orchestrate.groups import make_trainer, runtime_env
from raysuite.plan import RunPlan, make_plans
from raysuite.spec import parse_document

SPEC = "name: a\nmodel: resnet20\ndata: digits\ntraining: {epochs: 1, global_batch: 64}\n"


def plan_of(text: str = "") -> RunPlan:
    return make_plans(parse_document(SPEC + text, "x.yaml"), gpus=0)[0]


def trainer_of(tmp_path: Path, text: str) -> Any:
    return make_trainer([plan_of(text)], tmp_path)


@pytest.mark.parametrize(
    ("text", "strategy"),
    [("", "PACK"), ("resources: {placement: spread}\n", "SPREAD")],
)
def test_placement(tmp_path: Path, text: str, strategy: str) -> None:
    assert trainer_of(tmp_path, text).scaling_config.placement_strategy == strategy


def test_the_largest_run_decides_how_many_workers_there_are(tmp_path: Path) -> None:
    text = SPEC + "strategy: ddp\nmatrix: {resources.workers: [1, 4, 2]}\n"
    trainer = make_trainer(make_plans(parse_document(text, "x.yaml"), gpus=0), tmp_path)
    assert trainer.scaling_config.num_workers == 4


def test_the_clusters_interface_is_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAYSUITE_INTERFACE", raising=False)
    assert runtime_env(plan_of(), tmp_path) == {}
    monkeypatch.setenv("RAYSUITE_INTERFACE", "ib0")
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
    named = dict.fromkeys(names, "ib0")
    assert runtime_env(plan_of(), tmp_path) == {"env_vars": named}
    assert trainer_of(tmp_path, "").run_config.worker_runtime_env == {"env_vars": named}
