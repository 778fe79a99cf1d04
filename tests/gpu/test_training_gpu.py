"""On one GPU: every strategy of one worker passes the gate and trains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from raysuite.parallel.base import draws, restore_draws
from tests.require import require

pytestmark = pytest.mark.gpu

SPEC = """
name: gpu
model: resnet20
data: digits
loader: {loader}
strategy: {strategy}
optimizer: {{name: sgd, lr: 0.05, momentum: 0.9}}
training: {{epochs: 3, global_batch: 64, precision: {precision}, compile: "{compiled}"}}
resources: {{device: gpu}}
"""


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("loader", ["native", "{name: dali, device: gpu}"])
@pytest.mark.parametrize("strategy", ["single", "ddp", "{name: deepspeed, zero_stage: 2}"])
def test_a_gpu_trains_and_the_gate_passes(
    tmp_path: Path, strategy: str, loader: str, precision: str
) -> None:
    require("gpu")
    if "deepspeed" in strategy:
        require("deepspeed")
    if "dali" in loader:
        require("dali")
    _train(tmp_path, strategy, loader, precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("strategy", ["fabric", "accelerate"])
def test_other_frameworks(tmp_path: Path, strategy: str, precision: str) -> None:
    require("gpu")
    require(strategy)
    _train(tmp_path, strategy, "native", precision)


@pytest.mark.parametrize("compiled", ["default", "reduce-overhead"])
@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_compiled_networks(tmp_path: Path, strategy: str, compiled: str) -> None:
    """`reduce-overhead` captures the step's kernels in CUDA graphs."""
    require("gpu")
    _train(tmp_path, strategy, "native", "bf16", compiled)


def test_a_second_pass_draws_what_the_first_drew() -> None:
    """As a pipeline's stage that recomputes does."""
    require("gpu")
    device = torch.device("cuda", 0)
    kept, images = draws(device), torch.ones(1000, device=device)
    first = nn.functional.dropout(images)
    assert not torch.equal(nn.functional.dropout(images), first)
    restore_draws(device, kept)
    assert torch.equal(nn.functional.dropout(images), first)


def _train(folder: Path, strategy: str, loader: str, precision: str, compiled: str = "off") -> None:
    spec = folder / "gpu.yaml"
    spec.write_text(
        SPEC.format(strategy=strategy, loader=loader, precision=precision, compiled=compiled)
    )
    train = [sys.executable, "-m", "raysuite.train"]
    command = [*train, str(spec), "--results", str(folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (journal,) = (folder / "out").glob("gpu/*/runs/*/journal.jsonl")
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [record["kind"] for record in records[:2]] == ["run_started", "gate_verdict"]
    assert records[1]["passed"], records[1]
    assert records[-1]["kind"] == "run_finished"
    assert records[-1]["peak_device_bytes"][0] > 0
    *_, last = (record for record in records if record["kind"] == "epoch_finished")
    assert last["val_accuracy"] > 0.8
