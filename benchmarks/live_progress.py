"""What live progress costs: steady throughput with rank 0's progress file, over without.

    torchrun --nproc-per-node 2 benchmarks/live_progress.py [PAIRS] [EPOCHS]

Interleaved (A B B A ...) in the same processes, on an idle machine. Prints each ratio, and their
mean with its 95 % confidence interval by Student's t.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch

from raysuite.parallel.base import World
from raysuite.plan import make_plans
from raysuite.records import run_figures, summarize
from raysuite.spec import parse_document
from raysuite.train.run import execute

SPEC = """
name: live-progress
model: resnet20
data: {name: digits, image_size: 16}
strategy: ddp
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
training: {epochs: EPOCHS, global_batch: 64}
resources: {workers: WORKERS, device: cpu}
"""


def main(pairs: int, epochs: int) -> None:
    """Run the pairs; rank 0 prints."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    text = SPEC.replace("EPOCHS", str(epochs)).replace("WORKERS", str(size))
    (plan,) = make_plans(parse_document(text, "live.yaml"))
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-1, pairs):  # the first pair warms up
            speeds = {}
            for live in ((True, False), (False, True))[number % 2]:
                file = Path(folder) / "progress.json" if live else None
                world = World(rank, size, rank, torch.device("cpu"))
                records = list(execute(plan, world, progress_file=file))
                speeds[live] = run_figures(plan.model_dump(mode="json"), records).throughput
            ratio = (speeds[True] or 0.0) / (speeds[False] or 1.0)
            if number >= 0:
                ratios.append(ratio)
            if rank == 0:
                print(f"pair {number + 1}: {ratio:.4f}", flush=True)
    found = summarize(ratios)
    if rank == 0 and found is not None:
        print(f"mean {found.mean:.4f} [{found.low}, {found.high}], n = {found.n}")


if __name__ == "__main__":
    arguments = [int(each) for each in sys.argv[1:]]
    main(*[*arguments, *(7, 12)[len(arguments) :]])
