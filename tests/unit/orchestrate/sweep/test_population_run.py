"""A population without Ray: which trials wait, what they take, and drivers that are killed."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.tune.search import Searcher

from raysuite.errors import RunError
from raysuite.orchestrate import stopping
from raysuite.orchestrate.capacity import Capacity, Node
from raysuite.orchestrate.groups import CHECKPOINTS, checkpoint_folder
from raysuite.orchestrate.sweep import population_run, trial_source
from raysuite.orchestrate.sweep.population_run import Population
from raysuite.orchestrate.sweep.schedulers import JournaledScheduler
from raysuite.orchestrate.sweep.trial import Request
from raysuite.orchestrate.sweep.trial_source import TrialSource
from raysuite.plan import RunPlan
from raysuite.plan.population import Standing, Turn
from raysuite.plan.trials import write_sweep
from raysuite.records import (
    EpochFinished,
    Journal,
    Results,
    RunFailed,
    RunJudged,
    RunStarted,
    RunStopped,
)
from raysuite.records.sweep import trials
from raysuite.spec import Document
from raysuite.spec.search import SearchOptions
from raysuite.spec.search_check import read_search
from raysuite.train.checkpoint import LoopState, write_sizes

EPOCHS, INTERVAL = 6, 2
DATA: dict[str, Any] = {
    "name": "unit",
    "data": {"name": "digits"},
    "model": {"name": "tests.tiny_model:Tiny"},
    "training": {"epochs": EPOCHS, "global_batch": 64},
    "resources": {"device": "cpu", "retries": 1},
    "search": {
        "trials": 4,
        "space": {"optimizer.lr": {"loguniform": [0.001, 1.0]}, "seed": {"randint": [0, 99]}},
        "scheduler": {"name": "pbt", "interval_epochs": INTERVAL},
    },
}

TWO = Capacity((Node(2, 0),))


@pytest.fixture(autouse=True)
def _two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_source.Capacity, "now", lambda: Capacity((Node(2.0, 0.0),)))


def source_of(
    document: Document,
    search: SearchOptions,
    results: Results,
    epochs: int,
    notify: Callable[[RunPlan | str], None],
) -> TrialSource:
    """A sweep's source of trials on a node of two CPUs, with nothing asked of its workers yet."""
    stopping.request_stop(results.folder, None)
    scheduler = JournaledScheduler(search, results, epochs)
    return TrialSource(document, search, results, Capacity((Node(2, 0),)), scheduler, notify)


class Sweep:
    """A sweep whose workers are replaced: epochs, a checkpoint, a stop.

    The accuracy of weights is that of the trial whose they were first, plus its epochs.
    """

    def __init__(
        self, folder: Path, reached: dict[int, float] | None = None, quantile: float = 0.25
    ) -> None:
        scheduler = {**DATA["search"]["scheduler"], "quantile": quantile}
        data = {**DATA, "search": {**DATA["search"], "scheduler": scheduler}}
        self.document = Document(data, "sweep.yaml")
        self.search = read_search(self.document)
        self.results = Results(folder)
        if not (folder / "plan.json").exists():
            write_sweep(self.document, self.results)
        self.source = source_of(
            self.document, self.search, self.results, EPOCHS, lambda event: None
        )
        self.reached = reached or {0: 0.5, 1: 0.8, 2: 0.1, 3: 0.4}
        self.steps = 0

    def segments(self, count: int = 99) -> Iterator[RunPlan]:
        """Make so many segments, one after the other."""
        for _ in range(count):
            self.steps += 1
            suggested = self.source.suggest(str(self.steps))
            if suggested is None or suggested == Searcher.FINISHED:
                return
            plan = self.source._running[str(self.steps)]
            self.work(suggested)
            self.source.on_trial_complete(str(self.steps))
            yield plan

    def work(self, suggested: dict[str, str]) -> None:
        request = Request.model_validate(json.loads(suggested["request"]))
        plan, segment = request.plan, request.segment
        assert segment is not None
        folder = checkpoint_folder(self.results, segment.checkpoint or plan.run_id)
        begin = folder if folder.exists() else Path(segment.taken) if segment.taken else None
        first = 0 if begin is None else LoopState.read(begin).epoch
        weights = str(plan.index) if begin is None else (begin / "weights").read_text()
        journal = Journal(self.results.journal_file(plan.run_id))
        dump = plan.model_dump(mode="json")
        journal.write(RunStarted(run_id=plan.run_id, plan=dump, environment={}, first_epoch=first))
        until = segment.until or EPOCHS
        for epoch in range(first, until):
            journal.write(self.epoch(plan, epoch, self.reached[int(weights)] + epoch / 100))
        folder.mkdir(parents=True, exist_ok=True)
        state = {"epoch": until, "step": 9 * until, "elapsed_seconds": 1.0}
        LoopState(run_id=plan.run_id, time_to_accuracy=None, **state).write(folder)
        write_sizes(folder)
        (folder / "weights").write_text(weights)
        if segment.until is None:
            failed = RunFailed(run_id=plan.run_id, reason="error", message="stands for an end")
            journal.write(failed)
        else:
            stop = RunStopped(run_id=plan.run_id, reason="interval", epoch=until, step=9 * until)
            journal.write(stop)

    @staticmethod
    def epoch(plan: RunPlan, epoch: int, accuracy: float) -> EpochFinished:
        return EpochFinished(
            run_id=plan.run_id,
            epoch=epoch,
            first_step=0,
            losses=[1.0],
            learning_rates=[plan.peak_lr],
            images=100,
            seconds=1.0,
            steady_images=100,
            steady_seconds=1.0,
            data_wait_seconds=[0.0],
            validation_seconds=0.1,
            train_loss=1.0,
            val_loss=1.0,
            val_accuracy=accuracy,
            elapsed_seconds=1.0,
        )

    def turns(self) -> list[list[dict[str, Any]]]:
        """Of each trial, but for the times."""
        return [
            [turn.model_dump(exclude={"time"}) for turn in trial.turns]
            for trial in trials(self.results)
        ]


def test_no_trial_is_compared_before_its_process_has_ended(tmp_path: Path) -> None:
    """A trial's driver looks at its journal once its workers have ended: what it held must still
    stand last."""
    sweep = Sweep(tmp_path)
    assert len(list(sweep.segments(3))) == 3
    sweep.work(sweep.source.suggest("last"))
    assert sweep.source.suggest("next") is None
    assert not any(sweep.turns())
    sweep.source.on_trial_complete("last")
    assert sweep.source.suggest("next") is not None
    assert [len(turns) for turns in sweep.turns()] == [1, 1, 1, 1]


def numbers(plans: Iterator[RunPlan]) -> list[int]:
    return [plan.index for plan in plans]


def test_no_trial_continues_before_all_have_arrived(tmp_path):
    sweep = Sweep(tmp_path)
    assert numbers(sweep.segments(3)) == [0, 1, 2]
    assert sweep.turns() == [[], [], []]
    assert numbers(sweep.segments(1)) == [3]
    assert numbers(sweep.segments(1)) == [0]
    assert [len(each) for each in sweep.turns()] == [1, 1, 1, 1]


def test_the_worst_trial_continues_from_the_weights_of_the_best(tmp_path):
    sweep = Sweep(tmp_path)
    assert numbers(sweep.segments()) == [0, 1, 2, 3] * 3
    assert sweep.source.is_done
    found = trials(sweep.results)
    first, second = found[2].turns
    assert (first.source_trial, first.place, first.epoch, first.value) == (1, 4, 1, 0.11)
    assert first.values["optimizer.lr"] != found[2].values["optimizer.lr"]
    assert first.values["seed"] == found[2].values["seed"]
    assert second.source is None, "it has the best weights by now"
    assert [accuracy for _, _, accuracy in found[2].curve] == pytest.approx(
        [0.1, 0.11, 0.82, 0.83, 0.84, 0.85]
    )
    # trial 3, the worst by then, took them from either of the two that have them
    assert found[3].turns[1].source_trial in (1, 2)
    starts = [r for r in sweep.results.records(found[2].run_id) if isinstance(r, RunStarted)]
    rates = [start.plan["spec"]["optimizer"]["lr"] for start in starts]
    assert rates == [found[2].values["optimizer.lr"], *[first.values["optimizer.lr"]] * 2]
    assert [start.first_epoch for start in starts] == [0, 2, 4]


def test_checkpoints_that_are_not_needed_are_removed(tmp_path):
    sweep = Sweep(tmp_path, {0: 0.5, 1: 0.8, 2: 0.1, 3: 0.4})
    numbers(sweep.segments())
    folders = {path.name for path in (tmp_path / CHECKPOINTS).iterdir()}
    runs = [trial.run_id for trial in trials(sweep.results)]
    assert folders == {
        runs[0],
        runs[1],
        f"{runs[2]}-after-2",
        f"taken-{runs[2]}-after-2",
        f"{runs[3]}-after-4",
        f"taken-{runs[3]}-after-4",
    }


@pytest.mark.parametrize("segments", range(13))
def test_decisions_are_the_same_where_a_driver_was_killed_between_segments(tmp_path, segments):
    whole = Sweep(tmp_path / "whole")
    numbers(whole.segments())
    broken = Sweep(tmp_path / "broken")
    before = numbers(broken.segments(segments))
    after = numbers(Sweep(tmp_path / "broken").segments())
    assert sorted(before + after) == sorted([0, 1, 2, 3] * 3)
    assert broken.turns() == whole.turns()


@pytest.mark.parametrize("copies", [0, 1])
@pytest.mark.parametrize("writes", range(4))
@pytest.mark.parametrize("quantile", [0.25, 0.5])
def test_decisions_are_the_same_where_a_driver_was_killed_amid_them(
    tmp_path, monkeypatch, copies, writes, quantile
):
    """At the second interval: before a checkpoint was copied whole, or between any two turns. One
    or two trials take weights."""
    whole = Sweep(tmp_path / "whole", quantile=quantile)
    numbers(whole.segments())
    broken = Sweep(tmp_path / "broken", quantile=quantile)
    assert len(numbers(broken.segments(8))) == 8
    with monkeypatch.context() as patch:
        _break(patch, copies, writes)
        with pytest.raises(KeyboardInterrupt):
            numbers(broken.segments(1))
    numbers(Sweep(tmp_path / "broken", quantile=quantile).segments())
    assert broken.turns() == whole.turns()
    assert [trial.curve for trial in trials(broken.results)] == [
        trial.curve for trial in trials(whole.results)
    ]


def _break(patch: pytest.MonkeyPatch, copies: int, writes: int) -> None:
    """Let a driver die when it renames a copy, or when it writes a turn."""
    made = {"copies": 0, "writes": 0}
    rename, write = Path.rename, Journal.write

    def renames(path: Path, target: Path) -> Path:
        if path.name.endswith(".partial") and made["copies"] == copies:
            raise KeyboardInterrupt
        made["copies"] += path.name.startswith("taken-")
        return rename(path, target)

    def writes_down(journal: Journal, record: Any) -> None:
        if isinstance(record, RunJudged):
            if made["writes"] == writes:
                raise KeyboardInterrupt
            made["writes"] += 1
        write(journal, record)

    patch.setattr(Path, "rename", renames)
    patch.setattr(Journal, "write", writes_down)


def test_failed_trials_are_not_waited_for(tmp_path):
    sweep = Sweep(tmp_path)
    numbers(sweep.segments(3))
    plan = next(sweep.segments(1))
    journal = sweep.results.journal_file(plan.run_id)
    lines = journal.read_text().splitlines()[:-1]
    journal.write_text("\n".join(lines) + "\n")
    failed = RunFailed(run_id=plan.run_id, reason="error", message="no")
    Journal(journal).write(failed)
    assert numbers(Sweep(tmp_path).segments()) == [0, 1, 2] * 2
    assert [turn.population for turn in trials(sweep.results)[0].turns] == [3, 3]
    assert trials(sweep.results)[3].turns == ()


def test_an_incomplete_checkpoint_is_made_again(tmp_path):
    """Its workers were killed while they wrote it."""
    sweep = Sweep(tmp_path)
    numbers(sweep.segments(4))
    best = trials(sweep.results)[1].run_id
    shutil.rmtree(tmp_path / CHECKPOINTS / best)
    again = Sweep(tmp_path)
    assert numbers(again.segments(1)) == [1]
    assert sweep.turns() == [[], [], [], []]
    assert numbers(again.segments()) == [0, 2, 3, 1] * 2
    assert [trial.epochs for trial in trials(sweep.results)] == [EPOCHS] * 4


def test_a_checkpoint_of_an_earlier_epoch_is_not_taken(tmp_path):
    """Its workers were killed before they had written the next one."""
    sweep = Sweep(tmp_path)
    numbers(sweep.segments(4))
    older = checkpoint_folder(sweep.results, trials(sweep.results)[1].run_id)
    LoopState.read(older).model_copy(update={"epoch": 1, "step": 9}).write(older)
    write_sizes(older)
    assert numbers(Sweep(tmp_path).segments(1)) == [1]
    assert sweep.turns() == [[], [], [], []]


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(*paths: Any) -> None:
        raise OSError(28, "No space left on device")

    sweep = Sweep(tmp_path)
    numbers(sweep.segments(4))
    monkeypatch.setattr(population_run.shutil, "copytree", full)
    with pytest.raises(RunError, match=r".*No space left"):
        numbers(sweep.segments(1))


def test_other_sweeps_have_no_segments(tmp_path):
    data = {**DATA, "search": {**DATA["search"], "scheduler": "asha"}}
    document = Document(data, "sweep.yaml")
    plan = next(Sweep(tmp_path).segments(1))
    others = Population(document, read_search(document), Results(tmp_path))
    assert others.next_segment(plan) == (plan, None)


def test_values_that_make_no_spec_are_not_taken(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    plan = next(sweep.segments(1))
    valid = [sweep.source._population._can_be(plan, {"optimizer.lr": lr}) for lr in (0.1, -0.1)]
    assert valid == [True, False]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_trial_that_diverged_takes_the_last_place(tmp_path: Path, value: float) -> None:
    sweep = Sweep(tmp_path, {0: 0.5, 1: value, 2: 0.1, 3: 0.4})
    assert numbers(sweep.segments(5)) == [0, 1, 2, 3, 0]
    turns = [turn for (turn,) in sweep.turns()]
    assert [turn["place"] for turn in turns] == [1, 4, 3, 2]
    assert [turn["value"] is None for turn in turns] == [False, True, False, False]
    assert [turn["source_trial"] for turn in turns] == [None, 0, None, None]


@pytest.mark.parametrize(("sign", "value"), [(1, 0.31), (-1, 0.31), (-1, 2.5)])
def test_a_decision_records_the_metric_as_it_was_measured(
    tmp_path: Path, sign: int, value: float
) -> None:
    """Standings are compared by values of which more is better, such as -2.5 of a loss."""
    sweep = Sweep(tmp_path)
    plan = next(sweep.segments(1))
    turn = Turn(Standing(0, plan.run_id, sign * value, {}), 1, 4, None, {})
    sweep.source._population._carry_out(turn, sign, {}, INTERVAL)
    *_, record = sweep.results.records(plan.run_id)
    assert isinstance(record, RunJudged)
    assert (record.value, record.place, record.population) == (value, 1, 4)
