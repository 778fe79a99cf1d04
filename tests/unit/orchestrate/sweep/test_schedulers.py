"""ASHA and the median rule compare runs by their epochs, and decide the same after a resumption."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
from packaging.version import Version

from raysuite.orchestrate.stopping import requested_end
from raysuite.orchestrate.sweep.schedulers import ORDER, JournaledScheduler
from raysuite.plan import RunPlan
from raysuite.plan.trials import most_epochs, trial_plan
from raysuite.records import EpochFinished, Journal, Results, RunPruned
from raysuite.records.base import checked_line
from raysuite.spec import Document
from raysuite.spec.search import SearchOptions
from raysuite.spec.tasks import MetricFacts, TaskFacts
from raysuite.train.stop_together import Prune

EPOCHS = 9


def document(scheduler: dict[str, Any], **changes: Any) -> Document:
    data = {
        "name": "unit",
        "data": {"name": "digits"},
        "model": {"name": "tests.tiny_model:Tiny"},
        "training": {"epochs": EPOCHS, "global_batch": 64},
        "resources": {"device": "cpu"},
        "search": {
            "trials": 20,
            "space": {"optimizer.lr": {"uniform": [0.0, 1.0]}},
            "scheduler": scheduler,
            **changes,
        },
    }
    return Document(data, "sweep.yaml")


class Sweep:
    """A sweep's journals and its scheduler, without workers."""

    def __init__(self, folder: Path, scheduler: dict[str, Any], **changes: Any) -> None:
        self.document = document(scheduler, **changes)
        self.search = SearchOptions.model_validate(self.document.data["search"])
        self.results = Results(folder)
        self.plans: list[RunPlan] = []
        self.clock = 1_700_000_000.0
        self.scheduler: Any = self.new_scheduler()

    def new_scheduler(self) -> JournaledScheduler:
        return JournaledScheduler(
            self.search, self.results, most_epochs(self.document, self.search)
        )

    def begin(self) -> RunPlan:
        number = len(self.plans)
        plan = trial_plan(self.document, {"optimizer.lr": 0.01 * (number + 1)}, number, 0)
        self.results.add_plan(plan.model_dump(mode="json"))
        self.plans.append(plan)
        self.scheduler.add(plan)
        return plan

    def epoch(self, plan: RunPlan, epoch: int, accuracy: float, speed: float = 100.0) -> bool:
        """Whether the run is asked to end after this epoch."""
        self.clock += 1.0
        record = EpochFinished(
            run_id=plan.run_id,
            time=self.clock,
            epoch=epoch,
            first_step=0,
            losses=[1.0],
            learning_rates=[0.1],
            images=100,
            seconds=1.0,
            steady_images=100 if speed else 0,
            steady_seconds=100.0 / speed if speed else 0.0,
            data_wait_seconds=[0.0],
            validation_seconds=0.1,
            train_loss=1.0,
            val_loss=1.0,
            val_accuracy=accuracy,
            elapsed_seconds=1.0,
        )
        Journal(self.results.journal_file(plan.run_id)).write(record)
        self.scheduler.on_trial_result(None, None, {"epoch": checked_line(record).decode()})
        return requested_end(self.results.folder, plan.run_id) is not None


ASHA = {"name": "asha", "grace_epochs": 1, "reduction_factor": 3}
MEDIAN = {"name": "median", "grace_epochs": 2, "min_trials": 2}


def test_asha_ends_all_but_the_best_third_at_each_rung(tmp_path):
    sweep = Sweep(tmp_path, ASHA)
    asked = [sweep.epoch(sweep.begin(), 0, accuracy) for accuracy in (0.5, 0.4, 0.6, 0.1, 0.59)]
    assert asked == [False, True, False, True, False]
    request = requested_end(tmp_path, sweep.plans[1].run_id)
    assert isinstance(request, Prune)
    assert (request.by, request.value) == ("asha", 0.4)
    assert "validation accuracy after epoch 1" in request.message


def test_a_grace_longer_than_the_runs_ends_none(tmp_path):
    sweep = Sweep(tmp_path, {**ASHA, "grace_epochs": 2 * EPOCHS})
    for accuracy in (0.9, 0.1):
        plan = sweep.begin()
        assert not any(sweep.epoch(plan, epoch, accuracy) for epoch in range(EPOCHS))


def test_draws_of_others_are_as_without_a_scheduler(tmp_path):
    sweep = Sweep(tmp_path, {**ASHA, "brackets": 3})
    np.random.seed(5)
    expected = np.random.rand(2)
    np.random.seed(5)
    assert np.random.rand() == expected[0]
    sweep.begin()
    assert np.random.rand() == expected[1]


def test_a_sweep_for_throughput_compares_throughputs(tmp_path):
    sweep = Sweep(tmp_path, ASHA, goal="throughput")
    assert [sweep.epoch(sweep.begin(), 0, 0.5, speed) for speed in (9.0, 8.0)] == [False, True]
    request = requested_end(tmp_path, sweep.plans[1].run_id)
    assert isinstance(request, Prune)
    assert (request.by, request.value) == ("asha", 8.0)
    assert "images/s after epoch 1" in request.message


def test_no_run_is_ended_after_its_last_epoch(tmp_path):
    sweep = Sweep(tmp_path, ASHA)
    good, poor = sweep.begin(), sweep.begin()
    for epoch in range(EPOCHS):
        assert not sweep.epoch(good, epoch, 0.9)
    assert not any(sweep.epoch(poor, epoch, 0.1) for epoch in [EPOCHS - 1])


@pytest.mark.parametrize("brackets", [1, 2])
def test_rungs_are_the_same_after_a_resumption(tmp_path, brackets):
    sweep = Sweep(tmp_path, {**ASHA, "brackets": brackets})
    for accuracy in (0.5, 0.4, 0.6):
        sweep.epoch(sweep.begin(), 0, accuracy)
    sweep.epoch(sweep.plans[2], 1, 0.7)
    sweep.epoch(sweep.plans[2], 2, 0.8)
    again = sweep.new_scheduler()
    again.replay(sweep.plans)
    assert again._scheduler.debug_string() == sweep.scheduler._scheduler.debug_string()
    # an epoch that is made again, from a checkpoint before it, does not count again
    sweep.scheduler = again
    before = again._scheduler.debug_string()
    sweep.epoch(sweep.plans[2], 2, 0.1)
    assert again._scheduler.debug_string() == before
    assert requested_end(tmp_path, sweep.plans[2].run_id) is None


def test_a_run_that_continued_is_not_pruned_at_a_resumption(tmp_path):
    sweep = Sweep(tmp_path, ASHA)
    first, second = sweep.begin(), sweep.begin()
    sweep.clock += 10.0  # the later of two epochs comes first
    assert not sweep.epoch(second, 0, 0.4)
    sweep.clock -= 10.0
    assert not sweep.epoch(first, 0, 0.5)
    again = sweep.new_scheduler()
    again.replay(sweep.plans)
    assert requested_end(tmp_path, second.run_id) is None
    assert again._scheduler.debug_string() == sweep.scheduler._scheduler.debug_string()


def test_an_epoch_that_only_the_journal_has_comes_last_at_a_resumption(tmp_path):
    sweep = Sweep(tmp_path, ASHA)
    first, second, third = (sweep.begin() for _ in range(3))
    for plan, accuracy in ((first, 0.5), (second, 0.6), (third, 0.9)):
        assert not sweep.epoch(plan, 0, accuracy)
    order = (tmp_path / ORDER).read_text().splitlines(keepends=True)
    (tmp_path / ORDER).write_text("".join(order[:-1]))
    again = sweep.new_scheduler()
    again.replay(sweep.plans)
    assert requested_end(tmp_path, second.run_id) is None


def test_epochs_that_only_journals_have_come_by_time_at_a_resumption(tmp_path):
    sweep = Sweep(tmp_path, ASHA)
    first, second, third = (sweep.begin() for _ in range(3))
    again = sweep.new_scheduler()
    sweep.scheduler = SimpleNamespace(on_trial_result=lambda *_: None)  # of a driver that died
    for plan, accuracy in ((third, 0.5), (first, 0.4), (second, 0.6)):
        sweep.epoch(plan, 0, accuracy)
    again.replay(sweep.plans)
    ended = [requested_end(tmp_path, plan.run_id) is not None for plan in sweep.plans]
    assert ended == [True, False, False]


def test_a_cut_line_of_the_order_is_left_out(tmp_path):
    sweep = Sweep(tmp_path, ASHA)
    sweep.epoch(sweep.begin(), 0, 0.5)
    with (tmp_path / ORDER).open("a", encoding="utf-8") as stream:
        stream.write('["half')
    again = sweep.new_scheduler()
    again.replay(sweep.plans)
    assert again._scheduler.debug_string() == sweep.scheduler._scheduler.debug_string()


def test_a_pruned_run_whose_driver_was_lost_has_ended(tmp_path):
    sweep = Sweep(tmp_path, ASHA)
    sweep.epoch(sweep.begin(), 0, 0.5)
    assert sweep.epoch(sweep.begin(), 0, 0.4)
    again = sweep.new_scheduler()
    again.replay(sweep.plans)
    for plan in sweep.plans:
        again.settle(plan)
    assert sweep.results.end_of(sweep.plans[0].run_id) is None
    end = sweep.results.end_of(sweep.plans[1].run_id)
    assert isinstance(end, RunPruned)
    assert (end.by, end.epoch, end.value, end.settled) == ("asha", 0, 0.4, True)
    again.settle(sweep.plans[1])
    assert len(sweep.results.records(sweep.plans[1].run_id)) == 2


def test_the_median_rule_ends_runs_below_the_median(tmp_path):
    sweep = Sweep(tmp_path, MEDIAN)
    for accuracy in (0.5, 0.6, 0.7):
        plan = sweep.begin()
        assert not any(sweep.epoch(plan, epoch, accuracy) for epoch in range(EPOCHS))
    poor = sweep.begin()
    assert not sweep.epoch(poor, 0, 0.1)
    assert sweep.epoch(poor, 1, 0.1)


def test_epochs_after_the_decision_are_not_compared_now_or_later(tmp_path):
    sweep = Sweep(tmp_path, MEDIAN)
    for _ in range(2):
        plan = sweep.begin()
        assert not any(sweep.epoch(plan, epoch, 0.6) for epoch in range(EPOCHS))
    poor = sweep.begin()
    assert [sweep.epoch(poor, epoch, 0.1) for epoch in range(3)] == [False, True, True]
    sweep.new_scheduler().replay(sweep.plans)
    request = requested_end(tmp_path, poor.run_id)
    assert isinstance(request, Prune)
    assert request.message.endswith("after epoch 2")


def test_epochs_after_the_decision_are_at_no_rung(tmp_path):
    sweep = Sweep(tmp_path, {**ASHA, "reduction_factor": 2})
    good, poor = sweep.begin(), sweep.begin()
    assert not sweep.epoch(good, 0, 0.5)
    assert [sweep.epoch(poor, epoch, 0.4) for epoch in range(2)] == [True, True]
    assert "Iter 2.000: None" in sweep.scheduler._scheduler.debug_string()


def test_throughput_is_compared_by_images_per_second(tmp_path):
    sweep = Sweep(tmp_path, ASHA, goal="throughput")
    assert not sweep.epoch(sweep.begin(), 0, 0.1, speed=200.0)
    assert sweep.epoch(sweep.begin(), 0, 0.9, speed=100.0)


def test_an_epoch_of_warm_up_alone_is_not_compared(tmp_path):
    sweep = Sweep(tmp_path, ASHA, goal="throughput")
    assert not sweep.epoch(sweep.begin(), 0, 0.1, speed=200.0)
    fast, slow = sweep.begin(), sweep.begin()
    assert not sweep.epoch(fast, 0, 0.1, speed=0.0)
    assert not sweep.epoch(slow, 0, 0.1, speed=0.0)
    assert not sweep.epoch(fast, 1, 0.1, speed=300.0)
    assert sweep.epoch(slow, 1, 0.1, speed=100.0)


def test_epochs_of_warm_up_alone_spoil_no_rung(tmp_path):
    sweep = Sweep(tmp_path, ASHA, goal="throughput")
    assert not any(sweep.epoch(sweep.begin(), epoch, 0.1, speed=0.0) for epoch in range(EPOCHS))
    assert not sweep.epoch(sweep.begin(), 0, 0.1, speed=200.0)
    assert sweep.epoch(sweep.begin(), 0, 0.1, speed=100.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("lower_is_better", [False, True])
@pytest.mark.parametrize("scheduler", [ASHA, MEDIAN | {"grace_epochs": 1, "min_trials": 1}])
def test_runs_that_diverged_are_the_worst(tmp_path, scheduler, lower_is_better, value):
    sweep = Sweep(tmp_path, scheduler)
    first, *diverged, last = (sweep.begin() for _ in range(4))
    if lower_is_better:
        sweep.scheduler._plans = {each.run_id: with_error(each) for each in sweep.plans}
    assert not sweep.epoch(first, 0, 0.1)
    # the median rule of Ray before 2.60 counts the first one's value, so the second one goes on
    counts_all = scheduler is not ASHA and Version(ray.__version__) < Version("2.60")
    assert [sweep.epoch(each, 0, value) for each in diverged] == [True, not counts_all]
    assert not sweep.epoch(last, 0, 0.1)
    request = requested_end(tmp_path, diverged[0].run_id)
    assert isinstance(request, Prune)
    assert request.value is None


def with_error(plan: RunPlan) -> RunPlan:
    """The same run of a task in which the accuracy of its Records is an error: lower is better."""
    metric = MetricFacts(name="accuracy", title="Error", note="", higher_is_better=False)
    task = TaskFacts(name="odd", unit="samples", metrics=(metric,), primary="accuracy")
    return plan.model_copy(update={"task": task})
