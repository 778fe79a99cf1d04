"""One run in one process, from its first Record to its last."""

from __future__ import annotations

import gc
import math
import os
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raysuite import models
from raysuite.data import Slice, make_loader, permutation, prepare, rank_slices
from raysuite.data.base import Batch
from raysuite.data.formats import open_source
from raysuite.data.order import balanced
from raysuite.errors import DataError, UserError
from raysuite.gate import strategy_check
from raysuite.measure import environment
from raysuite.optim.schedule import factor
from raysuite.parallel import precision
from raysuite.parallel.base import StepSettings, World
from raysuite.parallel.comm import NoComm
from raysuite.parallel.single import Single
from raysuite.plan import RunPlan
from raysuite.records import (
    EpochFinished,
    GateVerdict,
    Record,
    RunCosts,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
)
from raysuite.records.power import PowerUse
from raysuite.tasks.classification import Classification
from raysuite.tasks.regression import Regression
from raysuite.train import loop as loop_module
from raysuite.train import run as run_module
from raysuite.train.building import step_settings
from raysuite.train.checkpoint import LoopState, SoFar
from raysuite.train.loop import (
    TrainingLoop,
    Validated,
    balancing_weights,
    joined_figures,
    train_labels,
    train_rest,
    validate,
    validation_fields,
)
from raysuite.train.run import execute
from raysuite.train.stop_together import Watch, never
from tests.digit_arrays import Digits
from tests.unit.train.conftest import keep, plan_of, run


def epochs_of(records: list[Record]) -> list[EpochFinished]:
    return [record for record in records if isinstance(record, EpochFinished)]


def end_of(records: list[Record]) -> RunFinished:
    assert isinstance(records[-1], RunFinished)
    return records[-1]


@pytest.fixture(scope="module")
def plan() -> RunPlan:
    return plan_of()


def loop_of(plan: RunPlan) -> TrainingLoop:
    world, strategy = World(0, 1, 0, torch.device("cpu")), Single()
    strategy.start(world)
    return TrainingLoop(plan, world, strategy)


def test_class_weights_and_a_balanced_order_are_those_of_a_plain_loop() -> None:
    """torch's weighted cross-entropy of whole global batches, in the balanced order."""
    weights = [0.2, 1.0, 3.0, 0.5, 1.0, 1.0, 0.0, 1.5, 1.0, 2.0]
    plan = plan_of(
        model_options={},
        schedule={"name": "constant"},
        training_class_weights=weights,
        training_sampler="balanced",
    )
    records = run(plan)
    torch.manual_seed(plan.seed)
    model = models.build(plan.spec.model, plan.dataset)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    prepared = prepare(plan.spec.data, plan.dataset)
    with closing(open_source(prepared, "train")) as source:
        labels = np.array([source.label(each) for each in range(plan.dataset.train_samples)])
    order = balanced(labels, plan.seed, 0)
    counts = np.bincount(labels[order])
    assert counts.max() - counts.min() <= 1
    losses = []
    with closing(make_loader(prepared, "train", plan.spec.loader, torch.device("cpu"))) as loader:
        for (part,) in rank_slices(order, plan.global_batch, 1, 0, draw=(plan.seed, 0)):
            (batch,) = loader.batches([part])
            loss = torch.nn.functional.cross_entropy(
                model(batch.images), batch.labels, torch.tensor(weights)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert epochs_of(records)[0].losses == pytest.approx(losses, rel=1e-5)


def test_weights_that_balance_count_labels_alone_and_are_1_for_a_class_without_samples() -> None:
    """Three labels of four classes: 3 / (4 * 2) for a class of two, 3 / (4 * 1) for one of one."""
    found = balancing_weights(np.array([-1, 0, 2, -1, 0]), 4)
    assert (found.tolist(), found.dtype) == ([0.375, 1.0, 0.75, 1.0], np.float32)


@pytest.mark.parametrize(
    ("training", "weight_of", "balances"),
    [
        ({"class_weights": "auto"}, True, False),
        ({"sampler": "balanced"}, False, True),
        ({}, False, False),
    ],
    ids=["weights", "sampler", "none"],
)
def test_labels_weigh_the_loss_or_order_the_samples_as_asked(
    training: dict[str, Any], weight_of: bool, balances: bool
) -> None:
    plan = plan_of(**{f"training_{key}": value for key, value in training.items()})
    split, skipped = Digits("train"), np.zeros(1437, bool)
    skipped[[1, 1436]] = True
    labels = np.array([-1 if skipped[n] else split[n][1] for n in range(1437)])
    with closing(loop_of(plan)) as loop:
        loop.skipped["train"] = skipped
        loop.read_labels()
        found, order = loop._weights, loop._order_of(2)
        weights = loop.engine.class_weights
    assert (found is not None, weights is not None) == (weight_of, weight_of)
    if found is not None and weights is not None:
        counts = [int((labels == each).sum()) for each in range(10)]
        expected = [1435 / (10 * count) for count in counts]
        assert weights.tolist() == pytest.approx(expected)
        assert found.tolist() == pytest.approx([0 if n < 0 else expected[n] for n in labels])
    as_drawn = permutation(1437, plan.seed, 2)
    assert np.array_equal(order, balanced(labels, plan.seed, 2) if balances else as_drawn)


def test_ranks_read_shares_of_the_labels_that_add_up_to_all(plan: RunPlan) -> None:
    prepared = prepare(plan.spec.data, plan.dataset)
    skipped = np.zeros(1437, bool)
    skipped[[0, 1436]] = True
    parts = [
        train_labels(prepared, World(rank, 3, rank, torch.device("cpu")), NoComm(), skipped)
        for rank in range(3)
    ]
    split = Digits("train")
    expected = [-1, *(split[sample][1] for sample in range(1, 1436)), -1]
    assert np.sum(parts, 0).tolist() == expected
    assert [np.count_nonzero(part[:479]) for part in parts[1:]] == [0, 0]


def test_a_step_has_the_settings_of_the_spec() -> None:
    training = {"accumulate": 2, "clip_norm": 0.5, "precision": "bf16", "label_smoothing": 0.1}
    training |= {"memory_format": "channels_last", "compile": "default"}
    changes: dict[str, Any] = {f"training_{key}": value for key, value in training.items()}
    found = step_settings(plan_of(**changes, measure_figures=["gradient_norm"]))
    assert found == StepSettings(
        micro_batch=120,
        **{**training, "image": (1, 8, 8), "figures": ("gradient_norm",)},  # type: ignore[arg-type]
    )
    assert [StepSettings(1).needs_norm, found.needs_norm, StepSettings(1, 1, 2.0).needs_norm] == [
        *(False, True, True)
    ]


def test_a_metric_is_in_one_field_of_an_epoch() -> None:
    found = validation_fields({"rmse": 2.0, "accuracy": 0.5, "top5": 0.75})
    assert found == {"val_accuracy": 0.5, "val_top5": 0.75, "val_metrics": {"rmse": 2.0}}
    assert validation_fields({"rmse": 2.0}) == {"val_metrics": {"rmse": 2.0}}


@pytest.fixture(scope="module")
def records(plan: RunPlan, cache: Path) -> list[Record]:
    """Those of a run of `plan`."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patched, torch.random.fork_rng(devices=[]):
        patched.setenv("RAYSUITE_CACHE", str(cache))
        made = run(plan)
    torch.set_num_threads(threads)
    return made


class TestRecords:
    def test_in_order_and_complete(self, plan: RunPlan, records: list[Record]) -> None:
        kinds = [RunStarted, GateVerdict, EpochFinished, EpochFinished, RunCosts, RunFinished]
        assert [type(record) for record in records] == kinds
        assert {record.run_id for record in records} == {plan.run_id}
        started, verdict, costs = *records[:2], records[-2]
        assert isinstance(started, RunStarted)
        assert RunPlan.model_validate(started.plan) == plan
        assert started.environment["versions"]["torch"] == torch.__version__.partition("+")[0]
        assert isinstance(verdict, GateVerdict)
        assert verdict.passed
        assert isinstance(costs, RunCosts)
        # 8 filters of 3 x 3 at 16 places, 128 inputs of 10 outputs; BatchNorm's 2 x 8
        assert costs.forward_flops == 8 * 9 * 16 + 128 * 10
        assert costs.parameters == 8 * 9 + 8 + 16 + 128 * 10 + 10
        assert costs.gradient_bytes == 4 * costs.parameters
        assert (costs.device, costs.peak_flops) == ("", None)

    def test_an_epoch(self, plan: RunPlan, records: list[Record]) -> None:
        first, second = epochs_of(records)
        assert (first.epoch, second.epoch) == (0, 1)
        assert (first.first_step, second.first_step) == (0, plan.steps_per_epoch)
        for epoch in (first, second):
            assert epoch.images == 1437
            assert len(epoch.losses) == len(epoch.learning_rates) == 6
            sizes = [240] * 5 + [237]
            weighted = sum(x * n for x, n in zip(epoch.losses, sizes, strict=True)) / 1437
            assert epoch.train_loss == pytest.approx(weighted)
            assert 0 < epoch.steady_seconds <= epoch.seconds
            assert len(epoch.data_wait_seconds) == 1
            assert 0 < epoch.data_wait_seconds[0] < epoch.seconds
            assert 0 <= epoch.val_accuracy <= epoch.val_top5 <= 1
        assert second.train_loss < first.train_loss
        assert first.elapsed_seconds >= first.seconds + first.validation_seconds
        assert second.elapsed_seconds > first.elapsed_seconds

    def test_learning_rates_follow_the_schedule(self, plan: RunPlan, records: list[Record]) -> None:
        rates = [rate for epoch in epochs_of(records) for rate in epoch.learning_rates]
        assert rates == [
            plan.peak_lr * factor(plan.spec.schedule, step, 6, 12) for step in range(12)
        ]

    def test_the_end(self, records: list[Record]) -> None:
        end, last = end_of(records), epochs_of(records)[-1]
        assert end.classes is not None
        assert (sum(end.classes.samples), len(end.classes.names)) == (360, 10)
        assert sum(end.classes.correct) / 360 == pytest.approx(last.val_accuracy)
        assert end.peak_process_bytes[0] > 50e6
        assert end.peak_device_bytes == [0]
        before = sum(end.parts_seconds[part] for part in ("join", "gate", "data"))
        after = last.seconds + last.validation_seconds
        assert before < end.first_step_seconds < end.seconds - after
        parts = {"join", "gate", "data", "training", "validation", "rest"}
        assert parts <= {name for name, seconds in end.parts_seconds.items() if seconds > 0}
        assert sum(end.parts_seconds.values()) == pytest.approx(end.seconds, abs=0.1)

    def test_the_norm_of_gradients_is_measured_on_request_and_changes_no_loss(
        self, plan: RunPlan, records: list[Record]
    ) -> None:
        measured = epochs_of(run(plan_of(measure_figures=["gradient_norm"])))
        for epoch, plain in zip(measured, epochs_of(records), strict=True):
            assert (plain.figures, len(epoch.figures["gradient_norm"])) == ({}, 6)
            assert epoch.losses == plain.losses

    def test_the_same_seed_gives_the_same_losses(
        self, plan: RunPlan, records: list[Record]
    ) -> None:
        once, again = epochs_of(records), epochs_of(run(plan))
        assert [epoch.losses for epoch in once] == [epoch.losses for epoch in again]
        other = epochs_of(run(plan_of(seed=1)))
        assert other[0].losses != once[0].losses


class TestWarmUp:
    @pytest.mark.parametrize(
        ("steps", "images"),
        [(0, [1437, 1437]), (3, [717, 1437]), (6, [0, 1437]), (8, [0, 957]), (99, [0, 0])],
    )
    def test_its_steps_do_not_count(self, steps: int, images: list[int]) -> None:
        epochs = epochs_of(run(plan_of(measure_warmup_steps=steps)))
        assert [epoch.steady_images for epoch in epochs] == images
        for epoch in epochs:
            assert (epoch.steady_seconds > 0) == (epoch.steady_images > 0)
            assert len(epoch.step_seconds) == -(-epoch.steady_images // 240)
            assert sum(epoch.step_seconds) <= epoch.steady_seconds * (1 + 1e-9)

    def test_what_is_taken_up_again_warms_up_again(self, tmp_path: Path) -> None:
        plan = plan_of(measure_warmup_steps=3)
        run(plan, checkpoint=keep(tmp_path))
        (epoch,) = epochs_of(run(plan, resume=tmp_path / "1"))
        assert epoch.steady_images == 717


class TestCheckpoints:
    @pytest.mark.parametrize("precision", ["fp32", "fp16"])
    def test_taking_one_up_changes_nothing(self, tmp_path: Path, precision: str) -> None:
        """To the bit, dropout and running statistics included."""
        plan = plan_of(training_epochs=3, training_precision=precision)
        through = run(plan, checkpoint=keep(tmp_path))
        resumed = run(plan, resume=tmp_path / "1")
        assert isinstance(resumed[0], RunStarted)
        assert resumed[0].first_epoch == 1
        expected, found = epochs_of(through)[1:], epochs_of(resumed)
        for name in ("epoch", "first_step", "losses", "learning_rates", "val_loss"):
            assert [getattr(e, name) for e in found] == [getattr(e, name) for e in expected]

    def test_time_goes_on(self, tmp_path: Path) -> None:
        plan = plan_of()
        through = epochs_of(run(plan, checkpoint=keep(tmp_path)))
        (resumed,) = epochs_of(run(plan, resume=tmp_path / "1"))
        own = resumed.seconds + resumed.validation_seconds
        assert resumed.elapsed_seconds >= through[0].elapsed_seconds + own

    @pytest.mark.parametrize(("every", "kept"), [(0, []), (1, [1, 2, 3]), (2, [2]), (3, [3])])
    def test_how_often(self, tmp_path: Path, every: int, kept: list[int]) -> None:
        """None after the last epoch: there is nothing left to take up."""
        plan = plan_of(training_epochs=4, training_checkpoint_every=every)
        run(plan, checkpoint=keep(tmp_path))
        assert sorted(int(folder.name) for folder in tmp_path.iterdir()) == kept

    def test_whose_it_is(self, tmp_path: Path, plan: RunPlan) -> None:
        run(plan, checkpoint=keep(tmp_path))
        assert LoopState.read(tmp_path / "1").run_id == plan.run_id


class TestEarlyStopping:
    @pytest.mark.parametrize("metric", ["val_loss", "val_accuracy"])
    def test_after_epochs_that_are_not_better(self, tmp_path: Path, metric: str) -> None:
        early = {"metric": metric, "patience": 2, "min_delta": 100.0}
        plan = plan_of(training_epochs=5, training_early_stopping=early)
        records = run(plan, checkpoint=keep(tmp_path))
        assert [epoch.epoch for epoch in epochs_of(records)] == [0, 1, 2]
        assert end_of(records).stopped_early
        assert sorted(folder.name for folder in tmp_path.iterdir()) == ["1", "2", "3"]
        resumed = run(plan, resume=tmp_path / "2")
        assert [epoch.epoch for epoch in epochs_of(resumed)] == [2]
        assert end_of(resumed).stopped_early
        again = run(plan, resume=tmp_path / "3")  # killed after its last epoch
        assert (epochs_of(again), end_of(again).stopped_early) == ([], True)

    def test_an_equal_value_is_no_improvement(self) -> None:
        still = {
            "model": {"name": "tests.networks:made", "options": {"which": "tied"}},
            "optimizer": {"name": "sgd", "lr": 1e-30},
        }
        early = {"metric": "val_loss", "patience": 2}
        records = run(plan_of(training_epochs=5, training_early_stopping=early, **still))
        assert len({epoch.val_loss for epoch in epochs_of(records)}) == 1
        assert [epoch.epoch for epoch in epochs_of(records)] == [0, 1, 2]

    def test_patience_that_ends_with_the_last_epoch_stopped_nothing(self, tmp_path: Path) -> None:
        early = {"metric": "val_loss", "patience": 2, "min_delta": 100.0}
        plan = plan_of(training_epochs=3, training_early_stopping=early)
        records = run(plan, checkpoint=keep(tmp_path))
        assert len(epochs_of(records)) == 3
        assert not end_of(records).stopped_early
        resumed = run(plan, resume=tmp_path / "2")
        assert len(epochs_of(resumed)) == 1
        assert not end_of(resumed).stopped_early

    def test_the_best_value_and_its_epoch_are_those_of_the_checkpoint(self, tmp_path: Path) -> None:
        world, strategy = World(0, 1, 0, torch.device("cpu")), Single()
        strategy.start(world)
        with closing(TrainingLoop(plan_of(), world, strategy)) as loop:
            loop.best, loop.best_epoch = 0.5, 3
            loop.save(tmp_path)
            loop.best, loop.best_epoch = None, 0
            loop.load(tmp_path)
            assert (loop.best, loop.best_epoch) == (0.5, 3)

    def test_a_checkpoint_of_other_settings_leaves_the_plans(self, tmp_path: Path) -> None:
        world, strategy = World(0, 1, 0, torch.device("cpu")), Single()
        strategy.start(world)
        for decay in (0.1, 0.2):
            plan = plan_of(optimizer={"name": "sgd", "lr": 0.1, "weight_decay": decay})
            with closing(TrainingLoop(plan, world, strategy)) as loop:
                if decay == 0.2:
                    loop.load(tmp_path)
                decays = {group["weight_decay"] for group in loop.engine.optimizer.param_groups}
                assert decay in decays
                assert decays <= {decay, 0.0}
                loop.save(tmp_path)

    def test_not_while_it_gets_better(self) -> None:
        early = {"metric": "val_accuracy", "patience": 1}
        records = run(plan_of(training_epochs=3, training_early_stopping=early))
        reached = [epoch.val_accuracy for epoch in epochs_of(records)]
        assert len(reached) == 3
        assert reached == sorted(reached)
        assert not end_of(records).stopped_early

    @pytest.mark.parametrize(
        ("metric", "value", "better"),
        [
            ("val_loss", 0.25, True),
            ("val_loss", 0.375, False),
            ("val_accuracy", 0.75, True),
            ("val_accuracy", 0.625, False),
        ],
    )
    def test_a_change_of_less_than_min_delta_is_no_improvement(
        self, metric: str, value: float, better: bool
    ) -> None:
        """From 0.5, by more than 0.2."""
        early = {"metric": metric, "patience": 2, "min_delta": 0.2}
        plan = plan_of(training_early_stopping=early)
        loop: Any = SimpleNamespace(plan=plan, best=0.5, best_epoch=1, epoch=4)
        TrainingLoop._compare(loop, Validated(value, {"accuracy": value}, None))
        assert (loop.best, loop.best_epoch) == ((value, 4) if better else (0.5, 1))

    def test_the_smaller_error_is_the_better(self) -> None:
        """Of a metric that is not the task's first."""
        early = SimpleNamespace(metric="val_rmse", min_delta=0.25)
        training = SimpleNamespace(early_stopping=early)
        plan = SimpleNamespace(spec=SimpleNamespace(training=training), task=Regression.facts())
        loop: Any = SimpleNamespace(plan=plan, best=None, best_epoch=0, epoch=0)
        for loop.epoch, value in enumerate((2.0, 3.0, 1.75, 1.5)):
            metrics = {"mae": -value, "rmse": value, "r2": 0.0}
            TrainingLoop._compare(loop, Validated(-value, metrics, None))
        assert (loop.best, loop.best_epoch) == (1.5, 3)

    def test_a_metric_that_is_not_a_number_is_not_the_best(self) -> None:
        plan = plan_of(training_early_stopping={"metric": "val_accuracy", "patience": 2})
        loop: Any = SimpleNamespace(plan=plan, best=None, best_epoch=0, epoch=0)
        for loop.epoch, value in enumerate((math.nan, 0.5, 0.75)):
            TrainingLoop._compare(loop, Validated(1.0, {"accuracy": value}, None))
        assert (loop.best, loop.best_epoch) == (0.75, 2)


class TestTimeToAccuracy:
    def test_the_first_epoch_that_meets_it(self) -> None:
        records = run(plan_of(training_target_accuracy=0.01))
        assert end_of(records).time_to_accuracy == epochs_of(records)[0].elapsed_seconds

    @pytest.mark.parametrize("target", [None, 1.0])
    def test_none(self, target: float | None) -> None:
        assert end_of(run(plan_of(training_target_accuracy=target))).time_to_accuracy is None

    def test_it_is_kept_in_a_checkpoint(self, tmp_path: Path) -> None:
        plan = plan_of(training_target_accuracy=0.01)
        through = run(plan, checkpoint=keep(tmp_path))
        resumed = run(plan, resume=tmp_path / "1")
        assert end_of(resumed).time_to_accuracy == end_of(through).time_to_accuracy


def test_a_run_begins_from_the_weights_of_another(tmp_path: Path) -> None:
    network = {"name": "tests.networks:made", "options": {"which": "tied"}}
    last = epochs_of(run(plan_of(model=network), model_file=tmp_path / "model.pt"))[-1]
    network["weights"] = str(tmp_path / "model.pt")
    standing = {"name": "sgd", "lr": 1e-12}
    first = epochs_of(run(plan_of(model=network, optimizer=standing)))[0]
    assert first.val_loss == pytest.approx(last.val_loss, rel=1e-6)


class TestTheGate:
    def test_a_refused_strategy_takes_no_step(
        self, monkeypatch: pytest.MonkeyPatch, plan: RunPlan
    ) -> None:
        def refuse(plan: RunPlan, *_: Any) -> GateVerdict:
            return strategy_check._verdict(plan.spec.strategy.name, World0, "x", message="wrong")

        monkeypatch.setattr(strategy_check, "check", refuse)
        *before, end = run(plan)
        assert [type(record) for record in before] == [RunStarted, GateVerdict]
        assert isinstance(end, RunFailed)
        assert (end.reason, end.message) == ("gate", "wrong")

    @pytest.mark.parametrize("same", [[False], [False, True], [True, False]], ids=str)
    def test_ranks_that_drifted_apart_fail_at_the_end(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, same: list[bool]
    ) -> None:
        """By their weights, or by the average of their weights."""
        answers = iter(same)
        monkeypatch.setattr(run_module, "same_on_all_ranks", lambda *_: next(answers))
        plan = plan_of(training_ema_decay=0.5 if len(same) > 1 else None, training_epochs=1)
        end = run(plan, model_file=tmp_path / "model.pt")[-1]
        assert isinstance(end, RunFailed)
        assert end.reason == "gate"
        assert not (tmp_path / "model.pt").exists()

    def test_its_verdict_is_kept(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path))
        verdicts = [run(plan_of(training_epochs=1))[1] for _ in range(2)]
        found = [each.cached for each in verdicts if isinstance(each, GateVerdict)]
        assert found == [False, True]


class TestDivergence:
    def test_losses_that_are_not_finite_end_the_run_as_failed(self) -> None:
        *before, end = run(plan_of(optimizer_lr=1e30))
        assert isinstance(end, RunFailed)
        assert (end.reason, end.step) == ("diverged", 2)
        assert [type(record) for record in before] == [RunStarted, GateVerdict, EpochFinished]
        assert before[-1].steady_images

    def test_weights_that_are_not_finite_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        step = TrainingLoop.train_step

        def spoiled(loop: TrainingLoop, *args: Any) -> torch.Tensor:
            loss = step(loop, *args)
            if loop.step == 11:  # the last one: no loss shows it
                next(loop.engine.model.parameters()).data[0] = math.inf
            return loss

        monkeypatch.setattr(TrainingLoop, "train_step", spoiled)
        end = run(plan_of())[-1]
        assert isinstance(end, RunFailed)
        assert (end.reason, end.step) == ("diverged", 12)


@pytest.mark.parametrize(
    ("sums", "val_loss", "precision", "step"),
    [
        ([1.0, 2.0, 3.0], 1.0, "fp32", None),
        ([1.0, math.nan, math.inf], math.nan, "fp32", 8),
        ([1.0, math.inf, 3.0], 1.0, "fp16", None),
        ([1.0, 2.0, 3.0], math.nan, "bf16", 9),
        ([1.0, 2.0, 3.0], math.inf, "fp16", 9),
    ],
)
@pytest.mark.parametrize("layer", [nn.Linear(2, 2), nn.Identity()], ids=["weights", "none"])
def test_a_run_diverges_at_its_first_loss_or_with_its_validation(
    sums: list[float], val_loss: float, precision: str, step: int | None, layer: nn.Module
) -> None:
    """After steps 7, 8 and 9; in fp16 a step whose gradients overflow is no divergence."""
    loop: Any = SimpleNamespace(
        plan=plan_of(training_precision=precision),
        engine=SimpleNamespace(model=layer),
        step=9,
        slowest=lambda values: values,
    )
    assert TrainingLoop._diverged_at(loop, sums, 6, val_loss) == step


class TwoRanks(NoComm):
    """Of which the other one has values that are larger by 2."""

    size = 2

    def all_reduce(self, value: Tensor, reduction: Any) -> Tensor:
        return value + value + 2 if reduction == "sum" else value + 2


def test_figures_are_means_over_ranks_and_not_a_number_where_a_step_has_none() -> None:
    before = SoFar(steps=2, figures={"old": [1.0, 2.0], "both": [3.0, 4.0]})
    steps = [{"new": torch.tensor(5.0)}, {}, {"both": torch.tensor(6.0)}]
    found = joined_figures(before, steps, TwoRanks())
    none = math.nan
    assert found == {
        "new": pytest.approx([none, none, 6.0, none, none], nan_ok=True),
        "old": pytest.approx([1.0, 2.0, none, none, none], nan_ok=True),
        "both": pytest.approx([3.0, 4.0, none, none, 7.0], nan_ok=True),
    }


@pytest.mark.parametrize(
    ("total", "counts", "weight", "shown"),
    [(6.0, True, 4.0, 1.5), (6.0, False, 4.0, None), (6.0, True, 0, None),
     (math.nan, True, 4.0, None), (math.inf, True, 4.0, None)],
)  # fmt: skip
def test_the_loss_in_progress_is_of_ranks_with_a_loss(
    total: float, counts: bool, weight: float, shown: float | None
) -> None:
    loop: Any = SimpleNamespace(engine=SimpleNamespace(counts=counts))
    assert loop_module._host_loss(loop, torch.tensor(total), weight) == shown


def attempt_of(loop: Any, **known: Any) -> Any:
    """An attempt at a run with this loop."""
    attempt = object.__new__(run_module._Attempt)
    plan = plan_of(training_epochs=5)
    vars(attempt).update(
        _plan=plan, _world=World.alone(torch.device("cpu")), _loop=loop, _parts=defaultdict(float)
    )
    vars(attempt).update(known)
    return attempt


@pytest.mark.parametrize(("step", "not_loaded"), [(0, ["head.bias"]), (3, [])])
@pytest.mark.parametrize(("binding", "bound"), [("", []), ("0-1 (memory 0)", ["0-1 (memory 0)"])])
def test_a_start_names_its_place_and_the_tensors_that_no_checkpoint_holds(
    step: int, not_loaded: list[str], binding: str, bound: list[str]
) -> None:
    engine = SimpleNamespace(comm=NoComm())
    loop = SimpleNamespace(engine=engine, epoch=1, step=step, not_loaded=["head.bias"])
    known = {"_facts": {"a": 1}, "_binding": binding}
    transport = SimpleNamespace(names=lambda: ["tcp", "ib", "tcp"])
    found = attempt_of(loop, _transport=transport, **known).started("damaged")
    assert found.environment == {"a": 1, "binding": bound}
    assert (found.first_epoch, found.first_step, found.not_loaded) == (1, step, not_loaded)
    assert (found.unread, found.transports) == ("damaged", ["ib", "tcp"])
    refused = attempt_of(None, _transport=transport, **known).started("")
    assert (refused.first_epoch, refused.first_step, refused.not_loaded) == (0, 0, [])
    assert (refused.environment["binding"], refused.transports) == (bound, [])


@pytest.mark.parametrize("overflows", [True, False])
def test_a_step_has_its_own_figures_and_none_if_it_was_skipped(overflows: bool) -> None:
    averaged: list[Any] = []

    def step(batches: Any, rate: float) -> float:
        assert (batches, rate, engine.figures) == ([1, 2], 0.5, {})
        engine.scale.skipped += overflows
        engine.figures["x"] = 3.0
        return 7.0

    scale = SimpleNamespace(skipped=4)
    engine = SimpleNamespace(figures={"y": 1.0}, scale=scale, step=step, model=nn.Identity())
    average = SimpleNamespace(update=averaged.append)
    loop: Any = SimpleNamespace(engine=engine, average=average, world=World0)
    assert TrainingLoop.train_step(loop, [1, 2], 0.5) == 7.0  # type: ignore[list-item]
    assert engine.figures == ({} if overflows else {"x": 3.0})
    assert averaged == [engine.model]


class Epochs(SimpleNamespace):
    """A loop of epochs of two steps, of which so many are skipped; it stops early after some."""

    def run_epoch(self, watch: Any) -> Any:
        self.epoch += 1
        self.step += 2
        skipped = self.skips[self.epoch - 1]
        return SimpleNamespace(
            skipped_steps=skipped, losses=[0.0] * 2, seconds=3.0, validation_seconds=1.0
        )

    @property
    def stops_early(self) -> bool:
        return bool(self.epoch >= self.early)


@pytest.mark.parametrize(
    ("skips", "early", "until", "end", "kept"),
    [
        ([2] * 5, 9, None, "error", [1, 2, 3, 4]),
        ([0, 2, 2, 2, 2], 9, None, None, [1, 2, 3, 4]),
        ([2, 2, 2, 2, 1], 9, None, None, [1, 2, 3, 4]),
        ([0] * 5, 9, 3, "interval", [1, 2, 3]),
        ([0] * 5, 9, 7, None, [1, 2, 3, 4]),
        ([0] * 5, 2, 3, None, [1, 2]),
        ([0] * 5, 3, 3, None, [1, 2]),
        ([0] * 5, 0, None, None, []),
    ],
)
def test_a_run_ends_with_its_epochs_or_earlier_and_fails_if_all_steps_were_skipped(
    skips: list[int], early: int, until: int | None, end: str | None, kept: list[int]
) -> None:
    places: list[int] = []
    loop = Epochs(epoch=0, step=0, skips=skips, early=early, diverged_at=None)
    loop.engine, loop.plan = SimpleNamespace(comm=NoComm()), plan_of()
    attempt = attempt_of(loop)
    training = attempt.train(until, never, lambda loop: places.append(loop.epoch), None)
    done = 0
    try:
        while next(training):
            done += 1
    except StopIteration as ended:
        last = ended.value
    assert (done, places) == (min(5, early, until or 5), kept)
    assert getattr(last, "reason", None) == end
    if end == "interval":
        assert (last.epoch, last.step) == (3, 6)
    assert attempt._parts["training"] == 3 * done
    assert attempt._parts["validation"] == done


def test_the_end_has_times_since_the_attempt_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 seconds, of which the first 4 led to the first step."""
    clock = SimpleNamespace(perf_counter=lambda: 110.0, time=lambda: 5000.0)
    monkeypatch.setattr(run_module, "time", clock)
    memory = SimpleNamespace(process_bytes=lambda: 5, start_bytes=3, device_bytes=lambda: 7)
    loop = SimpleNamespace(
        first_step_at=104.0,
        per_worker=lambda value: [value, value + 1],
        time_to_accuracy=1.5,
        stops_early=True,
        epoch=2,
        class_figures=lambda: None,
    )
    parts = {"gate": 2.0, "training": 3.0}
    attempt = attempt_of(loop, _memory=memory, _began=100.0, _parts=parts)
    end = attempt._finished()
    assert (end.peak_process_bytes, end.start_process_bytes) == ([5, 6], [3, 4])
    assert (end.peak_device_bytes, end.time_to_accuracy) == ([7, 8], 1.5)
    assert (end.seconds, end.first_step_seconds, end.first_step_time) == (10.0, 4.0, 4994.0)
    assert end.parts_seconds == {"gate": 2.0, "training": 3.0, "rest": 5.0}
    assert end.stopped_early
    loop.epoch = 5
    assert not attempt._finished().stopped_early


World0 = run_module.World(0, 1, 0, torch.device("cpu"))


class TestInterval:
    """A run that stops after an epoch for others to be compared with it."""

    def test_it_stops_there_with_a_checkpoint_and_goes_on_as_if_it_had_not(
        self, tmp_path: Path
    ) -> None:
        plan = plan_of(training_epochs=3)
        whole = epochs_of(run(plan))
        first = run(plan, checkpoint=keep(tmp_path / "kept"), until=2)
        stopped = first[-1]
        assert isinstance(stopped, RunStopped)
        assert (stopped.reason, stopped.epoch) == ("interval", 2)
        assert stopped.step == 2 * plan.steps_per_epoch
        last = max((tmp_path / "kept").iterdir())
        again = run(plan, resume=last, checkpoint=keep(tmp_path / "again"), until=2)
        assert (epochs_of(again), again[-1].kind) == ([], "run_stopped")
        second = run(plan, resume=last)
        assert isinstance(second[0], RunStarted)
        assert second[0].first_epoch == 2
        assert isinstance(second[-1], RunFinished)
        made = [*epochs_of(first), *epochs_of(second)]
        assert [epoch.losses for epoch in made] == [epoch.losses for epoch in whole]

    @pytest.mark.parametrize("until", [3, 7])
    def test_the_last_epoch_is_the_end(self, until: int) -> None:
        assert isinstance(run(plan_of(training_epochs=3), until=until)[-1], RunFinished)

    def test_another_runs_weights_are_gone_on_with_at_ones_own_values(self, tmp_path: Path) -> None:
        """The same order of samples and the same weights: the loss of the first step is the same,
        and the next ones are not, as the rate is another."""
        source = plan_of(training_epochs=3)
        poor = plan_of(training_epochs=3, optimizer_lr=1e-6)
        run(source, checkpoint=keep(tmp_path / "kept"), until=2)
        taken = max((tmp_path / "kept").iterdir())
        changed = plan_of(training_epochs=3, optimizer_lr=0.05, optimizer_momentum=0.5)
        changed = changed.model_copy(update={"run_id": poor.run_id})
        [own], [others] = (epochs_of(run(each, resume=taken)) for each in (changed, source))
        assert own.run_id == poor.run_id
        assert own.losses[0] == others.losses[0]
        assert own.losses[1:] != others.losses[1:]
        assert own.learning_rates == pytest.approx([rate / 2 for rate in others.learning_rates])
        assert own.losses[0] < epochs_of(run(poor))[2].losses[0] / 2


def test_nothing_of_a_run_is_left_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[weakref.ref[Any]] = []
    close = TrainingLoop.close

    def watched(self: TrainingLoop) -> None:
        weight = next(self.engine.model.parameters())
        vars(self.engine)["cycle"] = self.engine  # frameworks' have some
        left.extend(weakref.ref(each) for each in (self, self.engine, self.engine.model, weight))
        close(self)

    monkeypatch.setattr(TrainingLoop, "close", watched)
    gc.disable()
    try:
        run(plan_of())
        assert [each() for each in left] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.parametrize(("smallest", "epochs"), [(1e-4, [6, 6]), (2.0**92, [6])])
def test_fp16_that_takes_no_step_fails(
    smallest: float, epochs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = strategy_check.check

    def then_too_large_a_scale(*given: Any) -> GateVerdict:
        verdict = right(*given)
        monkeypatch.setattr(precision, "_START", 2.0**100)
        monkeypatch.setattr(precision, "_SMALLEST", smallest)
        return verdict

    monkeypatch.setattr(strategy_check, "check", then_too_large_a_scale)
    records = run(plan_of(training_precision="fp16"))
    assert [each.skipped_steps for each in epochs_of(records)] == epochs
    assert isinstance(records[-1], RunFailed)
    assert (records[-1].reason, records[-1].detail) == ("error", "")


def test_steps_that_fp16_skips_are_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    right = strategy_check.check

    def then_a_large_scale(*given: Any) -> GateVerdict:
        verdict = right(*given)
        monkeypatch.setattr(precision, "_START", 2.0**12)
        return verdict

    monkeypatch.setattr(strategy_check, "check", then_a_large_scale)
    plan = plan_of(training_precision="fp16", measure_figures=["gradient_norm"])
    first, second = epochs_of(run(plan))
    assert 0 < first.skipped_steps < 6
    assert second.skipped_steps < 6
    for epoch in (first, second):
        finite = [math.isfinite(norm) for norm in epoch.figures["gradient_norm"]]
        assert (len(finite), finite.count(False)) == (6, epoch.skipped_steps)


def so_far(**values: Any) -> SoFar:
    """Of four steps in two attempts, with no value at its default."""
    power = PowerUse(
        devices=[""], device_joules=[None], device_busy=[None], hosts=["a"], host_joules=[5.0]
    )
    kept = SoFar(
        steps=4,
        attempts=2,
        loss_sums=[1.0, 2.0, 3.0, 4.0],
        figures={"gradient_norm": [1.0, 2.0, 3.0, 4.0]},
        skipped_steps=3,
        seconds=1000.0,
        steady_images=100_000,
        steady_seconds=500.0,
        step_seconds=[7.0],
        data_wait_seconds=[300.0],
        power=power,
        compile_seconds=40.0,
        weights=[60.0, 61.0, 62.0, 63.0],
        other_cores=[900.0],
    )
    assert kept.model_fields_set == set(SoFar.model_fields)
    return kept.model_copy(update=values)


def test_a_checkpoint_restores_all_of_a_loops_state(tmp_path: Path) -> None:
    world, strategy = World(0, 1, 0, torch.device("cpu")), Single()
    strategy.start(world)
    plan, folders = plan_of(), (tmp_path / "first", tmp_path / "second")
    state = LoopState(
        run_id=plan.run_id,
        epoch=1,
        step=10,
        elapsed_seconds=1e6,
        time_to_accuracy=5e5,
        best=0.7,
        best_epoch=3,
        so_far=so_far(),
        classes=tuple(map(str, range(10))),
    )
    assert state.model_fields_set == set(LoopState.model_fields), "a value for each field"
    taken: list[str] = []
    for folder in folders:
        folder.mkdir()
        with closing(TrainingLoop(plan, world, strategy)) as loop:
            if folder == folders[0]:
                loop.so_far = state.so_far
                loop.save(folder)
                state.write(folder)
            else:
                vars(loop.engine)["take_buffers"] = partial(taken.append, "buffers")
                loop.load(folders[0])
                loop.save(folder)
    assert taken == ["buffers"]
    assert LoopState.read(folders[1]) == state


@pytest.mark.parametrize("waits", [[300.0], [100.0, 500.0]], ids=["as many", "other workers"])
def test_the_rest_of_an_epoch_is_added_to_what_earlier_attempts_did_of_it(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = SimpleNamespace(begin=lambda: None, end=lambda: None, cores=lambda _: [8.0])
    monkeypatch.setattr(loop_module, "OtherPrograms", lambda: others)
    world, strategy = World(0, 1, 0, torch.device("cpu")), Single()
    strategy.start(world)
    before = so_far(data_wait_seconds=waits)
    with closing(TrainingLoop(plan_of(measure_warmup_steps=0), world, strategy)) as loop:
        loop.so_far = before
        done, stop = train_rest(loop, Watch(never, world, loop.engine.comm))
    assert stop is None
    assert (done.steps, done.attempts, done.skipped_steps) == (6, 3, 3)
    assert (done.loss_sums[:4], len(done.loss_sums)) == (before.loss_sums, 6)
    *earlier, fifth, sixth = done.figures["gradient_norm"]
    assert earlier == [1.0, 2.0, 3.0, 4.0]
    assert math.isnan(fifth) and math.isnan(sixth), "not measured in this attempt"  # noqa: PT018
    assert (done.step_seconds[0], len(done.step_seconds)) == (7.0, 3)
    assert 100_000 < done.steady_images <= 100_000 + 2 * 240
    assert 1000 < done.seconds < 1100
    assert 500 < done.steady_seconds < 600
    assert 300 < done.data_wait_seconds[0] < 400
    assert (done.compile_seconds, done.weights) == (40.0, before.weights)
    assert done.other_cores == [8.0], "of this attempt alone"


def test_the_ranks_of_a_pipeline_wait_as_long_as_the_one_that_loads() -> None:
    """Two replicas of two stages."""
    plan = plan_of()
    staged = plan.spec.model_copy(update={"strategy": SimpleNamespace(model_workers=2)})
    with closing(loop_of(plan)) as loop:
        loop.plan = plan.model_copy(update={"spec": staged})
        vars(loop)["per_worker"] = lambda value: [1.0, 5.0, 3.0, 2.0]
        done, _ = train_rest(loop, Watch(never, loop.world, loop.engine.comm))
    assert done.data_wait_seconds == [5.0, 5.0, 3.0, 3.0]


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_asks_git(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Enough(Exception):  # noqa: N818
        pass

    def check(*_: object) -> GateVerdict:
        raise Enough

    monkeypatch.setattr(environment, "_commit", lambda folder: asked.append("user's"))
    monkeypatch.setattr(environment, "_own_commit", lambda: asked.append("raysuite's"))
    monkeypatch.setattr(strategy_check, "check", check)
    with pytest.raises(Enough):
        list(execute(plan_of(), World(rank, 2, rank, torch.device("cpu"))))
    assert asked == ([] if rank else ["user's", "raysuite's"])


def test_the_order_of_an_epoch_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs: list[int] = []

    def counted(samples: int, seed: int, epoch: int) -> Any:
        epochs.append(epoch)
        return permutation(samples, seed, epoch)

    monkeypatch.setattr(loop_module, "permutation", counted)
    run(plan_of())
    assert epochs == [0, 1]


class Ignoring(Classification):
    """No target counts."""

    def weight(self, targets: torch.Tensor) -> int:
        return 0


@pytest.mark.parametrize(
    ("kind", "task", "error", "message"),
    [
        ("meta", Classification, NotImplementedError, "meta"),  # such tensors have no values
        ("cpu", Ignoring, DataError, "weights of the evaluated samples"),
    ],
)
def test_validation_reads_the_device_at_its_end_alone_and_needs_targets_that_count(
    kind: str, task: type[Classification], error: type[Exception], message: str
) -> None:
    plan, device, comm = plan_of(), torch.device(kind), NoComm()
    images = torch.zeros(plan.micro_batch, 1, 8, 8, device=device)
    labels = torch.zeros(plan.micro_batch, dtype=torch.long, device=device)
    seen: list[int] = []

    def batches(slices: list[Slice]) -> Iterator[Batch]:
        for each in slices:
            yield Batch(images[: len(each.ids)], labels[: len(each.ids)], each.real, each.of_global)
            seen.append(each.real)

    engine = SimpleNamespace(
        average_buffers=lambda: None,
        train=lambda mode: None,
        model=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10, device=device)),
        replicas=1,
        replica=0,
        counts=True,
        comm=comm,
    )
    engine.forward = engine.model
    loop: Any = SimpleNamespace(
        plan=plan,
        task=task(plan.dataset),
        world=World.alone(device),
        engine=engine,
        val_loader=SimpleNamespace(batches=batches),
        average=None,
        skipped={},
    )
    with pytest.raises(error, match=message):
        validate(loop, Watch(lambda: None, loop.world, comm))
    assert sum(seen) == plan.dataset.val_samples


def test_a_worker_runs_on_its_own_cpus_and_its_record_names_them() -> None:
    before = os.sched_getaffinity(0)
    plan = plan_of(resources_binding=[str(min(before))], training_epochs=1)
    seen = [
        (record, os.sched_getaffinity(0))
        for record in execute(plan, World(0, 1, 0, torch.device("cpu")))
    ]
    started = next(record for record, _ in seen if isinstance(record, RunStarted))
    assert started.environment["binding"] == [f"{min(before)} (memory 0)"]
    assert {frozenset(cpus) for record, cpus in seen if isinstance(record, EpochFinished)} == {
        frozenset({min(before)})
    }
    assert os.sched_getaffinity(0) == before


def test_cpus_that_are_not_here_are_refused() -> None:
    with pytest.raises(UserError, match="usable on this host are only"):
        run(plan_of(resources_binding=["99999"]))
