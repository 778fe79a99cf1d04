"""What orchestration costs: `raysuite run` over PyTorch-DDP written by hand under torchrun.

    make bench            (or: python benchmarks/overhead.py [PAIRS])

Both train the same model on the same batches through the same loader with 2 workers. The two are
run in turn, A B B A ..., so that a drift of the machine meets both alike, and are compared as the
ratio of each pair. Written to benchmarks/results/overhead.json and .md.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scipy import stats

from raysuite.measure.environment import environment
from raysuite.plan import make_plans
from raysuite.records import Results, RunFinished, run_figures
from raysuite.spec import parse_document

HERE = Path(__file__).parent
WORKERS = 2
SPEC = f"""
name: overhead
model: resnet20
data: {{name: digits, image_size: 16}}
strategy: ddp
optimizer: {{name: sgd, lr: 0.05, momentum: 0.9}}
training: {{epochs: 12, global_batch: 64, checkpoint_every: 0}}
resources: {{workers: {WORKERS}, device: cpu}}
"""
GOAL = 0.97
"""The least acceptable ratio of steady throughputs."""


def main(pairs: int) -> int:
    """Run the pairs, print and write the figures; 1 if the ratio misses the goal."""
    measured: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "overhead.yaml").write_text(SPEC)
        for pair in range(pairs):
            sides = {"raysuite": _raysuite, "torchrun": _torchrun}
            order = list(sides) if pair % 2 == 0 else list(sides)[::-1]
            measured.append({side: sides[side](folder) for side in order})
            print(f"pair {pair + 1} of {pairs}: {_words(measured[-1])}", flush=True)
    result = _summary(measured)
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "overhead.json").write_text(json.dumps(result, indent=1) + "\n")
    text = _markdown(result)
    (HERE / "results" / "overhead.md").write_text(text)
    print(text)
    return 0 if result["ratio"]["median"] >= GOAL else 1


def _raysuite(folder: Path) -> dict[str, float]:
    began = time.time()
    _call("-m", "raysuite", "run", "overhead.yaml", "--no-mlflow", "--quiet", folder=folder)
    results = Results.open(folder / "results" / "overhead")
    plan = results.plans()[0]
    figures = run_figures(plan, results.records(plan["run_id"]))
    end = results.end_of(plan["run_id"])
    assert isinstance(end, RunFinished)
    assert end.first_step_time is not None
    assert figures.throughput is not None
    return {"throughput": figures.throughput, "first_step_s": end.first_step_time - began}


def _torchrun(folder: Path) -> dict[str, float]:
    plan = make_plans(parse_document(SPEC, "overhead.yaml"))[0]
    (folder / "plan.json").write_text(plan.model_dump_json())
    began = time.time()
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
    _call(*launch, str(HERE.resolve() / "plain_ddp.py"), "plan.json", "out.json", folder=folder)
    out = json.loads((folder / "out.json").read_text())
    return {"throughput": out["throughput"], "first_step_s": out["first_step_time"] - began}


def _call(*arguments: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def _summary(measured: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    ratios = [pair["raysuite"]["throughput"] / pair["torchrun"]["throughput"] for pair in measured]
    return {
        "baseline": "torchrun, PyTorch-DDP by hand (benchmarks/plain_ddp.py)",
        "spec": SPEC,
        "pairs": measured,
        "ratio": _spread(ratios),
        "first_step_s": {
            side: _spread([pair[side]["first_step_s"] for pair in measured]) for side in measured[0]
        },
        "environment": environment(),
    }


def _spread(values: list[float]) -> dict[str, float | list[float]]:
    mean = statistics.fmean(values)
    half = (
        stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
        if len(values) > 1
        else math.nan
    )
    return {
        "n": len(values),
        "median": statistics.median(values),
        "mean": mean,
        "ci95": [mean - half, mean + half],
        "min": min(values),
        "max": max(values),
    }


def _words(pair: dict[str, dict[str, float]]) -> str:
    both = [
        f"{side} {each['throughput']:,.0f} images/s, first step after {each['first_step_s']:.1f} s"
        for side, each in sorted(pair.items())
    ]
    ratio = pair["raysuite"]["throughput"] / pair["torchrun"]["throughput"]
    return f"{'; '.join(both)}; ratio {ratio:.3f}"


def _markdown(result: dict[str, Any]) -> str:
    facts = result["environment"]
    versions = facts["versions"]
    lines = [
        "# What orchestration costs",
        "",
        f"Steady throughput of `raysuite run` over {result['baseline']}; "
        f"{result['ratio']['n']} interleaved pairs; ResNet-20 on digits of 16 x 16 pixels, "
        f"{WORKERS} workers, global batch 64; steps after the 10th, device-synchronised.",
        "",
        "| figure | median | mean | 95 % CI of the mean | min | max |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows = [("throughput ratio, raysuite / torchrun", result["ratio"])]
    rows += [
        (f"seconds from command to first step, {side}", spread)
        for side, spread in result["first_step_s"].items()
    ]
    for name, spread in rows:
        low, high = spread["ci95"]
        cells = [f"{spread[key]:.3f}" for key in ("median", "mean")]
        cells += [f"{low:.3f} to {high:.3f}", f"{spread['min']:.3f}", f"{spread['max']:.3f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    hardware = f"{facts['cpu']['model']}, {facts['cpu']['logical_cores']} logical cores"
    lines += [
        "",
        f"Hardware: {hardware}. Versions: raysuite {versions['raysuite']}, torch "
        f"{versions['torch']}, ray {versions['ray']}, Python {facts['python']}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
