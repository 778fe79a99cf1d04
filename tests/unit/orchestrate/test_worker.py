"""What a worker does before it works, and who writes."""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from raysuite.errors import UserError
from raysuite.orchestrate import budget, preflight, rendezvous, worker
from raysuite.orchestrate.controller import BrokenRunError
from raysuite.orchestrate.found_batches import tried_file
from raysuite.orchestrate.groups import checkpoint_folder
from raysuite.orchestrate.mailbox import Mailbox
from raysuite.orchestrate.stopping import request_stop
from raysuite.parallel.base import World
from raysuite.plan import RunPlan, make_plans
from raysuite.records import (
    BatchTried,
    EpochFinished,
    Journal,
    Results,
    RunFailed,
    RunFinished,
)
from raysuite.records.base import content_of
from raysuite.records.system import read_samples, system_files
from raysuite.spec import parse_document
from raysuite.train import recording
from raysuite.train import world as world_module
from raysuite.train.checkpoint import LoopState, write_sizes
from raysuite.train.stop_together import Stop
from tests.fake_results import run_records


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
    worker.settle(here)
    worker.settle({**here, "path": "/absent"})
    assert Path.cwd() == Path(here["path"])
    assert [sys.path.count(path) for path in (here["path"], "/absent")] == [1, 1]


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
        worker._run(plan, world, results, {}, None, "", None)
    assert results.records(plan.run_id) == [record]


@pytest.mark.parametrize(("rank", "kept"), [(0, [True, True, False]), (1, [True] * 3)])
def test_a_checkpoint_is_removed_on_rank_0_once_its_run_has_finished(
    rank: int,
    kept: list[bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plan: RunPlan,
) -> None:
    results, reported, there = Results(tmp_path), list[Any](), list[bool]()
    (folder := checkpoint_folder(results, plan.run_id)).mkdir(parents=True)
    failed = RunFailed(run_id=plan.run_id, reason="error", message="stands for an end")
    *_, epoch, finished = run_records(plan)
    for record in (epoch, failed, finished):
        monkeypatch.setattr(recording, "execute", lambda *_, last=record, **__: iter([last]))
        world = World(rank, 2, rank, torch.device("cpu"))
        worker._run(plan, world, results, {}, None, "", reported.append)
        there.append(folder.exists())
    assert there == kept
    assert reported == [epoch] * (rank == 0)


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
            worker._run(plan, world, results, {}, None, "", None)
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


def keep_checkpoint(results: Results, name: str, run_id: str, epoch: int) -> Path:
    folder = checkpoint_folder(results, name)
    folder.mkdir(parents=True)
    state = LoopState(
        run_id=run_id, epoch=epoch, step=9, elapsed_seconds=1.0, time_to_accuracy=None
    )
    state.write(folder)
    write_sizes(folder)
    return folder


def test_a_run_resumes_from_its_own_checkpoint_or_else_from_the_one_it_takes(
    tmp_path: Path, plan: RunPlan
) -> None:
    results, taken = Results(tmp_path), {"taken": "/taken"}
    assert worker._decide(plan, results, {}) == {"resume": None, "unread": ""}
    assert worker._decide(plan, results, taken) == {"resume": "/taken", "unread": ""}
    whole = keep_checkpoint(results, plan.run_id, plan.run_id, 1)
    partial = whole.with_name(f"{whole.name}.partial")
    partial.mkdir()
    found = worker._decide(plan, results, taken)
    assert found is not None
    assert found["resume"] == "/taken", "the journal has no epoch yet"
    assert "after epoch 1, but the journal has only 0" in found["unread"]
    assert not partial.exists()
    epoch = next(each for each in run_records(plan) if isinstance(each, EpochFinished))
    Journal(results.journal_file(plan.run_id)).write(epoch)
    assert worker._decide(plan, results, taken) == {"resume": str(whole), "unread": ""}
    part = keep_checkpoint(results, "part", plan.run_id, 1)
    named = {**taken, "checkpoint": "part"}
    assert worker._decide(plan, results, named) == {"resume": str(part), "unread": ""}


@pytest.mark.parametrize("why", ["ended", "stopped", "over budget"])
def test_a_run_does_not_begin(why: str, tmp_path: Path, plan: RunPlan) -> None:
    results = Results(tmp_path)
    results.write_plans([plan.model_dump(mode="json")])
    if why == "ended":
        failed = RunFailed(run_id=plan.run_id, reason="error", message="boom")
        Journal(results.journal_file(plan.run_id)).write(failed)
    elif why == "stopped":
        request_stop(tmp_path, Stop("preempted"))
    else:
        budget.begin(results, 1.0)
    assert worker._decide(plan, results, {}) is None
    assert budget.declined(results) == ({plan.run_id} if why == "over budget" else set())


@pytest.mark.parametrize("resume", ["own", "older", "taken", "other"])
def test_a_run_resumes_from_no_other_folder(
    resume: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: RunPlan
) -> None:
    """The name came through a store without authentication."""
    results, config = Results(tmp_path), {"taken": str(tmp_path / "taken"), "until": 7}
    folder = checkpoint_folder(results, plan.run_id)
    path = {"own": folder, "older": folder.with_name(f"{folder.name}.old")}.get(
        resume, tmp_path / resume
    )
    written: list[Any] = []

    def recorded(*given: Any, **named: Any) -> list[Any]:
        written.extend([given[3], named["resume"], named["unread"], named["until"]])
        return []

    monkeypatch.setattr(worker, "recorded", recorded)
    given = (plan, World(0, 1, 0, torch.device("cpu")), results, config, str(path), "why", None)
    if resume == "other":
        with pytest.raises(BrokenRunError, match="is not a checkpoint of this run"):
            worker._run(*given)
        assert not written
        return
    worker._run(*given)
    assert written == [folder, path, "why", 7]


@pytest.mark.parametrize(
    ("error", "text", "flags"),
    [
        (UserError("no such file"), "no such file", (False, False, False)),
        (ValueError("a\nb"), "ValueError: a\nb", (False, False, False)),
        (MemoryError("a\nb"), "MemoryError: a; 5 of 8 GiB", (False, True, False)),
        (OSError(28, "full"), "OSError: [Errno 28] full", (False, False, True)),
        (
            torch.distributed.DistNetworkError("lost"),
            "DistNetworkError: lost",
            (True, False, False),
        ),
    ],
    ids=repr,
)
def test_an_error_is_text_with_what_kind_it_is_and_figures_if_memory_ran_out(
    error: Exception, text: str, flags: tuple[bool, bool, bool]
) -> None:
    found = worker._broken(error, lambda: "5 of 8 GiB")
    assert found.message == text
    assert (found.peer_lost, found.out_of_memory, found.disk_full) == flags
    assert worker._broken(error).message == text.replace("a; 5 of 8 GiB", "a\nb")


@pytest.mark.parametrize(
    ("rank", "place"),
    [
        (0, {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2"}),
        (1, {"RANK": "1", "LOCAL_RANK": "1", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2"}),
        (2, None),
    ],
)
def test_a_worker_that_a_run_does_not_need_has_no_place_in_it(
    rank: int,
    place: dict[str, str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three workers on one node, and a run of two."""
    text = (
        "name: a\nmodel: resnet20\ndata: digits\nstrategy: ddp\n"
        "training: {epochs: 1, global_batch: 64}\nresources: {workers: 2, device: cpu}\n"
    )
    [plan] = make_plans(parse_document(text, "x.yaml"), gpus=0)
    context = SimpleNamespace(
        get_world_rank=lambda: rank,
        get_local_rank=lambda: rank,
        get_node_rank=lambda: 0,
        get_local_world_size=lambda: 3,
    )
    monkeypatch.setattr("ray.train.get_context", lambda: context)
    assert worker._torchrun_place(plan) == (place and {**place, "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("reason", "left"), [(None, True), ("error", False), ("out_of_memory", True)]
)
def test_a_search_continues_after_a_lack_of_memory_and_not_after_an_error(
    reason: Any, left: bool, tmp_path: Path
) -> None:
    text = (
        "name: a\nmodel: resnet20\ndata: digits\n"
        "training: {epochs: 1, global_batch: 1, accumulate: auto}\nresources: {device: cpu}\n"
    )
    [plan] = make_plans(parse_document(text, "x.yaml"), gpus=0)
    results, tried = Results(tmp_path), tried_file(tmp_path, plan)
    if reason:
        failed = RunFailed(run_id=plan.run_id, reason=reason, message="boom")
        Journal(results.journal_file(plan.run_id)).write(failed)
    assert worker._shall_search(plan, results, tried) == left
    request_stop(tmp_path, Stop("preempted"))
    assert not worker._shall_search(plan, results, tried)
    request_stop(tmp_path, None)
    tried.end(BatchTried(stage="alone", micro_batch=1, fits=False))
    assert not worker._shall_search(plan, results, tried), "nothing is left to try"


@pytest.mark.parametrize("rank", [0, 1])
def test_jobs_are_served_in_order_and_reported_after_what_lost_workers_reported(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Job 1 is the first of these workers, and earlier ones lost it after one epoch."""
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    context = SimpleNamespace(get_world_rank=lambda: rank)
    monkeypatch.setattr("ray.train.get_context", lambda: context)
    monkeypatch.setattr(worker, "_report", lambda box, keys, epoch: box.put(next(keys), epoch))
    mailbox, seen = Mailbox.serve(), list[Any]()
    for number, job in enumerate([{"name": "a"}, {"name": "b"}, {"name": "c"}, None]):
        mailbox.put(f"job/{number}", job)
    mailbox.put("report/1/0", "lost")

    def run_group(config: dict[str, Any], report: Any) -> None:
        seen.append(config)
        if rank == 0:  # as in `_run`
            report(f"epoch of {config['name']}")

    monkeypatch.setattr(worker, "run_group", run_group)
    worker.serve({"mailbox": mailbox.address, "first": 1})
    assert seen == [{"name": "b", "job": 1}, {"name": "c", "job": 2}]
    keys = ["report/1/0", "report/1/1", "report/1/2", "report/2/0", "report/2/1", "report/2/2"]
    found = [mailbox.get(key) for key in keys if mailbox.has(key)]
    reports = ["lost", "epoch of b", None, "epoch of c", None]
    assert found == (reports if rank == 0 else ["lost"])
