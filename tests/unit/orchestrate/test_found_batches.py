"""What becomes of plans whose batch is found by trial, without any workers."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysuite.errors import RunError
from raysuite.orchestrate import found_batches
from raysuite.orchestrate.controller import DeadlineError
from raysuite.orchestrate.found_batches import decide, tried_file
from raysuite.orchestrate.stopping import FILE, requested_stop
from raysuite.orchestrate.suite import Listener, reset_failures
from raysuite.plan import RunPlan, make_plans
from raysuite.plan.batch_candidates import outcome, same_search, search_of
from raysuite.records import BatchTried, FailReason, Journal, Results, RunFailed
from raysuite.spec import parse_document
from raysuite.train.stop_together import Stop

SPEC = """\
name: a
model: resnet20
data: digits
strategy: ddp
training: {epochs: 1, global_batch: 24, accumulate: auto}
resources: {device: cpu, workers: 2}
"""
FITS = [
    BatchTried(stage=stage, micro_batch=12, fits=True, images_per_second=1.0)
    for stage in ("alone", "together")
]


def plans(more: str = "", spec: str = SPEC) -> list[RunPlan]:
    return make_plans(parse_document(spec + more, "x.yaml"), 0)


def listener(stop: Stop | None = None) -> Listener:
    return Listener(lambda: stop, say=print)


def test_plans_with_all_their_numbers_are_left_alone(tmp_path: Path) -> None:
    given = plans(spec=SPEC.replace("auto", "2"))
    decision = decide(given, tmp_path / "none", 1, listener())
    assert (decision.plans, decision.found, decision.stop) == (given, {}, None)
    assert not (tmp_path / "none").exists()


def test_who_is_asked_to_stop_starts_no_workers(tmp_path: Path) -> None:
    given = plans()
    stop = Stop("interrupted")
    decision = decide(given, tmp_path, 1, listener(stop))
    assert (decision.plans, decision.stop) == (given, stop)
    assert list(tmp_path.iterdir()) == []


def test_searches_on_the_same_workers_share_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search for two networks takes 8 s, one with other workers 12 s. Repeats share a search."""
    clock, lengths = [100.0], iter((8.0, 12.0))
    monkeypatch.setattr(found_batches, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def search(group: list[RunPlan], folder: Path, *_: object) -> None:
        for plan in group:
            for each in FITS:
                tried_file(folder, plan).end(each)
        clock[0] += next(lengths)

    monkeypatch.setattr(found_batches, "_search", search)
    networks = "model: [resnet20, resnet32]"
    given = plans(f"repeats: 2\nmatrix: {{resources.cpus_per_worker: [1, 2], {networks}}}\n")
    decision = decide(given, tmp_path, 1, listener())
    seconds = [decision.found[plan.run_id].seconds for plan in decision.plans]
    assert seconds == [4.0, 4.0, 6.0, 6.0, 6.0, 6.0, 4.0, 4.0]


def test_plans_without_a_number_to_find_keep_their_places_among_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = plans("matrix: {training.accumulate: [2, auto, 3]}\n", SPEC.replace("auto", "1"))
    assert [bool(plan.undecided) for plan in given] == [False, True, False]

    def search(group: list[RunPlan], folder: Path, *_: object) -> None:
        assert group == [given[1]]
        for each in FITS:
            tried_file(folder, given[1]).end(each)

    monkeypatch.setattr(found_batches, "_search", search)
    decision = decide(given, tmp_path, 1, listener())
    assert [*decision.found] == [decision.plans[1].run_id]
    assert (decision.plans[0], decision.plans[2]) == (given[0], given[2])
    assert (decision.plans[1].undecided, decision.plans[1].accumulate) == (given[0].undecided, 1)


LATE = DeadlineError("late")


@pytest.mark.parametrize("error", [None, LATE, ValueError("a\nb")])
def test_a_search_ends_after_its_last_trial_or_with_the_error_of_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """Each group of workers makes one trial, which fits."""
    more = "resources: {device: cpu, workers: 2, retries: 2}\nmeasure: {profile: torch}\n"
    [plan], said = plans(more, SPEC.partition("resources")[0]), list[str]()

    def fit() -> None:
        if error is not None:
            raise error
        [folder] = tmp_path.iterdir()
        assert requested_stop(folder) is None
        assert (folder / FILE).exists(), "workers wait for it"
        file, journal = tried_file(folder, plan), Results(folder).journal_file(plan.run_id)
        assert not journal.exists(), "of the trial before"
        Journal(journal).write(RunFailed(run_id=plan.run_id, reason="out_of_memory", message=""))
        stage, size = search_of(plan, file.read()).next() or pytest.fail("nothing is left")
        speed = {"images_per_second": 1.0} if stage == "together" else {}
        file.end(BatchTried(stage=stage, micro_batch=size, fits=True, **speed))

    def make(runs: list[RunPlan], folder: Path, deadline: float | None, work: str) -> Any:
        assert (runs[0].spec.resources.retries, runs[0].spec.measure.profile) == (0, "off")
        assert runs[0].run_id == plan.run_id
        assert (deadline, work) == (1e12, "raysuite.orchestrate.worker:search_group")
        return SimpleNamespace(fit=fit)

    monkeypatch.setattr(found_batches, "make_trainer", make)
    asked = ([plan], tmp_path, 1, Listener(lambda: None, say=said.append), 1e12)
    if error is None:
        [found] = decide(*asked).found.values()
        assert len(found.tried) > 2
        assert said == [f"{plan.title}: {each.words}" for each in found.tried]
    else:
        failed = f"{plan.title}: the search for its batch size failed: b"
        message = "late" if error is LATE else failed
        with pytest.raises(DeadlineError if error is LATE else RunError, match=f"^{message}$"):
            decide(*asked)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reason", ["error", "node_lost", "out_of_memory", "lost"])
def test_an_error_of_one_of_the_networks_ends_a_search_and_a_lack_of_memory_does_not(
    tmp_path: Path, reason: FailReason
) -> None:
    first, second = plans("matrix: {model: [resnet20, resnet32]}\n")
    results = Results(tmp_path)
    end = RunFailed(run_id=second.run_id, reason=reason, message="rank 1: x")
    Journal(results.journal_file(second.run_id)).write(end)
    ends = reason in ("error", "node_lost")
    message = f"^{re.escape(second.title)}: the search for its batch size failed: rank 1: x$"
    with pytest.raises(RunError, match=message) if ends else nullcontext():
        found_batches._raise_others([first, second], results)


def test_a_stop_amid_a_search_leaves_all_plans_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, stop = plans(), Stop("preempted", 5.0)
    monkeypatch.setattr(found_batches, "make_trainer", lambda *_, **__: None)
    monkeypatch.setattr(found_batches, "fit", lambda *_: (None, stop))
    decision = decide(given, tmp_path, 1, listener())
    assert (decision.plans, decision.found, decision.stop) == (given, {}, stop)


def test_one_search_serves_those_alike() -> None:
    alike = plans("repeats: 2\nmatrix: {loader: [native, memory], optimizer.lr: [0.1, 0.2]}\n")
    assert len(alike) == 8
    assert len({same_search(plan) for plan in alike}) == 1
    others = plans(
        "matrix: {strategy: [ddp, horovod], resources.workers: [1, 2], "
        "training.precision: [fp32, bf16], optimizer: [{name: sgd}, {name: adamw}], "
        "model: [resnet20, resnet32]}\n"
    )
    assert len({same_search(plan) for plan in others}) == len(others) == 32


@pytest.mark.parametrize(
    "line",
    [
        "training.ema_decay: [null, 0.9]",
        "training.clip_norm: [null, 1.0]",
        "training.compile: ['off', default]",
        "training.memory_format: [contiguous, channels_last]",
        "training.cudnn_benchmark: [false, true]",
        "training.global_batch: [24, 48]",
        "optimizer.momentum: [0.0, 0.9]",
        "data.image_size: [8, 16]",
        "model.options.width: [16, 32]",
        "strategy.bucket_mb: [1, 25]",
        "resources.cpus_per_worker: [1, 2]",
        "training.accumulate: [auto, {auto: largest, at_most: 6}]",
    ],
)
def test_what_changes_memory_or_speed_has_a_search_of_its_own(line: str) -> None:
    one, other = plans(f"matrix: {{{line}}}\n")
    assert same_search(one) != same_search(other)
    task = one.spec.task.model_copy(update={"name": "my:Task"})
    of_another = one.model_copy(update={"spec": one.spec.model_copy(update={"task": task})})
    assert same_search(one) != same_search(of_another)
    assert same_search(one) != same_search(one.model_copy(update={"device": "gpu"}))
    weak = SPEC.replace("global_batch: 24, accumulate: auto", "batch_per_worker: AUTO")
    few, many = (
        plans(spec=weak.replace("AUTO", f"{{auto: largest, at_most: {most}}}"))[0]
        for most in (4, 8)
    )
    assert same_search(few) != same_search(many)


def test_a_run_that_is_made_again_keeps_how_its_batch_was_found(tmp_path: Path) -> None:
    results = Results(tmp_path)
    (wish,) = plans()
    plan, found = outcome(wish, FITS, 2.0)
    journal = Journal(results.journal_file(plan.run_id))
    journal.write(found)
    journal.write(RunFailed(run_id=plan.run_id, reason="lost", message="a worker died"))
    reset_failures([plan], results)
    assert results.records(plan.run_id) == [found]
    assert results.end_of(plan.run_id) is None


def test_nothing_that_fits_is_an_error_that_says_what_was_tried(tmp_path: Path) -> None:
    (wish,) = plans()
    file = tried_file(tmp_path, wish)
    file.begin("alone", 2)
    tried = [*file.read(), BatchTried(stage="alone", micro_batch=1, fits=False, message="too much")]
    with pytest.raises(RunError, match="a micro-batch of 1 does not fit: too much"):
        outcome(wish, tried, 1.0)
