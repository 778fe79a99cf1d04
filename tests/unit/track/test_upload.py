"""A run's records in MLflow, while the run goes on writing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from mlflow.entities import Run

from raysuite.plan import RunPlan
from raysuite.records import (
    Journal,
    Record,
    RunStarted,
    RunStopped,
    make_rows,
    results_figures,
)
from raysuite.records.journal import Decided, read_journal
from raysuite.records.statistics import Ratio
from raysuite.records.sweep import trials
from raysuite.records.system import SystemSample, system_file
from raysuite.track.store import Store
from raysuite.track.upload import (
    BEST,
    COMMIT,
    MOST_TAG,
    TRIAL,
    Upload,
    _links,
    _overall,
    ended_by,
)
from tests.fake_results import TWELVE_ROWS, run_records, write_results
from tests.fake_sweeps import write_sweep

ONE_RUN = TWELVE_ROWS.partition("matrix:")[0] + "strategy: single\n"


class SlowStore(Store):
    """Calls `meanwhile` when a run is sent, before its last tag."""

    def __init__(self, uri: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(uri, "experiment")
        self._meanwhile = meanwhile

    def finish(self, run_id: str, status: str, end: int | None) -> None:
        super().finish(run_id, status, end)
        self._meanwhile()


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of files: a database needs seconds."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def test_records_that_are_appended_during_a_sync_are_written_by_the_next(
    tmp_path: Path, uri: str
) -> None:
    results = write_results(tmp_path / "results", spec=ONE_RUN, missing=[0])
    plan = RunPlan.model_validate(results.plans()[0])
    journal = Journal(results.journal_file(plan.run_id))
    first, later = run_records(plan)[:3], run_records(plan)[3:]

    def write(records: list[Record]) -> None:
        for record in records:
            journal.write(record)

    write(first)
    assert Upload(results, SlowStore(uri, lambda: write(later))).write_run(plan.run_id)
    store = Store(uri, "experiment")
    assert Upload(results, store).write_run(plan.run_id)
    assert not Upload(results, store).write_run(plan.run_id)
    # another node may write its last samples after the run's last record
    for sent in (1, 2):
        sample = SystemSample(
            time=sent,
            cpu_busy=0.5,
            memory_bytes=1,
            memory_total_bytes=2,
            process_bytes=1,
            received_bytes=0,
            sent_bytes=0,
        )
        with system_file(results.journal_file(plan.run_id).parent, "b").open("a") as file:
            file.write(sample.model_dump_json() + "\n")
        upload = Upload(results, store)
        assert upload.write_run(plan.run_id)
        run = upload.known[plan.run_id].info.run_id
        points = store.client.get_metric_history(run, "system/cpu_utilization_percentage")
        assert {(each.step, each.value) for each in points} == {(n + 1, 50.0) for n in range(sent)}
        assert not Upload(results, store).write_run(plan.run_id)


@pytest.mark.parametrize(
    ("states", "whole", "wanted"),
    [
        (["finished", "failed"], True, "FINISHED"),
        (["failed", "pruned"], True, "FINISHED"),
        (["failed", "failed"], True, "FAILED"),
        (["finished", "stopped"], True, "KILLED"),
        (["missing", "stopped"], True, "KILLED"),
        (["finished", "missing"], True, "RUNNING"),
        (["failed", "paused"], True, "RUNNING"),
        (["finished", "failed"], False, "KILLED"),
        (["finished", "paused"], False, "RUNNING"),
        ([], True, "FAILED"),
    ],
)
def test_the_status_of_a_folder_is_that_of_its_runs_together(
    tmp_path: Path, states: list[str], whole: bool, wanted: str
) -> None:
    """`whole`: whether a sweep has decided all of its trials."""
    [run] = results_figures(write_results(tmp_path, spec=ONE_RUN))
    paused = RunStopped(run_id=run.run_id, reason="interval", epoch=1, step=1)
    runs = [
        replace(run, status="stopped", stopped=paused)
        if state == "paused"
        else replace(run, status=state)
        for state in states
    ]
    assert _overall(runs, whole) == wanted


def test_a_sweeps_own_run_has_its_goals_its_best_and_its_data_set(tmp_path: Path, uri: str) -> None:
    results = write_sweep(tmp_path / "sweep", trials=2, scheduler="none")
    other, top = sorted(trials(results), key=lambda each: each.goals["accuracy"] or 0)
    for _ in range(2):  # the second one changes nothing
        store = Store(uri, "experiment")
        upload = Upload(results, store)
        for each in (top, other):
            upload.child(each.figures)
        # as if another trial had been the best before
        store.client.set_tag(upload.known[other.run_id].info.run_id, BEST, "true")
        upload = Upload(results, store)
        upload.write_parent()
        [run] = [each for each in store.runs_of(upload.id) if each.data.tags.get(TRIAL) is None]
        best = [
            each.data.tags[TRIAL] for each in store.runs_of(upload.id) if BEST in each.data.tags
        ]
        assert best == [str(top.number)]
        tags = {key: value for key, value in run.data.tags.items() if "sweep." in key}
        assert tags == {
            "raysuite.sweep.goals": "accuracy",
            "raysuite.sweep.ended": "2",
            "raysuite.sweep.best": str(top.number),
        }
        assert run.data.metrics["best/accuracy"] == top.goals["accuracy"]
        assert run.data.params["search.trials"] == "2"
        sets = {each.dataset.name for each in run.inputs.dataset_inputs}
        assert sets == {"digits-train", "digits-val"}
        assert (run.data.tags["raysuite.kind"], run.info.run_name) == (
            "sweep",
            "made-up-sweep sweep",
        )
        begins = [each.figures.started.time for each in (top, other) if each.figures.started]
        ends = [each.figures.end.time for each in (top, other) if each.figures.end]
        times = round(1000 * min(begins)), round(1000 * max(ends))
        assert (run.info.start_time, run.info.end_time, run.info.status) == (*times, "FINISHED")
        assert upload.known[top.run_id].info.run_name == f"trial {top.number}"


def rewrite(file: Path, records: Sequence[Record]) -> None:
    file.unlink()
    for record in records:
        Journal(file).write(record)


def test_an_epoch_that_was_trained_again_replaces_the_run(tmp_path: Path, uri: str) -> None:
    results, store = write_results(tmp_path / "suite", spec=ONE_RUN), Store(uri, "experiment")
    [plan] = results.plans()
    journal = results.journal_file(plan["run_id"])
    started, verdict, first, second, third, fourth, *_ = results.records(plan["run_id"])

    def written(*records: Record) -> dict[int, float]:
        """Validation loss by epoch."""
        rewrite(journal, [started, verdict, *records])
        upload = Upload(results, store)
        assert upload.write_run(plan["run_id"])
        ids.append(upload.known[plan["run_id"]].info.run_id)
        history = store.client.get_metric_history(ids[-1], "epoch/val_loss")
        return {point.step: point.value for point in history}

    ids: list[str] = []
    assert [*written(first, second, third)] == [1, 2]  # the last one may be trained again
    losses = written(first, second, third, fourth)
    assert [*losses] == [1, 2, 3]
    again = second.model_copy(update={"time": second.time + 1, "val_loss": 7.0})
    assert written(first, again, third, fourth) == {**losses, 2: 7.0}
    assert ids[0] == ids[1] != ids[2]
    assert store.client.get_run(ids[0]).info.lifecycle_stage == "deleted"
    assert Upload(results, store).known[plan["run_id"]].info.run_id == ids[2]


def test_a_suites_commit_and_data_set_are_those_that_all_runs_share(
    tmp_path: Path, uri: str
) -> None:
    spec = TWELVE_ROWS.partition("matrix:")[0] + "matrix: {strategy: [single, ddp]}\n"
    for is_shared in (True, False):
        results = write_results(tmp_path / str(is_shared), spec=spec.replace("REPEATS", "1"))
        if not is_shared:
            first, second = results.plans()
            second["spec"]["data"]["augment"] = "none"
            results.write_plans([first, second])
            started, *others = results.records(first["run_id"])
            assert isinstance(started, RunStarted)
            changed = started.model_copy(
                update={"environment": {**started.environment, "git": {"commit": "4567def"}}}
            )
            rewrite(results.journal_file(first["run_id"]), [changed, *others])
        store = Store(uri, str(is_shared))
        upload = Upload(results, store)
        upload.write_parent()
        [parent] = store.runs_of(upload.id)
        commit = parent.data.tags.get("mlflow.source.git.commit")
        assert commit == ("0123abc" if is_shared else None)
        assert bool(parent.inputs.dataset_inputs) == is_shared
        assert parent.data.params["model.name"] == "resnet20"
        assert "strategy.name" not in parent.data.params


def test_params_and_data_set_of_a_sweep_are_of_all_its_trials_not_of_the_first(
    tmp_path: Path, uri: str
) -> None:
    space = {"optimizer.lr": {"grid": [0.1, 0.2]}, "data.augment": {"grid": ["none", "auto"]}}
    results = write_sweep(tmp_path / "sweep", trials=1, scheduler="none", space=space)
    plans = results.plans()
    store = Store(uri, "experiment")
    for count in (1, len(plans)):
        results.write_plans(plans[:count])
        results.write_decided(Decided([], is_all=count > 1))
        upload = Upload(results, store)
        upload.write_parent("RUNNING" if count == 1 else None)
        [parent] = store.runs_of(upload.id)
        assert {"optimizer.lr", "data.augment", "plan.peak_lr"}.isdisjoint(parent.data.params)
        assert ("model.name" in parent.data.params) == (count > 1)
        assert not parent.inputs.dataset_inputs


def test_a_suite_whose_later_runs_have_another_commit_has_none(tmp_path: Path, uri: str) -> None:
    spec = TWELVE_ROWS.partition("matrix:")[0] + "matrix: {strategy: [single, ddp]}\n"
    results = write_results(tmp_path / "suite", spec=spec.replace("REPEATS", "1"))
    file = results.journal_file(results.plans()[1]["run_id"])
    [started, *others] = read_journal(file)
    file.unlink()
    store = Store(uri, "experiment")
    Upload(results, store).write_parent("RUNNING")
    git = {"git": {"commit": "4567def"}}
    environment = {**cast(RunStarted, started).environment, **git}
    for record in (started.model_copy(update={"environment": environment}), *others):
        Journal(file).write(record)
    found = [store.runs_of(Upload(results, store).id)[0]]
    Upload(results, store).write_parent()
    found.append(store.runs_of(Upload(results, store).id)[0])
    assert [each.data.tags.get(COMMIT) for each in found] == ["0123abc", None]
    assert ["model.name" in each.data.params for each in found] == [False, True]


def test_of_two_mlflow_runs_of_one_run_the_oldest_is_used(tmp_path: Path, uri: str) -> None:
    results, store = write_results(tmp_path / "suite", spec=ONE_RUN), Store(uri, "experiment")
    upload = Upload(results, store)
    tags = {"raysuite.results": upload.id, "raysuite.run_id": results.plans()[0]["run_id"]}
    later, first = (store.create("x", begin, tags).info.run_id for begin in (2000, 1000))
    assert later != first
    [known] = Upload(results, store).known.values()
    assert known.info.run_id == first


def test_the_description_of_a_folder_leads_to_its_report_and_has_a_table_that_fits(
    tmp_path: Path,
) -> None:
    info = SimpleNamespace(experiment_id="1", run_id="r")
    place = "#/experiments/1/runs/r/artifacts/report.html"

    def description(kind: str, view: str) -> str:
        tags = {"raysuite.kind": kind}
        parent = SimpleNamespace(info=info, data=SimpleNamespace(tags=tags))
        found = _links(cast(Run, parent), tmp_path, view)
        assert found.get("raysuite.report") == (place if has_report else None)
        return found.get("mlflow.note.content", "")

    has_report = False
    assert description("results", "") == ""
    assert description("results", "#v") == "[Table of the compared runs](#v)\n\n"
    assert description("sweep", "#v") == "[Table of the trials with searched keys](#v)\n\n"
    (tmp_path / "report.html").touch()
    has_report = True
    report = f"[The report, with its plots]({place})\n\n"
    assert description("results", "") == report
    for size, is_in in ((MOST_TAG - len(report), True), (MOST_TAG - len(report) + 1, False)):
        (tmp_path / "rows.md").write_text("x" * size)
        assert description("results", "") == report + ("x" * size if is_in else "")


def test_a_view_that_mlflow_would_not_take_is_left_out(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, store = write_results(tmp_path / "suite", spec=ONE_RUN), Store(uri, "experiment")
    upload = Upload(results, store)
    assert upload.page().endswith(f"&viewStateShareKey={upload.id}")
    for size, has_page in ((5000, True), (5001, False)):
        monkeypatch.setattr("raysuite.track.upload.runs_view", lambda *_, size=size: "x" * size)
        assert bool(Upload(results, store).page()) == has_page
    results.write_plans([])
    assert Upload(results, store).page() == ""


def test_a_ratio_is_written_again_if_it_has_changed_alone(tmp_path: Path, uri: str) -> None:
    results, store = write_results(tmp_path / "suite", spec=ONE_RUN), Store(uri, "experiment")
    [row] = make_rows(results_figures(results))
    [run] = row.runs
    for ratio in (0.5, 0.5, 0.75):
        upload = Upload(results, store)
        upload.child(run)
        upload._write_ratios([replace(row, to_best=Ratio(ratio, None, None))])
    child = upload.known[run.run_id].info.run_id
    history = store.client.get_metric_history(child, "run/against_best")
    assert [each.value for each in history] == [0.5, 0.75]


def test_runs_are_nested_under_the_new_parent_after_a_user_deleted_the_first(
    tmp_path: Path, uri: str
) -> None:
    results, store = write_results(tmp_path / "suite", spec=ONE_RUN), Store(uri, "experiment")
    [run] = results_figures(results)
    upload = Upload(results, store)
    upload.child(run)
    store.client.delete_run(upload.parent().info.run_id)
    Upload(results, store).write_parent()
    parents = {
        each.data.tags.get("mlflow.parentRunId"): each.info.run_id
        for each in store.runs_of(upload.id)
    }
    assert parents.keys() == {None, parents[None]}


def test_trials_that_ended_while_the_journals_are_read_are_left_to_the_next_sync(
    tmp_path: Path,
) -> None:
    found = trials(write_sweep(tmp_path, trials=3, scheduler="none", missing=[2]))
    first, second = (each.figures.end.time for each in found[:2] if each.figures.end)
    assert first < second
    assert ended_by(first, found) == [found[0], found[2]]
    assert ended_by(second, found) == found
