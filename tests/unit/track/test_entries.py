"""Records -> metrics, params and tags, without any MLflow."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mlflow.utils.validation import (
    _validate_metric_name,
    _validate_param_name,
    _validate_tag_name,
)

from raysuite import __version__
from raysuite.plan import make_plans
from raysuite.records import (
    RunFailed,
    RunPruned,
    RunStopped,
    SamplesSkipped,
    ScriptMeasured,
    make_rows,
    results_figures,
    run_figures,
)
from raysuite.records.confusion import class_figures
from raysuite.spec import parse_document
from raysuite.spec.tasks import CLASSIFICATION
from raysuite.track.entries import (
    DECIDED,
    MOST_KEY,
    MOST_PARAM,
    MOST_TAG,
    begin_of,
    continues,
    epoch_points,
    history_of,
    mlflow_key,
    mlflow_status,
    row_points,
    run_params,
    run_points,
    run_tags,
    shared_params,
    title,
    variant_key,
)
from raysuite.track.store import tracking_address, without_password
from tests.fake_results import TWELVE_ROWS, epoch, run_records, verdict, write_results

PLAN = make_plans(parse_document(TWELVE_ROWS.replace("REPEATS", "1"), "s"), gpus=0)[0]
DATA = PLAN.model_dump(mode="json")


def test_the_last_step_ends_where_the_validation_begins():
    made = epoch(PLAN, 1).model_copy(
        update={
            "time": 1000.0,
            "seconds": 8.0,
            "validation_seconds": 2.0,
            "elapsed_seconds": 20.0,
            "first_step": 12,
            "losses": [4.0, 3.0, 2.0, 1.0],
            "learning_rates": [0.4, 0.3, 0.2, 0.1],
            "figures": {"gradient_norm": [8.0, 6.0, 4.0, 2.0]},
            "steady_images": 300,
            "steady_seconds": 6.0,
            "data_wait_seconds": [1.0, 3.0],
        }
    )
    points = list(epoch_points(made, with_speed=True))
    steps = [(p.step, p.timestamp, p.value) for p in points if p.key == "step/loss"]
    assert steps == [(13, 992_000, 4), (14, 994_000, 3), (15, 996_000, 2), (16, 998_000, 1)]
    whole = {p.key: (p.step, p.timestamp, p.value) for p in points if p.key.startswith("epoch/")}
    assert whole["epoch/seconds"] == (2, 1_000_000, 8)
    assert whole["epoch/elapsed_seconds"] == (2, 1_000_000, 20)
    assert whole["epoch/images_per_second"] == (2, 1_000_000, 50)
    assert whole["epoch/data_wait_share"] == (2, 1_000_000, 0.25)  # of 8 s, 2 in the mean of ranks
    assert "epoch/val_top5" not in whole
    rates = [(p.step, p.timestamp, p.value) for p in points if p.key == "step/learning_rate"]
    assert rates == [
        (*at, rate) for (*at, _), rate in zip(steps, [0.4, 0.3, 0.2, 0.1], strict=True)
    ]
    norms = [(p.step, p.value) for p in points if p.key == "step/gradient_norm"]
    assert norms == [(13, 8), (14, 6), (15, 4), (16, 2)]
    assert whole["epoch/gradient_norm"] == (2, 1_000_000, 5)


def test_an_epoch_without_steps_that_count_has_no_speed_and_one_without_losses_no_metrics():
    whole = epoch(PLAN, 1)
    learnt = {"train_loss", "val_loss", "val_accuracy"}

    def names(with_speed: bool = True, **changes: Any) -> set[str]:
        points = epoch_points(whole.model_copy(update=changes), with_speed)
        return {p.key.partition("/")[2] for p in points if p.key.startswith("epoch/")}

    speed = {"seconds", "images_per_second", "data_wait_share"}
    assert names() == {*learnt, "elapsed_seconds", *speed}
    assert names(with_speed=False) == {*learnt, "elapsed_seconds"}
    assert names(steady_seconds=0.0) == names() - {"images_per_second"}
    assert names(data_wait_seconds=[]) == names(seconds=0.0) == names() - {"data_wait_share"}
    assert names(seconds=0.5) == names()
    assert names(losses=[], learning_rates=[]) == {"elapsed_seconds", *speed}
    assert names(val_top5=0.9) == names(), "a figure of the run alone"


def test_all_metrics_of_another_task_are_sent_of_each_epoch():
    first, second = CLASSIFICATION.metrics
    task = CLASSIFICATION.model_copy(
        update={
            "unit": "samples",
            "metrics": tuple(
                each.model_copy(update={"name": name})
                for each, name in ((first, "dice"), (second, "iou"), (second, "not_measured"))
            ),
            "primary": "dice",
        }
    )
    made = epoch(PLAN, 0).model_copy(update={"val_metrics": {"dice": 0.5, "iou": 0.25}})
    points = {p.key: p.value for p in epoch_points(made, True, task)}
    assert (points["epoch/val_dice"], points["epoch/val_iou"]) == (0.5, 0.25)
    assert points["epoch/samples_per_second"] == made.steady_images / made.steady_seconds
    assert not {"epoch/val_accuracy", "epoch/val_not_measured", "epoch/images_per_second"} & {
        *points
    }


def test_no_speed_before_the_gate_has_passed():
    records = run_records(PLAN)
    records[1] = verdict(PLAN, passed=False)
    keys = {point.key for point in run_points(run_figures(DATA, records))}
    told = {"images_per_second", "seconds", "data_wait_share", "epoch_seconds"}
    assert not {key for key in keys if key.partition("/")[2] in told}
    assert "epoch/val_accuracy" in keys


def test_skipped_samples_are_a_metric_of_runs_that_may_skip():
    records = run_records(PLAN)
    assert "run/skipped_samples" not in {p.key for p in run_points(run_figures(DATA, records))}
    said = [
        SamplesSkipped(
            run_id="", split=split, samples=9, skipped=count, places=[], known=9, seconds=0
        )
        for split, count in (("train", 2), ("val", 1))
    ]
    points = run_points(run_figures(DATA, [*records[:2], *said, *records[2:]]))
    assert [p.value for p in points if p.key == "run/skipped_samples"] == [3]


def test_figures_of_a_whole_run_have_its_end_and_the_step_0() -> None:
    run = run_figures(DATA, run_records(PLAN))
    assert run.end is not None
    classes = class_figures(["a", "b", "c"], [[3, 1, 0], [0, 2, 0], [1, 1, 0]])
    script = ScriptMeasured(
        run_id="",
        steps=1,
        left_out=0,
        samples_per_step=None,
        steps_per_second=1.0,
        parameters=None,
        hosts=["n 1", "n 2", "n 1"],
        start_seconds={"import torch": [1.0, 2.0, 3.0], "first step": [4.0, 5.0, 6.0]},
    )
    end = run.end.model_copy(update={"classes": classes})
    whole = dataclasses.replace(run, end=end, script=script)
    points = [p for p in run_points(whole) if p.key.partition("/")[0] not in ("step", "epoch")]
    assert {(p.timestamp, p.step) for p in points} == {(round(1000 * run.end.time), 0)}
    found = {p.key: p.value for p in points}
    assert {
        key: value
        for key, value in found.items()
        if key.partition("/")[0] in ("precision", "recall", "f1") or "balanced" in key
    } == {
        "run/balanced_accuracy": pytest.approx((3 / 4 + 1 + 0) / 3),
        "precision/a": 3 / 4,
        "precision/b": 2 / 4,  # nothing was predicted as c
        "recall/a": 3 / 4,
        "recall/b": 1,
        "recall/c": 0,
        "f1/a": 6 / 8,
        "f1/b": 4 / 6,
        "f1/c": 0,
    }
    many = end.model_copy(update={"classes": classes.model_copy(update={"confusion": None})})
    of_many = [p.key for p in run_points(dataclasses.replace(run, end=many))]
    assert "run/balanced_accuracy" in of_many
    assert not [key for key in of_many if key.startswith(("precision/", "recall/", "f1/"))]
    assert {key: value for key, value in found.items() if key.startswith("start/")} == {
        "start/import torch/n 1": 3.0,  # of its slowest rank
        "start/import torch/n 2": 2.0,
        "start/first step/n 1": 6.0,
        "start/first step/n 2": 5.0,
    }
    assert not [p for p in run_points(run) if p.key.startswith("start/")]
    assert run_tags(whole, "id")["raysuite.hosts"] == "n 1, n 2"
    assert "raysuite.hosts" not in run_tags(run, "id")


@pytest.mark.parametrize(
    "end",
    [
        RunFailed(run_id="x", reason="lost", message="gone"),
        RunPruned(run_id="x", by="asha", epoch=0, value=None),
    ],
)
def test_a_run_that_has_not_finished_has_the_figures_of_its_epochs_alone(
    end: RunFailed | RunPruned,
) -> None:
    points = run_points(run_figures(DATA, [*run_records(PLAN)[:4], end]))
    assert {point.key.partition("/")[0] for point in points} == {"step", "epoch"}


def test_an_epoch_recorded_twice_is_written_once():
    records = run_records(PLAN)
    again = [*records[:-1], epoch(PLAN, 5, accuracy=0.5), records[-1]]
    points = [p for p in run_points(run_figures(DATA, again)) if p.key == "epoch/val_accuracy"]
    assert len(points) == 6
    assert points[-1].value == 0.5


def test_params_are_the_whole_resolved_spec_and_what_the_plan_decided():
    params = run_params(DATA)
    assert params["training.epochs"] == "6"
    assert params["strategy.name"] == "ddp"
    assert params["plan.micro_batch"] == "64"
    assert all(value for value in params.values())


def test_params_are_written_under_their_dotted_keys():
    spec = {
        "name": "a",
        "matrix": {"x": [1]},
        "search": {"y": 2},
        "model": {"name": "m", "options": {"depth": 3, "none": None, "empty": {}, "no": ""}},
        "mean": [0.5, 1],
        "on": False,
    }
    assert run_params({"spec": spec, "workers": 2, "peak_lr": 0.1, "index": 4}) == {
        "name": "a",
        "model.name": "m",
        "model.options.depth": "3",
        "mean": "[0.5, 1]",
        "on": "false",
        "plan.workers": "2",
        "plan.peak_lr": "0.1",
    }
    assert {key for key in run_params(DATA) if key.startswith("plan.")} == {
        f"plan.{key}" for key in DECIDED
    }


def test_the_tags_of_a_run_are_all_that_it_is_found_by():
    records = run_records(PLAN, RunFailed(run_id="x", reason="lost", message="gone"))
    run = run_figures(DATA, [records[0], *records])
    tags = run_tags(run, "id")
    assert {key: value for key, value in tags.items() if not key.startswith("env.")} == {
        "raysuite.kind": "run",
        "raysuite.results": "id",
        "raysuite.run_id": PLAN.run_id,
        "raysuite.variant": run.variant,
        "raysuite.gate": "passed",
        "raysuite.status": "failed",
        "raysuite.reason": "lost: gone",
        "raysuite.attempts": "2",
        "raysuite.version": __version__,
        "mlflow.source.name": "raysuite",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": "0123abc",
    }
    assert (tags["env.git.dirty"], tags["env.cpu.logical_cores"]) == ("false", "2")
    bare = run_tags(run_figures(DATA, records[1:]), "id")
    assert "mlflow.source.git.commit" not in bare
    assert not [key for key in bare if key.startswith("env.")]


def test_what_is_longer_than_mlflow_takes_ends_in_an_ellipsis():
    options = {"fits": "x" * MOST_PARAM, "cut": "x" * (MOST_PARAM + 1)}
    params = run_params({"spec": options})
    assert params == {"fits": options["fits"], "cut": "x" * (MOST_PARAM - 1) + "…"}
    assert mlflow_key("x" * 200) == "x" * 200
    assert len(mlflow_key("x" * 201)) == 200
    run = run_figures(DATA, run_records(PLAN))
    assert title(run) == run.name
    long = {**DATA, "label": {"strategy": "s" * 300}}
    assert len(title(run_figures(long, []))) == MOST_KEY


def test_a_run_begins_when_its_first_record_was_written():
    run = run_figures(DATA, run_records(PLAN))
    assert run.started is not None
    assert begin_of(run) == round(1000 * run.started.time)
    assert begin_of(run_figures(DATA, [])) is None


def test_whatever_a_person_writes_fits_into_mlflow():
    options = {"a/b:c" * 80: "x" * 9000, "ü": [1, 2], "empty": {}, "none": None}
    plan = {**DATA, "spec": {**DATA["spec"], "model": {"name": "m", "options": options}}}
    params = run_params(plan)
    assert all(re.fullmatch(r"[\w.\- ]+", key) and len(key) <= MOST_KEY for key in params)
    assert all(len(value) <= MOST_PARAM for value in params.values())
    lost = RunFailed(run_id="x", reason="error", message="m" * 10_000)
    tags = run_tags(run_figures(DATA, run_records(PLAN, lost)), "0" * 32)
    assert all(len(value) <= MOST_TAG for value in tags.values())
    assert tags["env.versions.torch"] == "2.15.0"


NAMES = st.text() | st.text(".-_ /:ü!a1", max_size=4) | st.text("a", min_size=150, max_size=270)


@given(st.lists(NAMES, unique=True), st.data())
@example([".", "..", "", "!", "?", "/", "a/b", "a:b", "a_b", "C#", "C+", "\ud800", "a\n"], None)
@example(["a" * 260 + "1", "a" * 260 + "2"], None)
def test_keys_of_different_texts_differ_and_mlflow_takes_them(names: list[str], data: Any) -> None:
    if data is not None and names:  # and one that looks like the key of another
        names = list(dict.fromkeys([*names, mlflow_key(data.draw(st.sampled_from(names)))]))
    keys = [mlflow_key(name) for name in names]
    assert len({*keys}) == len(names)
    for key in keys:
        _validate_param_name(key)
        _validate_tag_name(key)
        for whole in (f"balanced_accuracy/{key}", f"env.{key}"):
            _validate_metric_name(whole)
            assert len(whole) <= MOST_KEY
        assert mlflow_key(key) == key or re.search("_[0-9a-f]{16}$", key)


PARTS = st.text("ab =(_.", min_size=1, max_size=5).filter(str.strip)


@given(st.lists(st.lists(PARTS, min_size=1, max_size=3).map(" · ".join), unique=True))
def test_keys_of_different_variants_differ(series: list[str]) -> None:
    names = [f"{name} · {count} workers" for name in series for count in (1, 2)]
    keys = {variant_key(name) for name in names}
    assert len(keys) == len(names)
    for key in keys:
        _validate_metric_name(f"efficiency/{key}")


def test_keys_of_ordinary_texts_are_these_texts() -> None:
    for name in ("optimizer.lr", "golden retriever", "t-shirt", "été", "7"):
        assert mlflow_key(name) == name
    assert variant_key("ddp · native · 2 workers") == "ddp native 2 workers"
    assert variant_key("ddp native · 2 workers") != "ddp native 2 workers"


@pytest.mark.parametrize(
    ("reason", "status"), [("interrupted", "KILLED"), ("gate", "FAILED"), ("lost", "FAILED")]
)
def test_status(reason, status):
    failed = run_records(PLAN, RunFailed(run_id="x", reason=reason, message="m"))
    assert mlflow_status(run_figures(DATA, failed)) == status
    pruned = RunPruned(run_id="x", by="asha", epoch=0, value=None)
    for ended in (run_records(PLAN), [*run_records(PLAN)[:3], pruned]):
        assert mlflow_status(run_figures(DATA, ended)) == "FINISHED"
    assert mlflow_status(run_figures(DATA, run_records(PLAN)[:3])) == "RUNNING"


@pytest.mark.parametrize(("reason", "status"), [("interval", "RUNNING"), ("time_limit", "KILLED")])
def test_status_of_a_run_that_was_stopped(reason, status):
    stopped = RunStopped(run_id="x", reason=reason, epoch=0, step=1)
    assert mlflow_status(run_figures(DATA, [*run_records(PLAN)[:3], stopped])) == status


def test_a_history_continues_by_later_epochs_alone():
    run = run_figures(DATA, run_records(PLAN))
    first, second, *rest = run.epochs
    times = f"{round(1000 * first.time)},{round(1000 * second.time)}"
    digest = hashlib.sha256(times.encode()).hexdigest()
    assert history_of([first, second]) == f"2 {digest[:16]}", "as in tags of earlier versions"
    for count in range(len(run.epochs) + 1):
        assert continues(run, history_of(run.epochs[:count]))
    again = first.model_copy(update={"time": first.time + 0.01})
    assert not continues(run, history_of([again, second]))
    assert not continues(dataclasses.replace(run, epochs=(first, *rest)), history_of(run.epochs))


def test_the_address_and_its_password(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_address() == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hush@host:5000")
    assert tracking_address() == "http://me:hush@host:5000"
    assert tracking_address("sqlite:///x.db") == "sqlite:///x.db"
    assert without_password(tracking_address()) == "http://host:5000"
    assert without_password("to http://a:b@c@host/d@e, s3://f") == "to http://host/d@e, s3://f"


@pytest.mark.parametrize(
    ("every", "epochs", "sent"),
    [(1, 1, []), (1, 3, [1, 2]), (2, 3, [1, 2]), (2, 2, []), (4, 9, list(range(1, 9))), (0, 9, [])],
)
def test_epochs_that_a_checkpoint_covers_are_sent_while_a_run_continues(
    tmp_path: Path, every: int, epochs: int, sent: list[int]
) -> None:
    spec = TWELVE_ROWS.replace("epochs: 6", f"epochs: {epochs}, checkpoint_every: {every}")
    results = write_results(tmp_path, spec, missing=range(1, 12))
    run = results_figures(results)[0]
    points = run_points(dataclasses.replace(run, end=None))
    assert [point.step for point in points if point.key == "epoch/val_loss"] == sent
    stopped = RunStopped(run_id="x", reason="interval", epoch=epochs, step=0)  # none is trained now
    points = run_points(dataclasses.replace(run, end=None, stopped=stopped))
    every_epoch = list(range(1, epochs + 1))
    assert [point.step for point in points if point.key == "epoch/val_loss"] == every_epoch
    if every == 1:  # as in results without this key
        del run.plan["spec"]["training"]["checkpoint_every"]
        points = run_points(dataclasses.replace(run, end=None))
        assert [point.step for point in points if point.key == "epoch/val_loss"] == sent


def test_what_a_suite_states_of_itself(tmp_path: Path) -> None:
    runs = results_figures(write_results(tmp_path))
    points = {point.key: point.value for point in row_points(make_rows(runs))}
    assert points["efficiency/ddp native 1 worker"] == 1
    one, two = (points[f"throughput/ddp native {workers}"] for workers in ("1 worker", "2 workers"))
    assert points["speed_up/ddp native 2 workers"] == pytest.approx(two / one)
    assert points["efficiency/ddp native 2 workers"] == pytest.approx(two / one / 2)
    last = max(
        run.end.time for run in runs if run.variant == "ddp · native · 2 workers" and run.end
    )
    [point] = [p for p in row_points(make_rows(runs)) if p.key == "speed_up/ddp native 2 workers"]
    assert (point.timestamp, point.step) == (round(1000 * last), 0)
    row = dataclasses.replace(make_rows(runs)[0], speed_up=None, efficiency=None)
    assert [point.key for point in row_points([row])] == ["throughput/ddp native 1 worker"]
    assert shared_params([]) == {}
    assert list(row_points(make_rows([dataclasses.replace(runs[0], end=None)]))) == []
    shared = shared_params([run.plan for run in runs])
    assert shared["model.name"] == "resnet20"
    assert "strategy.name" not in shared
