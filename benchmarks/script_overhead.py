"""Measure what `raysuite scale` costs a training script, relative to torchrun alone.

    make bench            (or: python benchmarks/script_overhead.py [PAIRS])

Both sides start the same script of plain DDP by torch's launcher with 2 workers, one thread each.
They run at the same time, and equal ranks share a core: the kernel alternates between the two every
few milliseconds, so that other load affects both alike. Each pair gives two ratios: of the CPU
seconds of the whole run, from launch to end, including all its processes and raysuite's own; and of
the seconds of training, by the script's timer. Writes results/script_overhead.json and .md.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pairs import LAUNCH, WORKERS, call, machine, spread, table, write

from raysuite.measure.environment import environment
from raysuite.orchestrate.script_launch import run_script
from raysuite.plan import make_plans
from raysuite.records import Results, ScriptMeasured
from raysuite.spec import parse_document

BATCH, STEPS = 32, 640
SCRIPT = f"""
import json, os, sys, time, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
os.sched_setaffinity(0, {{dist.get_rank()}})  # as each rank of the other side
torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 3, 32, 32), torch.randint(10, (4096,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, {BATCH}, sampler=sampler)
layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU()]
for _ in range(8):
    layers += [nn.Conv2d(16, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU()]
model = DistributedDataParallel(nn.Sequential(*layers, nn.Flatten(), nn.Linear(4096, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
began = time.perf_counter()
for epoch in range({STEPS * BATCH * WORKERS} // 4096):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
if dist.get_rank() == 0:
    with open(sys.argv[1], "w") as out:
        json.dump(time.perf_counter() - began, out)
dist.destroy_process_group()
"""
SPEC = f"""
name: script-overhead
script: {{command: train.py out.json}}
resources: {{workers: {WORKERS}, device: cpu}}
"""
PAIRS = 10
GOAL = 1.01
"""The largest acceptable median ratio of the whole runs' CPU seconds."""

Side = dict[str, float]


def main(pairs: int) -> int:
    """Run the pairs, print and write the figures; return 1 if the median ratio misses the goal."""
    measured = []
    for pair in range(pairs):
        with ProcessPoolExecutor(len(SIDES), get_context("spawn")) as pool:
            order = list(SIDES) if pair % 2 == 0 else list(SIDES)[::-1]
            begun = {side: pool.submit(_measured, side) for side in order}
            measured.append({side: each.result() for side, each in begun.items()})
        print(f"pair {pair + 1} of {pairs}: {_words(measured[-1])}", flush=True)
    result = _summary(measured)
    write("script_overhead", result, _markdown(result))
    return 0 if result["cpu"]["median"] <= GOAL else 1


def _measured(side: str) -> Side:
    with tempfile.TemporaryDirectory() as name, chdir(name):
        Path("train.py").write_text(SCRIPT)
        began = _cpu()
        SIDES[side]()
        return {"cpu": _cpu() - began, "training": json.loads(Path("out.json").read_text())}


def _cpu() -> float:
    """CPU seconds of this process and of its descendants that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _with_hooks() -> None:
    (plan,) = make_plans(parse_document(SPEC, "script_overhead.yaml"))
    results = Results(Path(tempfile.mkdtemp(dir=".")))
    run_script(plan, results, lambda: False)
    found = results.records(plan.run_id)
    assert any(isinstance(each, ScriptMeasured) for each in found), found[-1]


def _without() -> None:
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    call(*LAUNCH, "train.py", "out.json", folder=Path.cwd(), env=threads)


SIDES: dict[str, Callable[[], None]] = {"hooks": _with_hooks, "none": _without}


def _ratio(pair: dict[str, Side], part: str) -> float:
    return pair["hooks"][part] / pair["none"][part]


def _words(pair: dict[str, Side]) -> str:
    return ", ".join(
        f"{part} {pair['hooks'][part]:.2f} s and {pair['none'][part]:.2f} s, "
        f"ratio {_ratio(pair, part):.3f}"
        for part in pair["none"]
    )


def _summary(measured: list[dict[str, Side]]) -> dict[str, Any]:
    return {
        "off": "torchrun alone",
        "script": SCRIPT,
        "pairs": measured,
        **{part: spread([_ratio(pair, part) for pair in measured]) for part in measured[0]["none"]},
        "step_ms": spread([1e3 * pair["none"]["training"] / STEPS for pair in measured]),
        "environment": environment(),
    }


def _markdown(result: dict[str, Any]) -> str:
    facts = result["environment"]
    rows = [
        ("CPU seconds of the whole run, with / without hooks", result["cpu"]),
        ("seconds of the training, by the script's timer, with / without", result["training"]),
        ("ms of a step, without, beside the other side", result["step_ms"]),
    ]
    return "\n".join(
        [
            "# What `raysuite scale` costs a script",
            "",
            "The run of a script of plain DDP with raysuite's hooks, as `raysuite scale` starts "
            f"it, over {result['off']}; {result['cpu']['n']} pairs whose two runs share the same "
            f"cores at the same time; {STEPS} steps, {WORKERS} workers, {BATCH} images of 32 x 32 "
            "pixels each, one thread each. The whole run is from the launch to its end, with the "
            "journal.",
            "",
            *table(rows, 3),
            "",
            f"{machine(facts, 'raysuite', 'torch')}, Python {facts['python']}.",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS))
