"""Measure what orchestration costs: `raysuite run`, relative to hand-written DDP under torchrun.

    make bench            (or: python benchmarks/overhead.py [PAIRS])

Both train the same model on the same batches from the same loader with 2 workers. The two sides
are run in turn, A B B A ..., so that a drift of the machine affects both alike, and are compared by
the ratio of each pair. Writes benchmarks/results/overhead.json and .md.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from pairs import HERE, LAUNCH, WORKERS, call, in_turn, machine, spread, table, write

from raysuite.measure.environment import environment
from raysuite.plan import make_plans
from raysuite.records import Results, RunFinished, run_figures
from raysuite.spec import parse_document

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
"""The smallest acceptable median ratio of steady throughputs."""


def main(pairs: int) -> int:
    """Run the pairs, print and write the figures; return 1 if the median ratio misses the goal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "overhead.yaml").write_text(SPEC)
        sides = {"raysuite": partial(_raysuite, folder), "torchrun": partial(_torchrun, folder)}
        result = _summary(in_turn(pairs, sides, _words))
    write("overhead", result, _markdown(result))
    return 0 if result["ratio"]["median"] >= GOAL else 1


def _raysuite(folder: Path) -> dict[str, float]:
    began = time.time()
    call("-m", "raysuite", "run", "overhead.yaml", "--no-mlflow", "--quiet", folder=folder)
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
    call(*LAUNCH, HERE / "plain_ddp.py", "plan.json", "out.json", folder=folder)
    out = json.loads((folder / "out.json").read_text())
    return {"throughput": out["throughput"], "first_step_s": out["first_step_time"] - began}


def _summary(measured: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    ratios = [pair["raysuite"]["throughput"] / pair["torchrun"]["throughput"] for pair in measured]
    return {
        "baseline": "torchrun, PyTorch-DDP by hand (benchmarks/plain_ddp.py)",
        "spec": SPEC,
        "pairs": measured,
        "ratio": spread(ratios),
        "first_step_s": {
            side: spread([pair[side]["first_step_s"] for pair in measured]) for side in measured[0]
        },
        "environment": environment(),
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
    lines = [
        "# What orchestration costs",
        "",
        f"Steady throughput of `raysuite run` over {result['baseline']}; "
        f"{result['ratio']['n']} interleaved pairs; ResNet-20 on digits of 16 x 16 pixels, "
        f"{WORKERS} workers, global batch 64; steps after the 10th, device-synchronised.",
        "",
    ]
    rows = [("throughput ratio, raysuite / torchrun", result["ratio"])]
    rows += [
        (f"seconds from command to first step, {side}", each)
        for side, each in result["first_step_s"].items()
    ]
    lines += table(rows, 3)
    lines += ["", f"{machine(facts, 'raysuite', 'torch', 'ray')}, Python {facts['python']}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
