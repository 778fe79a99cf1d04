"""Each task is trained and validated as by a plain loop that shares no code with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from raysuite import models
from raysuite.parallel.base import World
from raysuite.plan import make_plans
from raysuite.records import EpochFinished, Record, RunStopped
from raysuite.records.live import LiveProgress
from raysuite.spec import Document
from raysuite.train import stop_together
from raysuite.train.run import execute
from raysuite.train.stop_together import Stop
from raysuite.train.trial_batch import mistakes
from tests.pages import blocks
from tests.task_sets import (
    BATCH,
    CASES,
    EPOCHS,
    HERE,
    called,
    mean_loss_of,
    metrics_of,
    plain,
    samples_of,
    spec_of,
)
from tests.unit.tasks.conftest import plan_of, run

EVERY = ["language_model", *CASES]


def epochs_of(records: list[Record]) -> list[EpochFinished]:
    return [record for record in records if isinstance(record, EpochFinished)]


@pytest.mark.parametrize("case", EVERY)
def test_a_task_is_trained_as_by_a_plain_loop(case: str, tmp_path: Path) -> None:
    training = {"epochs": EPOCHS, "global_batch": BATCH, "accumulate": 2}
    plan = plan_of(case, tmp_path, training=training)
    torch.manual_seed(plan.seed)
    network = models.build(plan.spec.model, plan.dataset)
    expected = plain(case, tmp_path, network)
    file = tmp_path / "model.pt"
    epochs = epochs_of(run(plan, model_file=file))
    losses = [loss for epoch in epochs for loss in epoch.losses]
    assert len(losses) >= 20
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, value in torch.load(file).items():
        torch.testing.assert_close(value, network.state_dict()[name], rtol=1e-5, atol=1e-6)
    count, batch = samples_of(case, tmp_path, "val")
    with torch.no_grad():
        inputs, targets = batch(list(range(count)))
        output = called(network, inputs)
        val = mean_loss_of(case)(output, targets).item()
    last = epochs[-1]
    assert last.val_loss == pytest.approx(val, rel=1e-5)
    assert last.validation == pytest.approx(metrics_of(case, output, targets), rel=1e-6)
    if case == "language_model":
        assert last.validation["perplexity"] == pytest.approx(math.exp(val), rel=1e-5)
        assert last.images == len((tmp_path / "train.txt").read_bytes()) - 1
    assert ('"val_accuracy"' in last.model_dump_json()) == (case == "classification")


@pytest.mark.parametrize("case", ["language_model", "segmentation", "own", "classification"])
def test_the_loss_of_a_step_in_progress_is_the_recorded_one(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[float | None] = []
    monkeypatch.setattr(LiveProgress, "step", lambda _, done, loss: shown.append(loss()))
    training: dict[str, Any] = {"epochs": 1, "global_batch": BATCH}
    if case == "classification":
        training["class_weights"] = [1, 2, 3, 4, 5, 6]
    [epoch] = epochs_of(run(plan_of(case, tmp_path, training=training)))
    assert shown == [None, *(pytest.approx(loss, rel=1e-6) for loss in epoch.losses)]


def test_a_loss_of_some_tokens_of_a_text_is_their_mean(tmp_path: Path) -> None:
    """Without learning, and with one text for both splits, training's loss is validation's."""
    training = {"epochs": 1, "global_batch": BATCH}
    still = {"optimizer": {"name": "sgd", "lr": 1e-30}, "training": training}
    plan_of("language_model", tmp_path)
    (tmp_path / "val.txt").write_bytes((tmp_path / "train.txt").read_bytes())
    spec = spec_of("language_model", tmp_path / "other", task=f"{HERE}:Vowels", **still)
    spec["data"]["path"] = str(tmp_path)
    [epoch] = epochs_of(run(make_plans(Document(spec, "test"), gpus=0)[0]))
    assert epoch.train_loss == pytest.approx(epoch.val_loss, rel=1e-6)
    content = (tmp_path / "train.txt").read_bytes()[1:]
    assert epoch.images == sum(content.count(each) for each in b"aeiou")


@pytest.mark.parametrize("case", ["language_model", "own"])
def test_tokens_are_resumed_inside_an_epoch(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_together, "MEET_SECONDS", 0.0)  # it is asked after every step
    plan = plan_of(case, tmp_path, training={"epochs": 2, "global_batch": BATCH})
    whole = epochs_of(run(plan))
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    stop = Stop("interval")
    *_, end = run(plan, checkpoint=lambda loop: loop.save(folder), requested_end=lambda: stop)
    assert isinstance(end, RunStopped)
    assert 0 < end.step < plan.steps_per_epoch
    rest = epochs_of(run(plan, resume=folder))
    assert [each.losses for each in rest] == [each.losses for each in whole]
    assert [each.images for each in rest] == [each.images for each in whole]


def test_own_task_example_of_the_how_to_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, spec = (blocks("own-task.md", kind)[0] for kind in ("python", "yaml"))
    (tmp_path / "my_tasks.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    data: dict[str, Any] = {**yaml.safe_load(spec), "strategy": "single"}
    data["resources"] = {"device": "cpu"}
    plan = make_plans(Document(data, "test"), gpus=0)[0]
    assert mistakes(plan) == []
    records = list(execute(plan, World(0, 1, 0, torch.device("cpu"))))
    first, *_, last = (epoch.validation["relative"] for epoch in epochs_of(records))
    assert last < first
