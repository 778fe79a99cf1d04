"""Measure the speed of pipelines, relative to one process and to the limit of their stages.

    python benchmarks/pipelines.py [REPEATS]

ResNet-20 in 2 stages of one thread, with 8 micro-batches, is compared with one process of one
thread that accumulates over the same micro-batches. `raysuite run` makes the runs in rounds, every
second round in reverse order; a round gives one ratio. Writes results/pipelines.json and .md.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from raysuite.measure.environment import environment
from raysuite.records import Results, RunFigures, StagesMeasured, results_figures
from raysuite.spec.schedules import Operation, Schedule, ScheduleName, timeline

HERE = Path(__file__).parent
BATCH, MICRO_BATCHES, STAGES = 128, 8, 2
SCHEDULES: tuple[ScheduleName, ...] = ("model_parallel", "gpipe", "1f1b", "pipedream")
SPEC = f"""
name: pipelines
model: resnet20
data: {{name: digits, image_size: 32}}
optimizer: {{name: sgd, lr: 0.05, momentum: 0.9}}
training: {{epochs: 2, global_batch: {BATCH}, checkpoint_every: 0}}
measure: {{warmup_steps: 3}}
matrix:
  resources.workers, strategy, training.accumulate:
  - [1, single, {MICRO_BATCHES}]
"""


def main(repeats: int) -> int:
    """Run the rounds, print and write the figures; return 1 if a bound below is not met."""
    rows = [
        f"  - [{STAGES}, {{name: pipeline, schedule: {name}, stages: {STAGES}, micro_batches: "
        f"{MICRO_BATCHES}, balance: time}}, {MICRO_BATCHES}]"
        for name in SCHEDULES
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pipelines.yaml"
        file.write_text(SPEC + "\n".join(rows) + f"\nrepeats: {repeats}\n")
        words = ["-m", "raysuite", "run", str(file), "--no-mlflow", "--quiet", "--results", folder]
        subprocess.run([sys.executable, *words], check=True, cwd=folder)
        found = results_figures(Results.open(Path(folder)))
    by_name: dict[str, list[RunFigures]] = {}
    for each in found:
        strategy = each.plan["spec"]["strategy"]
        by_name.setdefault(strategy.get("schedule", strategy["name"]), []).append(each)
    single = [speed(each) for each in by_name.pop("single")]
    table: dict[str, Any] = {}
    for name, runs in by_name.items():
        stages = [stages_of(each) for each in runs]
        ups = [speed(each) / one for each, one in zip(runs, single, strict=True)]
        allowed = [speed(run) / allowed_speed(one) for run, one in zip(runs, stages, strict=True)]
        table[name] = {
            "speed_up": spread(ups),
            "of_allowed": spread(allowed),
            "bubble": spread([statistics.mean(one.bubble) for one in stages]),
            "ideal_bubble": stages[0].ideal_bubble,
            "imbalance": spread([one.imbalance for one in stages]),
            "activation_bytes": [max(one.activation_bytes[w] for one in stages) for w in range(2)],
            "versions": stages[0].versions,
        }
    facts = environment()
    result = {"repeats": repeats, "single_images_per_s": spread(single), "schedules": table}
    (HERE / "results" / "pipelines.json").write_text(
        json.dumps({**result, "environment": facts}, indent=1) + "\n"
    )
    text = markdown(result, facts)
    (HERE / "results" / "pipelines.md").write_text(text)
    print(text)
    met = [
        table["model_parallel"]["speed_up"]["median"] <= 1.05,
        table["gpipe"]["of_allowed"]["median"] >= 0.85,
        max(table["1f1b"]["activation_bytes"]) < max(table["gpipe"]["activation_bytes"]),
    ]
    return 0 if all(met) else 1


def speed(run: RunFigures) -> float:
    """Images per second."""
    assert run.throughput is not None, run.reason
    return run.throughput


def stages_of(run: RunFigures) -> StagesMeasured:
    """The measured times of the stages of a pipeline's run."""
    assert run.stages is not None
    return run.stages


def allowed_speed(measured: StagesMeasured) -> float:
    """Images/s of the schedule with each stage's measured times, instant transfers and no other
    work: batch / ((W + m - 1) t) for gpipe if every stage takes t seconds per micro-batch."""
    schedule = Schedule(
        measured.schedule,  # type: ignore[arg-type]
        measured.micro_batches,
        (1,) * measured.stages,
    )
    passes = measured.steps * measured.micro_batches

    def seconds(operation: Operation) -> float:
        each = {
            "forward": measured.forward_seconds[operation.stage] / passes,
            "backward": measured.backward_seconds[operation.stage] / passes,
            "update": measured.update_seconds[operation.stage] / measured.steps,
        }
        return each[operation.kind]

    few, many = (span(schedule, steps, seconds) for steps in (4, 8))
    return 4 * BATCH / (many - few)


def span(schedule: Schedule, steps: int, seconds: object) -> float:
    """Seconds of `steps` steps of the schedule."""
    slots = timeline(schedule.operations(steps), seconds)  # type: ignore[arg-type]
    return max(own[-1].end for own in slots)


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def markdown(result: dict[str, object], facts: dict[str, object]) -> str:
    """Format the figures as a Markdown page."""

    def cell(each: dict[str, float], style: str = ".2f") -> str:
        return f"{each['median']:{style}} ({each['least']:{style}} to {each['most']:{style}})"

    lines = [
        "# Pipelines on two cores",
        "",
        f"`python benchmarks/pipelines.py` on {facts['cpu']['model']}, "  # type: ignore[index]
        f"{result['repeats']} rounds, median (least to most). ResNet-20, 32 x 32 digits, batch "
        f"{BATCH} in {MICRO_BATCHES} micro-batches, {STAGES} stages with a thread each, Gloo; one "
        f"process with one thread makes {cell(result['single_images_per_s'], '.0f')} images/s.",  # type: ignore[arg-type]
        "",
        "| schedule | speed-up over one process | of what its stages allow | bubble | with equal "
        "stages | slowest stage / mean | activations, MiB | versions |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in result["schedules"].items():  # type: ignore[attr-defined]
        kept = ", ".join(f"{each / 2**20:.2f}" for each in row["activation_bytes"])
        lines.append(
            f"| {name} | {cell(row['speed_up'])} | {cell(row['of_allowed'])} | "
            f"{cell(row['bubble'])} | {row['ideal_bubble']:.2f} | {cell(row['imbalance'])} | "
            f"{kept} | {', '.join(map(str, row['versions']))} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
