"""Train with ten constructed bottlenecks, and compare their names with those that
`raysuite report --explain` gives. Writes results/explanation.md, and prints it.

    python benchmarks/explanation.py CALIBRATION [--undisturbed] [CASE...]

CALIBRATION is this machine's, from experiments/calibration.yaml; the case of a tiny batch needs its
overhead of a step. CASE is a number from 1 on; with it, no file is written. --undisturbed trains by
undisturbed.py, except if other programs are the bottleneck. Time: about 2 minutes on 2 cores.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from raysuite.models.cifar_resnet import CifarResNet
from raysuite.parallel.ddp import Ddp
from raysuite.parallel.marks import communication
from raysuite.perf.calibration import Calibration
from raysuite.perf.explanation import explain
from raysuite.plan.simulation import idle_of
from raysuite.records import Results, make_rows, results_figures
from raysuite.spec.strategies import DdpOptions

SPEC = """\
name: bottleneck
model: resnet20
data: {name: digits, image_size: 16}
loader: native
training: {epochs: 1, global_batch: 64, checkpoint_every: 0}
resources: {device: cpu}
measure: {warmup_steps: 3, profile: torch, profile_steps: 8, power: off}
"""
PIPELINE = ["resources.workers=2", "measure.profile=off"]


class SlowImages:
    """Images whose reading takes `milliseconds` each."""

    classes = 10

    def __init__(self, split: str, images: int, milliseconds: float) -> None:
        self.images = images if split == "train" else 20
        self.seconds = milliseconds / 1000

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, i: int) -> tuple[Any, int]:
        time.sleep(self.seconds)
        return np.full((16, 16), i % 256, np.uint8), i % self.classes


class OneSlowRank(CifarResNet):
    """ResNet-20 that sleeps for 0.1 s in each training forward pass on rank 1."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__(depth=20, num_classes=num_classes, in_channels=in_channels)

    def forward(self, x: Tensor) -> Tensor:
        if os.environ.get("RANK") == "1" and self.training:
            time.sleep(0.1)
        result: Tensor = super().forward(x)
        return result


class SlowLink(Ddp):
    """DDP that waits in each step as if its gradients passed a link of `mb_per_s` MB/s."""

    def __init__(self, mb_per_s: float) -> None:
        super().__init__(DdpOptions())
        self.rate = mb_per_s * 1e6

    def prepare(self, model: nn.Module, make_optimizer: Any, settings: Any) -> Any:
        engine = super().prepare(model, make_optimizer, settings)
        count = sum(each.numel() * 4 for each in model.parameters())
        take_step = engine.take_step

        def wait_and_take_step() -> None:
            with communication():
                time.sleep(count / self.rate)
            take_step()

        engine.take_step = wait_and_take_step
        return engine


@dataclass(frozen=True)
class Case:
    """One bottleneck."""

    name: str
    binding: str
    """The name that the explanation has to give."""
    overrides: list[str]
    workers: int = 1
    burners: int = 0
    """Number of other programs, each of which keeps a core busy."""


def slow_images(images: int, milliseconds: float) -> list[str]:
    options = f"{{images: {images}, milliseconds: {milliseconds}}}"
    return [
        f"data={{name: explanation:SlowImages, image_size: 16, channels: 1, options: {options}}}"
    ]


CASES = (
    Case("slow loader: 4 ms an image, one thread", "loader", slow_images(640, 4)),
    Case(
        "throttled link: 10 MB/s",
        "exposed communication",
        ["strategy={name: custom, target: explanation:SlowLink, options: {mb_per_s: 10}}"],
        2,
    ),
    Case("one slow rank", "straggler", ["strategy=ddp", "model=explanation:OneSlowRank"], 2),
    Case(
        "tiny batch: one image",
        "overhead of a step",
        [*slow_images(200, 0), "training.global_batch=1", "measure.profile=off"],
    ),
    Case(
        "one huge bucket of 35 MiB, SGD without momentum",
        "exposed communication",
        [
            "strategy={name: ddp, bucket_mb: 1000}",
            "model=vgg11",
            "data.image_size=8",
            "training.global_batch=16",
            "optimizer={name: sgd, lr: 0.01, momentum: 0}",
        ],
        2,
    ),
    Case("one thread of two cores", "computation", ["training.global_batch=256"]),
    Case(
        "unbalanced stages: 2 and 9 blocks",
        "imbalance",
        [
            "strategy={name: pipeline, schedule: gpipe, micro_batches: 8, partition: [1, 10]}",
            *PIPELINE,
        ],
        2,
    ),
    Case(
        "bubble: one micro-batch",
        "bubble",
        [
            "strategy={name: pipeline, schedule: gpipe, micro_batches: 1, partition: [5, 6]}",
            *PIPELINE,
        ],
        2,
    ),
    Case("four other programs at work", "other programs", ["measure.profile=off"], burners=4),
    Case(
        "computation on all cores",
        "computation",
        ["model=vgg11", "data.image_size=16", "resources.cpus_per_worker=2"],
    ),
)


def stages(plan: dict[str, Any]) -> bool:
    return bool(plan["spec"]["strategy"].get("stages"))


def run(case: Case, folder: Path) -> None:
    spec = folder / "spec.yaml"
    spec.write_text(SPEC, "utf-8")
    words = [str(spec), "--results", str(folder), f"resources.workers={case.workers}"]
    words += [each for each in case.overrides if not each.startswith("resources.workers")]
    launcher = [sys.executable]
    if case.workers > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        launcher += [str(case.workers)]
    if "--undisturbed" in sys.argv and not case.burners:
        launcher += [str(Path(__file__).with_name("undisturbed.py"))]
    else:
        launcher += ["-m", "raysuite.train"]
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(case.burners)
    ]
    try:
        done = subprocess.run(
            [*launcher, *words],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parent),
                "OMP_NUM_THREADS": "2" if "resources.cpus_per_worker=2" in words else "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        for each in burners:
            each.kill()
    if done.returncode:
        raise SystemExit(f"{case.name}: {done.stdout}{done.stderr}")


def main() -> None:
    calibration = Calibration.read(Path(sys.argv[1]))
    lines, found = [], 0
    chosen = [CASES[int(each) - 1] for each in sys.argv[2:] if each.isdigit()]
    for case in chosen or CASES:
        with tempfile.TemporaryDirectory() as folder:
            run(case, Path(folder))
            results = Results.open(Path(folder))
            runs = results_figures(results)
            idle = {run.run_id: idle_of(run.plan) for run in runs if stages(run.plan)}
            row = explain(make_rows(runs), calibration, idle)[0]
        found += row.binding == case.binding
        shares = ", ".join(f"{term} {part:.0%}" for term, part in row.shares.items())
        verdict = "yes" if row.binding == case.binding else "no"
        lines.append((case.name, case.binding, row.binding, verdict, shares, row.first))
        print(" | ".join(lines[-1]), flush=True)
    header = ("Constructed", "is", "was called", "right", "shares", "first to try")
    table = "\n".join(f"| {' | '.join(row)} |" for row in [header, ("---",) * 6, *lines])
    text = (
        "# Constructed bottlenecks\n\nWritten by `benchmarks/explanation.py`: each was run once on "
        f"2 cores, n = 1. {found} of {len(CASES)} were named.\n\n{table}\n"
    )
    if not chosen:
        (Path(__file__).parent / "results" / "explanation.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
