"""Outputs of commands that compute from files alone: see tests/recorded.py."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.plan import make_plans
from raysuite.spec import read_document
from tests import recorded
from tests.fake_calibration import HELD_OUT, SEEN, SPEC, write
from tests.fake_population import write_population
from tests.fake_results import FOUR_KINDS, write_results
from tests.fake_sweeps import write_sweep

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
SLURM = ("slurm-generic", "juwels-booster", "jupiter-booster", "alps-clariden", "perlmutter")
_ONE = "spec.yaml matrix=null training.global_batch=64"
_DDP = f"{_ONE} strategy=ddp"
_PIPELINE = "'strategy={name: pipeline, schedule: gpipe, micro_batches: 4}' resources.workers=2"
_OWN = re.compile(
    r"\d{8}-\d{6}|\"(time|simulated_in_s)\": [\d.]+,|[^\s(]+(?= -P -m)|"
    + re.escape(f"{EXPERIMENTS.parent}/")
)
"""When, how fast, by which Python and from which checkout a command ran."""
COMMANDS = {
    "predict": (
        "calibrate seen --out c.yaml",
        "predict spec.yaml --calibration c.yaml --results predictions",
        "predict spec.yaml --calibration c.yaml --results predictions --json",
        "predict held-out --calibration c.yaml",
        "report held-out --explain --calibration c.yaml",
        "report held-out --explain --calibration c.yaml --json",
        "report kinds --explain",
        "report kinds --explain --json",
        "recommend spec.yaml --calibration c.yaml --batches 64,192 --out best.yaml --probe p.yaml",
        "recommend spec.yaml --calibration c.yaml --batches 64,192 --out best.yaml --json",
    ),
    "simulate": (
        "calibrate seen --out c.yaml",
        "simulate spec.yaml --calibration c.yaml",
        f"simulate {_ONE} {_PIPELINE} --network hdr-fat-tree --per-second 500 --gantt",
        f"simulate {_DDP} --workers 1,2,16 --network ethernet-40g --per-second 300 --json",
        f"simulate {_DDP} --workers 16 --network juwels-booster --per-second 300 --mtbf-hours 9",
        f"simulate {_DDP} --workers 4 --network hdr-fat-tree --per-second 300 --jitter 0.1",
        f"simulate {_DDP} --workers 4 --network hdr-fat-tree --per-second 300 --straggler 2",
        f"simulate {_DDP} --workers 4 --network hdr-fat-tree --per-second 9 --storage-per-second 9",
        f"simulate {_DDP} --workers 2,8 --per-second 300",
    ),
    "sites": (
        *(f"cluster up --site {each} --nodes 2-4 --dry-run" for each in SLURM),
        "cluster up --site polaris --hosts a,b,c --dry-run",
        "run experiments/quickstart.yaml resources.device=cpu --dry-run",
        "run experiments/segmentation.yaml resources.device=cpu --dry-run --json",
        "sweep experiments/sweep-quickstart.yaml resources.device=cpu --dry-run",
        "sweep experiments/sweep-population.yaml resources.device=cpu --dry-run --json",
        "models resnet50 vgg11 --json",
        "models resnet50 vgg11",
        "plan pipelines.yaml --schedule",
        "plan experiments/segmentation.yaml resources.device=cpu",
        "plan experiments/quickstart.yaml resources.device=cpu --json",
        *(f"cluster site show {each}" for each in SLURM),
    ),
    "results": (
        "report kinds",
        "report kinds --baseline horovod --json",
        "report sweep --no-pictures",
        "report population --no-pictures --json",
        "report kinds --against later --out page",
        "report kinds --against later --out page --json",
        "report sweep --against population --no-pictures --out page",
        "report kinds later --history",
        "report kinds later --history --json",
    ),
}


PIPELINES = """\
name: pipelines
model: resnet20
data: {name: digits, image_size: 16}
training: {epochs: 1, global_batch: 64}
resources: {device: cpu, workers: 2}
strategy: {name: pipeline, micro_batches: 4}
matrix:
  strategy.schedule, strategy.chunks, strategy.stages:
  - [gpipe, 1, 2]
  - [1f1b, 1, 2]
  - [interleaved_1f1b, 2, 4]
  - [pipedream, 1, 2]
  - [pipedream_2bw, 1, 2]
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_outputs_are_as_recorded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    Path("experiments").symlink_to(EXPERIMENTS)
    if name == "results":
        write_population(tmp_path / "population")
        write_sweep(tmp_path / "sweep")
        write_results(tmp_path / "later", FOUR_KINDS, 3)
    else:
        # without noise, figures lie on the limits of intervals, and processors round differently
        write(tmp_path / "seen", SEEN, 0.01)
        write(tmp_path / "held-out", HELD_OUT, 0.01)
        Path("pipelines.yaml").write_text(PIPELINES, "utf-8")
        Path("spec.yaml").write_text(SPEC.replace("BATCHES", HELD_OUT), "utf-8")
    write_results(tmp_path / "kinds", FOUR_KINDS, 3)
    found = {}
    for command in COMMANDS[name]:
        result = CliRunner().invoke(app, shlex.split(command))
        assert result.exit_code == 0, result.output
        printed = _OWN.sub("", result.output)
        found[command] = json.loads(printed) if "--json" in command else printed.splitlines()
    recorded.check(f"cli-{name}", found, tmp_path)


def test_plans_of_our_specs_are_as_recorded(tmp_path: Path) -> None:
    found = {}
    for file in sorted(EXPERIMENTS.glob("*.yaml")):
        document = read_document(file)
        if "search" in document.data:
            continue
        plans = make_plans(document, gpus=4096, elsewhere=True)
        found[file.stem] = [plan.model_dump(mode="json") for plan in plans]
    recorded.check("plans", found, tmp_path)
