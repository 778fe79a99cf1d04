"""What a worker does before it works, and who writes."""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore

from raysuite.orchestrate import preflight, rendezvous, worker
from raysuite.orchestrate.controller import BrokenRunError
from raysuite.orchestrate.groups import checkpoint_folder
from raysuite.orchestrate.mailbox import Mailbox
from raysuite.orchestrate.stopping import request_stop
from raysuite.parallel.base import World
from raysuite.plan import RunPlan, make_plans
from raysuite.records import EpochFinished, Results, RunFailed, RunFinished
from raysuite.records.base import content_of
from raysuite.records.system import read_samples, system_files
from raysuite.spec import parse_document
from raysuite.train import recording
from raysuite.train import world as world_module


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(Path.cwd())
    monkeypatch.setattr(sys, "path", list(sys.path))
    return {"results": str(tmp_path / "results"), "path": str(tmp_path)}


def test_results_that_only_the_driver_has(
    here: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_SHARED_S", 0.1)
    with pytest.raises(BrokenRunError) as raised:
        worker.settle(here)
    assert f"does not see the results folder {here['results']}" in raised.value.message
    assert "--results FOLDER on a file system that they share" in raised.value.message
    assert not raised.value.peer_lost
    assert not Path(here["results"]).exists()


def test_a_gpu_that_torch_cannot_use_is_the_runs_error_and_no_lost_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "name: a\nmodel: resnet20\ndata: digits\ntraining: {epochs: 1, global_batch: 64}\n"
    plan = make_plans(parse_document(text, "x.yaml"), gpus=1)[0]
    assert plan.device == "gpu"
    context = SimpleNamespace(
        get_world_rank=lambda: 0,
        get_local_rank=lambda: 0,
        get_node_rank=lambda: 0,
        get_local_world_size=lambda: 1,
    )
    monkeypatch.setattr("ray.train.get_context", lambda: context)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    mistake = "NVIDIA's driver 535.129.03 supports CUDA 12.2 at most"
    monkeypatch.setattr(world_module, "cuda_mistake_here", lambda: mistake)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # it sets them
    with pytest.raises(BrokenRunError) as raised:
        worker.place_of(plan)
    assert mistake in raised.value.message
    assert not raised.value.peer_lost
    monkeypatch.setattr(preflight, "cuda_mistake_here", lambda: mistake)
    monkeypatch.setattr(preflight, "driver_version", lambda: "535.129.03")
    assert [(each.key, each.message) for each in preflight.lacking(plan)] == [
        ("resources.device", mistake)
    ]
    monkeypatch.setattr(preflight, "driver_version", lambda: "")
    assert preflight.lacking(plan) == [], "the GPUs are on other hosts"


def test_a_network_file_system_shows_them_a_little_later(here: dict[str, str]) -> None:
    results = Path(here["results"])
    results.mkdir()
    threading.Timer(1.0, request_stop, (results, None)).start()
    worker.settle(here)
    assert Path.cwd() == Path(here["path"])
    assert sys.path[0] == here["path"]
    assert os.listdir(results) == ["stop.json"]


@pytest.fixture
def plan() -> RunPlan:
    text = "name: x\nmodel: resnet20\ndata: digits\ntraining: {epochs: 2, global_batch: 64}\n"
    (made,) = make_plans(parse_document(text, "spec.yaml"), gpus=0)
    return made


def test_rank_0_alone_writes_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: RunPlan
) -> None:
    results = Results(tmp_path)
    record = RunFailed(run_id=plan.run_id, reason="error", message="stands for an end")
    monkeypatch.setattr(recording, "execute", lambda *given, **named: iter([record]))
    for rank in range(3):
        world = World(rank, 3, rank, torch.device("cpu"))
        worker._write_all(plan, world, results, None, "", tmp_path / "checkpoint", None)
    assert results.records(plan.run_id) == [record]


@pytest.mark.parametrize("script", [False, True])
def test_the_first_rank_of_each_host_samples_its_system(
    script: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: RunPlan
) -> None:
    results = Results(tmp_path)
    places = [("one", 0), ("one", 1), ("two", 0), ("two", 1)]
    made = []
    monkeypatch.setattr(recording, "execute", lambda *given, **named: iter([]))
    monkeypatch.setattr(worker, "run_rank", lambda *given: None)
    monkeypatch.setattr(rendezvous, "_store", HashStore())
    monkeypatch.setattr(
        "ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "node")
    )
    for rank, (host, local_rank) in enumerate(places):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        if script:
            place = {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
            worker._run_script(plan, place, results, "store")
        else:
            world = World(rank, 4, local_rank, torch.device("cpu"))
            worker._write_all(plan, world, results, None, "", tmp_path / "checkpoint", None)
        files = system_files(results.journal_file(plan.run_id).parent)
        made.append({name: len(list(read_samples(file))) for name, file in files.items()})
    assert made == [{"one": 1}, {"one": 1}, {"one": 1, "two": 1}, {"one": 1, "two": 1}]


@pytest.mark.parametrize(("every", "made"), [(0, False), (1, True)])
def test_a_run_reports_nothing_to_ray_train_and_makes_folders_for_checkpoints_alone(
    every: int, made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plans(
        parse_document(
            "name: a\nmodel: tests.tiny_model:Tiny\ndata: digits\nresources: {device: cpu}\n"
            f"training: {{epochs: 2, global_batch: 720, checkpoint_every: {every}}}\n"
            "measure: {power: false}\n",
            "x.yaml",
        )
    )[0]
    reported: list[object] = []
    epochs: list[EpochFinished] = []
    monkeypatch.setattr("ray.train.report", lambda *given, **more: reported.append(given))
    folders: list[Path] = []
    mkdir = Path.mkdir
    monkeypatch.setattr(
        Path,
        "mkdir",
        lambda self, *given, **more: folders.append(self) or mkdir(self, *given, **more),
    )
    results = Results(tmp_path / "results")
    worker._run(plan, World(0, 1, 0, torch.device("cpu")), results, {}, None, "", epochs.append)
    records = results.records(plan.run_id)
    assert isinstance(records[-1], RunFinished)
    assert epochs == [record for record in records if isinstance(record, EpochFinished)]
    assert len(epochs) == 2
    kept = checkpoint_folder(results, plan.run_id)
    assert any(folder.is_relative_to(kept.parent) for folder in folders) is made
    assert reported == []


def test_an_epoch_is_reported_as_in_the_journal_without_its_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    epoch = EpochFinished(
        run_id="a",
        epoch=3,
        first_step=0,
        losses=[1.0] * 9,
        learning_rates=[0.1] * 9,
        step_seconds=[0.5] * 9,
        images=100,
        seconds=1.0,
        steady_images=100,
        steady_seconds=1 / 3,
        data_wait_seconds=[0.0],
        validation_seconds=0.1,
        train_loss=float("nan"),
        val_loss=float("inf"),
        val_accuracy=1 / 3,
        elapsed_seconds=1.0,
    )
    mailbox = Mailbox.serve()
    worker._report(mailbox, iter(["report/0/0"]), epoch)
    found = EpochFinished.model_validate_json(content_of(mailbox.get("report/0/0").encode()))
    assert (found.time, found.steady_seconds) == (epoch.time, epoch.steady_seconds)
    assert (found.losses, found.learning_rates, found.step_seconds) == ([], [], [])
    assert math.isnan(found.train_loss)
