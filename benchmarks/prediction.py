"""Predictions of runs that a calibration has not seen, beside their measurements. Writes
results/prediction.md, and prints it.

    raysuite run experiments/calibration.yaml repeats=2
    raysuite run experiments/calibration.yaml --scale held-out repeats=2
    python benchmarks/prediction.py --calibrated RESULTS... --held-out RESULTS...

Compared with three models that have the calibration's runs of one process too: ideal-linear, whose
W workers are W times as fast; Amdahl's law, with the serial part fitted to each network; DDLBench's
equation 1, with latency and bandwidth fitted to each strategy.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau

from raysuite.perf.calibration import (
    Observed,
    calibrate,
    memory_of,
    observed,
    resident_before,
)
from raysuite.perf.costs import (
    fused_bytes,
    memory_terms,
    strategy_kind,
    work_name,
)
from raysuite.perf.prediction import predict
from raysuite.records import Results, results_figures
from raysuite.records.names import Plan, variant_key
from raysuite.records.predicted import RunPredicted
from raysuite.records.statistics import t_quantile

Guess = Callable[[Plan], float]
"""Gives the predicted seconds of a step."""


def ddlbench_data_parallel(
    sequential_s: float,
    workers: int,
    gradient_bytes: float,
    fused: float,
    latency_s: float,
    rate: float,
) -> float:
    """Seconds of a batch by equation 1 of Jansen et al. 2020 ("DDLBench"): computation hides a
    ring all-reduce, except for its last fused buffer. `rate` in bytes per second."""
    hop = latency_s + min(gradient_bytes, fused) / (workers * rate)
    return sequential_s / workers + 2 * (workers - 1) * hop


def cells(folders: Sequence[str], most_other_cores: float) -> dict[str, list[Observed]]:
    """Variant -> its measured runs."""
    found: dict[str, list[Observed]] = {}
    for folder in folders:
        for each in observed(results_figures(Results.open(Path(folder))), most_other_cores):
            found.setdefault(variant_key(each.run.plan), []).append(each)
    return found


def step_seconds(each: Observed) -> float:
    return each.seconds / each.run.plan["steps_per_epoch"]


def baselines(seen: Sequence[Observed], costs: dict[str, float]) -> dict[str, Guess]:
    """The simple models by name, fitted to the calibration's runs `seen`."""
    alone: dict[str, list[tuple[float, float]]] = {}
    for each in seen:
        plan = each.run.plan
        if plan["spec"]["strategy"]["name"] == "single" and plan["accumulate"] == 1:
            point = plan["global_batch"], step_seconds(each)
            alone.setdefault(work_name(plan), []).append(point)

    def sequential(plan: Plan, batch: float) -> float:
        """Seconds of a step in one process: a line over the batch size, through measured steps."""
        slope, start = np.polyfit(*zip(*alone[work_name(plan)], strict=True), 1)
        return float(start + slope * batch)

    serial = {}
    for name in alone:
        shares = [
            2 * step_seconds(each) / sequential(each.run.plan, each.run.plan["global_batch"]) - 1
            for each in seen
            if work_name(each.run.plan) == name and each.run.workers == 2
        ]
        serial[name] = statistics.mean(shares)
    works = {work_name(each.run.plan): each.work for each in seen}

    def amdahl(plan: Plan) -> float:
        share = serial[work_name(plan)] if plan["workers"] > 1 else 0.0
        whole = sequential(plan, plan["global_batch"])
        return whole * (share + (1 - share) / int(plan["workers"]))

    def equation_1(plan: Plan) -> float:
        kind, work = strategy_kind(plan), works[work_name(plan)]
        byte = costs.get(f"byte/{kind}") or 1e-12
        latency = costs.get(f"message/{kind}", 0.0)
        return ddlbench_data_parallel(
            sequential(plan, plan["global_batch"]),
            int(plan["workers"]),
            work.gradient_bytes,
            fused_bytes(plan),
            latency,
            1 / byte,
        )

    return {
        "ideal-linear": lambda plan: sequential(plan, plan["global_batch"]) / int(plan["workers"]),
        "Amdahl": amdahl,
        "equation 1": equation_1,
    }


def line(name: str, errors: Sequence[float]) -> tuple[str, ...]:
    values = np.abs(errors)
    return (
        name,
        f"{np.median(values):.1%}",
        f"{np.quantile(values, 0.9):.1%}",
        f"{values.max():.1%}",
    )


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *lines])


def middle(values: Sequence[float]) -> tuple[float, float]:
    """The ends of the 95 % interval of a mean; infinite for a single value."""
    if len(values) < 2:
        return -math.inf, math.inf
    reach = t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.mean(values)
    return mean - reach, mean + reach


def told_apart(
    guessed: Sequence[float], paces: Sequence[Sequence[float]]
) -> tuple[float | None, float]:
    """Goodman and Kruskal's gamma (1954, J. Am. Stat. Assoc. 49:732) of the guessed order over the
    pairs whose measured 95 % intervals do not overlap, and their share of all pairs. Without other
    pairs it is Kendall's tau. A pair with equal guesses is half right. None without such a pair."""
    ends = [middle(each) for each in paces]
    right = pairs = 0.0
    for a, b in itertools.combinations(range(len(paces)), 2):
        if ends[a][1] < ends[b][0] or ends[b][1] < ends[a][0]:
            sign = (guessed[a] - guessed[b]) * (ends[a][0] - ends[b][0])
            right += 1 if sign > 0 else 0.5 if sign == 0 else 0
            pairs += 1
    every = math.comb(len(paces), 2)
    return (2 * right / pairs - 1 if pairs else None), pairs / every


def ranking(
    header: Sequence[str],
    cells: Sequence[tuple[str, ...]],
    names: Sequence[str],
    guessed: Sequence[float],
    repeats: Sequence[Sequence[float]],
    paces: Sequence[Sequence[float]],
) -> str:
    """Compare the predicted with the measured order of the candidates of each cell, as Markdown.

    All arguments but `header` have an entry per candidate: its cell (values of the columns in
    `header`), its name, and its seconds: guessed, of each repeat, and of each epoch.
    """
    measured = [statistics.mean(each) for each in repeats]
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, key in enumerate(cells):
        groups.setdefault(key, []).append(place)
    lines, regrets, taus, again, sures, shares = [], [], [], [], [], []
    for key, places in groups.items():
        chosen = min(places, key=lambda place: guessed[place])
        best = min(places, key=lambda place: measured[place])
        regrets.append(1 - measured[best] / measured[chosen])
        own = [guessed[n] for n in places]
        taus.append(float(kendalltau(own, [measured[n] for n in places]).statistic))
        alike, twice = "", [n for n in places if len(repeats[n]) > 1]
        if len(twice) > 2:
            first, second = ([repeats[n][which] for n in twice] for which in (0, 1))
            again.append(float(kendalltau(first, second).statistic))
            alike = f"{again[-1]:.2f} ({len(twice)})"
        sure, share = told_apart(own, [paces[n] for n in places])
        sures += [] if sure is None else [sure]
        shares.append(share)
        last = "" if sure is None else f"{sure:.2f} ({share:.0%})"
        found = (f"{regrets[-1]:.1%}", f"{taus[-1]:.2f}", alike, last)
        lines.append((*key, str(len(places)), names[chosen], names[best], *found))
    columns = [
        "Candidates",
        "Recommended",
        "Fastest",
        "Regret",
        "Tau",
        "Of two repeats (candidates)",
    ]
    return "\n\n".join(
        [
            f"Of {len(regrets)} choices {sum(each == 0 for each in regrets)} were the fastest. "
            "Regret (throughput lost by the recommended one): median "
            f"{statistics.median(regrets):.1%}, mean {statistics.mean(regrets):.1%}, largest "
            f"{max(regrets):.1%}. Kendall's tau-b of the predicted and the measured order: "
            f"{spread(taus)}; of the orders of two repeats of {len(again)} cells: {spread(again)}. "
            "Of the pairs whose "
            f"measured 95 % intervals over epochs do not meet ({statistics.mean(shares):.0%} of "
            f"all): {spread(sures)}.",
            markdown([*header, *columns, "Of pairs that differ"], lines),
        ]
    )


def spread(taus: Sequence[float]) -> str:
    if not taus:
        return "none"
    return (
        f"median {statistics.median(taus):.2f}, mean {statistics.mean(taus):.2f}, smallest "
        f"{min(taus):.2f}"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--calibrated", nargs="+", required=True, metavar="RESULTS")
    options.add_argument("--held-out", nargs="+", required=True, metavar="RESULTS")
    options.add_argument("--note", default="", help="how it was measured")
    options.add_argument("--most-other-cores", type=float, default=0.5, metavar="N")
    asked = options.parse_args()
    most = asked.most_other_cores
    seen = [each for group in cells(asked.calibrated, most).values() for each in group]
    found = calibrate([each.run for each in seen], ["calibration"], None, most)
    known = {variant_key(each.run.plan) for each in seen}
    held_out = cells(asked.held_out, most)
    groups = [group for key, group in held_out.items() if key not in known]
    plans = [group[0].run.plan for group in groups]
    predicted = predict(plans, found, "calibration")
    measured = [statistics.mean(each.seconds for each in group) for group in groups]
    steps = [own / plan["steps_per_epoch"] for own, plan in zip(measured, plans, strict=True)]
    errors = [
        own / each.epoch_seconds.value - 1  # error of the throughput
        for own, each in zip(measured, predicted, strict=True)
        if each.epoch_seconds
    ]
    every = [(each, one) for each, group in zip(predicted, groups, strict=True) for one in group]
    inside = [holds(each, one) for each, one in every]
    apart = [
        one.seconds / own - 1
        for own, group in zip(measured, groups, strict=True)
        for one in group
        if len(group) > 1
    ]
    lines = [line("ours", errors)]
    for name, guess in baselines(seen, found.seconds.costs).items():
        made = [guess(plan) for plan in plans]
        lines.append(line(name, [own / each - 1 for own, each in zip(steps, made, strict=True)]))
    if apart:
        lines.append(line("(repeats about their mean)", apart))
    paces = [
        [epoch.steady_seconds / epoch.steady_images for epoch in one.quiet]
        for group in groups
        for one in group
    ]
    within = [each / statistics.mean(own) - 1 for own in paces for each in own if len(own) > 1]
    if within:
        lines.append(line("(epochs of a run about their mean)", within))
    memory, grown = [], []
    for _, one in every:
        assert found.bytes is not None
        before = resident_before(one.run)
        value = found.bytes.value(memory_terms(one.run.plan, one.work, before))
        memory.append(value / memory_of(one.run) - 1)
        if before:
            grown.append((value - before) / (memory_of(one.run) - before) - 1)
    widths = [
        each.throughput.high / each.throughput.value - 1 for each in predicted if each.throughput
    ]
    machine = found.machine.get("cpu", {})
    parts = [
        "# Predictions of runs that were not seen",
        f"Written by `benchmarks/prediction.py`. {machine.get('model', 'CPU')}, "
        f"{machine.get('logical_cores', '?')} cores; calibrated with "
        f"{len(seen)} runs, {len(groups)} other variants with {len(every)} runs predicted."
        + (f" {asked.note}" if asked.note else ""),
        "## Throughput",
        markdown(["Model", "median error", "90th percentile", "largest"], lines),
        f"Of the {len(inside)} runs, {sum(inside) / len(inside):.0%} lie in their 90 % prediction "
        f"interval, which reaches {statistics.median(widths):.0%} above the prediction in the "
        "median.",
        "## Peak memory of a worker",
        markdown(
            ["Model", "median error", "90th percentile", "largest"],
            [line("ours", memory), *([line("(its growth in the run)", grown)] if grown else [])],
        ),
        *(["What a shared worker held before its run is known, and added."] if grown else []),
        "## Recommendations",
        "The candidates of one network, batch and cut into micro-batches are ranked by their "
        "predicted epoch time.",
        ranking(
            ["Network", "Batch", "Micro-batches"],
            [(work_name(p), str(p["global_batch"]), str(p["accumulate"])) for p in plans],
            [f"{strategy_kind(plan)} x {plan['workers']}" for plan in plans],
            [each.epoch_seconds.value for each in predicted if each.epoch_seconds],
            [[each.seconds for each in group] for group in groups],
            [
                [epoch.steady_seconds / epoch.steady_images for one in group for epoch in one.quiet]
                for group in groups
            ],
        ),
        "## Every variant",
        markdown(
            ["Variant", "n", "measured, images/s", "predicted", "error", "interval", "inside"],
            [
                cell(group, each, own)
                for group, each, own in zip(groups, predicted, measured, strict=True)
            ],
        ),
    ]
    file = Path(__file__).parent / "results" / "prediction.md"
    file.write_text("\n\n".join(parts) + "\n", "utf-8")
    print("\n\n".join(parts))


def holds(predicted: RunPredicted, one: Observed) -> bool:
    assert predicted.epoch_seconds is not None
    return predicted.epoch_seconds.low <= one.seconds <= predicted.epoch_seconds.high


def cell(group: Sequence[Observed], predicted: RunPredicted, seconds: float) -> tuple[str, ...]:
    assert predicted.throughput is not None
    plan = group[0].run.plan
    speed = plan["dataset"]["train_samples"] / seconds
    value, low, high = predicted.throughput
    name = (
        f"{work_name(plan)} · {strategy_kind(plan)} x {plan['workers']} · {plan['global_batch']}"
        f" in {plan['accumulate']}"
    )
    return (
        name,
        str(len(group)),
        f"{speed:,.0f}",
        f"{value:,.0f}",
        f"{value / speed - 1:+.1%}",
        f"{low:,.0f} to {high:,.0f}",
        "yes" if all(holds(predicted, one) for one in group) else "no",
    )


if __name__ == "__main__":
    main()
