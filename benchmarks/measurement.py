"""What measuring costs: raysuite's training loop with all metrics on, over a bare loop.

    make bench            (or: python benchmarks/measurement.py [PAIRS])

Both train the same model through the same engine and loader, with 2 workers under torchrun. On:
losses, learning rates, waits, validation with top-5, memory, energy where it can be read, the
count of operations, the journal, and a profile, whose steps come after those that are timed. Off:
bare_loop.py. The two are run in turn, A B B A ..., so that a drift of the machine meets both
alike, and are compared as the ratio of each pair. Written to benchmarks/results/measurement.json
and .md.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scipy import stats

from raysuite.measure.environment import environment
from raysuite.plan import make_plans
from raysuite.records import Results, RunFigures, run_figures
from raysuite.spec import parse_document

HERE = Path(__file__).parent
WORKERS = 2
SPEC = f"""
name: measurement
model: resnet20
data: {{name: digits, image_size: 16}}
strategy: ddp
optimizer: {{name: sgd, lr: 0.05, momentum: 0.9}}
training: {{epochs: 12, global_batch: 64}}
resources: {{workers: {WORKERS}, device: cpu}}
measure: {{profile: torch, power: auto}}
"""
PAIRS = 7
GOAL = 0.99
"""The least acceptable ratio of steady throughputs."""

Pair = dict[str, float]


def main(pairs: int) -> int:
    """Run the pairs, print and write the figures; 1 if the ratio misses the goal."""
    measured: list[Pair] = []
    metered: set[str] = set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "measurement.yaml").write_text(SPEC)
        plan = make_plans(parse_document(SPEC, "measurement.yaml"))[0]
        (folder / "plan.json").write_text(plan.model_dump_json())
        for number in range(pairs):
            pair: Pair = {}
            for side in ("on", "off") if number % 2 == 0 else ("off", "on"):
                if side == "off":
                    pair["off"] = _off(folder)
                    continue
                figures = _on(folder / f"results-{number}", folder)
                assert figures.throughput is not None, figures.reason
                pair["on"] = figures.throughput
                metered |= _metered(figures)
            measured.append(pair)
            print(f"pair {number + 1} of {pairs}: {_words(pair)}", flush=True)
    result = _summary(measured, sorted(metered))
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "measurement.json").write_text(json.dumps(result, indent=1) + "\n")
    text = _markdown(result)
    (HERE / "results" / "measurement.md").write_text(text)
    print(text)
    return 0 if result["ratio"]["median"] >= GOAL else 1


def _on(results: Path, folder: Path) -> RunFigures:
    _torchrun("-m", "raysuite.train", "measurement.yaml", "--results", results, folder=folder)
    opened = Results.open(results)
    plan = opened.plans()[0]
    return run_figures(plan, opened.records(plan["run_id"]))


def _off(folder: Path) -> float:
    _torchrun(HERE.resolve() / "bare_loop.py", "plan.json", "out.json", folder=folder)
    throughput: float = json.loads((folder / "out.json").read_text())["throughput"]
    return throughput


def _torchrun(*arguments: str | Path, folder: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
    done = subprocess.run(
        [sys.executable, *launch, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{arguments} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def _metered(figures: RunFigures) -> set[str]:
    """Which energy could be read here: without a counter there is nothing to sample."""
    use = [epoch.power for epoch in figures.epochs if epoch.power is not None]
    kinds = {"GPUs": [each.devices for each in use], "processors": [each.hosts for each in use]}
    return {kind for kind, names in kinds.items() if any(map(any, names))}


def _summary(measured: list[Pair], metered: list[str]) -> dict[str, Any]:
    return {
        "off": "benchmarks/bare_loop.py",
        "spec": SPEC,
        "pairs": measured,
        "ratio": _spread([pair["on"] / pair["off"] for pair in measured]),
        "energy_read_of": metered,
        "environment": environment(),
    }


def _spread(values: list[float]) -> dict[str, Any]:
    mean = statistics.fmean(values)
    interval = None
    if len(values) > 1:
        error = statistics.stdev(values) / math.sqrt(len(values))
        half = stats.t.ppf(0.975, len(values) - 1) * error
        interval = [mean - half, mean + half]
    return {
        "n": len(values),
        "median": statistics.median(values),
        "mean": mean,
        "ci95": interval,
        "min": min(values),
        "max": max(values),
    }


def _words(pair: Pair) -> str:
    return (
        f"on {pair['on']:,.0f} images/s, off {pair['off']:,.0f} images/s; "
        f"ratio {pair['on'] / pair['off']:.3f}"
    )


def _markdown(result: dict[str, Any]) -> str:
    facts, ratio = result["environment"], result["ratio"]
    versions = facts["versions"]
    interval = ratio["ci95"] and f"{ratio['ci95'][0]:.3f} to {ratio['ci95'][1]:.3f}"
    cells = [f"{ratio[key]:.3f}" for key in ("median", "mean")]
    cells += [interval or "n = 1: none", f"{ratio['min']:.3f}", f"{ratio['max']:.3f}"]
    read = " and ".join(result["energy_read_of"]) or "nothing, as no counter can be read here"
    hardware = f"{facts['cpu']['model']}, {facts['cpu']['logical_cores']} logical cores"
    return "\n".join(
        [
            "# What measuring costs",
            "",
            "Steady throughput with all metrics on, over the same engine and loader in a bare loop "
            f"({result['off']}); {ratio['n']} interleaved pairs; ResNet-20 on digits of 16 x 16 "
            f"pixels, DDP, {WORKERS} workers, global batch 64; steps after the 10th, "
            "device-synchronised. The profile's own steps come after those, and are not timed.",
            "",
            "| figure | median | mean | 95 % CI of the mean | min | max |",
            "| --- | --- | --- | --- | --- | --- |",
            f"| throughput ratio, on / off | {' | '.join(cells)} |",
            "",
            f"Energy was sampled of {read}.",
            "",
            f"Hardware: {hardware}. Versions: raysuite {versions['raysuite']}, torch "
            f"{versions['torch']}, Python {facts['python']}.",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS))
