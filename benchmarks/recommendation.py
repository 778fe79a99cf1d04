"""Compare the choices that `recommend` would have made before the laptop form of DDLBench was
measured with these measurements. Writes results/recommendation.md, and prints it.

    raysuite data make experiments/ddlbench.yaml --scale laptop
    raysuite run experiments/ddlbench.yaml --scale laptop repeats=2
    python benchmarks/recommendation.py results/ddlbench-laptop/DATE-TIME [ALONE]

For each network, a calibration is made from all runs of the other networks and from its own runs on
one worker. ALONE has further runs on one worker, with other batches; if it is not given, these are
made first, next to the study (48 runs, some 20 minutes on 2 cores). Of a network's five rows for a
data set, the four rows with several workers are predicted.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from prediction import line, markdown, ranking

from raysuite.perf.calibration import calibrate
from raysuite.perf.costs import strategy_kind, work_name
from raysuite.perf.prediction import predict
from raysuite.plan.simulation import pipeline_seconds
from raysuite.records import Results, RunFigures, results_figures
from raysuite.records.names import Plan

SPEC = Path(__file__).parents[1] / "experiments" / "ddlbench.yaml"
SIZES = {"mnist": (28, 16), "cifar10": (32, 8), "imagenet": (72, 4), "highres": (104, 4)}
"""Data set -> image size in pixels, and the study's images per worker."""


def alone(folder: Path) -> list[RunFigures]:
    """Make runs on one worker with half the study's batch, and with its batch in two micro-batches.
    With the study's run, they separate the costs of an image, a pass and an update."""
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
    """The name of a row of the study."""
    schedule = plan["spec"]["strategy"].get("schedule")
    return f"{schedule or strategy_kind(plan)} x {plan['workers']}"


def compare(study: Sequence[RunFigures], single: Sequence[RunFigures]) -> str:
    """The page as Markdown."""
    variants: dict[str, list[RunFigures]] = {}
    for run in study:
        if run.throughput:
            variants.setdefault(run.variant, []).append(run)
    guessed: dict[str, float] = {}
    for network in dict.fromkeys(run.plan["spec"]["model"]["name"] for run in study):
        own = [run for run in study if run.plan["spec"]["model"]["name"] == network]
        known = [
            *single,
            *(each for each in study if each.workers == 1),
            *(each for each in study if each.workers > 1 and each not in own),
        ]
        found = calibrate(known, ["others"], workers_per_node=2)
        found = found.with_pipelines(known, pipeline_seconds)
        asked = [key for key, runs in variants.items() if runs[0] in own]
        plans = [variants[key][0].plan for key in asked]
        for key, each in zip(asked, predict(plans, found, "others", pipeline_seconds), strict=True):
            if each.throughput:
                guessed[key] = 1 / each.throughput.value
    groups = [variants[key] for key in guessed]
    repeats = [[1 / run.throughput for run in group if run.throughput] for group in groups]
    rows = [row(group[0].plan) for group in groups]
    errors: dict[str, list[float]] = {}
    for name, own_s, guess in zip(rows, repeats, guessed.values(), strict=True):
        errors.setdefault(name, []).append(statistics.mean(own_s) / guess - 1)
    apart = [each / statistics.mean(own) - 1 for own in repeats for each in own if len(own) > 1]
    paces = [
        [
            epoch.steady_seconds / epoch.steady_images
            for run in group
            for epoch in run.epochs
            if epoch.steady_images
        ]
        for group in groups
    ]
    cells = [(work_name(group[0].plan),) for group in groups]
    every = [line(name, each) for name, each in errors.items()]
    every += [line("(repeats about their mean)", apart)] if apart else []
    environment = study[0].started.environment if study[0].started else {}
    return "\n\n".join(
        [
            "# Recommendations for the laptop form of DDLBench",
            "Written by `benchmarks/recommendation.py`. For each network, the calibration has the "
            "other networks' rows, and this network on one worker, also with half the batch and "
            "with the batch in two micro-batches. Runs beside which other programs kept more than "
            "half a core busy are left out. Repeats of a row: at most "
            f"{max(map(len, repeats))}; {environment.get('cpu', {}).get('model', 'CPU')}, 2 cores.",
            ranking(["Network"], cells, rows, list(guessed.values()), repeats, paces),
            "Errors of throughput:",
            markdown(["Row", "median", "90th percentile", "largest"], every),
        ]
    )


def undisturbed(runs: Sequence[RunFigures]) -> list[RunFigures]:
    """The runs during which other programs kept at most half a core busy."""
    return [
        run
        for run in runs
        if max((each for epoch in run.epochs for each in epoch.other_cores), default=0.0) <= 0.5
    ]


def main() -> None:
    study_folder = Path(sys.argv[1])
    study = results_figures(Results.open(study_folder))
    if len(sys.argv) > 2:
        single = results_figures(Results.open(Path(sys.argv[2])))
    else:
        single = alone(study_folder.parent)
    page = compare(undisturbed(study), undisturbed(single))
    file = Path(__file__).parent / "results" / "recommendation.md"
    file.write_text(page + "\n", "utf-8")
    print(page)


if __name__ == "__main__":
    main()
