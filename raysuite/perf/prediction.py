"""Predict the runs of plans from a calibration, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from raysuite.perf.calibration import LEVEL, Calibration, Model
from raysuite.perf.costs import (
    by_kind,
    epoch_terms,
    joules_terms,
    memory_terms,
    replicas,
    work_name,
)
from raysuite.perf.validation import of_plan, words
from raysuite.records.names import Plan, epoch_units, run_name, series_key, task_of
from raysuite.records.predicted import Interval, RunPredicted

FORWARD_SHARE = 1 / 3
"""Share of the forward pass in an image's training: a backward pass takes as long as two forward
passes (Kaplan et al. 2020, arXiv:2001.08361, section 2.1)."""


StepSeconds = Callable[[Plan, Calibration], float]


def predict(
    plans: Sequence[Plan], calibration: Calibration, name: str, simulated: StepSeconds | None = None
) -> list[RunPredicted]:
    """One prediction for each plan, in the order of the plans. `name` is the name of the
    calibration's file; `simulated` returns the simulated seconds of a pipeline's step.

    A plan cannot be predicted if no run of the calibration had its strategy, loader or model, if
    the plan has pipeline stages and the calibration has too few such runs, or if the plan has more
    workers than one node of the calibration. Its prediction then has a message instead of figures.
    """
    found = [_run(plan, calibration, name, simulated) for plan in plans]
    series: dict[str, list[int]] = {}
    for place, plan in enumerate(plans):
        series.setdefault(f"{series_key(plan)}/{plan['repeat']}", []).append(place)
    for places in series.values():
        base = min(places, key=lambda place: int(plans[place]["workers"]))
        for place in places:
            if place != base:
                found[place] = _against(plans, found, place, base)
    return found


def _run(
    plan: Plan, calibration: Calibration, name: str, simulated: StepSeconds | None
) -> RunPredicted:
    unseen = calibration.unseen(plan)
    if unseen:
        message = f"the calibration has no run with {', '.join(unseen)}"
        return RunPredicted(run_id=plan["run_id"], calibration=name, message=message)
    if int(plan["workers"]) > calibration.workers_per_node:
        message = (
            f"the calibration has at most {calibration.workers_per_node} workers on one node, and "
            "no costs of a network between nodes; use `raysuite simulate --network`, which reads "
            "these costs from a file"
        )
        return RunPredicted(run_id=plan["run_id"], calibration=name, message=message)
    work = calibration.works[work_name(plan)]
    model, shares, memory = calibration.seconds, {}, None
    if plan["spec"]["strategy"].get("stages"):
        assert simulated is not None
        assert calibration.pipelines is not None
        # a fraction of a step counts, because `factor` compares times of global_batch samples
        steps = plan["dataset"]["train_samples"] / plan["global_batch"]
        epoch = calibration.pipelines.interval(steps * simulated(plan, calibration))
    else:
        terms = epoch_terms(plan, work, calibration.workers_per_node)
        epoch = interval(model, terms)
        shares = {k: each / epoch.value for k, each in by_kind(model.parts(terms)).items()}
        held = memory_terms(plan, work, calibration.resident)
        if calibration.bytes is not None and held.keys() <= calibration.bytes.costs.keys():
            memory = interval(calibration.bytes, held)
    epochs = int(plan["spec"]["training"]["epochs"])
    each = model.costs[f"image/{work_name(plan)}"]
    validation = FORWARD_SHARE * each * plan["dataset"]["val_samples"] / replicas(plan)
    start, joules = calibration.start, None
    counted = task_of(plan).units_are_known(plan["dataset"].get("sequence"))
    if calibration.joules is not None:
        drawn = joules_terms(plan, epoch.value, calibration.workers_per_node)
        if drawn.keys() <= calibration.joules.costs.keys():
            joules = interval(calibration.joules, drawn, math.log(epoch.high / epoch.value))
    return RunPredicted(
        run_id=plan["run_id"],
        calibration=name,
        level=LEVEL,
        throughput=epoch.inverse(epoch_units(plan)) if counted else None,
        epoch_seconds=epoch,
        run_seconds=Interval(
            epochs * (epoch.value + validation) + start.value,
            epochs * (epoch.low + validation) + start.low,
            epochs * (epoch.high + validation) + start.high,
        ),
        joules=joules,
        memory_bytes=memory,
        shares=shares,
        outside=tuple(calibration.outside(plan)),
        validated=words(of_plan(plan)),
    )


def interval(model: Model, terms: dict[str, float], width: float = 0.0) -> Interval:
    """Prediction interval of a sum of terms. `width`: half-width of the uncertainty of the terms'
    quantities, on the log scale."""
    value = model.value(terms)
    reach = math.exp(math.hypot(model.relative_half_width(terms), width))
    return Interval(value, value / reach, value * reach)


def _against(
    plans: Sequence[Plan], found: Sequence[RunPredicted], place: int, base: int
) -> RunPredicted:
    """The prediction for the plan at `place`, with its speed-up over the plan at `base`. The
    interval assumes that the errors of both predictions are independent."""
    own, other = found[place], found[base]
    if own.throughput is None or other.throughput is None:
        return own
    reach = math.exp(
        math.hypot(
            *(math.log(each.high / each.value) for each in (own.throughput, other.throughput))
        )
    )
    value = own.throughput.value / other.throughput.value
    speed_up = Interval(value, value / reach, value * reach)
    part = int(plans[base]["workers"]) / int(plans[place]["workers"])
    return own.model_copy(
        update={
            "speed_up": speed_up,
            "efficiency": speed_up.times(part),
            "baseline": run_name(plans[base]),
        }
    )
