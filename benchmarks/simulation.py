"""Simulated steps of pipelines beside measured ones, from a calibration without any pipeline.
Writes results/simulation.md, and prints it.

    python benchmarks/simulation.py CALIBRATION RESULTS...
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from raysuite.cli.simulate import measured_network, step_of
from raysuite.perf.calibration import Calibration
from raysuite.plan import RunPlan
from raysuite.records import Results, results_figures
from raysuite.records.names import variant_name


def main() -> None:
    calibration = Calibration.read(Path(sys.argv[1]))
    lines, errors = [], []
    for folder in sys.argv[2:]:
        for run in results_figures(Results.open(Path(folder))):
            if run.throughput is None or not run.plan["spec"]["strategy"].get("stages"):
                continue
            plan = RunPlan.model_validate(run.plan)
            step = step_of(plan, calibration, None, measured_network(plan, calibration), 0.0, 1.0)
            measured = plan.global_batch / run.throughput
            errors.append(step.seconds / measured - 1)
            lines.append(
                f"| {variant_name(run.plan)} | {measured * 1e3:.1f} ms | "
                f"{step.seconds * 1e3:.1f} ms | {errors[-1]:+.1%} | {step.idle:.0%} |"
            )
    values = np.abs(errors)
    text = "\n".join(
        [
            "# Simulated pipelines",
            "",
            "Written by `benchmarks/simulation.py`: the layers of a stage share the time of a pass "
            "by their FLOPs, with costs of runs of other strategies. n = 1 each. Error of "
            f"{len(errors)} steps: median {np.median(values):.1%}, 90th percentile "
            f"{np.quantile(values, 0.9):.1%}, largest {values.max():.1%}.",
            "",
            "| Variant | measured | simulated | error | idle, simulated |",
            "| --- | --- | --- | --- | --- |",
            *lines,
        ]
    )
    (Path(__file__).parent / "results" / "simulation.md").write_text(text + "\n", "utf-8")
    print(text)


if __name__ == "__main__":
    main()
