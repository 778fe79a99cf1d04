"""`raysuite bench stages`: the blocks that are timed, and the strategy that follows from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.parallel.pipeline.partition import BlockCosts
from raysuite.plan import make_plans
from raysuite.spec import parse_document

SPEC = """\
name: blocks
model: tests.tiny_model:sequential
data: digits
training: {epochs: 1, global_batch: 64}
resources: {device: cpu, workers: 4}
strategy: ddp
"""


def found(tmp_path: Path, gb_per_s: float) -> dict[str, Any]:
    link = {"latency_us": 1, "gb_per_s": gb_per_s}
    network = {"name": "a", "source": "a", "workers_per_node": 4, "inside": link, "between": link}
    (tmp_path / "link.yaml").write_text(yaml.safe_dump(network))
    (tmp_path / "spec.yaml").write_text(SPEC)
    words = ["bench", "stages", str(tmp_path / "spec.yaml"), "--network"]
    result = CliRunner().invoke(app, [*words, str(tmp_path / "link.yaml"), "--json"])
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def test_a_fast_network_is_for_data_parallelism(tmp_path: Path) -> None:
    told = found(tmp_path, 1e6)
    costs = [BlockCosts(**each) for each in told["blocks"].values()]
    assert list(told["blocks"]) == ["0", "5"]
    assert all(each.forward_s > 0 < each.backward_s for each in costs)
    # 8 filters of 3 x 3 with a bias each, 10 classes of 128 inputs with a bias each
    assert [each.parameter_bytes for each in costs] == [320, 5160]
    assert told["strategy"] == {"name": "ddp"}
    assert told["seconds"]["plan"] == pytest.approx(told["seconds"]["alone"] / 4)


def test_a_slow_one_is_for_stages_that_the_spec_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PipeDream's plan for VGG-16: replicas of what computes, one worker for what weighs."""
    monkeypatch.setattr(
        "raysuite.train.stages.costs_of_blocks",
        lambda plan: {
            "features": BlockCosts(100, 1.0, 2.0, 0, 100),
            "classifier": BlockCosts(10**9, 0.4, 0.6, 0, 1),
        },
    )
    told = found(tmp_path, 1e-6)
    assert told["strategy"]["replicas"] == [3, 1]
    assert told["strategy"]["partition"] == [1, 1]
    assert told["seconds"]["plan"] == pytest.approx(1.0)
    strategy = json.dumps(told["strategy"])
    (plan,) = make_plans(parse_document(SPEC.replace("ddp", strategy).replace("64", "63"), "x"), 0)
    assert plan.accumulate == 3
