"""Runs and a benchmark whose batches are found by trial, as a user starts them."""

from __future__ import annotations

import json

import pytest

from raysuite.records import BatchFound, Results, RunFailed, RunFinished
from raysuite.records.sweep import trials
from tests.integration.workplace import Command, Workplace
from tests.marks import SLOW_MARKS

pytestmark = [*SLOW_MARKS, pytest.mark.thorough, pytest.mark.timeout(1200)]

PATIENCE_S = 900

SPEC = """\
name: found
model: {name: "hungry:Hungry", options: {above: 24}}
data: digits
strategy: ddp
optimizer: {name: sgd, lr: 0.05}
training: {epochs: 1, global_batch: 96, accumulate: auto}
resources: {device: cpu, workers: 2}
matrix: {seed: [0, 1]}
"""
SEARCHED = """\
name: searched
model: {name: "hungry:Hungry"}
data: digits
strategy: ddp
optimizer: {name: sgd, lr: 0.05}
training: {epochs: 1, global_batch: 96, accumulate: auto}
resources: {device: cpu, workers: 2}
search:
  space: {model.options.above: {grid: [24, 0]}}
  searcher: grid
"""
SPOILT = """\
name: spoilt
model: {name: "spoilt:Spoilt"}
data: digits
strategy: ddp
training: {epochs: 1, global_batch: 96, accumulate: auto}
resources: {device: cpu, workers: 2}
search:
  space: {model.options.how: {grid: [raises, hangs]}}
  searcher: grid
  deadline_s: 100
"""
SPOILT_MODEL = """\
import time

from own import Net


class Spoilt(Net):
    def __init__(self, num_classes, in_channels, image_size, how):
        super().__init__(num_classes, in_channels, image_size)
        self.how = how

    def forward(self, images):
        if self.how == "raises":
            raise ValueError("no such images")
        time.sleep(3600)
"""
HUNGRY = """\
import ray.train
import torch
from own import Net


class Hungry(Net):
    def __init__(self, num_classes, in_channels, image_size, above):
        super().__init__(num_classes, in_channels, image_size)
        self.above, self.calls = above, 0

    def forward(self, images):
        self.calls += 1
        if ray.train.get_context().get_world_rank() == 1 and self.training:
            if len(images) > self.above:
                torch.empty(2**60, dtype=torch.uint8)
            if len(images) > self.above - 8 and self.calls > 1:  # in true steps alone
                torch.empty(2**60, dtype=torch.uint8)
        return super().forward(images)
"""


def swept(workplace: Workplace, name: str, spec: str, code: int) -> tuple[Command, Results]:
    """A sweep that has ended with an exit code, and its results."""
    workplace.write(name, spec)
    done = workplace.start("raysuite", "sweep", name, "--no-mlflow")
    assert done.wait(PATIENCE_S) == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done, workplace.results()


def test_a_run_finds_its_batch_where_a_rank_runs_out(workplace: Workplace) -> None:
    workplace.write("hungry.py", HUNGRY)
    workplace.write("found.yaml", SPEC)
    done = workplace.run("raysuite", "run", "found.yaml", "--no-mlflow")
    results = workplace.results()
    plans = results.plans()
    # 24 fits the second rank by itself; in steps 16 does, in workers that are started anew
    assert [(plan["micro_batch"], plan["accumulate"]) for plan in plans] == [(16, 3), (16, 3)]
    for plan in plans:
        first, *_, last = results.records(plan["run_id"])
        assert isinstance(first, BatchFound)
        assert isinstance(last, RunFinished)
        together = [each for each in first.tried if each.stage == "together"]
        assert [(each.micro_batch, each.fits) for each in together] == [(24, False), (16, True)]
        assert (first.bound, first.global_batch) == ("memory", 96)
    assert "a micro-batch of 48 does not fit: out of memory on rank 1" in done.stderr
    assert "micro-batch 16 x 3 on each worker" in " ".join(done.stdout.split())
    assert not list(results.folder.parent.glob(".batches-*"))


def test_each_trial_of_a_sweep_finds_its_own(workplace: Workplace) -> None:
    workplace.write("hungry.py", HUNGRY)
    done, results = swept(workplace, "searched.yaml", SEARCHED, 0)
    assert results.folder.parent.name == "searched"
    narrow, starved = results.plans()
    assert (narrow["micro_batch"], narrow["accumulate"]) == (16, 3)
    first, *others, last = results.records(narrow["run_id"])
    assert isinstance(first, BatchFound)
    assert isinstance(last, RunFinished)
    assert not any(isinstance(record, BatchFound) for record in others)
    assert first.micro_batch == 16
    (failed,) = results.records(starved["run_id"])
    assert isinstance(failed, RunFailed)
    assert failed.reason == "out_of_memory"
    assert "no batch size was found that fits into memory" in failed.message
    assert [trial.status for trial in trials(results)] == ["finished", "failed"]
    assert "trial 0  above 24  finished" in done.stdout
    assert not list((results.folder / "batches").glob(".batches-*"))


def test_trials_whose_batch_cannot_be_found_say_why(workplace: Workplace) -> None:
    workplace.write("spoilt.py", SPOILT_MODEL)
    _, results = swept(workplace, "spoilt.yaml", SPOILT, 1)
    ends = [results.records(plan["run_id"]) for plan in results.plans()]
    assert [len(records) for records in ends] == [1, 1]
    (raised,), (late,) = ends
    assert isinstance(raised, RunFailed)
    assert isinstance(late, RunFailed)
    assert (raised.reason, late.reason) == ("error", "deadline")
    assert "the search for its batch size failed" in raised.message
    assert "no such images" in raised.message
    assert late.message == "its batch size was not found within the sweep's deadline_s"
    assert not list((results.folder / "batches").glob(".batches-*"))


def test_a_benchmark_shows_every_size(workplace: Workplace) -> None:
    workplace.write("hungry.py", HUNGRY)
    workplace.write("found.yaml", SPEC)
    words = ["found.yaml", "model.options.above=1000", "--at-most", "8", "--json"]
    done = workplace.run("raysuite", "bench", "batch", *words)
    (search,) = json.loads(done.stdout)["searches"]
    assert search["name"] == "hungry:Hungry · ddp · 2 workers"
    sizes = {each["micro_batch"]: each for each in search["sizes"]}
    assert max(sizes) == search["largest"] == 8
    assert all(each["fits"] and each["images_per_second"] for each in sizes.values())
    assert len(sizes[search["fastest"]]["images_per_second"]) == 3
