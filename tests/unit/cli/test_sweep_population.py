"""`raysuite sweep` of a population: what it foresees, and what it shows while it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.records import RunJudged, RunStopped
from tests.fake_results import epoch, run_records, verdict
from tests.unit.cli.test_sweep import Stage, invoke, spec_file

SPEC = """\
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


def test_a_dry_run_says_what_becomes_of_them(tmp_path: Path) -> None:
    done = invoke(spec_file(tmp_path, SPEC), "--dry-run")
    assert done.exit_code == 0, done.stderr
    few = "4 trials, a population; after every 2 epochs the worst takes the weights of the best, "
    assert few in done.stdout
    done = invoke(
        spec_file(tmp_path, SPEC.replace("interval_epochs: 2", "interval_epochs: 1")),
        *("--dry-run", "search.trials=8"),
    )
    assert "after every epoch the worst 2 take the weights of the best 2, and oth" in done.stdout


def test_a_key_that_cannot_change_is_told_with_its_line(tmp_path: Path) -> None:
    text = SPEC.replace("  scheduler", "    resources.workers: {choice: [1, 2]}\n  scheduler")
    done = invoke(spec_file(tmp_path, text), "--dry-run")
    assert done.exit_code == 2
    assert "sweep.yaml:11" in done.stderr
    assert "pbt moves weights" in done.stderr


def test_a_line_tells_whose_weights_were_taken_and_none_that_a_trial_waits(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SPEC)
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
    place = "0 of 4  trial 1  lr 0.123  4 of 4 after epoch 2: takes the weights of trial 0"
    assert line == place
    assert "0.123" in stage.view()
    kept = turn.model_copy(update={"source": None, "source_trial": None, "place": 1})
    stage.make(0, *begun[:1], held, kept)
    assert stage.poll() == []


def test_who_failed_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Stage(tmp_path, SPEC).results
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    done = invoke("--resume-from", str(results.folder), "--retry-failed", "--no-mlflow")
    assert done.exit_code == 2
    assert "--retry-failed" in done.stderr
    assert len(done.stderr.splitlines()) == 1
