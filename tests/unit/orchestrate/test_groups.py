"""What of a plan and of the environment reaches Ray Train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysuite.orchestrate.groups import Segment, make_trainer, runtime_env, work_config
from raysuite.plan import RunPlan, make_plans
from raysuite.spec import parse_document
from raysuite.spec.strategies import PipelineOptions

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


@pytest.mark.parametrize(("device", "each"), [("cpu", {"CPU": 3}), ("gpu", {"CPU": 3, "GPU": 1})])
def test_each_worker_has_its_cpus_and_its_gpu(
    tmp_path: Path, device: str, each: dict[str, int]
) -> None:
    text = f"{SPEC}resources: {{device: {device}, cpus_per_worker: 3}}\n"
    scaling = make_trainer(
        make_plans(parse_document(text, "x.yaml"), gpus=1), tmp_path
    ).scaling_config
    assert (scaling.resources_per_worker, scaling.use_gpu) == (each, device == "gpu")


@pytest.mark.parametrize(("given", "waits"), [(None, 77.0), (0.0, 0.0), (5.0, 5.0)])
def test_nodes_are_waited_for_as_in_the_spec_unless_the_suite_gives_a_time(
    tmp_path: Path, given: float | None, waits: float
) -> None:
    plan = plan_of("resources: {wait_for_nodes_s: 77}\n")
    keeper = make_trainer([plan], tmp_path, given, deadline=9.0)._keeper
    assert (keeper._wait_s, keeper._deadline, keeper._run_ids) == (waits, 9.0, [plan.run_id])


def test_workers_get_the_plans_the_folders_and_their_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of()
    whole = {
        "plans": [plan.model_dump(mode="json")],
        "results": "results",
        "path": str(tmp_path),
    }
    assert work_config([plan], Path("results")) == whole
    segment = {"checkpoint": "a-after-2", "until": 4, "taken": "/taken"}
    assert work_config([plan], Path("results"), Segment(*segment.values())) == whole | segment


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


def test_ranks_are_numbered_node_by_node() -> None:
    """So stages next to each other share a node, where workers came up in whatever order: the
    ranks of a copy of a pipeline are neighbours, in the order of its stages."""
    from ray.train.v2._internal.execution.worker_group.worker import ActorMetadata, Worker
    from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup

    def worker(number: int) -> Any:
        node = f"10.0.0.{number % 2}"
        return Worker(None, ActorMetadata(node, node, node, number, {}), {"CPU": 1.0})  # type: ignore[arg-type]

    ranked = WorkerGroup._assign_worker_ranks([worker(number) for number in range(8)])
    nodes = [each.metadata.node_id for each in ranked]
    assert [each.distributed_context.world_rank for each in ranked] == list(range(8))  # type: ignore[union-attr]
    schedule = PipelineOptions(stages=4).pipeline()
    copies = [nodes[rank : rank + schedule.workers] for rank in range(0, 8, schedule.workers)]
    assert [len(set(copy)) for copy in copies] == [1, 1]
    assert [schedule.place(rank % 4)[0] for rank in range(8)] == [0, 1, 2, 3] * 2
