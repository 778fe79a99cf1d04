"""The files of loggers beside MLflow, read by the loggers' own readers."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.cli.driver import write_loggers
from raysuite.parts import part
from raysuite.plan import make_plans
from raysuite.records import Results
from raysuite.records.names import variant_key
from raysuite.records.sweep import trials
from raysuite.spec import parse_document
from raysuite.spec.experiment import track_of
from raysuite.track import loggers
from raysuite.track.loggers import Logged, write_logger
from raysuite.track.results_folder import results_id
from raysuite.track.upload import points_of
from tests.fake_results import write_results
from tests.fake_sweeps import write_sweep
from tests.require import require

QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def expected(results: Results, run_id: str) -> list[tuple[str, int, float, float]]:
    """Key, step, value, seconds since 1970 of each point."""
    [trial] = [each for each in trials(results) if each.run_id == run_id]
    points = points_of(results.search(), trial, results.journal_file(run_id).parent)
    return sorted((p.key, p.step, p.value, p.timestamp / 1000) for p in points)


@QUIET
@pytest.mark.parametrize("kind", ["suite", "sweep"])
def test_tensorboard_reads_the_steps_and_values_that_mlflow_has(tmp_path: Path, kind: str) -> None:
    require("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    results = write_results(tmp_path / "a") if kind == "suite" else write_sweep(tmp_path / "a")
    summary = write_logger(results, "tensorboard")
    assert summary.ok, summary
    ids = [trial.run_id for trial in trials(results) if trial.figures.started]
    assert summary.written == len(ids)
    for run_id in ids[:3]:
        read = EventAccumulator(str(results.folder / "tensorboard" / run_id), {"scalars": 0})
        read.Reload()
        found = sorted(
            (tag, event.step, event.value, event.wall_time)
            for tag in read.Tags()["scalars"]
            for event in read.Scalars(tag)
            if tag not in ("run/speed_up", "run/against_best")
        )
        wanted = expected(results, run_id)
        assert [each[:2] for each in found] == [each[:2] for each in wanted]
        values = [np.float32(each[2]) for each in wanted]  # TensorBoard's scalars are fp32
        assert [np.float32(each[2]) for each in found] == values
        # those of step 0 are its final values, which TensorBoard writes with hyperparameters
        times, told = ([each[3] for each in rows if each[1]] for rows in (found, wanted))
        assert times == pytest.approx(told, rel=0, abs=0.01)
    if kind == "suite":
        assert read.Scalars("run/speed_up")[0].value > 0
        assert "_hparams_/session_start_info" in read.summary_metadata


def test_only_runs_that_grew_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = write_results(tmp_path / "a")
    written: list[str] = []

    def note(run: Logged, folder: Path) -> None:
        written.append(run.run_id)
        (folder / "points").write_text(str(len(run.points)), "ascii")

    monkeypatch.setitem(loggers.LOGGERS, "tensorboard", note)
    monkeypatch.setattr(loggers, "installed", lambda name: True)
    assert write_logger(results, "tensorboard").written == len(results.plans())
    assert write_logger(results, "tensorboard").written == 0
    first = written[0]
    journal = results.journal_file(first)
    *lines, _ = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines))  # as if it were still under way
    written.clear()
    assert write_logger(results, "tensorboard").written
    assert first in written
    assert sorted(each.name for each in (results.folder / "tensorboard").iterdir()) == sorted(
        plan["run_id"] for plan in results.plans()
    )


def test_what_a_killed_write_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorBoard would show it as a second run."""
    results = write_results(tmp_path / "a", missing=range(1, 12))
    folder = results.folder / "tensorboard"

    def killed(run: Logged, made: Path) -> None:
        (made / "points").touch()
        shutil.copytree(made.parent, folder / f"{made.parent.name}x")
        raise KeyboardInterrupt

    monkeypatch.setattr(loggers, "installed", lambda name: True)
    monkeypatch.setitem(loggers.LOGGERS, "tensorboard", killed)
    with pytest.raises(KeyboardInterrupt):
        write_logger(results, "tensorboard")
    assert len([*folder.iterdir()]) == 1
    monkeypatch.setitem(loggers.LOGGERS, "tensorboard", lambda _, made: (made / "points").touch())
    assert write_logger(results, "tensorboard").written == 1
    assert [each.name for each in folder.iterdir()] == [results.plans()[0]["run_id"]]


def test_a_logger_that_fails_keeps_what_was_there_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = write_results(tmp_path / "a", missing=range(1, 12))
    monkeypatch.setattr(loggers, "installed", lambda name: True)
    monkeypatch.setitem(
        loggers.LOGGERS, "tensorboard", lambda _, folder: (folder / "points").touch()
    )
    assert write_logger(results, "tensorboard").written == 1
    journal = results.journal_file(results.plans()[0]["run_id"])
    *lines, _ = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines))

    def fail(run: Logged, folder: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setitem(loggers.LOGGERS, "tensorboard", fail)
    summary = write_logger(results, "tensorboard")
    assert not summary.ok
    write_loggers(results, ["mlflow", "tensorboard"], silent=True)
    assert capsys.readouterr() == ("", f"{summary}\n")
    assert "disk full" in str(summary)
    [kept] = (results.folder / "tensorboard").iterdir()
    assert {each.name for each in kept.iterdir()} == {"points", "written"}


def test_a_logger_that_is_not_installed_is_reported_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = write_results(tmp_path / "a")
    monkeypatch.setattr(loggers, "installed", lambda name: False)
    ran = CliRunner().invoke(app, ["sync", str(results.folder), "--to", "wandb"])
    assert ran.exit_code == 1
    assert part("wandb").install in ran.stderr


@pytest.mark.parametrize("full", ["a", "b"])
def test_a_folder_that_could_not_be_written_is_in_the_exit_code_whatever_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    folders = [write_results(tmp_path / name).folder for name in "ab"]

    def note(run: Logged, folder: Path) -> None:
        if tmp_path / full in folder.parents:
            raise OSError("disk full")

    monkeypatch.setitem(loggers.LOGGERS, "tensorboard", note)
    monkeypatch.setattr(loggers, "installed", lambda name: True)
    ran = CliRunner().invoke(app, ["sync", *map(str, folders), "--to", "tensorboard"])
    assert (ran.exit_code, ran.stderr.count("disk full")) == (1, 1)
    assert str(tmp_path / full) in ran.stderr
    assert ran.stdout.startswith(str(next(each for each in folders if each.name != full)))


def test_an_unknown_logger_and_folder_are_refused(tmp_path: Path) -> None:
    results = write_results(tmp_path / "a")
    ran = CliRunner().invoke(app, ["sync", str(results.folder), "--to", "tensorflow"])
    assert ran.exit_code == 2
    assert "valid: mlflow, tensorboard, wandb" in ran.stderr
    assert CliRunner().invoke(app, ["sync", str(tmp_path / "nope")]).exit_code == 2


@QUIET
def test_weights_and_biases_gets_the_same_values_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("wandb")
    import wandb

    results = write_results(tmp_path / "a", repeats=1)
    logged: dict[tuple[str, int], float] = {}
    log, finals = wandb.Run.log, list[dict[str, float]]()

    def watched(run: wandb.Run, values: dict[str, float]) -> None:
        steps = {key: value for key, value in values.items() if "/" not in key}
        [(group, step)] = steps.items()
        for key in values.keys() - steps.keys():
            assert key.startswith(f"{group}/")
            logged[key, int(step)] = values[key]
        log(run, values)
        finals.append(dict(run.summary))

    monkeypatch.setattr(wandb.Run, "log", watched)
    [run, *_] = loggers._logged(results)
    loggers._wandb(run, tmp_path)
    wanted = {(key, step): value for key, step, value, _ in expected(results, run.run_id) if step}
    assert logged == wanted
    [file] = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    content = file.read_bytes()
    for key, value in run.finals.items():
        assert key.encode() in content
        assert json.dumps(value).encode() in content
    assert all(key.encode() in content for key in run.params)
    # W&B adds what it gets to the run with the same id
    [again, *_] = loggers._logged(write_results(tmp_path / "b", repeats=1))
    assert again.run_id == run.run_id
    loggers._wandb(again, tmp_path / "other")
    [other] = (tmp_path / "other" / "wandb").glob("offline-run-*/run-*.wandb")
    assert other.name != file.name


def test_an_offline_run_is_that_of_its_folder_and_has_each_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B is not in CI's environment: this notes what it is given."""

    class Noted(dict[str, Any]):
        """A run, which W&B's `init` returns as a context."""

        def __init__(self, **given: Any) -> None:
            super().__init__(given)
            self.summary: dict[str, float] = {}
            self.steps: list[dict[str, float]] = []
            self.axes: dict[str, str] = {}
            self.log = self.steps.append
            runs.append(self)

        def define_metric(self, name: str, step_metric: str) -> None:
            self.axes[name] = step_metric

    runs: list[Noted] = []
    module = SimpleNamespace(Settings=dict, init=lambda **given: nullcontext(Noted(**given)))
    monkeypatch.setitem(sys.modules, "wandb", module)
    folders = [write_results(tmp_path / name, repeats=1, missing=range(1, 12)) for name in "ab"]
    for results in folders:
        [run] = loggers._logged(results)
        loggers._wandb(run, results.folder / "x")
    first, second = runs
    ids = [results_id(results.folder)[:8] for results in folders]
    assert [each["id"] for each in runs] == [f"{name}-{run.run_id}" for name in ids]
    assert (second["group"], second["project"], second["mode"]) == ("b", "made-up", "offline")
    assert (second["dir"], second["name"]) == (str(tmp_path / "b" / "x"), run.name)
    assert second["config"]["training.epochs"] == "6"
    assert first.axes == {"epoch/*": "epoch", "step/*": "step"}
    epochs, steps = ([each for each in first.steps if name in each] for name in ("epoch", "step"))
    assert [each["epoch"] for each in epochs] == list(range(1, 7))
    assert [each["step"] for each in steps] == list(range(1, 6 * 23 + 1))
    assert {len(each) for each in steps} == {3}, "the step, its loss and its learning rate"
    found = {(key, each["epoch"]): value for each in epochs for key, value in each.items()}
    wanted = {each[:2]: each[2] for each in expected(folders[0], run.run_id) if "epoch/" in each[0]}
    assert wanted.items() <= found.items()
    assert first.summary == run.finals
    assert {key.partition("/")[0] for key in first.summary} == {"run"}


def tracked(track: str) -> str:
    return (
        "name: x\nmodel: resnet20\ndata: digits\ntraining: {epochs: 1, global_batch: 8}\n" + track
    )


def test_what_tracks_a_run_changes_neither_its_id_nor_its_variant() -> None:
    [plain], [other] = (
        make_plans(parse_document(tracked(track), "x.yaml"))
        for track in ("", "track: [mlflow, mlflow]\n")
    )
    assert plain.run_id == other.run_id
    assert plain.spec.track == ("mlflow",)
    first, second = (each.model_dump(mode="json") for each in (plain, other))
    assert "track" not in first["spec"]
    assert second["spec"]["track"] == ["mlflow", "mlflow"]
    assert variant_key(first) == variant_key(second)


def test_track_may_be_one_word() -> None:
    assert track_of({"track": "wandb"}) == ["wandb"]
    assert track_of({}) == ("mlflow",)
