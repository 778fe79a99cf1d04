"""Compute a run's figures from its Records; `docs/explanation/method.md` defines each figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from pydantic import BaseModel

from raysuite.records.batch_trials import BatchFound
from raysuite.records.ends import STOPPED, RunEnd, RunFailed, RunFinished, RunPruned, RunStopped
from raysuite.records.journal import Results
from raysuite.records.names import (
    Plan,
    epoch_units,
    run_name,
    script_name,
    target_of,
    task_of,
    variant_name,
)
from raysuite.records.run_costs import Costs, run_costs
from raysuite.records.schema import (
    EpochFinished,
    GateVerdict,
    Record,
    RunCosts,
    RunStarted,
    SamplesSkipped,
    ScriptMeasured,
    StagesMeasured,
    TimeShares,
)
from raysuite.spec.strategies import STRATEGY_OPTIONS
from raysuite.spec.tasks import TaskFacts

# A run in several attempts.

_OF_AN_ATTEMPT = (
    RunFinished,
    RunFailed,
    RunPruned,
    RunStopped,
    SamplesSkipped,
    StagesMeasured,
    TimeShares,
    RunCosts,
    ScriptMeasured,
)
"""Kinds of Records that describe one attempt; those of earlier attempts do not count."""


def current(records: Iterable[Record]) -> list[Record]:
    """The Records of a run, in order, without those that a resumed attempt replaced.

    A RunStarted whose first epoch is k replaces the Records of epochs from k on, and the previous
    attempt's Records of the kinds in _OF_AN_ATTEMPT. If an epoch was recorded twice, the later
    Record counts.
    """
    counted: list[Record] = []
    for record in records:
        if isinstance(record, RunStarted):
            first = record.first_epoch
            counted = [
                r
                for r in counted
                if not isinstance(r, _OF_AN_ATTEMPT)
                and not (isinstance(r, EpochFinished) and r.epoch >= first)
            ]
        elif isinstance(record, EpochFinished):
            counted = [
                r for r in counted if not (isinstance(r, EpochFinished) and r.epoch == record.epoch)
            ]
        counted.append(record)
    return counted


# TimeShares -> shares of the profiled window, per worker.


@dataclass(frozen=True)
class Shares:
    """Shares of the profiled steps' time, in [0, 1]. Lists hold one value per worker, by rank.

    On each worker, computation + communication_exposed + data_exposed + other = 1.
    """

    computation: list[float]
    communication: list[float]
    """Share of the time in which a collective is in progress; the worker may compute meanwhile."""
    communication_exposed: list[float]
    data: list[float]
    """Share of the time in which the loop waits for its loader; the device may compute
    meanwhile."""
    data_exposed: list[float]
    other: list[float]
    slowest: int
    """The rank with the least exposed communication. The exposed communication of other ranks
    includes waiting for this rank."""


def run_shares(record: TimeShares | None) -> Shares | None:
    """The shares of one run; None if nothing was profiled."""
    if record is None or not record.window_seconds or min(record.window_seconds) <= 0:
        return None
    computation, communication, waits, data, loads = (
        [part / window for part, window in zip(seconds, record.window_seconds, strict=True)]
        for seconds in (
            record.computation_seconds,
            record.communication_seconds,
            record.communication_exposed_seconds,
            record.data_seconds,
            record.data_exposed_seconds,
        )
    )
    other = [max(0.0, 1 - sum(each)) for each in zip(computation, waits, loads, strict=True)]
    slowest = waits.index(min(waits))
    return Shares(computation, communication, waits, data, loads, other, slowest)


Value = TypeVar("Value")
Kind = TypeVar("Kind", bound=BaseModel)

Status = Literal["finished", "failed", "pruned", "stopped", "missing"]
STATUS_WORDS: dict[Status, str] = {
    "finished": "finished",
    "failed": "failed",
    "pruned": "stopped early",
    "stopped": "stopped",
    "missing": "missing",
}
"""Status -> its text for reports."""

Gate = Literal["passed", "failed", "not checked", "not needed", "not asked", "not decidable"]
""""not needed": the run has one process. Only scripts can have "not asked" (without `--check`) and
"not decidable" (nothing could be compared)."""


_MAY_TELL_SPEED: tuple[Gate, ...] = ("passed", "not needed", "not asked", "not decidable")


@dataclass(frozen=True)
class RunFigures:
    """The figures of one run. A figure is None if it was not measured, or may not be reported.

    `raysuite.records.metrics` defines each figure and its unit. The throughput, and all times
    except `compile_seconds`, are None if `gate` is "failed" or "not checked".
    """

    plan: Plan
    status: Status
    """pruned: a sweep's scheduler ended the run early. stopped: the run can be resumed. missing: no
    end is recorded; the run was not started, still runs, or was killed."""
    reason: str
    """Why the run did not finish; empty for a finished run."""
    gate: Gate
    verdict: GateVerdict | None
    started: RunStarted | None
    end: RunEnd | None
    skipped: tuple[SamplesSkipped, ...]
    """The Records of the samples left out of each split; empty unless the spec sets
    `data.bad_samples: skip`."""
    epochs: tuple[EpochFinished, ...]
    """One Record for each epoch, in order, without the Records that a resumed attempt replaced."""
    throughput: float | None
    epoch_seconds: float | None
    data_wait_share: float | None
    final: Mapping[str, float]
    """The task's metrics after the last epoch, by name."""
    best: Mapping[str, float]
    """Name of a metric of the task -> its best value over the epochs."""
    time_to_accuracy: float | None
    peak_process_bytes: int | None
    mean_process_bytes: float | None
    grown_process_bytes: int | None
    peak_device_bytes: int | None
    mean_device_bytes: float | None
    other_cores: float | None = None
    epochs_to_accuracy: int | None = None
    compile_seconds: float | None = None
    graph_breaks: int | None = None
    shares: Shares | None = None
    """Shares of the profiled steps' time; None without a profile, or if `may_tell_speed` is
    False."""
    stages: StagesMeasured | None = None
    costs: Costs | None = None
    """Operations, traffic, energy; None if `may_tell_speed` is False."""
    stopped: RunStopped | None = None
    """The Record of the stop that ended the last attempt; None if the attempt ended otherwise."""
    attempts: int = 1
    """Number of times that the run was started or resumed."""
    batch: BatchFound | None = None
    """The result of the search for a batch size; None if the spec gives the size."""
    script: ScriptMeasured | None = None
    """Further measurements of a training script; None for other runs."""

    @property
    def run_id(self) -> str:
        return str(self.plan["run_id"])

    @property
    def name(self) -> str:
        """The variant's name with the repeat."""
        return run_name(self.plan)

    @property
    def variant(self) -> str:
        """The name of the run's variant, which is equal for all its repeats."""
        return variant_name(self.plan)

    @property
    def workers(self) -> int:
        return int(self.plan["workers"])

    @property
    def may_tell_speed(self) -> bool:
        """Whether times and throughput of the run may be reported."""
        return self.gate in _MAY_TELL_SPEED

    @property
    def diverged_at(self) -> int | None:
        """Number, from 1, of the optimiser step at which the run diverged; None if it did not."""
        return self.end.step if isinstance(self.end, RunFailed) else None

    @property
    def skipped_samples(self) -> int | None:
        """Number of samples of both splits that were left out; None unless the spec sets
        `data.bad_samples: skip`."""
        return sum(record.skipped for record in self.skipped) if self.skipped else None

    @property
    def val_samples(self) -> int:
        """Number of samples in the validation set, without samples that were left out."""
        skipped = sum(record.skipped for record in self.skipped if record.split == "val")
        return int(self.plan["dataset"]["val_samples"]) - skipped

    @property
    def task(self) -> TaskFacts:
        return task_of(self.plan)

    @property
    def epoch_units(self) -> int:
        """Number of images, samples or tokens in an epoch: the units that the throughput counts.
        The number of tokens is that of the first epoch, because a plan for the user's own samples
        does not contain the number."""
        counted = self.task.unit == "tokens" and self.epochs
        return self.epochs[0].images if counted else epoch_units(self.plan)

    @property
    def final_primary(self) -> float | None:
        return self.final.get(self.task.primary)

    @property
    def best_primary(self) -> float | None:
        return self.best.get(self.task.primary)

    @property
    def target(self) -> float | None:
        """The target value of the primary metric, as the spec sets it."""
        return target_of(self.plan)


def results_figures(results: Results) -> list[RunFigures]:
    """The figures of every planned run of a results folder, in the order of execution."""
    found: list[RunFigures] = []
    environment: dict[str, Any] = {}
    for plan in results.plans():
        run = run_figures(plan, results.records(plan["run_id"]))
        if run.started is not None:
            started = _sharing(run.started, plan, environment)
            run, environment = replace(run, started=started), started.environment
        found.append(run)
    return found


def _sharing(started: RunStarted, plan: Plan, environment: dict[str, Any]) -> RunStarted:
    """Copy a Record so that it shares equal objects with the plan and the previous run's
    environment. With thousands of runs, unshared objects would take most of the memory."""
    own = {
        key: environment.get(key) if value == environment.get(key) else value
        for key, value in started.environment.items()
    }
    same = plan if started.plan == plan else started.plan
    return started.model_copy(update={"environment": own, "plan": same})


def run_figures(plan: Plan, records: Sequence[Record]) -> RunFigures:
    """The figures of one run, from its plan and all of its Records in the order of writing."""
    counted = current(records)
    started = _last(counted, RunStarted)
    verdict = _last(counted, GateVerdict)
    ends = [r for r in counted if isinstance(r, RunEnd | RunStopped)]
    stopped = ends[-1] if ends and isinstance(ends[-1], RunStopped) else None
    end = ends[-1] if ends and not isinstance(ends[-1], RunStopped) else None
    epochs = tuple(record for record in counted if isinstance(record, EpochFinished))
    status, reason = _status(records, end or stopped)
    script = _last(counted, ScriptMeasured)
    gate = _gate(plan, verdict, end, script)
    may_tell_speed = gate in _MAY_TELL_SPEED
    # a diverged run's times count, its metrics do not; a script's metrics are unknown
    diverged = isinstance(end, RunFailed) and end.reason == "diverged"
    learnt = () if diverged or script_name(plan) else epochs
    timed = epochs if may_tell_speed else ()
    steady = [e for e in timed if e.steady_images == e.images and e.attempts == 1] or list(timed)
    task, target, met = task_of(plan), target_of(plan), None
    if target is not None and may_tell_speed:
        met = next(
            (e for e in learnt if task.main.reaches(e.validation[task.primary], target)), None
        )
    finished = end if isinstance(end, RunFinished) else None
    on_device = finished if finished and max(finished.peak_device_bytes, default=0) > 0 else None
    throughput = _throughput(timed)
    epoch_seconds = None if script_name(plan) else _mean(e.seconds for e in steady)
    profiled = _last(counted, TimeShares) if may_tell_speed else None
    return RunFigures(
        plan=plan,
        status=status,
        reason=reason,
        gate=gate,
        verdict=verdict,
        started=started,
        end=end,
        skipped=tuple(record for record in counted if isinstance(record, SamplesSkipped)),
        epochs=epochs,
        throughput=throughput,
        epoch_seconds=epoch_seconds,
        data_wait_share=_wait_share(steady),
        final=learnt[-1].validation if learnt else {},
        best=_best(task, learnt),
        time_to_accuracy=None if met is None else met.elapsed_seconds,
        peak_process_bytes=_of(finished, lambda end: max(end.peak_process_bytes)),
        mean_process_bytes=_of(finished, lambda end: _mean(end.peak_process_bytes)),
        grown_process_bytes=_of(finished, _growth),
        peak_device_bytes=_of(on_device, lambda end: max(end.peak_device_bytes)),
        mean_device_bytes=_of(on_device, lambda end: _mean(end.peak_device_bytes)),
        other_cores=_other_cores(epochs),
        epochs_to_accuracy=None if met is None else met.epoch + 1,
        compile_seconds=sum(epoch.compile_seconds for epoch in epochs) or None,
        graph_breaks=_graph_breaks(plan, epochs),
        shares=run_shares(profiled),
        stages=_last(counted, StagesMeasured) if may_tell_speed else None,
        costs=run_costs(plan, _last(counted, RunCosts), profiled, steady, epoch_seconds, throughput)
        if may_tell_speed
        else None,
        stopped=stopped,
        attempts=sum(isinstance(record, RunStarted) for record in records),
        batch=_last(records, BatchFound),
        script=script,
    )


def _best(task: TaskFacts, epochs: Sequence[EpochFinished]) -> dict[str, float]:
    found = {}
    for metric in task.metrics:
        values = [e.validation.get(metric.name, math.nan) for e in epochs]
        known = [value for value in values if not math.isnan(value)]
        if known:
            found[metric.name] = max(known, key=lambda value: metric.sign * value)
    return found


def _status(records: Sequence[Record], end: RunEnd | RunStopped | None) -> tuple[Status, str]:
    match end:
        case RunFinished():
            return "finished", ""
        case RunFailed():
            return "failed", f"{end.reason}: {end.message}"
        case RunPruned():
            return "pruned", end.words
        case RunStopped():
            return "stopped", f"{STOPPED[end.reason]}: {end.words}"
    if all(isinstance(record, BatchFound) for record in records):
        return "missing", "was not started"
    return "missing", "has no end on record: it still runs, or was killed"


def _gate(
    plan: Plan, verdict: GateVerdict | None, end: RunEnd | None, measured: ScriptMeasured | None
) -> Gate:
    if isinstance(end, RunFailed) and end.reason == "gate":
        return "failed"
    if verdict is not None:
        return "passed" if verdict.passed else "failed"
    if script := plan["spec"].get("script"):
        if not script.get("check"):
            return "not asked"
        if int(plan["workers"]) == 1:
            return "not needed"
        return "not checked" if measured is None else "not decidable"
    # the gate compares strategies with a single process, which needs no gate
    strategy = STRATEGY_OPTIONS[plan["spec"]["strategy"]["name"]]
    return "not checked" if strategy.gated else "not needed"


def _throughput(epochs: Sequence[EpochFinished]) -> float | None:
    seconds = sum(epoch.steady_seconds for epoch in epochs)
    images = sum(epoch.steady_images for epoch in epochs)
    return images / seconds if seconds > 0 and images else None


def _wait_share(epochs: Sequence[EpochFinished]) -> float | None:
    seconds = sum(epoch.seconds for epoch in epochs)
    waited = sum(_mean(epoch.data_wait_seconds) or 0.0 for epoch in epochs)
    return waited / seconds if seconds > 0 else None


def _other_cores(epochs: Sequence[EpochFinished]) -> float | None:
    known = [epoch for epoch in epochs if epoch.other_cores]
    seconds = sum(epoch.seconds for epoch in known)
    if seconds <= 0:
        return None
    return sum(epoch.seconds * max(epoch.other_cores) for epoch in known) / seconds


def _graph_breaks(plan: Plan, epochs: Sequence[EpochFinished]) -> int | None:
    if not epochs or plan["spec"]["training"].get("compile", "off") == "off":
        return None
    return sum(epochs[-1].graph_breaks.values())


def _growth(end: RunFinished) -> int:
    pairs = zip(end.peak_process_bytes, end.start_process_bytes, strict=True)
    return max(peak - start for peak, start in pairs)


def _of(finished: RunFinished | None, figure: Callable[[RunFinished], Value]) -> Value | None:
    """A figure from the Record of the run's end; None if there is no such Record, or if its lists
    are empty or of unequal length."""
    if finished is None:
        return None
    try:
        return figure(finished)
    except ValueError:
        return None


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None


def _last(records: Sequence[Record], kind: type[Kind]) -> Kind | None:
    return next((record for record in reversed(records) if isinstance(record, kind)), None)
