"""Schedule-free AdamW: gradients are of some weights, figures and files of their average."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysuite import models
from raysuite.parallel.base import World
from raysuite.plan import make_plans
from raysuite.records import EpochFinished, RunStopped
from raysuite.spec import Document
from raysuite.train import stop_together
from raysuite.train.run import execute
from raysuite.train.stop_together import Stop
from tests.require import require
from tests.task_sets import BATCH, called, mean_loss_of, samples_of, spec_of

CASE, EPOCHS = "regression", 3
RATE, BETA1, BETA2, EPS, DECAY = 0.05, 0.9, 0.99, 1e-8, 0.02


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("schedulefree")
    monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path / "cache"))


def plan_of(folder: Path) -> Any:
    optimizer = {"lr": RATE, "betas": [BETA1, BETA2], "eps": EPS, "weight_decay": DECAY}
    spec = spec_of(
        CASE,
        folder,
        optimizer={"name": "schedule_free", **optimizer},
        training={"epochs": EPOCHS, "global_batch": BATCH},
    )
    return make_plans(Document(spec, "test"), gpus=0)[0]


def run(plan: Any, **options: Any) -> list[Any]:
    return list(execute(plan, World(0, 1, 0, torch.device("cpu")), **options))


def by_hand(plan: Any, folder: Path) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Training losses, validation losses and last average, by the formulas of Defazio et al. 2024,
    with x, y and z kept apart."""
    torch.manual_seed(plan.seed)
    network = models.build(plan.spec.model, plan.dataset)
    loss_of = mean_loss_of(CASE)
    x = {name: each.detach().clone() for name, each in network.named_parameters()}
    z = {name: each.clone() for name, each in x.items()}
    v = {name: torch.zeros_like(each) for name, each in x.items()}

    def loss(weights: dict[str, Tensor], batch: Any) -> Tensor:
        inputs, targets = batch
        return loss_of(
            called(lambda i: torch.func.functional_call(network, weights, i), inputs), targets
        )  # type: ignore[arg-type]

    count, batch = samples_of(CASE, folder, "train")
    val_count, val_batch = samples_of(CASE, folder, "val")
    losses, val_losses, step = [], [], 0
    for epoch in range(EPOCHS):
        order = np.argsort(
            np.random.Philox(key=[plan.seed, epoch]).random_raw(count), kind="stable"
        )
        for start in range(0, count, BATCH):
            step += 1
            y = {n: ((1 - BETA1) * z[n] + BETA1 * x[n]).requires_grad_() for n in x}
            found = loss(y, batch(order[start : start + BATCH].tolist()))
            slopes = torch.autograd.grad(found, list(y.values()))
            losses.append(found.item())
            for name, slope in zip(y, slopes, strict=True):
                v[name] = BETA2 * v[name] + (1 - BETA2) * slope**2
                way = slope / ((v[name] / (1 - BETA2**step)).sqrt() + EPS)
                z[name] = z[name] - RATE * (way + DECAY * y[name].detach())
                x[name] = (1 - 1 / step) * x[name] + z[name] / step
        val_losses.append(loss(x, val_batch(list(range(val_count)))).item())
    return losses, val_losses, x


def test_validation_and_the_exported_model_have_the_average(tmp_path: Path) -> None:
    plan, file = plan_of(tmp_path), tmp_path / "model.pt"
    epochs = [each for each in run(plan, model_file=file) if isinstance(each, EpochFinished)]
    losses, val_losses, average = by_hand(plan, tmp_path)
    assert [loss for each in epochs for loss in each.losses] == pytest.approx(losses, rel=1e-4)
    assert [each.val_loss for each in epochs] == pytest.approx(val_losses, rel=1e-4)
    for name, value in torch.load(file).items():
        torch.testing.assert_close(value, average[name], rtol=1e-4, atol=1e-5)


def test_a_checkpoint_inside_an_epoch_continues_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_together, "MEET_SECONDS", 0.0)  # it is asked after every step
    plan, folder = plan_of(tmp_path), tmp_path / "checkpoint"
    whole = [each for each in run(plan) if isinstance(each, EpochFinished)]
    folder.mkdir()
    calls = iter([None] * 5)  # into the second epoch

    def asked() -> Stop | None:
        return next(calls, Stop("interval"))

    *before, end = run(plan, checkpoint=lambda loop: loop.save(folder), requested_end=asked)
    assert isinstance(end, RunStopped)
    assert end.step % plan.steps_per_epoch
    found = [each for each in before if isinstance(each, EpochFinished)]
    rest = [each for each in run(plan, resume=folder) if isinstance(each, EpochFinished)]
    for kind in ("losses", "val_loss"):
        assert [getattr(each, kind) for each in (*found, *rest)] == [
            getattr(each, kind) for each in whole
        ]
