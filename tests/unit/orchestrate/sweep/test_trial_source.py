"""Which trial begins when: beside the others while there is room, unfinished ones first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ray.tune.search import Searcher

from raysuite.orchestrate import stopping
from raysuite.orchestrate.capacity import Capacity, Node
from raysuite.orchestrate.sweep import trial_source
from raysuite.orchestrate.sweep.search_algorithms import next_values
from raysuite.orchestrate.sweep.trial import as_text
from raysuite.plan import RunPlan
from raysuite.plan.space import drawn, draws_replacements
from raysuite.plan.trials import set_more_trials, write_more_trials
from raysuite.records import Journal, Results, RunFailed, RunPruned, RunStarted, RunStopped
from raysuite.spec import Document
from raysuite.spec.search import SearchOptions
from raysuite.train.stop_together import Stop
from tests.unit.orchestrate.sweep.test_optuna import trial
from tests.unit.orchestrate.sweep.test_population_run import Sweep as Population
from tests.unit.orchestrate.sweep.test_population_run import source_of

TWO = Capacity((Node(2, 0),))


@pytest.fixture(autouse=True)
def _two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_source.Capacity, "now", lambda: Capacity((Node(2.0, 0.0),)))


class Sweep:
    """A sweep without Ray: a test begins trials and ends them."""

    def __init__(self, folder: Path, space: dict[str, Any], **search: Any) -> None:
        data = {
            "name": "unit",
            "data": {"name": "digits"},
            "model": {"name": "tests.tiny_model:Tiny"},
            "strategy": {"name": "ddp"},
            "training": {"epochs": 2, "global_batch": 64},
            "resources": {"device": "cpu", "retries": 1},
            "search": {"space": space, "searcher": "grid", **search},
        }
        self.document = Document(data, "sweep.yaml")
        self.search = SearchOptions.model_validate(data["search"])
        self.results = Results(folder)
        if not (folder / "plan.json").exists():
            self.results.write_plans([])
        self.events: list[RunPlan | str] = []
        self.source = source_of(self.document, self.search, self.results, 2, self.events.append)

    def begin(self, name: str) -> dict[str, Any] | None:
        """The values of the trial that begins; None while none does."""
        suggested = self.source.suggest(name)
        if suggested is None or suggested == Searcher.FINISHED:
            return None
        label: dict[str, Any] = json.loads(suggested["request"])["plan"]["label"]
        return label

    def end(self, name: str) -> None:
        run_id = self.source._running[name].run_id
        record = RunPruned(run_id=run_id, by="asha", epoch=0, value=None)
        Journal(self.results.journal_file(run_id)).write(record)
        self.source.on_trial_complete(name)


LRS = {"optimizer.lr": {"grid": [0.1, 0.2, 0.3]}}


def test_as_many_begin_as_the_cluster_holds(tmp_path):
    sweep = Sweep(tmp_path, LRS)
    assert [sweep.begin("a"), sweep.begin("b"), sweep.begin("c")] == [
        {"optimizer.lr": 0.1},
        {"optimizer.lr": 0.2},
        None,
    ]
    assert len(sweep.results.plans()) == 2
    sweep.end("a")
    assert sweep.begin("c") == {"optimizer.lr": 0.3}
    sweep.end("b")
    assert sweep.source.suggest("d") is None
    sweep.end("c")
    assert sweep.source.suggest("d") == Searcher.FINISHED
    assert sweep.source.is_done


DRAWN = {"optimizer.lr": {"uniform": [0.1, 0.9]}}


@pytest.mark.parametrize("searcher", ["random", "optuna"])
def test_more_trials_continue_a_sweep_that_has_ended(tmp_path, searcher):
    def make_all(sweep):
        found = []
        while (values := sweep.begin("a")) is not None:
            found.append(values)
            sweep.end("a")
        assert sweep.source.is_done
        return found

    whole = make_all(Sweep(tmp_path / "whole", DRAWN, searcher=searcher, trials=5))
    ended = Sweep(tmp_path / "more", DRAWN, searcher=searcher, trials=2)
    ended.results.write_search(ended.document.data["search"], "unit", ended.document.data)
    assert make_all(ended) == whole[:2]
    assert ended.results.decided().is_all
    wanted = {"search": {**ended.document.data["search"], "trials": 5}}
    set_more_trials(ended.document, Document(wanted, "sweep.yaml"))
    write_more_trials(ended.document, ended.results)
    kept = ended.results.search()["search"]
    again = Sweep(tmp_path / "more", DRAWN, **{key: kept[key] for key in ("searcher", "trials")})
    assert make_all(again) == whole[2:]
    assert [plan["index"] for plan in again.results.plans()] == [0, 1, 2, 3, 4]


def test_no_more_than_are_wanted_side_by_side(tmp_path):
    sweep = Sweep(tmp_path, LRS, side_by_side=1)
    assert sweep.begin("a") is not None
    assert sweep.begin("b") is None


def test_a_trial_of_two_workers_waits_for_both(tmp_path):
    sweep = Sweep(tmp_path, {"resources.workers": {"grid": [1, 2]}})
    assert sweep.begin("a") == {"resources.workers": 1}
    assert [sweep.begin("b"), sweep.begin("b")] == [None, None]
    sweep.end("a")
    assert sweep.begin("b") == {"resources.workers": 2}
    assert sweep.begin("c") is None
    sweep.end("b")
    assert sweep.source.suggest("c") == Searcher.FINISHED, "each began once"
    assert sweep.source.is_done


def test_trials_that_the_cluster_never_holds_are_infeasible(tmp_path):
    sweep = Sweep(tmp_path, {"resources.workers": {"grid": [4, 2]}})
    assert sweep.begin("a") == {"resources.workers": 2}
    end = sweep.results.end_of(sweep.results.plans()[0]["run_id"])
    assert isinstance(end, RunFailed)
    assert end.reason == "infeasible"
    assert "at most 2 workers fit" in end.message


def test_values_that_make_no_spec_are_reported_and_left_out(tmp_path):
    space = {"training.global_batch": {"grid": [32, 33]}, "resources.workers": {"grid": [2]}}
    sweep = Sweep(tmp_path, space)
    assert sweep.begin("a") == {"training.global_batch": 32, "resources.workers": 2}
    sweep.end("a")
    assert sweep.source.suggest("b") == Searcher.FINISHED
    [line] = [each for each in sweep.events if isinstance(each, str)]
    assert line.startswith("no trial with training.global_batch=33, resources.workers=2: ")
    assert sweep.source.is_done


def test_a_grid_continues_after_many_infeasible_values(tmp_path, monkeypatch):
    monkeypatch.setattr("raysuite.orchestrate.sweep.trial_source.MOST_LEFT_OUT", 2)
    batches = {"training.global_batch": {"grid": [33, 35, 37, 32]}}
    sweep = Sweep(tmp_path, {**batches, "resources.workers": {"grid": [2]}})
    assert sweep.begin("a") == {"training.global_batch": 32, "resources.workers": 2}


def test_many_infeasible_draws_in_a_row_end_a_sweep(tmp_path, monkeypatch):
    monkeypatch.setattr("raysuite.orchestrate.sweep.trial_source.MOST_LEFT_OUT", 2)
    space = {"training.global_batch": {"choice": [33, 35]}, "resources.workers": {"choice": [2]}}
    sweep = Sweep(tmp_path, space, searcher="random", trials=4)
    assert sweep.source.suggest("a") == Searcher.FINISHED
    assert sweep.source.is_done
    assert sweep.source.suggest("b") == Searcher.FINISHED
    assert len(sweep.events) == 3
    assert sweep.events[-1] == "no further trials: 2 draws in a row gave no valid spec"


def test_left_out_values_are_known_after_a_resumption(tmp_path, monkeypatch):
    monkeypatch.setattr("raysuite.orchestrate.sweep.trial_source.MOST_LEFT_OUT", 8)
    space = {
        "training.global_batch": {"randint": [32, 36]},
        "resources.workers": {"choice": [2]},
        "optimizer.lr": {"uniform": [0.1, 0.2]},
    }
    others = Sweep(tmp_path / "at once", space, searcher="random", trials=20)
    wanted = []
    for number in range(20):
        wanted.append(others.begin(str(number)))
        others.end(str(number))
    left_out = sum(isinstance(each, str) for each in others.events)
    assert left_out > 8
    assert others.source.suggest("over") == Searcher.FINISHED
    for number in range(20):
        sweep = Sweep(tmp_path / "in pieces", space, searcher="random", trials=20)
        assert sweep.begin("a") == wanted[number]
        sweep.end("a")
    assert sweep.source.suggest("b") == Searcher.FINISHED
    assert sweep.results.decided() == others.results.decided()


def test_a_sweep_that_ended_stays_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("raysuite.orchestrate.sweep.trial_source.MOST_LEFT_OUT", 2)
    space = {"training.global_batch": {"choice": [33, 35]}, "resources.workers": {"choice": [2]}}
    assert Sweep(tmp_path, space, searcher="random", trials=4).begin("a") is None
    again = Sweep(tmp_path, space, searcher="random", trials=4)
    assert again.source.suggest("a") == Searcher.FINISHED
    assert again.source.is_done
    assert again.events == []


def test_trials_that_the_cluster_cannot_hold_are_all_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr("raysuite.orchestrate.sweep.trial_source.MOST_LEFT_OUT", 2)
    space = {"resources.workers": {"choice": [4]}}
    sweep = Sweep(tmp_path, space, searcher="random", trials=3)
    assert sweep.source.suggest("a") == Searcher.FINISHED
    assert len(sweep.results.plans()) == 3


def test_a_pruned_trial_that_died_is_not_made_again(tmp_path):
    """Nor where the report of the epoch that it was to end after died with it."""
    sweep = Sweep(tmp_path, LRS, scheduler={"name": "asha", "grace_epochs": 1})
    for name, accuracy in (("a", 0.5), ("b", 0.4)):
        sweep.begin(name)
        epoch = Population.epoch(sweep.source._running[name], 0, accuracy)
        Journal(sweep.results.journal_file(epoch.run_id)).write(epoch)
    sweep.end("a")
    sweep.source.on_trial_complete("b", error=True)
    end = sweep.results.end_of(epoch.run_id)
    assert isinstance(end, RunPruned)
    assert (end.by, end.value, end.settled) == ("asha", 0.4, True)
    assert sweep.begin("c") == {"optimizer.lr": 0.3}
    assert sweep.begin("d") is None


def test_others_are_drawn_for_infeasible_values(tmp_path):
    space = {"training.global_batch": {"randint": [32, 36]}, "resources.workers": {"choice": [2]}}
    sweep = Sweep(tmp_path, space, searcher="random", trials=4)
    for name in "abcd":
        values = sweep.begin(name)
        assert values is not None
        assert values["training.global_batch"] % 2 == 0
        sweep.end(name)
    assert any(isinstance(each, str) for each in sweep.events)
    assert sweep.source.suggest("e") == Searcher.FINISHED
    again = Sweep(tmp_path, space, searcher="random", trials=4)
    assert again.source.suggest("a") == Searcher.FINISHED
    assert len(again.results.plans()) == 4


def test_unfinished_trials_are_first_after_a_resumption(tmp_path):
    sweep = Sweep(tmp_path, LRS)
    first = sweep.begin("a"), sweep.begin("b")
    sweep.end("b")
    again = Sweep(tmp_path, LRS)
    assert again.begin("a") == first[0]
    assert again.begin("b") == {"optimizer.lr": 0.3}
    assert again.begin("c") is None
    assert len(again.results.plans()) == 3


def test_a_trial_whose_process_died_is_made_again_and_then_lost(tmp_path):
    sweep = Sweep(tmp_path, LRS, side_by_side=1)
    first = sweep.begin("a")
    sweep.source.on_trial_complete("a", error=True)
    assert sweep.begin("b") == first
    sweep.source.on_trial_complete("b", error=True)
    end = sweep.results.end_of(sweep.results.plans()[0]["run_id"])
    assert isinstance(end, RunFailed)
    assert end.reason == "lost"
    assert sweep.begin("c") == {"optimizer.lr": 0.2}


def test_no_trial_begins_after_a_stop(tmp_path):
    sweep = Sweep(tmp_path, LRS)
    sweep.begin("a")
    sweep.source.stopped = True
    stopping.request_stop(tmp_path, Stop("interrupted"))
    assert sweep.source.suggest("b") is None
    sweep.source.on_trial_complete("a")
    assert sweep.source.suggest("b") == Searcher.FINISHED
    assert not sweep.source.is_done
    assert sweep.results.end_of(sweep.results.plans()[0]["run_id"]) is None


def test_a_sweep_that_is_stopped_in_its_last_trials_is_not_done(tmp_path):
    sweep = Sweep(tmp_path, LRS, side_by_side=3)
    sweep.begin("a")
    sweep.begin("b")
    sweep.end("a")
    last = sweep.begin("c")
    sweep.end("b")
    assert sweep.source.suggest("d") is None
    stopping.request_stop(tmp_path, Stop("preempted"))
    run_id = sweep.source._running["c"].run_id
    stopped = RunStopped(run_id=run_id, reason="preempted", epoch=0, step=1)
    Journal(sweep.results.journal_file(run_id)).write(stopped)
    sweep.source.on_trial_complete("c")
    assert sweep.source.suggest("d") == Searcher.FINISHED
    assert not sweep.source.is_done
    again = Sweep(tmp_path, LRS)
    assert again.begin("a") == last
    again.end("a")
    assert again.source.suggest("b") == Searcher.FINISHED
    assert again.source.is_done


def test_a_trial_that_a_smaller_cluster_cannot_hold_is_infeasible_after_a_resumption(
    tmp_path: Path,
) -> None:
    space = {"resources.workers": {"grid": [2, 1]}}
    sweep = Sweep(tmp_path, space)
    sweep.begin("a")
    again = Sweep(tmp_path, space)
    again.source._capacity = Capacity((Node(1, 0),))
    assert again.begin("a") == {"resources.workers": 1}
    first, second = again.results.plans()
    assert getattr(again.results.end_of(first["run_id"]), "reason", "") == "infeasible"
    assert (second["index"], again.results.end_of(second["run_id"])) == (1, None)


def test_a_trial_whose_batch_was_found_has_its_new_plan_in_all_places(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, LRS)
    sweep.begin("a")
    sweep.begin("b")
    plan = sweep.source._running["b"]
    made = plan.model_copy(update={"run_id": "new", "micro_batch": 3})
    before = list(sweep.events)
    sweep.source.on_trial_result("b", {"epoch": "{}"})
    assert sweep.events == before
    sweep.source.on_trial_result("b", {"plan": as_text(made)})
    assert [each["micro_batch"] for each in sweep.results.plans()] == [64, 3]
    assert sweep.source._running["b"] == made
    assert sweep.events == [*before, made]
    assert made.run_id in sweep.source._scheduler._plans, "before its first epoch"
    sweep.end("b")
    assert sweep.results.end_of("new") is not None


def test_a_trial_that_died_after_its_deadline_is_not_made_again(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, LRS, deadline_s=100, side_by_side=1)
    for name, seconds in (("a", 99.0), ("b", 1.0)):
        assert sweep.begin(name) == {"optimizer.lr": 0.1}
        plan = sweep.source._running[name]
        journal, dump = Journal(sweep.results.journal_file(plan.run_id)), plan.model_dump()
        journal.write(RunStarted(run_id=plan.run_id, time=0.0, plan=dump, environment={}))
        stopped = {"run_id": plan.run_id, "reason": "preempted", "epoch": 0, "step": 1}
        journal.write(RunStopped(**stopped, time=seconds))
        sweep.source.on_trial_complete(name, error=True)
    end = sweep.results.end_of(plan.run_id)
    assert getattr(end, "reason", "") == "deadline"
    assert sweep.begin("c") == {"optimizer.lr": 0.2}


def test_no_trial_is_chosen_after_a_stop_amid_infeasible_values(tmp_path: Path) -> None:
    batches = {"training.global_batch": {"grid": [33, 35, 32]}, "resources.workers": {"grid": [2]}}
    sweep = Sweep(tmp_path, batches)
    sweep.source._notify = lambda event: stopping.request_stop(tmp_path, Stop("preempted"))
    assert sweep.source.suggest("a") == Searcher.FINISHED
    assert not sweep.source.is_done
    assert sweep.results.plans() == []
    again = Sweep(tmp_path, batches)
    assert again.begin("a") == {"training.global_batch": 32, "resources.workers": 2}
    assert json.loads(again.source.suggest("b") or "null") is None
    assert len([each for each in again.events if isinstance(each, str)]) == 2, "those of a grid"


def test_a_trial_without_a_deadline_has_no_limit(tmp_path: Path) -> None:
    suggested = Sweep(tmp_path, LRS, deadline_s=None).source.suggest("a")
    request = json.loads(suggested["request"])
    assert (request["left_s"], request["segment"]) == (None, None)


def test_the_deadline_of_a_trial_is_for_all_of_its_attempts(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, LRS, deadline_s=100, side_by_side=1)
    sweep.begin("a")
    plan = sweep.source._running["a"]
    journal, began = Journal(sweep.results.journal_file(plan.run_id)), 1000.0
    dump = plan.model_dump(mode="json")
    journal.write(RunStarted(run_id=plan.run_id, time=began, plan=dump, environment={}))
    end = {"run_id": plan.run_id, "time": began + 40, "reason": "preempted", "epoch": 0, "step": 1}
    journal.write(RunStopped(**end))
    suggested = Sweep(tmp_path, LRS, deadline_s=100, side_by_side=1).source.suggest("a")
    assert json.loads(suggested["request"])["left_s"] == pytest.approx(60)


def test_drawn_values_are_as_many_as_were_drawn_and_grids_have_no_others(tmp_path: Path) -> None:
    space = {"training.global_batch": {"choice": [32, 64]}}
    search = Sweep(tmp_path / "a", space, searcher="random", trials=6).search
    wanted = list(drawn(search))
    assert len(wanted) == 6
    assert 1 < wanted.count(wanted[0]) < 6, "some were drawn twice"
    for place, values in enumerate(wanted):
        trials = [trial(number, each) for number, each in enumerate(wanted[:place])]
        assert next_values(search, trials, []) == values
        assert next_values(search, trials[1:], wanted[:1] if place else []) == values
    trials = [trial(number, each) for number, each in enumerate(wanted)]
    assert next_values(search, trials, []) is None
    *_, seventh = drawn(search.model_copy(update={"trials": 7}))
    assert next_values(search, trials[1:], wanted[:1]) == seventh, "one draw was infeasible"
    crossed = {**space, "optimizer.lr": {"grid": [0.1, 0.2]}}
    assert draws_replacements(search)
    for listed in (LRS, space):
        assert not draws_replacements(SearchOptions(space=listed, searcher="grid"))
    mixed = SearchOptions(space=crossed, searcher="random", trials=3)
    assert not draws_replacements(mixed)
