"""The plots of a suite's report: one declaration for each, in `PLOTS`.

To add a plot, add a function to `PLOTS` that calls `lines`, `bars` or `curves` (builders.py) or
makes a `Plot`, and returns None if there is nothing to draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from raysuite.records import Row, RunFigures, Stat
from raysuite.records.names import script_name, workers_name
from raysuite.records.rows import same_work
from raysuite.records.run_costs import PROJECTED_EPOCHS
from raysuite.records.statistics import accuracy as accuracy_of
from raysuite.records.statistics import summarize
from raysuite.report import plot as p
from raysuite.report import text
from raysuite.report.against import Comparison
from raysuite.report.builders import (
    BATCHES,
    MOST_POINTS,
    Curve,
    Drawing,
    Ideal,
    Made,
    Shown,
    bars,
    by_epoch,
    by_step,
    columns_of,
    curves,
    either,
    end_of,
    headings,
    interval_note,
    lines,
    runs_of,
    shown_metric,
    thinned,
    titled,
    traces_of,
)
from raysuite.report.classes import confusion
from raysuite.report.facets import WORK, facets, shared, telling, written
from raysuite.report.plot import Layer, Plot, Style, Trace
from raysuite.report.tables import goal, primary


def make_plots(rows: Sequence[Row], comparison: Comparison | None = None) -> list[Plot]:
    """The plots that have anything to draw, in the order of the page."""
    drawing = Drawing(rows, comparison)
    return [plot for draw in PLOTS if (plot := draw(drawing)) is not None]


# Throughput.

MOST_COMPARED = 30
"""Largest number of rows of a group in the plot of ratios to the best row."""
FARTHEST = 1.5
"""Largest ratio on the axis. Intervals of two or three repeats can reach far beyond it."""
FOREST = [
    p.layer(
        "level",
        "rule",
        {"y": {"value": 0}, "y2": {"value": "height"}, "color": {"value": p.NEUTRAL}},
        strokeWidth=1.5,
        strokeDash=[2, 3],
    ),
    p.layer("mean", "rule", p.between("x") | p.TIP, ends=True, strokeWidth=1.5, clip=True),
    p.markers(size=60),
]
"""Points with horizontal intervals, and a vertical line for each trace of the kind `level`."""
_CLOSE, _SLOWER = "the best, or not shown to differ from the best", "shown to be slower"


def _same_in_each(groups: Iterable[Sequence[Row]], name: str) -> bool:
    return all(len({facets(row).get(name) for row in group}) == 1 for group in groups)


def against_best(drawing: Drawing) -> Made:
    """Draw throughputs relative to the best row with the same work and number of workers, with the
    intervals that the summary uses. None if no rows are compared."""
    compared = [row for row in drawing.rows if row.to_best]
    if not compared:
        return None
    names = telling(compared, always=("workers", *WORK))
    across = [name for name in names if _same_in_each(same_work(compared).values(), name)]
    within = [name for name in names if name not in across]
    ordered = sorted(compared, key=lambda row: -(row.to_best.value if row.to_best else 0.0))
    traces: list[Trace] = []
    labels: list[str] = []
    short = text.without_shared_options({written(row, within) or row.name for row in compared})
    panels = headings(compared, across)
    for heading in panels:
        group = [row for row in ordered if written(row, across) == heading][:MOST_COMPARED]
        points: dict[str, list[dict[str, Any]]] = {}
        for row in group:
            found = row.to_best
            assert found is not None
            slower = found.differs_from_one and not row.is_best
            label = short[written(row, within) or row.name]
            ends = {end: end_of(getattr(found, end), 1.0) for end in ("low", "high")}
            if row.is_best:  # relative to itself: 1 by definition
                ends = dict.fromkeys(ends)
            elif ends["high"] is None and ends["low"] is not None:
                ends["high"] = 2 * FARTHEST
            tip = f"{row.name}\n{text.ratio(found)} of the best, {text.stat(row.throughput)}"
            point = {"x": found.value, "y": label, "key": row.name, **ends}
            point["tip"] = f"{tip} {row.task.unit}/s"
            points.setdefault(_SLOWER if slower else _CLOSE, []).append(point)
            labels.append(label)
        traces.append(p.trace("level", [{"x": 1.0, "y": labels[-1]}], panel=heading))
        traces += [p.trace("mean", own, panel=heading, series=s) for s, own in points.items()]
    lows = [low for trace in traces for low in trace.get("low", ()) if low is not None]
    values = [x for trace in traces for x in trace["x"]] + lows
    end = max([1.02, *(high for trace in traces for high in trace.get("high", ()) if high)])
    note = "Throughput / the highest throughput with the same network, data and number of workers"
    if lows:
        note += ". Intervals are at 95 %; this level holds for all rows together."
    else:
        note += ". n = 1: no intervals, so differences may be noise."
    if end > FARTHEST:
        note += " Intervals that reach the right edge extend beyond it."
    if cut := len(compared) - len(labels):
        note += f" {text.count(cut, 'slower variant')} left out."
    return Plot(
        name="against-best",
        title="Against the best",
        note=note,
        description=f"Points from {min(values):.2f} to 1 times the best throughput.",
        traces=traces,
        layers=FOREST,
        x=p.quantity(
            "throughput / best throughput",
            zero=False,
            scale={"domain": [0.95 * min(values), min(end, FARTHEST)]},
        ),
        y=p.labels(list(dict.fromkeys(labels))),
        styles={
            name: style
            for name, style in ((_CLOSE, Style(p.COLORS[0])), (_SLOWER, Style(p.NEUTRAL)))
            if any(trace.get("series") == name for trace in traces)
        },
        panels=panels,
        columns=2,
        height=p.BAR_PX + 2,
        bars_per_label=1,
        wide=len(panels) > 1,
    )


# Speed-up and efficiency.


def _ideal_speed_up(drawing: Drawing) -> Ideal:
    """A function that returns the ideal lines of a panel, one for each number of workers that a
    baseline has."""
    bases = {row.name: row.workers for row in drawing.rows}
    several = len({bases[str(row.baseline)] for row in drawing.rows if row.speed_up}) > 1

    def ideal(inside: Sequence[Row]) -> dict[str, dict[float, float]]:
        found: dict[str, dict[float, float]] = {}
        for base, workers in sorted({(bases[str(row.baseline)], row.workers) for row in inside}):
            name = f"ideal from {workers_name(base)}" if several else "ideal"
            found.setdefault(name, {})[workers] = workers / base
        return found

    return ideal


def _efficiency(drawing: Drawing, name: str, title: str, note: str, line_per: str = "") -> Made:
    return lines(
        drawing,
        name,
        title,
        f"{note} {_baselines(drawing)}",
        Shown(lambda row: row.efficiency, p.quantity("parallel efficiency E")),
        line_per=line_per,
        compared="efficiency",
        ideal=lambda rows: {"ideal": dict.fromkeys(sorted({row.workers for row in rows}), 1.0)},
    )


def training_time(drawing: Drawing) -> Made:
    """Projected training time over workers, as in the papers (Aach et al. 2023)."""
    rows = [row for row in drawing.rows if row.all_epochs_seconds]
    epochs = {int(row.runs[0].plan["spec"]["training"]["epochs"]) for row in rows}
    number = str(epochs.pop()) if len(epochs) == 1 else "all"
    return lines(
        drawing,
        "training-time",
        f"Time of {number} epochs",
        "A projection: the number of epochs in the spec times the mean training time of an epoch, "
        "without validation. Both axes are logarithmic if the numbers of workers differ much.",
        shown_metric(rows, ["all_epochs_seconds"], "training time"),
        panel=("loader", *WORK),
        compared="training_s" if number == str(PROJECTED_EPOCHS) else "",
        log=p.crowded(sorted({row.workers for row in rows})),
    )


def _baselines(drawing: Drawing) -> str:
    named = sorted({str(row.baseline) for row in drawing.rows if row.speed_up})
    return f"Baseline: {named[0]}." if len(named) == 1 else "Baselines are named below the plots."


# Over epochs and steps.

DIFFERS = (
    " If the number of workers differs, BatchNorm normalises different parts of a batch, and "
    "gradients are summed in a different order, so validation results differ a little."
)


def _target_note(drawing: Drawing) -> str:
    found = {r.target for row in drawing.rows for r in row.counted if r.target is not None}
    missed = [r.name for r in drawing.rows if r.counted and not r.time_to_accuracy]
    return (
        f"Target: {_listed(drawing, found)}. Times start before the first sample is loaded, and "
        "are given only if every repeat met the target. Their resolution is one epoch, because "
        f"validation follows each epoch.{f' Not met by {text.listed(missed)}.' if missed else ''}"
    )


def _listed(drawing: Drawing, values: Iterable[float]) -> str:
    write = text.writer(primary(drawing.rows).unit, ())
    return text.listed([write(each) for each in sorted(values)])


def _validation_axis(drawing: Drawing) -> Layer:
    form = "~%" if primary(drawing.rows).unit == "share" else ""
    return p.quantity(f"validation {drawing.task.main.title.lower()}", zero=False, format=form)


def validation(drawing: Drawing, rows: Sequence[Row], name: str, title: str) -> Made:
    """The primary metric over epochs, with its intervals over repeats."""
    facts, metric = drawing.task.main, primary(drawing.rows)
    targets = sorted({run.target for r in rows for run in r.runs if run.target is not None})
    finals = [row.final.mean for row in rows if row.final]
    ends = {min(finals), max(finals)} if finals else ()

    def statistic(values: Sequence[float], runs: Sequence[RunFigures]) -> Stat | None:
        if metric.reduction != "accuracy":
            return summarize(values)
        return accuracy_of(values, min(run.val_samples for run in runs))

    return curves(
        drawing,
        name,
        title,
        f"{facts.note} over the whole validation set, mean over repeats."
        + (f" Dotted: target {_listed(drawing, targets)}." if targets else "")
        + (DIFFERS if len({row.workers for row in rows}) > 1 else ""),
        lambda runs: [by_epoch(run, lambda epoch: epoch.validation[facts.name]) for run in runs],
        x=p.quantity("epochs", tickMinStep=1),
        y=_validation_axis(drawing),
        digits=".2%" if metric.unit == "share" else ".4g",
        statistic=statistic,
        rows=rows,
        targets=targets,
        result=f" Final values lie between {_listed(drawing, ends)}." if finals else "",
    )


def validation_largest(drawing: Drawing) -> Made:
    """The primary metric by epoch, for the rows that have the largest global batch among the rows
    of the same work (`work_key`). None if no series has several batch sizes (Aach et al. 2023,
    Fig. 9)."""
    shown = [row for row in drawing.rows if row.final]
    names = telling(shown, lambda row: row.global_batch, WORK)
    most: dict[str, int] = {}  # by work key
    sizes: dict[str, set[int]] = {}
    for row in shown:
        most[row.work_key] = max(most.get(row.work_key, 0), row.global_batch)
        sizes.setdefault(written(row, names), set()).add(row.global_batch)
    if all(len(batches) < 2 for batches in sizes.values()):
        return None
    rows = [row for row in shown if row.global_batch == most[row.work_key]]
    largest = ", ".join(f"{size:,}" for size in sorted({row.global_batch for row in rows}))
    title = f"{drawing.task.main.title} at the largest batch ({largest})"
    return validation(drawing, rows, f"{drawing.task.main.name}-largest", title)


def loss(drawing: Drawing) -> Made:
    epochs = [epoch for run in runs_of(drawing.rows) for epoch in run.epochs]
    steps = max((epoch.first_step + len(epoch.losses) for epoch in epochs), default=0)
    stretch = math.ceil(steps / MOST_POINTS)
    return curves(
        drawing,
        "loss",
        "Training loss",
        "Mean loss of the global batch in each optimiser step, mean over repeats."
        + (f" Drawn as means of up to {stretch} steps." if stretch > 1 else ""),
        lambda runs: thinned([by_step(run, lambda epoch: epoch.losses) for run in runs]),
        x=p.quantity("optimiser steps"),
        y=p.quantity("training loss"),
        digits=".4f",
        statistic=lambda values, _: summarize(values),
        cut=True,
        width=1.3,
        can_be_log=True,
    )


def _rates(runs: Sequence[RunFigures]) -> list[Curve]:
    run = max(runs, key=lambda run: len(run.epochs))
    [(steps, rates)] = thinned([by_step(run, lambda epoch: epoch.learning_rates)])
    return [([step / run.plan["steps_per_epoch"] for step in steps], rates)]


# Profiled steps.

PARTS = (
    ("computation", "computation", "#0072B2"),
    ("communication_exposed", "exposed communication", "#D55E00"),
    ("data_exposed", "exposed loading", "#009E73"),
    ("other", "other", p.NEUTRAL),
)


def shares(drawing: Drawing) -> Made:
    """Shares of the profiled steps' time (Aach et al. 2023, Table 2); None without a profile."""
    profiled = [row for row in drawing.rows if row.share_computation]
    shown = sorted(profiled, key=lambda row: row.workers)
    if not shown:
        return None
    names = telling(shown, lambda row: row.workers, WORK)
    panels = headings(shown, names)
    traces = []
    for heading in panels:
        rows = [row for row in shown if written(row, names) == heading]
        for order, (part, name, _) in enumerate(PARTS):
            of = shown_metric(rows, [f"share_{part}"], "")
            tips = [f"{of.tip(row)} {name}" for row in rows]
            if part == "communication_exposed":
                whole = (text.stat(row.share_communication, text.percent) for row in rows)
                tips = [f"{tip} (in all {all_of})" for tip, all_of in zip(tips, whole, strict=True)]
            mean = traces_of(rows, of, lambda row: str(row.workers), heading, name)[0]
            traces.append(mean | {"kind": "bar", "order": order, "tip": tips})
    counts = [str(each) for each in sorted({row.workers for row in shown})]
    return Plot(
        name="shares",
        title=titled("Time shares", shared(shown, ("strategy", "loader", "model", "data"))),
        note="Shares of the time of the profiled steps, mean over workers and repeats. Exposed "
        "communication and loading do not overlap with computation; the tooltip of exposed "
        "communication also shows the share of all communication.",
        description="Stacked bars of computation, exposed communication, exposed loading and the "
        "rest, which add up to 100 %.",
        traces=traces,
        layers=p.bars(lying=False, offset=False, stacked=True),
        x=p.labels(counts, "workers", lying=False),
        y=p.quantity("share of the time", format=".0%", scale={"domain": [0, 1]}),
        styles={name: Style(color) for _, name, color in PARTS},
        panels=panels,
        columns=columns_of(shown, names),
        height=220,
        wide=len(panels) > 1,
    )


MOST_STEPS = 8
"""Largest number of pipelines whose step is drawn."""
_PASSES = {"forward": "#2E93CC", "backward": "#D55E00", "update": "#878D96"}


def stages(drawing: Drawing) -> Made:
    """Operations of each stage of a pipeline in one step, as measured; None without a pipeline."""
    measured = [
        (row, found)
        for row in drawing.rows
        if (found := next((run.stages for run in row.runs if run.stages), None))
    ]
    if not measured:
        return None
    traces: list[Trace] = []
    panels = []
    for row, found in measured[:MOST_STEPS]:
        idle = sum(found.bubble) / len(found.bubble)
        panels.append(
            f"{row.name} · bubble {idle:.0%} (with equal stages {found.ideal_bubble:.0%}), slowest "
            f"worker {found.imbalance:.2f} x mean"
        )
        slots = [(worker, slot) for worker, own in enumerate(found.slots) for slot in own]
        first = min((slot.begin for _, slot in slots), default=0.0)
        for kind in _PASSES:
            drawn = [
                {
                    "x": 1e3 * (slot.begin - first),
                    "end": 1e3 * (slot.end - first),
                    "y": f"worker {worker}",
                    "tip": f"{kind} of micro-batch {slot.micro_batch} through stage {slot.stage}: "
                    f"{1e3 * (slot.end - slot.begin):.2f} ms",
                }
                for worker, slot in slots
                if slot.kind == kind
            ]
            if drawn:
                traces.append(p.trace("slot", drawn, panel=panels[-1], series=kind, key=row.name))
    names = sorted({name for trace in traces for name in trace["y"]}, key=lambda n: int(n[7:]))
    encoding = {"x2": {"field": "end"}} | p.TIP
    cut = f" Only the first {MOST_STEPS} of {len(measured)} pipelines are drawn."
    return Plot(
        name="stages",
        title="A step of each pipeline",
        note="One step after the timed training, of the pipeline's first copy in the first run of "
        "a variant; the gaps are the bubble. Each operation was timed separately."
        + (cut if len(measured) > MOST_STEPS else ""),
        description="For each worker, bars of its forward and backward passes and its updates over "
        "the time of one step.",
        traces=traces,
        layers=[p.layer("slot", "bar", encoding, stroke="white", strokeWidth=0.4)],
        x=p.quantity("milliseconds since the start of the step"),
        y=p.labels(names),
        styles={name: Style(color) for name, color in _PASSES.items()},
        panels=panels,
        columns=1,
        height=p.BAR_PX,
        bars_per_label=1,
        wide=True,
    )


PLOTS: tuple[Callable[[Drawing], Made], ...] = (
    lambda d: d.throughput_lines,
    against_best,
    # if no series has several numbers of workers
    lambda d: None if d.throughput_lines else bars(d, *d.throughput, by_work=False),
    # Mahon et al. 2020
    lambda d: either(
        d,
        f"time-to-{goal(d.rows)}",
        f"Time to {goal(d.rows)}",
        _target_note(d),
        d.shown("time_to_accuracy", axis=f"time to the target {primary(d.rows).title.lower()}"),
        compared=f"time_to_{goal(d.rows)}_s",
    ),
    # Aach et al. 2023, Fig. 4
    lambda d: lines(
        d,
        "speed-up",
        "Speed-up",
        f"S = throughput / throughput of the baseline; dotted: ideal. {_baselines(d)}",
        Shown(lambda row: row.speed_up, p.quantity("speed-up S")),
        compared="speed_up",
        ideal=_ideal_speed_up(d),
    ),
    # Aach et al. 2023, Figs. 5 and 7
    lambda d: _efficiency(
        d,
        "efficiency",
        "Parallel efficiency",
        "E = S × workers of the baseline / workers; dotted: ideal.",
    ),
    # Aach et al. 2023, Fig. 6
    lambda d: _efficiency(
        d,
        "efficiency-models",
        "Parallel efficiency per network",
        "One line per network.",
        line_per="model",
    ),
    training_time,
    lambda d: bars(
        d,
        "speed-up-works",
        "Speed-up",
        "Speed-up relative to the baseline of the same network; see the section Baselines.",
        Shown(lambda row: None if row.is_baseline else row.speed_up, p.quantity("speed-up S")),
        by_work=True,
    ),
    lambda d: bars(
        d,
        "epoch-time",
        "Epoch time",
        "Training time on the slowest worker, without validation. Epochs with warm-up steps are "
        "used only if there are no others.",
        d.shown("epoch_seconds", axis="training time per epoch"),
        same_y=False,
    ),
    shares,
    stages,
    lambda d: bars(
        d,
        "data-wait",
        "Waiting for data",
        "Mean over workers. If the share is large, the throughput is limited by the loader, not by "
        "the strategy.",
        d.shown("data_wait_share", axis="share of the epoch's time"),
        by_work=False,
    ),
    # Aach et al. 2023, Fig. 8b
    lambda d: lines(
        d,
        f"{d.task.main.name}-batch",
        f"{d.task.main.title} over global batch",
        f"{d.task.main.note} after the last epoch: {interval_note(row.final for row in d.rows)}.",
        replace(d.shown(primary(d.rows).name), axis=_validation_axis(d)),
        over=BATCHES,
        compared=primary(d.rows).compared,
    ),
    validation_largest,
    lambda d: validation(
        d,
        [row for row in d.rows if not script_name(row.runs[0].plan)],
        d.task.main.name,
        f"Validation {d.task.main.title.lower()}",
    ),
    lambda d: confusion(d.rows),
    loss,
    lambda d: curves(
        d,
        "learning-rate",
        "Learning rate",
        "Learning rate of each optimiser step.",
        _rates,
        x=p.quantity("epochs"),
        y=p.quantity("learning rate"),
        panel=(),
        height=p.PANEL_HEIGHT,
        can_be_log=True,
    ),
    lambda d: bars(
        d,
        "memory",
        "Memory",
        "Peak memory of the worker with the highest peak: device memory or, without devices, "
        "memory of the process, which still holds the libraries of earlier runs.",
        d.shown("peak_device_bytes", "peak_process_bytes", axis="peak memory"),
    ),
    lambda d: bars(
        d,
        "energy",
        "Energy",
        "Energy over the training time of epochs: of devices (measured by NVML) or, without them, "
        "of processors and their memory (measured by RAPL).",
        d.shown("device_joules", "host_joules", axis=f"joules per training {d.task.one}"),
        same_y=False,
    ),
    lambda d: bars(
        d,
        "utilisation",
        "Utilisation of devices",
        "Share of the training time in which a kernel ran on the device, according to NVML; mean "
        "over workers.",
        d.shown("device_busy", axis="share of the training time"),
    ),
)
