"""On one GPU: every strategy passes the gate and trains, in fp32 and under bf16 autocast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.require import require

pytestmark = pytest.mark.gpu

SPEC = """
name: gpu
model: resnet20
data: digits
loader: {loader}
strategy: {strategy}
optimizer: {{name: sgd, lr: 0.05, momentum: 0.9}}
training: {{epochs: 3, global_batch: 64, precision: {precision}}}
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
    spec = tmp_path / "gpu.yaml"
    spec.write_text(SPEC.format(strategy=strategy, loader=loader, precision=precision))
    train = [sys.executable, "-m", "raysuite.train"]
    command = [*train, str(spec), "--results", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    (journal,) = (tmp_path / "out").glob("runs/*/journal.jsonl")
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [record["kind"] for record in records[:2]] == ["run_started", "gate_verdict"]
    assert records[1]["passed"], records[1]
    assert records[-1]["kind"] == "run_finished"
    assert records[-1]["peak_device_bytes"][0] > 0
    assert records[-2]["val_accuracy"] > 0.8
