"""What `recommend` would have said before the laptop form of DDLBench was measured, beside what
was. Writes results/recommendation.md, and prints it.

    make study STUDY=ddlbench SCALE=laptop
    python benchmarks/recommendation.py results/ddlbench-laptop/DATE-TIME [ALONE]

For each network, a calibration is made of what was measured of the other networks, and of this one
on one worker, also with other batches: ALONE, measured first if it is not given, and kept beside
the study (48 runs, some 20 minutes on 2 cores). Of a network's five rows for a data set, four have
several workers: those are predicted.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from prediction import line, markdown, told_apart
from scipy.stats import kendalltau

from raysuite.cli.simulate import pipeline_seconds
from raysuite.perf.calibration import calibrate
from raysuite.perf.costs import strategy_kind, work_name
from raysuite.perf.prediction import predict
from raysuite.records import Results, RunFigures, results_figures
from raysuite.records.names import Plan

SPEC = Path(__file__).parents[1] / "experiments" / "ddlbench.yaml"
SIZES = {"mnist": (28, 16), "cifar10": (32, 8), "imagenet": (72, 4), "highres": (104, 4)}
"""Data set -> pixels, and the study's images per worker."""


def alone(folder: Path) -> list[RunFigures]:
    """Runs on one worker with half the study's batch, and with its batch in two micro-batches: what
    an image, a pass and an update cost can be told apart by them and the study's own run."""
    rows = [
        [1, "ddp", name, size, *batch]
        for name, (size, usual) in SIZES.items()
        for batch in ((usual // 2, 1), (usual, 2))
    ]
    keys = "resources.workers, strategy, data.name, data.image_size, training.batch_per_worker"
    keys += ", training.accumulate"
    text = SPEC.read_text("utf-8")
    head, _, _ = text.partition("      resources.workers, strategy, data.name, data.image_size")
    file, results = folder / "alone.yaml", folder / "alone"
    lines = "".join(f"        - {json.dumps(row)}\n" for row in rows)
    file.write_text(f"{head}      {keys}:\n{lines}", "utf-8")
    words = ["raysuite", "run", str(file), "--scale", "laptop", "--results", str(results)]
    subprocess.run([sys.executable, "-m", *words], check=True)
    return results_figures(Results.open(results))


def row(plan: Plan) -> str:
    """A row of the study."""
    schedule = plan["spec"]["strategy"].get("schedule")
    return f"{schedule or strategy_kind(plan)} x {plan['workers']}"


def compare(study: Sequence[RunFigures], single: Sequence[RunFigures]) -> str:
    """The page."""
    networks = list(dict.fromkeys(run.plan["spec"]["model"]["name"] for run in study))
    lines, regrets, taus, sures, shares = [], [], [], [], []
    errors: dict[str, list[float]] = {}
    for network in networks:
        own = [run for run in study if run.plan["spec"]["model"]["name"] == network]
        known = [
            *single,
            *(each for each in study if each.workers == 1),
            *(each for each in study if each.workers > 1 and each not in own),
        ]
        found = calibrate(known, ["others"], workers_per_node=2)
        found = found.with_pipelines(known, pipeline_seconds)
        cells: dict[str, list[RunFigures]] = {}
        for run in own:
            if run.throughput is not None:
                cells.setdefault(work_name(run.plan), []).append(run)
        for work, runs in cells.items():
            predicted = predict([run.plan for run in runs], found, "others", pipeline_seconds)
            pairs = {
                row(run.plan): (run.throughput, each.throughput.value)
                for run, each in zip(runs, predicted, strict=True)
                if run.throughput and each.throughput
            }
            for name, (measured, guessed) in pairs.items():
                errors.setdefault(name, []).append(guessed / measured - 1)
            chosen = max(pairs, key=lambda name: pairs[name][1])
            best = max(pairs, key=lambda name: pairs[name][0])
            regrets.append(1 - pairs[chosen][0] / pairs[best][0])
            taus.append(float(kendalltau(*zip(*pairs.values(), strict=True)).statistic))
            paces = [
                [
                    each.steady_seconds / each.steady_images
                    for each in run.epochs
                    if each.steady_images
                ]
                for run in runs
                if row(run.plan) in pairs
            ]
            sure, share = told_apart([1 / guessed for _, guessed in pairs.values()], paces)
            sures += [] if sure is None else [sure]
            shares.append(share)
            last = "" if sure is None else f"{sure:.2f} ({share:.0%})"
            names = (work, str(len(pairs)), chosen, best)
            lines.append((*names, f"{regrets[-1]:.1%}", f"{taus[-1]:.2f}", last))
    header = ["Network", "Rows", "Recommended", "Fastest", "Regret", "Tau"]
    every = [line(name, each) for name, each in errors.items()]
    return "\n\n".join(
        [
            "# Recommendations for the laptop form of DDLBench",
            "Written by `benchmarks/recommendation.py`. For each network, the calibration has the "
            "other networks' rows, and this network on one worker, also with half the batch and "
            "with the batch in two micro-batches. A row is measured once, on "
            f"{study[0].started.environment['cpu']['model'] if study[0].started else 'a CPU'}, "
            "2 cores.",
            f"Of {len(regrets)} choices {sum(each == 0 for each in regrets)} were the fastest. "
            "Regret (throughput lost by the recommended one): median "
            f"{statistics.median(regrets):.1%}, mean {statistics.mean(regrets):.1%}, largest "
            f"{max(regrets):.1%}. Kendall's tau-b of the orders: median "
            f"{statistics.median(taus):.2f}, mean {statistics.mean(taus):.2f}, smallest "
            f"{min(taus):.2f}; of the pairs whose measured 95 % intervals over epochs do not meet "
            f"({statistics.mean(shares):.0%} of all): median {statistics.median(sures):.2f}, "
            f"smallest {min(sures):.2f}.",
            markdown([*header, "Of pairs that differ"], lines),
            "Errors of throughput:",
            markdown(["Row", "median", "90th percentile", "largest"], every),
        ]
    )


def main() -> None:
    study_folder = Path(sys.argv[1])
    study = results_figures(Results.open(study_folder))
    if len(sys.argv) > 2:
        single = results_figures(Results.open(Path(sys.argv[2])))
    else:
        single = alone(study_folder.parent)
    page = compare(study, single)
    file = Path(__file__).parent / "results" / "recommendation.md"
    file.write_text(page + "\n", "utf-8")
    print(page)


if __name__ == "__main__":
    main()
