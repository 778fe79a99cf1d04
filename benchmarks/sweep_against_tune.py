"""Trials per minute of `raysuite sweep` beside Ray Tune over TorchTrainer, written by hand.

    python benchmarks/sweep_against_tune.py [PAIRS] [--trials N]

Both make the same small trials (ResNet-20 on digits, two epochs, a learning rate each), one worker
each, two side by side, in turn A B B A ...; they are compared as the ratio of each pair. The time
is that of the whole command. Written to benchmarks/results/sweep_against_tune.json and .md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from pairs import HERE, call, in_turn, machine, spread, table, write

from raysuite.measure.environment import environment
from raysuite.plan import make_plans
from raysuite.records import Results
from raysuite.records.sweep import trials as trials_of
from raysuite.spec import parse_document

SPEC: dict[str, Any] = {
    "name": "beside-tune",
    "model": "resnet20",
    "data": {"name": "digits", "image_size": 16},
    "optimizer": {"name": "sgd", "momentum": 0.9},
    "training": {"epochs": 2, "global_batch": 64, "checkpoint_every": 0},
    "resources": {"workers": 1, "device": "cpu"},
}
GOAL = 4.0
"""The smallest acceptable median ratio of the trials per minute."""


def main(pairs: int, trials: int) -> int:
    """Run the pairs, print and write the figures; return 1 if the median ratio misses the goal."""
    rates = [round(0.01 * 1.1**each, 5) for each in range(trials)]
    grid = SPEC | {"matrix": {"optimizer.lr": rates}}
    search = {"space": {"optimizer.lr": {"choice": rates}}, "searcher": "grid", "side_by_side": 2}
    plans = [
        each.model_dump(mode="json")
        for each in make_plans(parse_document(yaml.safe_dump(grid), "grid.yaml"))
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plans.json").write_text(json.dumps(plans))
        (folder / "sweep.yaml").write_text(yaml.safe_dump(SPEC | {"search": search}))

        def raysuite() -> dict[str, Any]:
            began = time.time()
            call("-m", "raysuite", "sweep", "sweep.yaml", "--no-mlflow", "--quiet", folder=folder)
            seconds = time.time() - began
            found = trials_of(Results.open(folder / "results" / "beside-tune"))
            ended = [each.curve[-1][2] for each in found if each.status == "finished"]
            return {"per_minute": 60 * len(ended) / seconds, "accuracies": sorted(ended)}

        def by_hand() -> dict[str, Any]:
            began = time.time()
            call(HERE / "tune_by_hand.py", "plans.json", "out.json", folder=folder)
            seconds = time.time() - began
            ended = json.loads((folder / "out.json").read_text())
            return {"per_minute": 60 * len(ended) / seconds, "accuracies": sorted(ended)}

        measured = in_turn(pairs, {"raysuite": raysuite, "by hand": by_hand}, _words)
    rows = {
        "trials per minute, raysuite / by hand": spread(
            [pair["raysuite"]["per_minute"] / pair["by hand"]["per_minute"] for pair in measured]
        )
    }
    for side in ("raysuite", "by hand"):
        rows[f"trials per minute, {side}"] = spread([each[side]["per_minute"] for each in measured])
    result = {
        "trials": trials,
        "rows": rows,
        "pairs": measured,
        "environment": environment(),
    }
    write("sweep_against_tune", result, _markdown(result))
    return 0 if rows["trials per minute, raysuite / by hand"]["median"] >= GOAL else 1


def _words(pair: dict[str, dict[str, Any]]) -> str:
    return ", ".join(
        f"{side} {each['per_minute']:.1f} trials a minute ({len(each['accuracies'])} ended, median "
        f"accuracy {each['accuracies'][len(each['accuracies']) // 2]:.3f})"
        for side, each in pair.items()
    )


def _markdown(result: dict[str, Any]) -> str:
    facts = result["environment"]
    return "\n".join(
        [
            "# A sweep beside Ray Tune",
            "",
            "`python benchmarks/sweep_against_tune.py`; baseline: Ray Tune over Ray Train's",
            "TorchTrainer by hand (benchmarks/tune_by_hand.py), interleaved with",
            f"`raysuite sweep --no-mlflow`; {result['trials']} trials of ResNet-20 on digits of",
            "16 x 16 pixels, two epochs, one worker each, two side by side. Times are those of the",
            "whole commands, with the start of Ray; raysuite's include its report. n counts pairs.",
            "",
            *table(result["rows"].items(), 2, with_n=True),
            "",
            f"{machine(facts, 'raysuite', 'torch', 'ray')}, Python {facts['python']}.",
            "",
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="?", type=int, default=3)
    parser.add_argument("--trials", type=int, default=20)
    given = parser.parse_args()
    sys.exit(main(given.pairs, given.trials))
