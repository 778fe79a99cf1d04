"""Every metric of a run, declared once: name, unit, value, reduction over repeats, tables.

Rows, rows.csv, rows.json, MLflow, tables, LaTeX, `--against` and the reference in docs iterate
METRICS. To add a metric, add a `Metric`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from raysuite.records.costs import PROJECTED_EPOCHS
from raysuite.records.derive import RunFigures
from raysuite.records.statistics import Stat, accuracy, summarize

Unit = Literal["images/s", "s", "share", "bytes", "FLOP/s", "B/s", "J/image", ""]
Reduction = Literal["mean", "share", "accuracy", "all"]
"""mean, share: of the runs whose times count, a share in [0, 1]. accuracy: of runs that learnt,
with the interval of a finite validation set. all: a mean of runs that learnt, None where one of
them lacks it: a mean of the others would be biased."""
Table = Literal["variants", "costs", ""]


@dataclass(frozen=True)
class Metric:
    """One metric. It is None where it was not measured, or the gate was not passed."""

    name: str
    """Attribute of a Row."""
    title: str
    """Column of tables."""
    unit: Unit
    note: str
    """What it is, in a sentence."""
    of: Callable[[RunFigures], float | None] | None = None
    """Its value of one run; None: the attribute of that name, of the run or of its costs."""
    reduction: Reduction = "mean"
    needs_gate: bool = True
    """Whether it is withheld where the gate was not passed."""
    key: str = ""
    """In rows.csv, rows.json and against.json; default: the name, ending in `_s` for seconds."""
    mlflow: str = ""
    """In MLflow, below `run/`; default: the name."""
    table: Table = ""
    compared: str = ""
    """What papers' values and `--against` call it; empty where it is not compared."""

    @property
    def column(self) -> str:
        """Its name in files."""
        if self.key:
            return self.key
        return self.name.removesuffix("_seconds") + "_s" if self.unit == "s" else self.name

    def value(self, run: RunFigures) -> float | None:
        """Of one run; None where it may not be reported."""
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
        """Over the repeats of a variant: see `Reduction`."""
        if self.reduction == "accuracy":
            return accuracy((self.value(run) for run in learnt), samples)
        if self.reduction == "all":
            values = [self.value(run) for run in learnt]
            return None if None in values else summarize(values)
        scale: Literal["share", "positive"] = "share" if self.reduction == "share" else "positive"
        return summarize((self.value(run) for run in timed), scale, rounds)


def _share(name: str) -> Callable[[RunFigures], float | None]:
    return lambda run: None if run.shares is None else fmean(getattr(run.shares, name))


def _percentile(percent: int) -> Callable[[RunFigures], float | None]:
    """Of the timed steps of all epochs; None where they are too few to have it: p99 needs 100."""

    def of(run: RunFigures) -> float | None:
        seconds = sorted(each for epoch in run.epochs for each in epoch.step_seconds)
        if len(seconds) * (100 - percent) < 100:
            return None
        place = (len(seconds) - 1) * percent / 100
        low = seconds[int(place)]
        return low + (seconds[min(int(place) + 1, len(seconds) - 1)] - low) * (place % 1)

    return of


_ENERGY = (
    "over the training time of epochs, of all processes that share it: what several workers share "
    "counts once."
)

METRICS: tuple[Metric, ...] = (
    Metric(
        "throughput",
        "Images/s",
        "images/s",
        "Images per second over all workers, warm-up excluded.",
        key="throughput_images_per_s",
        mlflow="images_per_second",
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
    Metric(
        "final_accuracy",
        "Accuracy",
        "share",
        "Top-1 on the validation set after the last epoch.",
        reduction="accuracy",
        needs_gate=False,
        table="variants",
        compared="accuracy",
    ),
    Metric(
        "best_accuracy",
        "Best accuracy",
        "share",
        "Top-1 on the validation set in the best epoch.",
        reduction="accuracy",
        needs_gate=False,
    ),
    Metric(
        "time_to_accuracy",
        "Time to accuracy",
        "s",
        "From before the first sample to the end of the first validation that met the target.",
        reduction="all",
        mlflow="time_to_accuracy_seconds",
        table="variants",
        compared="time_to_accuracy_s",
    ),
    Metric(
        "epochs_to_accuracy",
        "Epochs to accuracy",
        "",
        "Epochs up to and with that validation.",
        reduction="all",
        compared="epochs_to_accuracy",
    ),
    Metric(
        "data_wait_share",
        "Data wait",
        "share",
        "Part of the epochs' time in which a worker waited for its loader, mean over workers.",
        reduction="share",
        table="variants",
        compared="data_wait_share",
    ),
    Metric(
        "peak_process_bytes",
        "Memory",
        "bytes",
        "Largest resident memory of the worker that had most.",
        needs_gate=False,
        table="variants",
        compared="peak_process_bytes",
    ),
    Metric(
        "mean_process_bytes",
        "Mean memory",
        "bytes",
        "Mean over workers of the largest resident memory.",
        needs_gate=False,
    ),
    Metric(
        "grown_process_bytes",
        "Growth of memory",
        "bytes",
        "Largest growth of a worker's resident memory over its start.",
        needs_gate=False,
    ),
    Metric(
        "peak_device_bytes",
        "Device memory",
        "bytes",
        "Largest device memory of the worker that had most.",
        needs_gate=False,
        table="variants",
        compared="peak_device_bytes",
    ),
    Metric(
        "mean_device_bytes",
        "Mean device memory",
        "bytes",
        "Mean over workers of the largest device memory.",
        needs_gate=False,
    ),
    Metric(
        "skipped_samples",
        "Skipped samples",
        "",
        "Samples of both splits left out as unreadable.",
        needs_gate=False,
    ),
    Metric(
        "other_cores",
        "Cores of other programs",
        "",
        "Cores that other programs kept busy, on the busiest worker's machine.",
        needs_gate=False,
    ),
    Metric(
        "projected_seconds",
        f"{PROJECTED_EPOCHS} epochs",
        "s",
        f"{PROJECTED_EPOCHS} epochs: a projection, {PROJECTED_EPOCHS} times the mean training time "
        "of an epoch, without validation.",
        key=f"projected_{PROJECTED_EPOCHS}_epochs_s",
        table="costs",
    ),
    *(
        Metric(
            f"step_p{percent}_seconds",
            f"Step p{percent}",
            "s",
            f"Step p{percent}: {percent} % of the steps after the warm-up took no longer, on the "
            "slowest worker.",
            of=_percentile(percent),
            table="costs",
        )
        for percent in (50, 95, 99)
    ),
    Metric(
        "compile_seconds",
        "Compile",
        "s",
        "Compile: seconds on the slowest worker, by torch.compile, by XLA, or of tracing a step in "
        "TensorFlow; in the time to accuracy, and in no throughput.",
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
    Metric(
        "final_top5",
        "Top-5",
        "share",
        "Top-5 on the validation set after the last epoch; none of five classes or fewer.",
        reduction="accuracy",
        needs_gate=False,
        table="costs",
    ),
    Metric(
        "flops",
        "FLOP/s",
        "FLOP/s",
        "FLOP/s over all workers: three forward passes an image, two operations a multiply-add.",
        key="flop_per_s",
        mlflow="flop_per_second",
        table="costs",
    ),
    Metric(
        "mfu",
        "MFU",
        "share",
        "MFU: those operations as part of the devices' peak rate.",
        reduction="share",
        table="costs",
    ),
    Metric(
        "bus_bandwidth",
        "Bus bandwidth",
        "B/s",
        "Bus bandwidth: what each worker sends in the profiled steps by algorithms that are "
        "optimal in bandwidth, over the time in which a collective is under way.",
        key="bus_bandwidth_bytes_per_s",
        mlflow="bus_bandwidth_bytes_per_second",
        table="costs",
    ),
    Metric(
        "device_busy",
        "Device busy",
        "share",
        "Device busy: part of the training time in which a kernel ran, by NVML.",
        reduction="share",
        table="costs",
    ),
    Metric(
        "device_joules",
        "Device J/image",
        "J/image",
        f"Energy of devices, by NVML, {_ENERGY}",
        key="device_joules_per_image",
        mlflow="device_joules_per_image",
        table="costs",
    ),
    Metric(
        "host_joules",
        "Host J/image",
        "J/image",
        f"Energy of processors and their memory, by RAPL, {_ENERGY}",
        key="host_joules_per_image",
        mlflow="host_joules_per_image",
        table="costs",
    ),
    *(
        Metric(
            f"share_{name}",
            f"Share of {title}",
            "share",
            f"Part of the profiled steps' time, mean over workers: {meaning}.",
            of=_share(name),
            reduction="share",
            compared=compared,
        )
        for name, title, meaning, compared in (
            ("computation", "computation", "the device computes", "share_computation"),
            (
                "communication",
                "communication",
                "a collective is under way, or is waited for",
                "share_communication",
            ),
            (
                "communication_exposed",
                "exposed communication",
                "the same while nothing is computed",
                "",
            ),
            ("data", "I/O", "the loop waits for its loader", "share_io"),
            (
                "data_exposed",
                "exposed loading",
                "the same while nothing is computed or communicated",
                "",
            ),
            ("other", "the rest", "none of these", ""),
        )
    ),
)
BY_NAME = {metric.name: metric for metric in METRICS}
