"""What `recommend` would have said before the laptop form of DDLBench was measured, beside what
was. Writes results/recommendation.md, and prints it.

    make study STUDY=ddlbench SCALE=laptop
    python benchmarks/recommendation.py results/ddlbench-laptop/DATE-TIME

For each network, a calibration is made of what was measured of the other networks, and of this one
on one worker: of a network's five rows for a data set, the four with several workers are predicted.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from prediction import line, markdown
from scipy.stats import kendalltau

from raysuite.cli.simulate import pipeline_seconds
from raysuite.perf.calibration import calibrate
from raysuite.perf.costs import strategy_kind, work_name
from raysuite.perf.prediction import predict
from raysuite.records import Results, RunFigures, results_figures
from raysuite.records.names import Plan


def row(plan: Plan) -> str:
    """A row of the study."""
    schedule = plan["spec"]["strategy"].get("schedule")
    return f"{schedule or strategy_kind(plan)} x {plan['workers']}"


def compare(study: Sequence[RunFigures]) -> str:
    """The page."""
    networks = list(dict.fromkeys(run.plan["spec"]["model"]["name"] for run in study))
    lines, regrets, taus = [], [], []
    errors: dict[str, list[float]] = {}
    for network in networks:
        own = [run for run in study if run.plan["spec"]["model"]["name"] == network]
        known = [
            run for run in study if run.workers == 1 or run.plan["spec"]["model"]["name"] != network
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
            lines.append(
                (work, str(len(pairs)), chosen, best, f"{regrets[-1]:.1%}", f"{taus[-1]:.2f}")
            )
    every = [line(name, each) for name, each in errors.items()]
    return "\n\n".join(
        [
            "# Recommendations for the laptop form of DDLBench",
            "Written by `benchmarks/recommendation.py`. For each network, the calibration has the "
            "other networks' rows, and this network's on one worker. A row is measured once, on "
            f"{study[0].started.environment['cpu']['model'] if study[0].started else 'a CPU'}, "
            "2 cores.",
            f"Of {len(regrets)} choices {sum(each == 0 for each in regrets)} were the fastest. "
            "Regret (throughput lost by the recommended one): median "
            f"{statistics.median(regrets):.1%}, mean {statistics.mean(regrets):.1%}, largest "
            f"{max(regrets):.1%}. Kendall's tau-b of the orders: median "
            f"{statistics.median(taus):.2f}, mean {statistics.mean(taus):.2f}, smallest "
            f"{min(taus):.2f}.",
            markdown(["Network", "Rows", "Recommended", "Fastest", "Regret", "Tau"], lines),
            "Errors of throughput:",
            markdown(["Row", "median", "90th percentile", "largest"], every),
        ]
    )


def main() -> None:
    page = compare(results_figures(Results.open(Path(sys.argv[1]))))
    file = Path(__file__).parent / "results" / "recommendation.md"
    file.write_text(page + "\n", "utf-8")
    print(page)


if __name__ == "__main__":
    main()
