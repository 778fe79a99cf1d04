"""Measure what measuring costs: raysuite's loop with all metrics, relative to a bare loop.

    make bench            (or: python benchmarks/measurement.py [PAIRS])

Both train the same model through the same engine and loader, with 2 workers under torchrun. On:
losses, learning rates, waits, validation with top-5, memory, energy where it can be read, the
count of operations, the journal, and a profile, whose steps follow the timed steps. Off:
bare_loop.py. The two sides are run in turn, A B B A ..., so that a drift of the machine affects
both alike, and are compared by the ratio of each pair. Writes benchmarks/results/measurement.json
and .md.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pairs import HERE, LAUNCH, WORKERS, call, in_turn, machine, spread, table, write

from raysuite.measure.environment import environment
from raysuite.plan import make_plans
from raysuite.records import Results, RunFigures, run_figures
from raysuite.spec import parse_document

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
"""The smallest acceptable median ratio of steady throughputs."""

Pair = dict[str, float]


def main(pairs: int) -> int:
    """Run the pairs, print and write the figures; return 1 if the median ratio misses the goal."""
    metered: set[str] = set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "measurement.yaml").write_text(SPEC)
        plan = make_plans(parse_document(SPEC, "measurement.yaml"))[0]
        (folder / "plan.json").write_text(plan.model_dump_json())

        def on() -> float:
            figures = _on(Path(tempfile.mkdtemp(dir=folder)), folder)
            assert figures.throughput is not None, figures.reason
            metered.update(_metered(figures))
            return figures.throughput

        measured = in_turn(pairs, {"on": on, "off": lambda: _off(folder)}, _words)
    result = _summary(measured, sorted(metered))
    write("measurement", result, _markdown(result))
    return 0 if result["ratio"]["median"] >= GOAL else 1


def _on(results: Path, folder: Path) -> RunFigures:
    _torchrun("-m", "raysuite.train", "measurement.yaml", "--results", results, folder=folder)
    opened = Results.open(results)
    plan = opened.plans()[0]
    return run_figures(plan, opened.records(plan["run_id"]))


def _off(folder: Path) -> float:
    _torchrun(HERE / "bare_loop.py", "plan.json", "out.json", folder=folder)
    throughput: float = json.loads((folder / "out.json").read_text())["throughput"]
    return throughput


def _torchrun(*arguments: object, folder: Path) -> None:
    call(*LAUNCH, *arguments, folder=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _metered(figures: RunFigures) -> set[str]:
    """The kinds of devices whose energy was measured; a device without a counter is not sampled."""
    use = [epoch.power for epoch in figures.epochs if epoch.power is not None]
    kinds = {"GPUs": [each.devices for each in use], "processors": [each.hosts for each in use]}
    return {kind for kind, names in kinds.items() if any(map(any, names))}


def _summary(measured: list[Pair], metered: list[str]) -> dict[str, Any]:
    return {
        "off": "benchmarks/bare_loop.py",
        "spec": SPEC,
        "pairs": measured,
        "ratio": spread([pair["on"] / pair["off"] for pair in measured]),
        "energy_read_of": metered,
        "environment": environment(),
    }


def _words(pair: Pair) -> str:
    return (
        f"on {pair['on']:,.0f} images/s, off {pair['off']:,.0f} images/s; "
        f"ratio {pair['on'] / pair['off']:.3f}"
    )


def _markdown(result: dict[str, Any]) -> str:
    facts, ratio = result["environment"], result["ratio"]
    read = " and ".join(result["energy_read_of"]) or "nothing, as no counter can be read here"
    return "\n".join(
        [
            "# What measuring costs",
            "",
            "Steady throughput with all metrics on, over the same engine and loader in a bare loop "
            f"({result['off']}); {ratio['n']} interleaved pairs; ResNet-20 on digits of 16 x 16 "
            f"pixels, DDP, {WORKERS} workers, global batch 64; steps after the 10th, "
            "device-synchronised. The profile's own steps come after those, and are not timed.",
            "",
            *table([("throughput ratio, on / off", ratio)], 3),
            "",
            f"Energy was sampled of {read}.",
            "",
            f"{machine(facts, 'raysuite', 'torch')}, Python {facts['python']}.",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS))
