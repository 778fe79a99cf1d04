"""What becomes of plans whose batch is found by trial, without any workers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from raysuite.errors import RunError
from raysuite.orchestrate import found_batches
from raysuite.orchestrate.controller import DeadlineError
from raysuite.orchestrate.found_batches import decide, tried_file
from raysuite.orchestrate.suite import Listener, reset_failures
from raysuite.plan import RunPlan, make_plans
from raysuite.plan.batch_candidates import outcome, same_search, search_of
from raysuite.records import BatchTried, Journal, Results, RunFailed
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


LATE = DeadlineError("late")


@pytest.mark.parametrize("error", [None, LATE, ValueError("a\nb")])
def test_a_search_ends_after_its_last_trial_or_with_the_error_of_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """Each group of workers makes one trial, which fits."""
    [plan], said = plans(), list[str]()

    def fit() -> None:
        if error is not None:
            raise error
        [file] = [tried_file(folder, plan) for folder in tmp_path.iterdir()]
        stage, size = search_of(plan, file.read()).next() or pytest.fail("nothing is left")
        speed = {"images_per_second": 1.0} if stage == "together" else {}
        file.end(BatchTried(stage=stage, micro_batch=size, fits=True, **speed))

    workers = SimpleNamespace(fit=fit)
    monkeypatch.setattr(found_batches, "make_trainer", lambda *_, **__: workers)
    asked = ([plan], tmp_path, 1, Listener(lambda: None, say=said.append))
    if error is None:
        [found] = decide(*asked).found.values()
        assert len(found.tried) > 2
        assert said == [f"{plan.title}: {each.words}" for each in found.tried]
    else:
        message = "late" if error is LATE else f"{plan.title}: its batch could not be searched: b"
        with pytest.raises(DeadlineError if error is LATE else RunError, match=f"^{message}$"):
            decide(*asked)
    assert list(tmp_path.iterdir()) == []


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
