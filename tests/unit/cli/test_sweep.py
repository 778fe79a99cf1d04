"""`raysuite sweep`: its options, what it foresees, and what it shows of made-up journals."""

from __future__ import annotations

import io
import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from raysuite.cli import app, sweep_progress
from raysuite.cli.data import synthetic_sets_of
from raysuite.cli.sweep_progress import SweepProgress, _head, planned_trials
from raysuite.plan import RunPlan
from raysuite.plan.space import count, drawn
from raysuite.plan.trials import create_sweep, trial_plan
from raysuite.records import Journal, Record, RunFailed, RunJudged, RunPruned, RunStopped
from raysuite.records.names import key_names
from raysuite.spec import parse_document
from raysuite.spec.search_check import read_search
from raysuite.spec.tasks import CLASSIFICATION
from tests.fake_results import epoch, run_records, verdict

SPEC = """\
name: small-sweep
model: resnet20
data: digits
strategy: ddp
training: {epochs: 3, global_batch: 64, target_accuracy: 0.9}
resources: {device: cpu}
search:
  trials: 4
  space:
    optimizer.lr: {loguniform: [0.01, 1.0]}
    strategy: {choice: [ddp, {name: deepspeed, zero_stage: 2}]}
  scheduler: asha
"""
LOST = RunFailed(run_id="", reason="out_of_memory", message="\nno [red]room[/red]\nat all")


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, ["sweep", *words])


def spec_file(folder: Path, text: str = SPEC) -> str:
    file = folder / "sweep.yaml"
    file.write_text(text, "utf-8")
    return str(file)


def test_there_is_no_sweep_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    done = invoke(spec_file(tmp_path), "--resume")
    assert done.exit_code == 2
    assert "leave --resume out" in done.stderr


@pytest.mark.parametrize(
    ("change", "override", "words"),
    [
        (("", ""), "search.trials=4", "has 4"),
        (("", ""), "search.trials=null", "give `trials`"),
        (("", ""), "search.trials=0", "equal to 1"),
        (("", ""), "training.epochs=4", "search.trials=NUMBER"),
        (("scheduler: asha", "scheduler: {name: pbt, interval_epochs: 1}"), None, "pbt"),
        (("trials: 4", "searcher: grid"), None, "grid"),
    ],
)
def test_a_sweep_that_cannot_have_more_trials(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: tuple[str, str],
    override: str | None,
    words: str,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    text = SPEC.replace(*change)
    if change[0]:  # a population's keys, and those of a grid
        text = text.replace("loguniform: [0.01, 1.0]", "choice: [0.1, 0.2]")
        text = text.replace("    strategy: {choice: [ddp, {name: deepspeed, zero_stage: 2}]}\n", "")
    create_sweep(parse_document(text, "x.yaml"), tmp_path)
    spec = spec_file(tmp_path, text.replace("searcher: grid", "trials: 1"))
    done = invoke(spec, "--resume", override or "search.trials=9", "--results", str(tmp_path))
    assert done.exit_code == 2, done.output
    assert words in done.stderr


@pytest.mark.parametrize("verb", ["sweep", "run"])
def test_mistakes_of_a_spec_are_told_before_anything_starts(verb: str, tmp_path: Path) -> None:
    text = SPEC.replace("[0.01, 1.0]", "[0.0, 1.0]")
    done = CliRunner().invoke(app, [verb, spec_file(tmp_path, text)])
    assert done.exit_code == 2
    wanted = {"sweep": "low must be above 0", "run": "use `raysuite sweep SPEC`"}[verb]
    assert wanted in done.stderr
    assert "sweep.yaml:" in done.stderr


def test_one_batch_tells_before_ray_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each listed value: here a network whose output is a tuple, under one of the strategies."""
    text = SPEC.replace("model: resnet20", "model: resnet20").replace(
        "    optimizer.lr:",
        "    model: {choice: [resnet20, 'tests.networks:TupleOutput']}\n    optimizer.lr:",
    )
    monkeypatch.setattr("raysuite.orchestrate.ray_cluster.connect", lambda address: nullcontext())
    results = tmp_path / "results"
    done = invoke(spec_file(tmp_path, text), "--results", str(results), "--no-mlflow")
    assert done.exit_code == 2
    assert "model.name: " in done.stderr
    assert not results.exists()


def test_a_dry_run_prints_the_very_trials(tmp_path: Path) -> None:
    file = spec_file(tmp_path)
    done = invoke(file, "--dry-run")
    assert done.exit_code == 0, done.stderr
    document = parse_document(SPEC, "x")
    for number, values in enumerate(drawn(read_search(document))):
        assert f"{number}   {values['optimizer.lr']:.4g}" in done.stdout
    assert "deepspeed(zero_stage=2)" in done.stdout
    assert "3600 s each; goal: accuracy" in done.stdout
    found = json.loads(invoke(file, "--dry-run", "--json").stdout)
    plans = [RunPlan.model_validate(trial["plan"]) for trial in found["trials"]]
    expected = enumerate(drawn(read_search(document)))
    assert plans == [trial_plan(document, values, n) for n, values in expected]


def test_a_dry_run_is_of_the_scale(tmp_path: Path) -> None:
    file = spec_file(tmp_path, SPEC + "scales: {small: {training.epochs: 1, search.trials: 2}}\n")
    found = json.loads(invoke(file, "--dry-run", "--json", "--scale", "small").stdout)["trials"]
    assert [trial["plan"]["spec"]["training"]["epochs"] for trial in found] == [1, 1]
    assert invoke(file, "--dry-run", "--scale", "other").exit_code == 2


def test_a_dry_run_of_trials_that_are_decided_on_the_way(tmp_path: Path) -> None:
    done = invoke(spec_file(tmp_path), "--dry-run", "search.searcher=optuna")
    assert done.exit_code == 0, done.stderr
    assert "by optuna" in done.stdout


def test_values_that_do_not_go_together(tmp_path: Path) -> None:
    text = SPEC + "    resources.workers: {grid: [2, 3]}\n"
    text = text.replace("  scheduler: asha\n", "").replace("trials: 4", "trials: 2")
    done = invoke(spec_file(tmp_path, text), "--dry-run")
    assert done.exit_code == 0, done.stderr
    assert "2 trials, by " in done.stdout
    assert done.stdout.count("not possible: ") == 2
    lines = [line for line in done.stdout.splitlines() if line.endswith(" not possible ")]
    assert [line.split()[-4:] for line in lines] == [["–", "–", "not", "possible"]] * 2
    assert "3 workers x 1" in done.stdout
    found = json.loads(invoke(spec_file(tmp_path, text), "--dry-run", "--json").stdout)["trials"]
    numbers = [None if each["plan"] is None else each["plan"]["index"] for each in found]
    assert sorted(numbers, key=str) == [0, 1, None, None]
    assert numbers != [0, 1, None, None], "one that cannot be comes before one that can"
    none = invoke(spec_file(tmp_path, text.replace("[2, 3]", "[3, 5]")), "--dry-run")
    assert none.exit_code == 2
    assert "is not divisible by" in none.stderr


def test_a_dry_run_replaces_infeasible_draws_as_the_sweep_does(tmp_path: Path) -> None:
    text = (
        SPEC + "    resources.workers: {choice: [1, 3]}\n    training.epochs: {randint: [1, 99]}\n"
    )
    text = text.replace("  scheduler: asha\n", "")
    found = json.loads(invoke(spec_file(tmp_path, text), "--dry-run", "--json").stdout)["trials"]
    made = [trial["plan"]["index"] for trial in found if trial["plan"]]
    assert made == [0, 1, 2, 3]  # as many as search.trials
    assert len(found) > len(made)
    assert all(trial["values"]["resources.workers"] == 3 for trial in found if not trial["plan"])
    only = invoke(spec_file(tmp_path, text.replace("[1, 3]", "[3]")), "--dry-run")
    assert only.exit_code == 2


def test_draws_end_after_too_many_in_a_row_that_are_infeasible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """3 workers do not divide a batch of 64; here 3 in a row are too many, in place of 100."""
    workers = "    resources.workers: {choice: [2, 3]}\n    strategy: {choice"
    document = parse_document(SPEC.replace("    strategy: {choice", workers), "x")
    counts = (3, 3, 2, 3, 3, 2, 3, 3, 3, 2)
    draws = [{"resources.workers": count} for count in counts]
    monkeypatch.setattr(sweep_progress, "drawn", lambda *_: iter(draws))
    monkeypatch.setattr(sweep_progress, "MOST_LEFT_OUT", 3)
    found = planned_trials(document, read_search(document), 0)
    numbers = [each.plan and each.plan.index for each in found]
    assert numbers == [None, None, 0, None, None, 1, None, None, None]
    assert [each.values for each in found] == draws[:-1]


def test_synthetic_sets_of_every_data_set_that_may_be_drawn(tmp_path: Path) -> None:
    text = SPEC.replace("data: digits\n", "")
    text = text.replace("  scheduler", "    data: {choice: DATA}\n  scheduler")
    data = f"[{{name: mnist, root: {tmp_path}/m}}, digits, {{name: cifar10, root: {tmp_path}/c}}]"
    text = (
        text.replace("DATA", data)
        + "synthetic_data: {mnist: {images: 90}, cifar10: {images: 80}}\n"
    )
    found = synthetic_sets_of(Path(spec_file(tmp_path, text)), None)
    assert [folder.parent for _, folder in found] == [tmp_path / "m", tmp_path / "c"]


def test_a_key_is_named_by_its_last_part_where_that_is_unique() -> None:
    assert key_names(["optimizer.lr", "strategy", "schedule.name"]) == {
        "optimizer.lr": "lr",
        "strategy": "strategy",
        "schedule.name": "schedule",
    }
    assert key_names(["model.options.width", "data.options.width"]) == {
        "model.options.width": "model.options.width",
        "data.options.width": "data.options.width",
    }


class Stage:
    """A sweep's results folder and a console that is looked at."""

    def __init__(self, folder: Path, text: str = SPEC, **shown: bool) -> None:
        self.document = parse_document(text, "x")
        self.search = read_search(self.document)
        self.results = create_sweep(self.document, folder)
        self.now = 0.0
        self.plans = [
            trial_plan(self.document, values, number, gpus=0)
            for number, values in enumerate(drawn(self.search))
        ]
        self.show(**shown)

    def show(self, terminal: bool = False, quiet: bool = False, js: bool = False) -> None:
        """Begin to show, as a process that is started now does."""
        self.screen = io.StringIO()
        console = Console(
            file=self.screen, force_terminal=terminal, width=110, height=30, color_system=None
        )
        self.progress = SweepProgress(
            self.search.space,
            self.search.wanted,
            count(self.search),
            quiet,
            js,
            console,
            clock=lambda: self.now,
        )

    def make(self, number: int, *records: Record) -> None:
        plan = self.plans[number]
        self.progress.add(plan)
        for record in records:
            stamped = {"time": time.time(), "run_id": plan.run_id}
            Journal(self.results.journal_file(plan.run_id)).write(record.model_copy(update=stamped))

    def early(self, number: int, accuracy: float) -> None:
        plan = self.plans[number]
        pruned = RunPruned(run_id="", by="asha", epoch=0, value=accuracy)
        start = run_records(plan)[0]
        self.make(number, start, verdict(plan), epoch(plan, 0, accuracy=accuracy), pruned)

    def poll(self) -> list[str]:
        """What is new on the screen."""
        before = len(self.screen.getvalue())
        self.progress.poll(self.results)
        return self.screen.getvalue()[before:].splitlines()

    def view(self) -> str:
        """The live part as text."""
        console = Console(width=110, color_system=None, file=io.StringIO())
        with console.capture() as capture:
            console.print(self.progress.view())
        return capture.get()


def test_a_goals_column_is_headed_by_its_figure() -> None:
    heads = {"accuracy": "Accuracy", "time_to_accuracy": "To target", "throughput": "Images/s"}
    assert {goal: _head(goal, CLASSIFICATION) for goal in heads} == heads  # type: ignore[arg-type]


def test_a_log_has_a_line_for_each_trial_that_ended(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    assert stage.poll() == []
    stage.make(0, *run_records(stage.plans[0])[:3])
    assert stage.poll() == []
    stage.make(0, *run_records(stage.plans[0])[3:])
    (line,) = stage.poll()
    rate = stage.plans[0].label["optimizer.lr"]
    assert line.startswith(f"1 of 4  trial 0  lr {rate:.4g} · strategy ")
    assert "finished: validation accuracy 9" in line
    assert ", 3 epochs, " in line
    assert line.endswith("best so far")
    stage.early(1, 0.25)
    (line,) = stage.poll()
    assert "stopped early: validation accuracy 25.0 %, 1 epoch, " in line
    assert "best so far" not in line
    stage.make(2, *run_records(stage.plans[2], LOST))
    (line,) = stage.poll()
    assert line.startswith("3 of 4  trial 2  ")
    assert line.endswith("failed (out of memory): no [red]room[/red]")
    assert "\x1b" not in stage.screen.getvalue()


def test_quiet_tells_failures_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(tmp_path, quiet=True)
    stage.make(0, *run_records(stage.plans[0]))
    stage.make(1, *run_records(stage.plans[1], LOST))
    assert stage.poll() == []
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "failed (out of memory)" in said[0]


def test_json_is_every_record(tmp_path: Path) -> None:
    stage = Stage(tmp_path, js=True)
    stage.make(0, *run_records(stage.plans[0]))
    found = [json.loads(line)["kind"] for line in stage.poll()]
    assert found == ["run_started", "gate_verdict", *["epoch_finished"] * 3, "run_finished"]


def test_what_was_there_before_is_counted_and_not_told_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.make(0, *run_records(stage.plans[0]))
    stop = RunStopped(run_id="", reason="preempted", epoch=1, step=30)
    stage.make(1, *run_records(stage.plans[1])[:3], stop)
    (told, stopped) = stage.poll()
    assert "finished" in told
    assert "in epoch 2, after step 30; it can be resumed" in stopped
    time.sleep(0.01)
    stage.show()
    stage.progress.add(stage.plans[0])
    stage.progress.add(stage.plans[1])
    assert stage.poll() == []
    assert "1 finished · 1 stopped · 2 to go" in stage.view()
    stage.early(2, 0.2)
    (line,) = stage.poll()
    assert "best so far" not in line
    assert line.startswith("2 of 4  trial 2")


def test_the_live_table(tmp_path: Path) -> None:
    stage = Stage(tmp_path, terminal=True)
    assert "4 to go" in stage.view()
    stage.progress.poll(stage.results)
    stage.early(0, 0.3)
    stage.early(1, 0.4)
    stage.make(2, *run_records(stage.plans[2])[:3])
    stage.now = 60.0
    stage.progress.poll(stage.results)
    lines = stage.view().splitlines()
    assert lines[1].split() == ["Trial", "lr", "strategy", "Epoch", "Accuracy", "State"]
    first, best, running = lines[3:6]
    assert "stopped early" in first
    assert best.split()[0] == "*1"
    assert (running.split()[0], running.split()[-1]) == ("2", "running")
    assert " 1/3 " in running
    assert any("best so far (*): trial 1, validation accuracy 40.0 %, with lr" in x for x in lines)
    whole = "2 stopped early · 1 running · 1 to go · about 1 min 00 s left"
    assert whole in "\n".join(lines)


@pytest.mark.parametrize("width", [60, 80, 110, 200])
def test_a_table_fits_the_screen(width: int, tmp_path: Path) -> None:
    more = "    training.label_smoothing: {uniform: [0.0, 0.2]}\n    seed: {randint: [0, 9]}\n"
    stage = Stage(tmp_path, SPEC.replace("  scheduler", more + "  scheduler"))
    stage.early(0, 0.3)
    stage.progress.poll(stage.results)
    shown = stage.progress.trials_table(9, width)
    console = Console(width=width, color_system=None, file=io.StringIO())
    with console.capture() as capture:
        console.print(shown)
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[3].rstrip().endswith("30.0 %   stopped early")
    assert lines[1].split()[-3:] == ["Epoch", "Accuracy", "State"]
    assert ("lr · strategy" in lines[1]) == (width < 100)


def test_a_table_that_is_longer_than_the_screen_keeps_the_best(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SPEC.replace("trials: 4", "trials: 60"), terminal=True)
    for number in range(40):
        stage.early(number, 0.9 if number == 3 else 0.2)
    stage.progress.poll(stage.results)
    numbers = [line.split()[0] for line in stage.view().splitlines()[3:] if line.strip()]
    assert numbers[0] == "*3"
    assert numbers[1:22] == [str(number) for number in range(19, 40)]


def test_several_goals_show_the_front(tmp_path: Path) -> None:
    text = SPEC.replace("  scheduler: asha\n", "  goals: [accuracy, throughput]\n")
    stage = Stage(tmp_path, text, terminal=True)
    by_strategy = {plan.spec.strategy.name: plan.index for plan in stage.plans}
    fast, accurate = by_strategy["ddp"], by_strategy["deepspeed"]  # as the made-up paces have it
    stage.early(fast, 0.4)
    stage.make(accurate, *run_records(stage.plans[accurate]))
    stage.progress.poll(stage.results)
    assert [trial.number for trial in stage.progress.front()] == [accurate, fast]
    assert "Images/s" in stage.view()
    assert f"Pareto front so far (*): trials {accurate}, {fast}" in stage.view()


POPULATION = """\
name: population
model: resnet20
data: digits
strategy: ddp
training: {epochs: 6, global_batch: 64}
resources: {device: cpu}
search:
  trials: 4
  space:
    optimizer.lr: {loguniform: [0.01, 1.0]}
  scheduler: {name: pbt, interval_epochs: 2}
"""


def test_a_key_that_cannot_change_is_told_with_its_line(tmp_path: Path) -> None:
    text = POPULATION.replace("  scheduler", "    resources.workers: {choice: [1, 2]}\n  scheduler")
    done = invoke(spec_file(tmp_path, text), "--dry-run")
    assert done.exit_code == 2
    assert "sweep.yaml:11" in done.stderr
    assert "pbt moves weights" in done.stderr


def test_a_line_tells_whose_weights_were_taken_and_none_that_a_trial_waits(tmp_path: Path) -> None:
    stage = Stage(tmp_path, POPULATION)
    plan = stage.plans[1]
    held = RunStopped(run_id="", reason="interval", epoch=2, step=46)
    begun = [run_records(plan)[0], verdict(plan), *(epoch(plan, n) for n in range(2))]
    stage.make(1, *begun, held)
    assert stage.poll() == []
    assert "paused" in stage.view()
    assert "2/6" in stage.view()
    turn = RunJudged(
        run_id="",
        by="pbt",
        epoch=1,
        value=0.5,
        place=4,
        population=4,
        source="run-0",
        source_trial=0,
        values={"optimizer.lr": 0.123},
    )
    stage.make(1, turn)
    (line,) = stage.poll()
    place = "0 of 4  trial 1  lr 0.123  place 4 of 4 after epoch 2: takes the weights of trial 0"
    assert line == place
    assert "0.123" in stage.view()
    kept = turn.model_copy(update={"source": None, "source_trial": None, "place": 1})
    stage.make(0, *begun[:1], held, kept)
    assert stage.poll() == []


def test_who_failed_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Stage(tmp_path, POPULATION).results
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    done = invoke("--resume-from", str(results.folder), "--retry-failed", "--no-mlflow")
    assert done.exit_code == 2
    assert "--retry-failed" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_table_that_is_longer_than_the_screen_keeps_what_is_under_way(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SPEC.replace("trials: 4", "trials: 60"), terminal=True)
    stage.make(1, *run_records(stage.plans[1])[:3])
    for number in (0, *range(2, 40)):
        stage.early(number, 0.9 if number == 3 else 0.2)
    stage.progress.poll(stage.results)
    numbers = [line.split()[0] for line in stage.view().splitlines()[3:] if line.strip()]
    assert numbers[:22] == ["1", "*3", *map(str, range(20, 40))]
