"""Runs that stop in mid-epoch and are resumed are the runs that were left alone."""

from __future__ import annotations

import os
import pty
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysuite.measure.power_meter import PowerMeter
from raysuite.parallel.base import World
from raysuite.parallel.comm import NoComm
from raysuite.plan import RunPlan
from raysuite.records import (
    EpochFinished,
    Record,
    RunFinished,
    RunPruned,
    RunStarted,
    RunStopped,
    run_figures,
)
from raysuite.train import cost_meter, stop_together
from raysuite.train.checkpoint import LoopState
from raysuite.train.loop import TrainingLoop
from raysuite.train.stop_together import Prune, Signals, Stop, Watch, never
from tests.tiny_model import Tiny
from tests.unit.train.conftest import plan_of, run

ALONE = World(0, 1, 0, torch.device("cpu"))
STEPS = 6
"""Of an epoch of `plan_of`; its validation is two more."""
SAME = (
    *("epoch", "first_step", "losses", "learning_rates", "figures", "images", "train_loss"),
    *("val_loss", "val_accuracy", "val_top5"),
)


@pytest.fixture(autouse=True)
def _asked_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_together, "MEET_SECONDS", 0.0)


class Noisy(Tiny):
    """Draws from all generators, in validation too."""

    def forward(self, images: Tensor) -> Tensor:
        noise = random.random() + float(np.random.random())
        return super().forward(images) + noise * torch.rand(10)


NOISY = {"name": f"{__name__}:Noisy"}


def after(steps: int) -> Callable[[], Stop | None]:
    """Asks to stop so that a run does after as many steps; those of validations count as well."""
    calls = iter(range(steps + 1000))

    def asked() -> Stop | None:
        return Stop("time_limit", 12.5) if next(calls) >= steps - 2 else None

    return asked


def keep_in(folder: Path) -> Callable[[TrainingLoop], None]:
    def checkpoint(loop: TrainingLoop) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        loop.save(folder)

    return checkpoint


def in_parts(plan: RunPlan, folder: Path, stops: Sequence[int]) -> Iterator[list[Record]]:
    """The Records of each attempt of a run that is stopped after so many steps of each."""
    resume = None
    for number, steps in enumerate(stops):
        kept = folder / str(number)
        found = run(plan, resume=resume, checkpoint=keep_in(kept), requested_end=after(steps))
        assert isinstance(found[-1], RunStopped)
        yield found
        resume = kept
    yield run(plan, resume=resume, model_file=folder / "model.pt")


def epochs_of(records: Sequence[Record]) -> list[EpochFinished]:
    return [record for record in records if isinstance(record, EpochFinished)]


@pytest.mark.parametrize(
    ("stops", "changes"),
    [
        ([2], {}),
        ([3, 2], {"training_ema_decay": 0.8, "measure_figures": ["gradient_norm"]}),
        (
            [5],
            {"training_precision": "fp16", "training_accumulate": 2, "training_clip_norm": 1.0},
        ),
        ([6], {}),  # all steps are behind it, and the validation is not
        ([7], {"model": NOISY}),  # in the midst of its validation
        ([2], {"model": NOISY}),
        ([4, 2, 3], {"loader": {"name": "native", "threads": 2}}),
        pytest.param(
            [4],
            {"loader": {"name": "native", "processes": 1}},
            marks=pytest.mark.thorough,
        ),
        ([10], {"optimizer": {"name": "adamw", "lr": 0.01}}),  # in its second epoch
    ],
)
def test_to_the_bit(tmp_path: Path, stops: list[int], changes: dict[str, Any]) -> None:
    """Dropout, running statistics, averages and the trained model included."""
    plan = plan_of(**{"training_batch_per_worker": None, **changes})
    through = run(plan, model_file=tmp_path / "through.pt")
    records = [record for part in in_parts(plan, tmp_path, stops) for record in part]
    expected, found = epochs_of(through), epochs_of(records)
    assert [e.epoch for e in found] == [0, 1]
    for name in SAME:
        assert [getattr(e, name) for e in found] == [getattr(e, name) for e in expected], name
    models = [
        torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("through", "model")
    ]
    assert all(torch.equal(models[0][name], tensor) for name, tensor in models[1].items())


def test_what_is_told_of_it(tmp_path: Path) -> None:
    plan = plan_of()
    first, second = in_parts(plan, tmp_path, [4])
    stopped = first[-1]
    assert isinstance(stopped, RunStopped)
    assert (stopped.reason, stopped.epoch, stopped.step) == ("time_limit", 0, 4)
    assert epochs_of(first) == []
    assert LoopState.read(tmp_path / "0").run_id == plan.run_id
    assert isinstance(second[0], RunStarted)
    assert (second[0].first_epoch, second[0].first_step) == (0, 4)
    assert isinstance(second[-1], RunFinished)
    figures = run_figures(plan.model_dump(mode="json"), [*first, *second])
    assert figures.status == "finished"
    assert len(figures.epochs) == 2


def test_times_add_up_and_each_attempt_warms_up(tmp_path: Path) -> None:
    """Two steps of warm-up each: of 4 and 2 steps, 2 and none are steady."""
    first, second = in_parts(plan_of(), tmp_path, [4])
    epoch, later = epochs_of([*first, *second])
    assert (epoch.attempts, later.attempts) == (2, 1)
    assert epoch.images == 1437
    assert epoch.steady_images == 2 * 240
    assert 0 < epoch.steady_seconds < epoch.seconds
    assert len(epoch.step_seconds) == 2
    assert len(epoch.data_wait_seconds) == 1
    assert 0 < epoch.data_wait_seconds[0] < epoch.seconds
    assert later.steady_images == later.images
    end = first[-1]
    assert epoch.elapsed_seconds > epoch.seconds + epoch.validation_seconds
    assert isinstance(end, RunStopped)


def test_a_validation_that_is_left_takes_its_time(tmp_path: Path) -> None:
    first, second = in_parts(plan_of(), tmp_path, [7])
    assert epochs_of(first) == []
    (epoch, _) = epochs_of(second)
    assert epoch.images == 1437
    state = LoopState.read(tmp_path / "0")
    assert state.so_far.steps == 6
    assert epoch.elapsed_seconds >= state.elapsed_seconds + epoch.validation_seconds


def test_an_epoch_of_two_attempts_is_no_measure_of_an_epoch(tmp_path: Path) -> None:
    plan = plan_of(measure_warmup_steps=0, training_epochs=3)
    records = [record for part in in_parts(plan, tmp_path, [4]) for record in part]
    figures = run_figures(plan.model_dump(mode="json"), records)
    whole = [epoch.seconds for epoch in epochs_of(records)[1:]]
    assert figures.epoch_seconds == pytest.approx(sum(whole) / 2)


def test_energy_of_all_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "powercap" / "intel-rapl:0"
    folder.mkdir(parents=True)
    for name, content in (("name", "package-0"), ("max_energy_range_uj", 10**9), ("energy_uj", 5)):
        (folder / name).write_text(f"{content}\n")
    monkeypatch.setattr(cost_meter, "PowerMeter", partial(PowerMeter, powercap=folder.parent))
    end = PowerMeter.end

    def draw_and_end(meter: PowerMeter) -> Any:
        counter = folder / "energy_uj"
        counter.write_text(f"{int(counter.read_text()) + 1_500_000}\n")
        return end(meter)

    monkeypatch.setattr(PowerMeter, "end", draw_and_end)
    parts = in_parts(plan_of(), tmp_path, [4])
    epoch = epochs_of([record for part in parts for record in part])[0]
    assert epoch.power is not None
    assert epoch.power.host_joules == [pytest.approx(3.0)]


def test_nobody_asks(tmp_path: Path) -> None:
    assert never() is None
    assert isinstance(run(plan_of(), requested_end=never)[-1], RunFinished)


class TestWatch:
    """Of many short steps, by a clock of ours."""

    @pytest.fixture(autouse=True)
    def _clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(stop_together.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(stop_together, "MEET_SECONDS", 1.0)

    def asked_at(self, step_seconds: float, steps: int) -> list[int]:
        """The steps at which rank 0 is asked."""
        return self.asked_over([step_seconds] * steps)

    def asked_over(self, seconds: Sequence[float]) -> list[int]:
        """The same for steps that take `seconds` each."""
        asked: list[int] = []
        taken: list[float] = []
        watch = Watch(lambda: asked.append(len(taken)), ALONE, NoComm())
        for each in seconds:
            self.now += each
            taken.append(each)
            assert watch.step() is None
        watch.end()
        return asked

    def test_about_once_a_second(self) -> None:
        asked = self.asked_at(0.01, 1000)
        assert asked[:2] == [1, 101]
        assert {b - a for a, b in pairwise(asked)} == {100}

    def test_at_each_step_where_steps_are_long(self) -> None:
        assert self.asked_at(3.0, 5) == [1, 2, 3, 4, 5]

    def test_never_rarer_than_a_thousand_steps(self) -> None:
        assert self.asked_at(1e-5, 2500) == [1, 1001, 2001]

    @pytest.mark.parametrize("short", [999, 1000, 1001, 1003])
    def test_steps_of_another_length_have_a_pace_of_their_own(self, short: int) -> None:
        asked: list[int] = []
        count = 0
        watch = Watch(lambda: asked.append(count), ALONE, NoComm())
        for length, steps in [(0.001, short), (0.5, 20)]:  # a validation, then training
            watch.anew()
            for _ in range(steps):
                self.now += length
                count += 1
                assert watch.step() is None
        watch.end()
        late = [each - short for each in asked if each > short]
        assert late[0] == 1
        assert {b - a for a, b in pairwise(late)} <= {1, 2}

    def test_a_slow_beginning_is_made_up_for(self) -> None:
        asked = self.asked_over([5.0, *[0.001] * 3000])
        assert asked[:2] == [1, 2]
        assert 3 <= len(asked) <= 6

    @pytest.mark.parametrize("reason", ["time_limit", "preempted", "interrupted", "down"])
    @pytest.mark.parametrize("deadline", [None, 1_800_000_000.25])
    def test_the_request_arrives_whole(self, reason: Any, deadline: float | None) -> None:
        wanted = Stop(reason, deadline)
        watch = Watch(lambda: wanted, ALONE, NoComm())
        assert [watch.step(), watch.step()] == [None, wanted]

    def test_so_does_the_one_to_prune(self) -> None:
        wanted = Prune("asha", 0.25, "the third of four")
        watch = Watch(lambda: wanted, ALONE, NoComm())
        assert [watch.step(), watch.step()] == [None, wanted]


def test_the_first_signal_gives_the_reason_and_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stop_together.time, "time", lambda: 1000.0)
    with Signals(within_s=60.0, kept=True) as signals:
        signal.raise_signal(signal.SIGUSR1)
        first = signals.request()
        assert first == Stop("time_limit", 1060.0)
        signal.raise_signal(signal.SIGTERM)
        assert signals.request() == first


@pytest.mark.parametrize("kept", [False, True])
def test_a_repeated_signal_has_its_usual_effect_unless_it_is_kept(kept: bool) -> None:
    usual = {number: signal.getsignal(number) for number in stop_together.SIGNALS}
    with Signals(kept=kept):
        signal.raise_signal(signal.SIGUSR1)
        now = {number: signal.getsignal(number) for number in usual}
        same = {number for number in usual if now[number] == usual[number]}
    assert same == (set() if kept else {signal.SIGUSR1})
    assert {number: signal.getsignal(number) for number in usual} == usual


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As nohup leaves SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.request() is None
            signal.raise_signal(signal.SIGTERM)
            assert signals.request() == Stop("interrupted", None)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


LEAVE = """
import os, sys
from raysuite.train.stop_together import _leave_terminal
_leave_terminal()
print([os.readlink(f"/proc/self/fd/{number}") for number in range(3)], file=sys.stderr)
"""


def test_the_streams_of_a_terminal_lead_nowhere_after_it_has_closed_and_others_stay() -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", LEAVE]
    done = subprocess.run(words, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, check=True)
    for each in (ours, theirs):
        os.close(each)
    assert re.match(rb"\['/dev/null', '/dev/null', 'pipe:", done.stderr)


def test_a_run_that_is_pruned_ends_between_steps_without_a_checkpoint(tmp_path: Path) -> None:
    calls = iter(range(1000))

    def asked() -> Prune | None:
        return Prune("asha", 0.25, "so it is") if next(calls) >= STEPS + 3 else None

    def checkpoint(loop: TrainingLoop) -> None:
        raise AssertionError("no checkpoint of a run that is not gone on with")

    plan = plan_of(training_checkpoint_every=0)
    found = run(plan, checkpoint=checkpoint, requested_end=asked)
    end = found[-1]
    assert isinstance(end, RunPruned)
    assert (end.by, end.epoch, end.value, end.message) == ("asha", 0, 0.25, "so it is")
    assert [each.epoch for each in epochs_of(found)] == [0]
