"""Every metric of a run, declared once: name, unit, value, reduction over repeats, tables.

Rows, rows.csv, rows.json, MLflow, tables, LaTeX, `--against` and the reference in docs iterate over
`metrics_of(task)`. To add a metric, add a `Metric`; only validation metrics are declared in a task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean
from typing import Any, Literal

from raysuite.records.derive import RunFigures
from raysuite.records.names import script_name
from raysuite.records.run_costs import PROJECTED_EPOCHS
from raysuite.records.statistics import Stat, accuracy, summarize
from raysuite.spec.tasks import CLASSIFICATION, MetricFacts, TaskFacts

Unit = Literal[
    "images/s",
    "samples/s",
    "tokens/s",
    "s",
    "share",
    "bytes",
    "FLOP/s",
    "B/s",
    "J/image",
    "J/sample",
    "J/token",
    "",
]
Reduction = Literal["mean", "share", "accuracy", "learnt", "all"]
"""How the values of a variant's repeats are reduced to one. mean: mean over the runs whose times
count. share: the same mean, for values in [0, 1]; its interval stays in [0, 1]. accuracy: mean over
the runs whose metrics count; its interval allows for the finite size of the validation set. learnt:
mean over the runs whose metrics count. all: like learnt, but None if one of these runs lacks the
value, because the mean of the other runs would be biased."""
Table = Literal["variants", "costs", ""]


@dataclass(frozen=True)
class Metric:
    """One metric. Its value is None if it was not measured, or, with `needs_gate`, if the gate
    failed or was not checked."""

    name: str
    """Name of the Row's attribute."""
    title: str
    """Title of the column in tables."""
    unit: Unit
    note: str
    """Its definition, in a sentence."""
    of: Callable[[RunFigures], float | None] | None = None
    """Computes a run's value; if None, the value is the attribute `name` of the run or of its
    costs."""
    reduction: Reduction = "mean"
    needs_gate: bool = True
    """Whether the value is None if the gate failed or was not checked."""
    key: str = ""
    """Key in rows.csv, rows.json and against.json; default: the name, with `_s` for seconds."""
    mlflow: str = ""
    """Key in MLflow, below `run/`; default: the name."""
    table: Table = ""
    compared: str = ""
    """The metric's name in the files with published values and in `--against`; empty if the metric
    is not compared."""
    on_request: bool = False
    """Whether it is measured only if `measure.figures` names it."""

    @property
    def column(self) -> str:
        if self.key:
            return self.key
        return self.name.removesuffix("_seconds") + "_s" if self.unit == "s" else self.name

    def value(self, run: RunFigures) -> float | None:
        """The value of one run; None if it may not be reported."""
        if self.needs_gate and not run.may_tell_speed:
            return None
        if self.of is not None:
            return self.of(run)
        owner = run if hasattr(run, self.name) else run.costs
        value: float | None = getattr(owner, self.name, None)
        return value

    def reduce(
        self, timed: Sequence[RunFigures], learnt: Sequence[RunFigures], samples: int, rounds: Any
    ) -> Stat | None:
        """Reduce the values of a variant's repeats: see `Reduction`."""
        if self.reduction == "accuracy":
            return accuracy((self.value(run) for run in learnt), samples)
        if self.reduction == "learnt":
            return summarize(self.value(run) for run in learnt)
        if self.reduction == "all":
            values = [self.value(run) for run in learnt]
            return None if None in values else summarize(values)
        scale: Literal["share", "positive"] = "share" if self.reduction == "share" else "positive"
        return summarize((self.value(run) for run in timed), scale, rounds)


def _of_steps(name: str, title: str, unit: Unit, note: str, request: str = "") -> Metric:
    """The mean of `Engine.figures[name]` over the last epoch's steps. `request`: a sentence on how
    to request the figure, if it is measured only on request."""
    return Metric(
        name,
        title,
        unit,
        f"{note}, mean over the optimiser steps of the last epoch. {request}".rstrip(),
        of=lambda run: run.epochs[-1].mean_figures.get(name) if run.epochs else None,
        reduction="learnt",
        needs_gate=False,
        on_request=bool(request),
    )


def _share(name: str) -> Callable[[RunFigures], float | None]:
    return lambda run: None if run.shares is None else fmean(getattr(run.shares, name))


def _percentile(percent: int) -> Callable[[RunFigures], float | None]:
    """A function that returns a percentile of the durations of all timed steps, in seconds; None if
    there are too few steps: p99 needs 100."""

    def of(run: RunFigures) -> float | None:
        seconds = sorted(each for epoch in run.epochs for each in epoch.step_seconds)
        if len(seconds) * (100 - percent) < 100:
            return None
        place = (len(seconds) - 1) * percent / 100
        low = seconds[int(place)]
        return low + (seconds[min(int(place) + 1, len(seconds) - 1)] - low) * (place % 1)

    return of


def _all_epochs(run: RunFigures) -> float | None:
    """Training time of all epochs in seconds; None for a script, which has its own epochs."""
    if run.epoch_seconds is None or script_name(run.plan):
        return None
    return run.epoch_seconds * int(run.plan["spec"]["training"]["epochs"])


_ENERGY = (
    "over the training time of epochs; includes the energy of other processes, and counts a device "
    "or host that several workers share once."
)


def _final(task: TaskFacts, metric: MetricFacts, table: Table) -> Metric:
    return Metric(
        f"final_{metric.name}",
        metric.title,
        "share" if metric.unit == "share" else "",
        f"{metric.note}, on the validation set after the last epoch.",
        of=lambda run: run.final.get(metric.name),
        # only metrics of classification are shares of the validation samples
        reduction="accuracy" if task == CLASSIFICATION else "learnt",
        needs_gate=False,
        table=table,
        compared=metric.name if metric == task.main else "",
    )


def _best(task: TaskFacts) -> Metric:
    main = task.main
    return replace(
        _final(task, main, table=""),
        name=f"best_{main.name}",
        title=f"Best {main.title.lower()}",
        note=f"{main.note}, on the validation set in the best epoch.",
        of=lambda run: run.best.get(main.name),
        compared="",
    )


_RATES: dict[str, tuple[Unit, Unit]] = {
    "images": ("images/s", "J/image"),
    "samples": ("samples/s", "J/sample"),
    "tokens": ("tokens/s", "J/token"),
}
"""What the throughput counts -> units of throughput and of energy."""


@cache
def metrics_of(task: TaskFacts = CLASSIFICATION) -> tuple[Metric, ...]:
    """The metrics of runs of a task, in the order of tables."""
    units, article = task.unit, "an" if task.unit[0] in "aeiou" else "a"
    goal = "accuracy" if task == CLASSIFICATION else "target"
    rate, energy = _RATES[units]
    return (
        Metric(
            "throughput",
            f"{units.capitalize()}/s",
            rate,
            f"{units.capitalize()} per second over all workers, warm-up excluded.",
            key=f"throughput_{units}_per_s",
            mlflow=f"{units}_per_second",
            table="variants",
            compared="throughput",
        ),
        Metric(
            "epoch_seconds",
            "Epoch",
            "s",
            "Mean training time of an epoch, without validation.",
            table="variants",
            compared="epoch_s",
        ),
        _final(task, task.main, table="variants"),
        _best(task),
        Metric(
            "time_to_accuracy",
            f"Time to {goal}",
            "s",
            "Time from the start of training, before the first sample is loaded, to the end of the "
            "first validation that met the target.",
            reduction="all",
            key=f"time_to_{goal}_s",
            mlflow=f"time_to_{goal}_seconds",
            table="variants",
            compared=f"time_to_{goal}_s",
        ),
        Metric(
            "epochs_to_accuracy",
            f"Epochs to {goal}",
            "",
            "Number of epochs up to and including the first validation that met the target.",
            reduction="all",
            key=f"epochs_to_{goal}",
            mlflow=f"epochs_to_{goal}",
            compared=f"epochs_to_{goal}",
        ),
        _of_steps(
            "gradient_norm",
            "Gradient norm",
            "",
            "Global L2 norm of the averaged gradients, unscaled and before clipping",
            "Measured only if `measure.figures` names it or `training.clip_norm` is set.",
        ),
        Metric(
            "data_wait_share",
            "Data wait",
            "share",
            "Share of the epochs' time in which a worker waited for its loader, mean over workers.",
            reduction="share",
            table="variants",
            compared="data_wait_share",
        ),
        Metric(
            "peak_process_bytes",
            "Memory",
            "bytes",
            "Peak resident memory of the worker with the highest peak.",
            needs_gate=False,
            table="variants",
            compared="peak_process_bytes",
        ),
        Metric(
            "mean_process_bytes",
            "Mean memory",
            "bytes",
            "Mean over workers of the peak resident memory.",
            needs_gate=False,
        ),
        Metric(
            "grown_process_bytes",
            "Growth of memory",
            "bytes",
            "Growth of the resident memory from the start of the run to its peak, on the worker "
            "with the largest growth.",
            needs_gate=False,
        ),
        Metric(
            "peak_device_bytes",
            "Device memory",
            "bytes",
            "Peak device memory of the worker with the highest peak.",
            needs_gate=False,
            table="variants",
            compared="peak_device_bytes",
        ),
        Metric(
            "mean_device_bytes",
            "Mean device memory",
            "bytes",
            "Mean over workers of the peak device memory.",
            needs_gate=False,
        ),
        Metric(
            "skipped_samples",
            "Skipped samples",
            "",
            "Number of samples of both splits that were left out because they could not be read.",
            needs_gate=False,
        ),
        Metric(
            "other_cores",
            "Cores of other programs",
            "",
            "Number of cores that other programs kept busy during an epoch's training, on the "
            "machine with the largest number; mean over epochs.",
            needs_gate=False,
        ),
        Metric(
            "projected_seconds",
            f"{PROJECTED_EPOCHS} epochs",
            "s",
            f"{PROJECTED_EPOCHS} epochs: a projection, {PROJECTED_EPOCHS} times the mean training "
            "time of an epoch, without validation.",
            key=f"projected_{PROJECTED_EPOCHS}_epochs_s",
        ),
        Metric(
            "all_epochs_seconds",
            "All epochs",
            "s",
            "All epochs: a projection, the spec's number of epochs times the mean training time of "
            "an epoch, without validation.",
            of=_all_epochs,
            table="costs",
        ),
        *(
            Metric(
                f"step_p{percent}_seconds",
                f"Step p{percent}",
                "s",
                f"Step p{percent}: {percent} % of the steps after the warm-up took at most this "
                "time on the slowest worker.",
                of=_percentile(percent),
                table="costs",
            )
            for percent in (50, 95, 99)
        ),
        Metric(
            "compile_seconds",
            "Compile",
            "s",
            "Compile: seconds in which torch.compile or XLA compiled, or TensorFlow traced a step, "
            f"on the slowest worker; included in the time to {goal}, but in no throughput.",
            needs_gate=False,
            table="costs",
        ),
        Metric(
            "graph_breaks",
            "Graph breaks",
            "",
            "Graph breaks: how often torch.compile cut the network's graph.",
            needs_gate=False,
            table="costs",
        ),
        *(
            _final(task, metric, table="costs")
            for metric in task.metrics
            if metric.name != task.primary
        ),
        Metric(
            "flops",
            "FLOP/s",
            "FLOP/s",
            f"FLOP/s over all workers: three forward passes are counted for {article} {task.one}, "
            "and two operations for a multiply-add.",
            key="flop_per_s",
            mlflow="flop_per_second",
            table="costs",
        ),
        Metric(
            "mfu",
            "MFU",
            "share",
            "MFU: FLOP/s divided by the devices' peak rate.",
            reduction="share",
            table="costs",
        ),
        Metric(
            "bus_bandwidth",
            "Bus bandwidth",
            "B/s",
            "Bus bandwidth: bytes that each worker has to send in the profiled steps with "
            "bandwidth-optimal algorithms, divided by the time in which a collective runs.",
            key="bus_bandwidth_bytes_per_s",
            mlflow="bus_bandwidth_bytes_per_second",
            table="costs",
        ),
        Metric(
            "device_busy",
            "Device busy",
            "share",
            "Device busy: share of the training time in which a kernel ran, according to NVML.",
            reduction="share",
            table="costs",
        ),
        Metric(
            "device_joules",
            f"Device J/{task.one}",
            energy,
            f"Energy of the devices per {task.one}, measured by NVML {_ENERGY}",
            key=f"device_joules_per_{task.one}",
            mlflow=f"device_joules_per_{task.one}",
            table="costs",
        ),
        Metric(
            "host_joules",
            f"Host J/{task.one}",
            energy,
            f"Energy of the processors and their memory per {task.one}, measured by RAPL {_ENERGY}",
            key=f"host_joules_per_{task.one}",
            mlflow=f"host_joules_per_{task.one}",
            table="costs",
        ),
        *(
            Metric(
                f"share_{name}",
                f"Share of {title}",
                "share",
                f"Share of the profiled steps' time {meaning}, mean over workers.",
                of=_share(name),
                reduction="share",
                compared=compared,
            )
            for name, title, meaning, compared in (
                (
                    "computation",
                    "computation",
                    "in which the device computes",
                    "share_computation",
                ),
                (
                    "communication",
                    "communication",
                    "in which a collective runs or is waited for",
                    "share_communication",
                ),
                (
                    "communication_exposed",
                    "exposed communication",
                    "in which a collective runs or is waited for, while nothing is computed",
                    "",
                ),
                ("data", "I/O", "in which the loop waits for its loader", "share_io"),
                (
                    "data_exposed",
                    "exposed loading",
                    "in which the loop waits for its loader, while nothing is computed or "
                    "communicated",
                    "",
                ),
                ("other", "the rest", "without computation, communication and loading", ""),
            )
        ),
    )


METRICS = metrics_of()
"""The metrics of classification."""
BY_NAME = {metric.name: metric for metric in METRICS}
