"""Compare simulated with measured steps of pipelines. Costs come from runs without pipelines, and
from small pipelines, which give the times of a network's blocks and the overhead of an operation.
Writes results/simulation.md, and prints it.

    python benchmarks/simulation.py                  measures first: 8 to 13 minutes on 2 cores
    python benchmarks/simulation.py RESULTS          uses earlier measurements

ResNet-20 has 2 or 4 stages. With 4 workers on 2 cores, the simulation shares the cores too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from raysuite.perf.calibration import calibrate
from raysuite.plan import RunPlan
from raysuite.plan.simulation import measured_network, pipeline_seconds, step_of
from raysuite.records import Results, RunFigures, results_figures
from raysuite.records.names import Plan

SPEC = """\
name: simulation
model: resnet20
data: {name: digits, image_size: 16}
training: {epochs: 3, global_batch: 96, checkpoint_every: 0}
resources: {device: cpu}
measure: {warmup_steps: 3, power: "off"}
repeats: 5
matrix:
  resources.workers, strategy, training.global_batch, training.accumulate:
"""
SMALL = "{{name: pipeline, schedule: {}, stages: 2, micro_batches: 2, balance: time}}"
CALIBRATED = [
    *((1, "single", batch, cut) for batch, cut in ((12, 1), (24, 1), (48, 1), (96, 4))),
    *((2, "ddp", batch, cut) for batch, cut in ((24, 1), (48, 1), (96, 1), (96, 2))),
    *((2, SMALL.format(name), 48, 2) for name in ("model_parallel", "gpipe", "pipedream")),
]
"""The last three give the times of blocks and the overhead of an operation."""
SCHEDULES = ("model_parallel", "gpipe", "1f1b", "pipedream", "pipedream_2bw")
COMPARED = [
    (2, "{name: pipeline, schedule: interleaved_1f1b, stages: 4, chunks: 2, micro_batches: 4}"),
    *(
        (stages, f"{{name: pipeline, schedule: {name}, stages: {stages}, micro_batches: 4}}")
        for stages in (2, 4)
        for name in SCHEDULES
    ),
]


def measure(folder: Path) -> Results:
    """Run everything, by torchrun with each number of workers."""
    rows = [*CALIBRATED, *((workers, strategy, 96, 4) for workers, strategy in COMPARED)]
    lines = [f"    - [{', '.join(map(str, row))}]" for row in rows]
    file = folder / "spec.yaml"
    file.write_text(SPEC + "\n".join(lines) + "\n", "utf-8")
    for workers in (1, 2, 4):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
        words = ["-m", "raysuite.train", str(file), "--results", str(folder / "results")]
        words += ["--resume"] if workers > 1 else []  # all in one results folder
        subprocess.run(
            [sys.executable, *launcher, *words],
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )
    return Results.open(folder / "results")


def compare(runs: list[RunFigures]) -> str:
    """The page as Markdown."""
    found = calibrate(runs, ["simulation"], workers_per_node=4)
    known = [run for run in runs if "balance" in run.plan["spec"]["strategy"]]
    found = found.with_pipelines(known, pipeline_seconds)
    groups: dict[str, list[RunFigures]] = {}
    for run in runs:
        strategy = run.plan["spec"]["strategy"]
        if run.throughput is not None and strategy.get("stages") and "balance" not in strategy:
            groups.setdefault(run.variant, []).append(run)
    lines, errors, apart = [], [], []
    for group in groups.values():
        plan = RunPlan.model_validate(group[0].plan)
        step = step_of(plan, found, None, measured_network(plan, found))
        took = [plan.global_batch / run.throughput for run in group if run.throughput]
        measured = float(np.mean(took))
        apart += [abs(each / measured - 1) for each in took]
        errors.append(step.seconds / measured - 1)
        lines.append(
            f"| {name(group[0].plan)} | {plan.workers} | {len(took)} | {measured * 1e3:.1f} ms | "
            f"{step.seconds * 1e3:.1f} ms | {errors[-1]:+.1%} | {step.idle:.0%} |"
        )
    operations = ", ".join(f"{each * 1e3:.2f} ms ({k})" for k, each in found.operations.items())
    values = np.abs(errors)
    machine = found.machine.get("cpu", {})
    return "\n".join(
        [
            "# Simulated pipelines",
            "",
            f"Written by `benchmarks/simulation.py`. {machine.get('model', 'CPU')}, "
            f"{machine.get('logical_cores', '?')} cores; ResNet-20, 16 x 16 digits, batch 96 in 4 "
            "micro-batches. Costs are of runs of `single` and `ddp`; the blocks of a stage take "
            "shares of a pass as measured in one process, and an operation costs "
            f"{operations} or {found.operation * 1e3:.2f} ms (other schedules) more, by "
            f"{len(known)} runs of three pipelines of 2 stages with a batch of 48 in 2 "
            "micro-batches. Error of "
            f"{len(errors)} steps: median {np.median(values):.1%}, 90th percentile "
            f"{np.quantile(values, 0.9):.1%}, largest {values.max():.1%}; repeats differ from "
            f"their mean by {np.median(apart):.1%} in the median, {max(apart):.1%} at most.",
            "",
            "| Schedule | Workers | n | measured | simulated | error | idle, simulated |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *lines,
            "",
        ]
    )


def name(plan: Plan) -> str:
    strategy = plan["spec"]["strategy"]
    return f"{strategy['schedule']}, {strategy['stages']} stages"


def main() -> None:
    if sys.argv[1:]:
        text = compare(results_figures(Results.open(Path(sys.argv[1]))))
    else:
        with tempfile.TemporaryDirectory() as folder:
            text = compare(results_figures(measure(Path(folder))))
    (Path(__file__).parent / "results" / "simulation.md").write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
