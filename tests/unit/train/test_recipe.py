"""The recipe as a run uses it: the optimiser, its rate, and the average of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from raysuite import models
from raysuite.data import make_loader, permutation, prepare, rank_slices
from raysuite.gate.strategy_check import _own
from raysuite.optim.average import WeightAverage
from raysuite.plan import RunPlan
from raysuite.records import EpochFinished, GateVerdict, Record, RunFinished
from raysuite.train.loop import TrainingLoop
from tests.unit.train.conftest import keep, plan_of, run

OPTIMIZERS = ["sgd", "lars", "lamb", "adamw", "muon"]
DECAY = 0.8


def epochs_of(records: list[Record]) -> list[EpochFinished]:
    return [record for record in records if isinstance(record, EpochFinished)]


def with_optimizer(name: str, **changes: Any) -> RunPlan:
    block = {"name": name, "lr_reference_batch": 60, "decay_bias_and_norm": False}
    return plan_of(optimizer=block, **changes)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_rate_in_the_journal_is_the_one_used(name: str) -> None:
    """As the optimiser itself has it, in all of its groups, when it takes a step."""
    plan = with_optimizer(name)
    used: list[set[float]] = []
    # only after the gate, which trains too
    start = TrainingLoop.__init__

    def begin(self: TrainingLoop, *arguments: Any) -> None:
        start(self, *arguments)
        used.clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingLoop, "__init__", begin)
        hook = register_optimizer_step_pre_hook(
            lambda optimizer, *_: used.append({group["lr"] for group in optimizer.param_groups})
        )
        try:
            records = run(plan)
        finally:
            hook.remove()
    told = [rate for epoch in epochs_of(records) for rate in epoch.learning_rates]
    if name == "muon":  # its step calls those of torch's Muon and AdamW
        used = used[::3]
    assert used == [{rate} for rate in told]
    assert len(set(told)) > 6
    assert max(told) == pytest.approx(4 * plan.spec.optimizer.lr, rel=0.05)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_on_from_a_checkpoint_is_training_through(tmp_path: Path, name: str) -> None:
    plan = with_optimizer(name, training_ema_decay=DECAY)
    (expected,) = epochs_of(run(plan, checkpoint=keep(tmp_path)))[1:]
    (found,) = epochs_of(run(plan, resume=tmp_path / "1"))
    for figure in ("losses", "learning_rates", "val_loss", "val_accuracy"):
        assert getattr(found, figure) == getattr(expected, figure), figure


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_learns_and_the_gate_has_examined_it(name: str) -> None:
    rate = {"sgd": 0.02, "lars": 5.0, "lamb": 0.05, "adamw": 0.005, "muon": 0.01}[name]
    records = run(plan_of(optimizer={"name": name, "lr": rate}, training_epochs=4))
    verdict = records[1]
    assert isinstance(verdict, GateVerdict)
    assert (f"also with {name}" in verdict.rule) == (name != "sgd")
    epochs = epochs_of(records)
    assert epochs[-1].val_loss < 0.8 * epochs[0].val_loss


def test_the_gate_knows_optimisers_apart_but_not_their_rates() -> None:
    def own(**block: Any) -> Any:
        return _own(plan_of(optimizer=block).spec.optimizer)

    assert own(name="sgd", lr=0.3, nesterov=True) is None
    assert own(name="sgd", decay_bias_and_norm=False) is not None
    one = own(name="lars", lr=3.0, lr_reference_batch=8, lr_scaling="sqrt")
    assert one == own(name="lars", lr=5.0)
    assert one != own(name="lars", momentum=0.5)


class TestAverage:
    def test_the_weights_are_trained_as_without_it(self) -> None:
        plain = epochs_of(run(plan_of()))
        averaged = epochs_of(run(plan_of(training_ema_decay=DECAY)))
        assert [each.losses for each in averaged] == [each.losses for each in plain]
        assert [each.val_loss for each in averaged] != [each.val_loss for each in plain]

    @pytest.mark.parametrize(
        "changes", [{}, {"model": {"name": "tests.networks:made", "options": {"which": "tied"}}}]
    )
    def test_what_is_validated_and_kept_is_the_average(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
    ) -> None:
        """Recomputed from the weights after every step."""
        weights: list[dict[str, torch.Tensor]] = []
        update = WeightAverage.update

        def watched(self: WeightAverage, model: torch.nn.Module) -> None:
            weights.append({key: value.clone() for key, value in model.state_dict().items()})
            update(self, model)

        monkeypatch.setattr(WeightAverage, "update", watched)
        plan = plan_of(training_ema_decay=DECAY, **changes)
        records = run(plan, model_file=tmp_path / "model.pt")
        assert isinstance(records[-1], RunFinished)
        assert len(weights) == plan.total_steps
        expected = weights[0]
        for state in weights[1:]:
            expected = {
                key: DECAY * value + (1 - DECAY) * state[key] for key, value in expected.items()
            }
        kept = torch.load(tmp_path / "model.pt", weights_only=True)
        assert kept.keys() == expected.keys()
        for key, value in kept.items():
            if value.is_floating_point():
                torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-6)

        model = models.build(plan.spec.model, plan.dataset)
        model.load_state_dict(kept)
        model.eval()
        assert accuracy(model, plan) == pytest.approx(epochs_of(records)[-1].val_accuracy)


def accuracy(model: torch.nn.Module, plan: RunPlan) -> float:
    prepared = prepare(plan.spec.data, plan.dataset)
    loader = make_loader(prepared, "val", plan.spec.loader, torch.device("cpu"))
    (step,) = rank_slices(permutation(360, 0, 0), 360, 1, 0)
    (batch,) = loader.batches(step)
    with torch.no_grad():
        right = (model(batch.images).argmax(1) == batch.labels).float().mean().item()
    loader.close()
    return right
