"""The driver of `raysuite run` and `raysuite sweep`: options that do not go together, GPUs that are
counted where the runs will be, and where the time of a command went."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import raysuite.cli
from raysuite import __version__
from raysuite.__main__ import command
from raysuite.cli import app, load_verb
from raysuite.cli.console import print_text
from raysuite.cli.driver import SuiteWork, _tell_stop, print_how_to_resume, print_what_changed
from raysuite.cli.request import Request, RunRequest, SweepRequest
from raysuite.cli.run_options import budget_seconds, numbers
from raysuite.errors import UserError
from raysuite.files import sqlite_uri
from raysuite.orchestrate import budget, preflight
from raysuite.orchestrate.capacity import Capacity, Node
from raysuite.orchestrate.suite import Listener
from raysuite.orchestrate.timings import Timings, timing_lines
from raysuite.orchestrate.tracking import Tracking
from raysuite.plan import make_plans
from raysuite.records import Journal, Results, RunFailed, RunFinished
from raysuite.records.schema import SCHEMA
from raysuite.report import build
from raysuite.spec import parse_document
from raysuite.train.stop_together import Stop
from tests.fake_results import TWELVE_ROWS, write_results
from tests.fake_sweeps import write_sweep

SPEC = Path("x y.yaml")


@pytest.mark.parametrize(
    ("missing", "words", "left"),
    [([], (), []), ([2], (), [2]), ([2], ("--retry-failed",), [0, 2])],
)
def test_a_dry_run_shows_what_is_left_and_failed_runs_only_where_they_are_repeated(
    missing: list[int], words: tuple[str, ...], left: list[int], tmp_path: Path
) -> None:
    results = write_results(tmp_path, fails={0: DIVERGED}, missing=missing)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    asked = ["run", "--resume-from", str(results.folder), "--dry-run", *words]
    shown, done = (CliRunner().invoke(app, [*asked, *more]) for more in ([], ["--json"]))
    assert (shown.exit_code, done.exit_code) == (0, 0), done.output
    assert ("to repeat it from its first step" in shown.stderr) == (not words)
    assert ("nothing to resume" in shown.stderr) == (not words and not missing)
    assert ("nothing is left to run" in shown.stdout) == (not left)
    assert [each["index"] for each in json.loads(done.stdout)] == left
    assert before == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}


def test_what_ray_was_sent_is_no_place_for_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_0"
    upload.mkdir(parents=True)
    monkeypatch.chdir(upload)
    for words in (["x.yaml"], ["--resume-from", "results"]):
        done = CliRunner().invoke(app, ["run", *words])
        assert done.exit_code == 2
        assert "submit without --working-dir" in done.stderr
    assert "x.yaml" in CliRunner().invoke(app, ["run", "x.yaml", "--results", "/shared"]).stderr


def test_an_address_of_jobs_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "https://10.0.0.1:8265")
    done = CliRunner().invoke(app, ["run", "x.yaml"])
    assert done.exit_code == 2
    assert "is only for submitting jobs" in done.stderr


def test_ctrl_c_while_the_command_line_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(raysuite.cli, "main", interrupted)
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    print_how_to_resume("sweep", Results(Path("my results")))
    assert "raysuite sweep --resume-from 'my results'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ("name: x\noptimizer: {lr: 0.1}  # as before\n", []),
        ("name: x\noptimizer: {lr: 0.2}\n", ["optimizer.lr from 0.1 to 0.2"]),
        ("name: x\noptimizer: {lr: 0.1}\nrepeats: 3\n", ["repeats from None to 3"]),
    ],
)
def test_an_edited_spec_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], now: str, words: list[str]
) -> None:
    (tmp_path / "spec.yaml").write_text("name: x\noptimizer: {lr: 0.1}\n")
    print_what_changed(Results(tmp_path), parse_document(now, "mine.yaml"))
    said = capsys.readouterr().err
    assert [each for each in words if each not in said] == []
    assert bool(said) == bool(words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], []),
        (["--no-mlflow", "--json"], ["--json", "--no-mlflow"]),
        # the next head's server has another address, which its environment names
        (["--tracking-uri", "http://node1:5000"], []),
        (
            ["-q", "--tracking-uri", "sqlite:///own.db"],
            ["--quiet", "--tracking-uri", "sqlite:///own.db"],
        ),
        (["--tracking-uri", "http://me:secret@host"], []),
    ],
)
def test_what_holds_for_the_continuation_too(
    monkeypatch: pytest.MonkeyPatch, words: list[str], expected: list[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://node1:5000")
    asked: list[SuiteWork] = []
    monkeypatch.setattr("raysuite.cli.driver.drive", asked.append)
    assert CliRunner().invoke(app, ["run", str(SPEC), *words]).exit_code == 0
    assert asked[0].request.arguments() == (*expected, "--stop-within", "60")


@pytest.mark.parametrize(
    ("verb", "kind", "leading"),
    [("run", RunRequest, []), ("sweep", SweepRequest, []), ("scale", RunRequest, ["--"])],
)
def test_every_option_that_a_request_has_is_asked_for(
    verb: str, kind: type[Request], leading: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is given a value that is not its default."""
    given = {
        "spec": "x.yaml",
        "overrides": ["a=1"],
        "scale": "laptop",
        "address": "here:1",
        "root": "some",
        "resume_from": "others",
        "tracking_uri": "sqlite:///x.db",
        "stop_within_s": "7",
        "budget_s": "5m",
    }
    values = {"spec": Path("x.yaml"), "root": Path("some"), "resume_from": Path("others")}
    values |= {"stop_within_s": 7.0, "budget_s": 300.0, "mlflow": False}
    wanted: dict[str, object] = {}
    words: list[str] = []
    names = {each.name for each in fields(kind)}
    for option in load_verb(verb).params:
        if option.name not in names:
            continue
        wanted[option.name] = values.get(option.name, given.get(option.name, True))
        if option.param_type_name == "argument":
            text = given[option.name]
            leading += [text] if isinstance(text, str) else text
        elif option.name in given:
            words += [option.opts[0], str(given[option.name])]
        else:
            words += option.secondary_opts if option.default is True else option.opts[:1]
    asked: list[Request] = []
    monkeypatch.setattr("raysuite.cli.driver.drive", lambda work: asked.append(work.request))
    done = CliRunner().invoke(app, [verb, *words, *leading])
    assert done.exit_code == 0, done.output
    [request] = asked
    assert {name: getattr(request, name) for name in wanted} == wanted
    own = {"scale": {"spec", "overrides", "scale", "timings", "budget_s"}}.get(verb, set())
    assert names - wanted.keys() - own <= {"document", "script_options"}


ON_GPUS = """\
name: on-gpus
model: resnet20
data: digits
strategy: ddp
training: {epochs: 1, global_batch: 64}
resources: {device: gpu, workers: 8}
"""
SEARCH = "search: {space: {optimizer.lr: {grid: [0.1, 0.2]}}, searcher: grid}\n"
SPECS = {"run": ON_GPUS, "sweep": ON_GPUS + SEARCH}
TOO_FEW = "on-gpus.yaml:6: resources.device: 8 workers need 8 GPUs; there are"
JOINED = ("--address", "10.0.0.1:6379")


@pytest.fixture
def connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """To which addresses; the cluster there has 4 GPUs, or 8 of a name with an 8."""
    asked: list[str | None] = []

    @contextmanager
    def connect(address: str | None) -> Iterator[Capacity]:
        asked.append(address)
        yield Capacity((Node(32, 4 if address and "8" in address else 2),) * 2)

    def check(*given: object) -> None:
        raise UserError("there is room")

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("raysuite.orchestrate.ray_cluster.connect", connect)
    monkeypatch.setattr(preflight, "check", check)
    monkeypatch.setattr("raysuite.cli.driver.create_sweep", check)
    return asked


def invoke(verb: str, *words: str) -> Result:
    Path("on-gpus.yaml").write_text(SPECS[verb], "utf-8")
    return CliRunner().invoke(app, [verb, "on-gpus.yaml", *words])


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_a_cluster_is_asked_for_its_gpus(verb: str, connected: list[str | None]) -> None:
    few = invoke(verb, "--no-mlflow", *JOINED)
    assert (few.exit_code, connected) == (2, [JOINED[1]])
    assert f"{TOO_FEW} 4" in few.stderr
    enough = invoke(verb, "--no-mlflow", "--address", "10.0.0.8:6379")
    assert (enough.exit_code, enough.stderr) == (2, "error: there is room\n")
    assert not Path("results").exists()


@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_this_machine_is_known_before(verb: str, connected: list[str | None]) -> None:
    refused = invoke(verb, "--no-mlflow")
    assert (refused.exit_code, connected) == (2, [])
    assert f"{TOO_FEW} 0" in refused.stderr


@pytest.mark.parametrize("verb", [["run", "--no-mlflow"], ["bench", "batch", "--out", "out"]])
def test_all_that_a_plan_refuses_is_refused_before_ray_starts(
    verb: list[str], connected: list[str | None]
) -> None:
    spec = ON_GPUS.replace("device: gpu, workers: 8", "workers: 1024")
    spec = spec.replace("global_batch: 64", "global_batch: 1024")
    Path("on-cpus.yaml").write_text(
        spec.replace("model: resnet20", "model: {name: resnet20, weights: absent.pt}"), "utf-8"
    )
    planned, ran = (CliRunner().invoke(app, [*words, "on-cpus.yaml"]) for words in (["plan"], verb))
    assert (planned.exit_code, ran.exit_code, connected) == (2, 2, [])
    assert ran.stderr == planned.stderr
    assert "absent.pt" in ran.stderr
    assert "at most" in ran.stderr
    assert not Path("out").exists()


def test_a_dry_run_of_a_sweep_asks_no_cluster(connected: list[str | None]) -> None:
    assert f"{TOO_FEW} 0" in invoke("sweep", "--dry-run").stderr
    foreseen = invoke("sweep", "--dry-run", *JOINED)
    assert foreseen.exit_code == 0, foreseen.stderr
    assert "2 trials" in foreseen.stdout
    assert connected == []


DIVERGED = RunFailed(run_id="", reason="diverged", message="not finite", step=7)
ONE_RUN = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]").replace("[1, 2]", "[1]")


@pytest.mark.parametrize(("fails", "code"), [({}, 0), ({0: DIVERGED}, 1)])
def test_a_suite_with_a_run_that_diverged_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: dict[int, RunFailed], code: int
) -> None:
    done = resumed(tmp_path, monkeypatch, fails, "--no-mlflow", "--quiet")
    assert (done.exit_code, type(done.exception)) == (code, SystemExit if code else type(None))
    assert done.stdout == f"{tmp_path}\n"


def test_a_closed_pipe_ends_the_command_with_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysuite.cli.driver.first_line", Broken(BrokenPipeError(32, "pipe"), 0))
    done = resumed(tmp_path, monkeypatch, {}, "--no-mlflow", "--json")
    assert done.exit_code == 1
    assert f"resume with: raysuite run --resume-from {tmp_path}" in done.stderr


@pytest.mark.parametrize("missing", [[], [2]])
def test_a_sweep_is_resumed_on_ray_only_where_a_trial_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: list[int]
) -> None:
    write_sweep(tmp_path, trials=3, missing=missing)
    monkeypatch.setattr("raysuite.orchestrate.ray_cluster.connect", Broken(UserError("Ray"), 0))
    monkeypatch.setattr("raysuite.orchestrate.sweep.run", Broken(UserError("a trial"), 0))
    monkeypatch.setattr("raysuite.cli.driver.write_report", lambda *given: None)
    done = CliRunner().invoke(app, ["sweep", "--resume-from", str(tmp_path), "--no-mlflow"])
    wanted = (2, "error: Ray\n") if missing else (0, "")
    assert (done.exit_code, done.stderr) == wanted


def resumed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fails: dict[int, RunFailed], *words: str
) -> Result:
    """All runs have ended, so that Ray is not started."""
    monkeypatch.setattr(
        "raysuite.orchestrate.ray_cluster.connect", Broken(AssertionError("Ray"), 0)
    )
    # its pictures take seconds
    monkeypatch.setattr("raysuite.report.build", partial(build, pictures=False))
    write_results(folder, spec=ONE_RUN, fails=fails)
    return CliRunner().invoke(app, ["run", "--resume-from", str(folder), *words])


def test_a_failed_run_is_not_repeated_on_another_data_set_than_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is told before Ray starts, and before the failed run's journal is set aside."""
    images = tmp_path / "set"
    for place in ("train/a", "train/b", "val/a", "val/b"):
        (images / place).mkdir(parents=True)
        for number in range(4):
            (images / place / f"{number}.png").touch()
    spec = ONE_RUN.replace("digits", f"{{name: image_folder, path: {images}, image_size: 32}}")
    spec = spec.replace("global_batch: 64", "global_batch: 4")
    results = write_results(tmp_path / "results", spec=spec, fails={0: DIVERGED})
    monkeypatch.setattr(
        "raysuite.orchestrate.ray_cluster.connect", Broken(AssertionError("Ray"), 0)
    )
    (images / "train" / "a" / "more.png").touch()
    words = ["run", "--resume-from", str(results.folder), "--retry-failed", "--no-mlflow"]
    for more in ([], ["--dry-run"]):
        done = CliRunner().invoke(app, [*words, *more])
        assert done.exit_code == 2, done.output
        assert "the plan has 8 training and 8 validation images" in done.stderr
        assert isinstance(results.end_of(results.plans()[0]["run_id"]), RunFailed)


def test_a_run_that_an_earlier_budget_left_out_is_left_and_needs_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = write_results(tmp_path, spec=ONE_RUN)
    plan = results.plans()[0]
    results.journal_file(plan["run_id"]).unlink()
    (tmp_path / budget.DECLINED).write_text(f"{plan['run_id']}\n")
    monkeypatch.setattr(
        "raysuite.orchestrate.ray_cluster.connect", Broken(AssertionError("Ray"), 0)
    )
    done = CliRunner().invoke(app, ["run", "--resume-from", str(tmp_path), "--no-mlflow"])
    assert str(done.exception) == "Ray"  # which was asked for


def test_times_and_lists_of_numbers_are_read_with_their_units() -> None:
    times = {"90s": 90, "5m": 300, "1.5h": 5400, " 0.5m ": 30}
    assert {text: budget_seconds(text) for text in times} == times
    assert (numbers("--x", "4, 1,2,4"), numbers("--x", "0", 0)) == ([4, 1, 2], [0])


def test_a_budget_begins_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[SuiteWork] = []
    monkeypatch.setattr("raysuite.cli.driver.drive", asked.append)
    assert CliRunner().invoke(app, ["run", str(SPEC), "--budget", "10m"]).exit_code == 0
    (work,) = asked
    work.opened, work.plans, work.found = write_results(tmp_path, spec=ONE_RUN), [], {}
    work.timings.began = time.time() - 200  # as Ray's start and the search for batches take
    assert work.execute(Capacity((Node(2, 0),)), Listener(lambda: None)) is None
    deadline = json.loads((tmp_path / budget.FILE).read_text())["deadline"]
    assert 300 < deadline - time.time() <= 400


class Broken:
    """A store that fails at its n-th call, by an error of its own or of MLflow's."""

    def __init__(self, error: Exception, calls: int) -> None:
        self.error, self.left = error, calls

    def __call__(self, *given: object, **named: object) -> Broken:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return self

    def __getattr__(self, name: str) -> Broken:
        return self

    def __iter__(self) -> Iterator[None]:
        return iter(())


@pytest.mark.parametrize(
    ("fails", "stop", "code"),
    [({}, None, 0), ({0: DIVERGED}, None, 1), ({}, Stop("interrupted"), os.EX_TEMPFAIL)],
)
def test_a_store_that_fails_changes_no_exit_code_and_no_summary(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: dict[int, RunFailed],
    stop: Stop | None,
    code: int,
) -> None:
    monkeypatch.setattr("raysuite.track.prepare", lambda uri: None)
    deleted = Broken(UserError("the experiment was deleted"), 0)
    monkeypatch.setattr(import_module("raysuite.track.sync"), "Store", deleted)
    monkeypatch.setattr("raysuite.cli.driver._execute", lambda *given: stop)
    uri = sqlite_uri(tmp_path / "mlflow.db")
    done = resumed(tmp_path, monkeypatch, fails, "--json", "--tracking-uri", uri)
    assert done.exit_code == code, done.stderr
    ended = {"failed": 1, "finished": 1} if fails else {"finished": 2}
    first, last = map(json.loads, done.stdout.splitlines())
    assert last == {"kind": "summary", "folder": str(tmp_path), "runs": ended}
    known = {"version": __version__, "record_schema": SCHEMA}
    assert first == {"kind": "results", "folder": str(tmp_path), **known}
    assert "could not be written" in done.stderr


@pytest.mark.parametrize("error", [UserError("deleted"), OSError(28, "full"), KeyError("x")])
@pytest.mark.parametrize("calls", [0, 1, 2, 5])
def test_an_error_of_a_store_is_reported_and_raises_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    calls: int,
    error: Exception,
) -> None:
    monkeypatch.setattr("raysuite.track.prepare", lambda uri: None)
    monkeypatch.setattr(import_module("raysuite.track.sync"), "Store", Broken(error, calls))
    monkeypatch.setattr("raysuite.orchestrate.registration.best_run", Broken(error, 0))
    tracking = Tracking(sqlite_uri(tmp_path / "mlflow.db"), print_text)
    tracking.sync(write_results(tmp_path, spec=ONE_RUN))
    assert str(error) in capsys.readouterr().err
    tracking.register(Results(tmp_path), silent=True)
    assert str(error) in capsys.readouterr().err


def finished(run_id: str, begins: float) -> RunFinished:
    return RunFinished(
        run_id=run_id,
        peak_process_bytes=[1],
        start_process_bytes=[1],
        peak_device_bytes=[0],
        time_to_accuracy=None,
        seconds=5.0,
        first_step_seconds=2.0,
        first_step_time=begins + 2.0,
        parts_seconds={"gate": 1.5, "training": 3.0},
    )


def test_the_start_of_the_workers_is_no_part_of_the_runs(tmp_path: Path) -> None:
    results = write_results(tmp_path, spec=ONE_RUN, repeats=2)
    timings = Timings()
    began = time.time()
    timings.seconds["runs"] = 20.0
    before, *here = (plan["run_id"] for plan in results.plans())
    begins = {before: began - 60.0}  # by an earlier command
    begins |= {run_id: began + 6.0 + 7 * place for place, run_id in enumerate(here)}
    for run_id, each in begins.items():
        Journal(results.journal_file(run_id)).write(finished(run_id, each))
    timings.split_runs(results, began)
    assert timings.seconds["workers"] == pytest.approx(6.0)
    assert timings.seconds["runs"] == pytest.approx(14.0)
    table = list(timing_lines(results, timings))
    assert [line.split()[0] for line in table if line][:4] == ["phase", "driver", "workers", "runs"]
    assert table[-1].split()[1:] == ["5.00", "1.50", "3.00"]


def test_a_command_stores_the_start_of_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "budget" not in resumed(tmp_path, monkeypatch, {}, "--no-mlflow").output
    results = Results(tmp_path)
    assert "workers" not in results.timings()[-1]["seconds"]  # all runs were before it
    later = time.time() + 60
    for plan in results.plans():
        Journal(results.journal_file(plan["run_id"])).write(finished(plan["run_id"], later))
    CliRunner().invoke(app, ["run", "--resume-from", str(tmp_path), "--no-mlflow"])
    assert results.timings()[-1]["seconds"]["workers"] == pytest.approx(60.0, abs=10)


def test_a_phase_counts_also_where_it_fails_and_commands_are_kept_apart(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.write_timings([{"began": 1.0, "seconds": {"driver": 2.0}}])
    timings = Timings()
    with pytest.raises(OSError, match="no"), timings.phase("report"):
        raise OSError("no")
    timings.write(results)
    timings.write(results)
    first, second = results.timings()
    assert first == {"began": 1.0, "seconds": {"driver": 2.0}}
    assert second["began"] == timings.began
    assert set(second["seconds"]) == {"driver", "report"}


def test_a_commands_timings_have_the_start_of_each_node_of_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [SimpleNamespace(host=host, seconds={"ray": s}) for host, s in (("a", 1.0), ("b", 2.0))]
    cluster = SimpleNamespace(nodes=lambda: nodes)
    monkeypatch.setattr("raysuite.orchestrate.timings.current_folder", lambda: cluster)
    Timings().write(results := Results(tmp_path))
    [own] = results.timings()
    assert own["nodes"] == {"a": {"ray": 1.0}, "b": {"ray": 2.0}}


def test_the_command_of_the_provenance_has_all_that_chooses_the_runs(tmp_path: Path) -> None:
    plain = {"root": tmp_path, "mlflow": True, "tracking_uri": None, "stop_within_s": 30.0}
    plain |= {"quiet": True, "as_json": False, "resume": False, "retry_failed": False}
    new = RunRequest(
        **plain,
        spec=Path("a b.yaml"),
        overrides=["repeats=2"],
        scale="laptop",
        resume_from=None,
        budget_s=90.0,
    )
    words = ["raysuite", "run", "a b.yaml", "repeats=2", "--scale", "laptop", "--budget", "90s"]
    assert shlex.split(new.command()) == words
    again = RunRequest(**plain | {"retry_failed": True}, resume_from=Path("results/a"))
    assert again.command() == "raysuite run --resume-from results/a --retry-failed"


@pytest.mark.parametrize(
    ("words", "track", "sent"),
    [((), True, True), ((), False, False), (("--no-mlflow",), True, False)],
)
def test_mlflow_is_sent_what_the_spec_tracks_unless_it_is_refused(
    words: tuple[str, ...],
    track: bool,
    sent: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str | None] = []

    def tracking(uri: str | None, show: object) -> Broken:
        made.append(uri)
        return Broken(AssertionError(), 99)

    monkeypatch.setattr("raysuite.cli.driver.Tracking", tracking)
    monkeypatch.setattr(SuiteWork, "track", ["mlflow"] if track else [])
    done = resumed(tmp_path, monkeypatch, {}, "--quiet", "--tracking-uri", "sqlite:///x", *words)
    assert done.exit_code == 0, done.output
    assert made == (["sqlite:///x"] if sent else [])


@pytest.mark.parametrize(
    ("seconds", "kept"), [(None, ["KILLED"]), (100.0, ["KILLED"]), (10.0, []), (-5.0, [])]
)
def test_a_stop_is_written_to_mlflow_only_if_there_is_time(
    seconds: float | None,
    kept: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sent: list[str] = []
    results = write_results(tmp_path, spec=ONE_RUN)
    work: Any = SimpleNamespace(request=SimpleNamespace(as_json=True, verb="run"), results=results)
    stop = Stop("time_limit", None if seconds is None else time.time() + seconds)
    tracking: Any = SimpleNamespace(sync=lambda found, status: sent.append(status))
    for given in (tracking, None):
        _tell_stop(work, stop, given)
        shown = capsys.readouterr()
        assert json.loads(shown.out)["runs"] == {"finished": 2}
        assert shown.err.startswith("stopped (time limit); resume with: raysuite run --resume-from")
    assert sent == kept


@pytest.mark.parametrize("as_json", [False, True])
def test_timings_are_printed_on_request_and_beside_json_on_stderr(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysuite.cli.driver.write_report", lambda *given: None)
    words = ["--json"] if as_json else []
    plain = resumed(tmp_path, monkeypatch, {}, "--no-mlflow", *words)
    assert "phase" not in plain.stdout + plain.stderr
    again = CliRunner().invoke(
        app, ["run", "--resume-from", str(tmp_path), "--no-mlflow", "--timings", *words]
    )
    assert [("phase " in each) for each in (again.stdout, again.stderr)] == [not as_json, as_json]


@pytest.mark.parametrize(
    ("script", "address", "needed"),
    [(True, None, False), (True, "a:1", True), (False, None, True), (False, "a:1", True)],
)
def test_scripts_need_ray_only_on_a_cluster(
    script: bool, address: str | None, needed: bool, tmp_path: Path
) -> None:
    text = "name: x\nscript: {command: ['/bin/true']}\n" if script else ONE_RUN
    plans = make_plans(parse_document(text.replace("REPEATS", "1"), "x"), 0)
    request: Any = SimpleNamespace(address=address)
    works = [SuiteWork(request), SuiteWork(request)]
    for work, left in zip(works, (plans, []), strict=True):
        work.plans = left
    assert [work.on_ray for work in works] == [needed, False]


@pytest.mark.parametrize("stop", [None, Stop("interrupted")])
def test_a_budget_is_settled_unless_the_suite_was_stopped(
    stop: Stop | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the repeats that are left could not be resumed."""
    monkeypatch.setattr("raysuite.orchestrate.suite.run", lambda *given: stop)
    monkeypatch.setattr(budget, "settle", lambda results: ["settled"])
    for seconds in (600.0, None):
        request: Any = SimpleNamespace(address=None, budget_s=seconds)
        work = SuiteWork(request)
        work.opened, work.plans, work.found = write_results(tmp_path, spec=ONE_RUN), [], {}
        assert work.execute(Capacity((Node(2, 0),)), Listener(lambda: None)) is stop
        assert work.remarks == (["settled"] if seconds and stop is None else [])
        assert (tmp_path / budget.FILE).exists() == (seconds is not None)
