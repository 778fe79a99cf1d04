"""What starting costs: `raysuite run` beside torchrun, further runs of a suite, trials of a sweep.

    python benchmarks/startup.py [PAIRS] [--only first|suite|sweep]

first: the same training by `raysuite run` and by PyTorch-DDP under torchrun, in turn A B B A ...:
       seconds from the command to the first optimiser step and to the prompt, as ratios of pairs;
       the phases of `raysuite run --timings`; from the last record to the prompt.
suite: experiments/quickstart.yaml: its wall time over the sum of its training and validation times,
       and what each run but the first took beside training and validation.
sweep: what a trial of a sweep takes beside training and validation, one trial at a time.

Written to benchmarks/results/startup.json and .md, each part in the place of its last result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from overhead import SPEC
from pairs import HERE, LAUNCH, WORKERS, call, in_turn, machine, spread, table

from raysuite.measure.environment import environment
from raysuite.plan import make_plans
from raysuite.records import EpochFinished, Results, RunFinished, RunStarted
from raysuite.spec import parse_document

FILE = HERE / "results" / "startup"
SWEEP = """
name: startup-sweep
model: resnet20
data: {name: digits, image_size: 16}
strategy: ddp
training: {epochs: 2, global_batch: 64}
resources: {workers: 2, device: cpu}
search: {trials: 6, space: {optimizer.lr: {loguniform: [0.01, 0.3]}}, searcher: random}
"""


def first(pairs: int, folder: Path) -> dict[str, Any]:
    """Measure the first step and the prompt, relative to torchrun, and the phases."""
    (folder / "overhead.yaml").write_text(SPEC)
    plan = make_plans(parse_document(SPEC, "overhead.yaml"))[0]
    (folder / "plan.json").write_text(plan.model_dump_json())

    def raysuite() -> dict[str, Any]:
        began = time.time()
        call("-m", "raysuite", "run", "overhead.yaml", "--no-mlflow", "--quiet", folder=folder)
        prompt = time.time()
        results = Results.open(folder / "results" / "overhead")
        end = results.end_of(plan.run_id)
        assert isinstance(end, RunFinished)
        assert end.first_step_time is not None
        return {
            "first_step_s": end.first_step_time - began,
            "prompt_s": prompt - began,
            "after_last_record_s": prompt - end.time,
            "phases": results.timings()[-1]["seconds"] | {"run": end.parts_seconds},
        }

    def torchrun() -> dict[str, Any]:
        began = time.time()
        call(*LAUNCH, HERE / "plain_ddp.py", "plan.json", "out.json", folder=folder)
        out = json.loads((folder / "out.json").read_text())
        return {
            "first_step_s": out["first_step_time"] - began,
            "prompt_s": time.time() - began,
        }

    sides: dict[str, Callable[[], dict[str, Any]]] = {"raysuite": raysuite, "torchrun": torchrun}

    def words(pair: dict[str, dict[str, Any]]) -> str:
        ours, theirs = pair["raysuite"], pair["torchrun"]
        return (
            f"first step {ours['first_step_s']:.1f} s and {theirs['first_step_s']:.1f} s, "
            f"prompt {ours['prompt_s']:.1f} s and {theirs['prompt_s']:.1f} s"
        )

    measured = in_turn(pairs, sides, words)
    rows = {
        f"{name}, raysuite / torchrun": spread(
            [m["raysuite"][k] / m["torchrun"][k] for m in measured]
        )
        for name, k in (("first step", "first_step_s"), ("whole command", "prompt_s"))
    }
    for side in sides:
        rows[f"seconds to the first step, {side}"] = spread(
            [m[side]["first_step_s"] for m in measured]
        )
        rows[f"seconds to the prompt, {side}"] = spread([m[side]["prompt_s"] for m in measured])
    after = [m["raysuite"]["after_last_record_s"] for m in measured]
    rows["seconds from the last record to the prompt"] = spread(after)
    phases = {
        name: statistics.median(m["raysuite"]["phases"][name] for m in measured)
        for name in measured[0]["raysuite"]["phases"]
        if name != "run"
    }
    return {"rows": rows, "phases": phases, "pairs": measured}


def suite(repeats: int, folder: Path) -> dict[str, Any]:
    """Measure the quickstart's wall time, and that of later runs without their training."""
    ratios, beside = [], []
    for _ in range(repeats):
        began = time.time()
        spec = str(HERE.parent / "experiments" / "quickstart.yaml")
        call("-m", "raysuite", "run", spec, "--no-mlflow", "--quiet", folder=folder)
        wall = time.time() - began
        results = Results.open(folder / "results" / "quickstart")
        ends, work = [], []
        for plan in results.plans():
            records = results.records(plan["run_id"])
            epochs = [each for each in records if isinstance(each, EpochFinished)]
            work.append(sum(each.seconds + each.validation_seconds for each in epochs))
            ends.append(records[-1].time)
        ratios.append(wall / sum(work))
        gaps = [later - earlier for earlier, later in pairwise(ends)]
        beside += [gap - seconds for gap, seconds in zip(gaps, work[1:], strict=True)]
        print(
            f"quickstart: {wall:.0f} s, {ratios[-1]:.2f} of its training and validation; ", end=""
        )
        print(f"further runs: {statistics.median(beside):.2f} s beside", flush=True)
    return {
        "rows": {
            "quickstart, wall / (training + validation)": spread(ratios),
            "seconds of a further run beside training and validation": spread(beside),
        }
    }


def sweep(repeats: int, folder: Path) -> dict[str, Any]:
    """Measure the time of later trials outside training and validation."""
    (folder / "sweep.yaml").write_text(SWEEP)
    beside = []
    for _ in range(repeats):
        call("-m", "raysuite", "sweep", "sweep.yaml", "--no-mlflow", "--quiet", folder=folder)
        results = Results.open(folder / "results" / "startup-sweep")
        ends = []
        for plan in results.plans():
            records = results.records(plan["run_id"])
            assert any(isinstance(each, RunStarted) for each in records)
            epochs = [each for each in records if isinstance(each, EpochFinished)]
            work = sum(each.seconds + each.validation_seconds for each in epochs)
            ends.append((records[-1].time, work))
        ends.sort()
        beside += [b - a - work for (a, _), (b, work) in pairwise(ends)]
        print(
            f"sweep: {statistics.median(beside):.2f} s of a trial beside its training", flush=True
        )
    return {"rows": {"seconds of a further trial beside training and validation": spread(beside)}}


PARTS = {"first": first, "suite": suite, "sweep": sweep}


def main(arguments: list[str] | None = None) -> int:
    """Measure the requested parts, and write them together with the recorded ones."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("pairs", nargs="?", type=int, default=7)
    parser.add_argument("--only", choices=PARTS)
    given = parser.parse_args(arguments)
    file = FILE.with_suffix(".json")
    result = json.loads(file.read_text()) if file.exists() else {}
    for name in [given.only] if given.only else PARTS:
        with tempfile.TemporaryDirectory() as folder:
            result[name] = PARTS[name](given.pairs, Path(folder)) | {"environment": environment()}
        file.write_text(json.dumps(result, indent=1) + "\n")
        FILE.with_suffix(".md").write_text(_markdown(result))
    print(_markdown(result))
    return 0


def _markdown(result: dict[str, Any]) -> str:
    lines = [
        "# What starting costs",
        "",
        "`python benchmarks/startup.py`; baseline: PyTorch-DDP by hand (benchmarks/plain_ddp.py)",
        "under torchrun, interleaved with `raysuite run --no-mlflow`; ResNet-20 on digits of",
        f"16 x 16 pixels, {WORKERS} workers, 12 epochs. n counts pairs, runs or trials.",
        "",
    ]
    rows = [row for part in result.values() for row in part["rows"].items()]
    lines += table(rows, 2, with_n=True)
    if "first" in result:
        told = ", ".join(f"{k} {v:.1f} s" for k, v in result["first"]["phases"].items())
        lines += ["", f"Phases of `raysuite run` (medians, `--timings`): {told}."]
    facts = next(iter(result.values()))["environment"]
    lines += ["", f"{machine(facts, 'raysuite', 'torch', 'ray')}, Python {facts['python']}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
