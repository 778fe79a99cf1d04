"""`raysuite bench`: what loaders are asked for, and the strategy that follows from timed stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from raysuite.cli import app
from raysuite.parallel.pipeline.partition import BlockCosts
from raysuite.plan import make_plans
from raysuite.spec import parse_document

SPEC = """\
name: bench
model: resnet20
data: {name: digits, image_size: 16}
training: {epochs: 1, global_batch: 64}
matrix:
  loader: [{name: native, processes: 3, prefetch: 4}, {name: dali, threads: 2}]
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", "loaders", *arguments])


def planned(*arguments: str) -> dict:
    result = invoke(*arguments, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def names(plan: dict) -> list[str]:
    return [each["name"] for each in plan["candidates"]]


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "bench.yaml").write_text(SPEC)
    return str(tmp_path / "bench.yaml")


def test_the_plan_of_a_named_set():
    plan = planned("digits", "--threads", "2", "--processes", "0", "--batch", "32")
    assert (plan["facts"]["image_size"], plan["batch"], plan["repeats"]) == (8, 32, 5)
    assert names(plan)[:4] == [
        "native · 2 threads",
        "dali cpu · 2 threads",
        "memory · 2 threads",
        "ray_data · 2 tasks",
    ]


def test_loaders_by_name_by_list_and_by_block():
    plan = planned(
        *("digits", "--threads", "1", "--processes", "0", "--loader", "native,dali"),
        *("--loader", "{name: native, decode: scaled}"),
    )
    assert names(plan)[:3] == [
        "native · 1 thread",
        "dali cpu · 1 thread",
        "native · decode=scaled · 1 thread",
    ]


def test_a_spec_gives_its_data_and_its_loaders(spec):
    plan = planned(spec, "--threads", "1", "--processes", "0")
    assert plan["data"]["image_size"] == 16
    assert names(plan)[:3] == [
        "native · prefetch=4 · 3 processes",
        "dali cpu · 2 threads",
        "native · 1 thread",
    ]
    assert names(planned(spec, "--loader", "synthetic")) == ["synthetic"]


def test_options_come_before_the_spec(spec):
    plan = planned(spec, "--image-size", "8", "--format", "tfrecord", "--augment", "pad_crop_flip")
    data = plan["data"]
    assert (data["image_size"], data["format"], data["augment"]) == (8, "tfrecord", "pad_crop_flip")


def test_a_spec_with_two_data_sets_needs_a_choice(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text(SPEC.replace("  loader:", "  data.format: [folder, tfrecord]\n  loader:"))
    result = invoke(str(file), "--dry-run")
    assert result.exit_code == 2
    assert "has 2 data sets (digits folder, digits tfrecord)" in result.stderr
    assert planned(str(file), "--format", "folder")["data"]["format"] == "folder"


def test_dry_run_says_what_it_takes_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("--loader", "native", "--threads", "1", "--processes", "0", "--repeats", "4")
    result = invoke("digits", *arguments, "--dry-run")
    assert result.stdout.splitlines() == [
        "native · 1 thread",
        "decoding alone · 1 thread",
        "reading alone · 1 thread",
        "12 timings of 3 s each on digits folder: 36.0 s, and the starts",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["digitz"], "did you mean 'digits'"),
        (["image_folder"], "image_folder needs `path`"),
        (["digits", "--format", "idx"], "read as 'idx'"),
        (["digits", "--augment", "mixup"], "data.augment: given was 'mixup'"),
        (["digits", "--threads", "0"], "--threads: given was '0'"),
        (["digits", "--processes", "two"], "--processes: given was 'two'"),
        (["digits", "--loader", "nativ"], "called 'nativ'"),
        (["digits", "--loader", "{name: native"], "is not YAML"),
        (["digits", "--loader", "{name: dali, thread: 1}"], "thread: unknown key"),
        (["no.yaml"], "no.yaml: cannot be read"),
        (["digits", "--out", "/proc/nowhere"], "be written to"),
        (["mnist", "--path", "/nowhere"], "/nowhere"),
    ],
)
def test_what_is_wrong_is_said_at_once(arguments, words):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


STAGES = """\
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
    (tmp_path / "spec.yaml").write_text(STAGES)
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
    (plan,) = make_plans(
        parse_document(STAGES.replace("ddp", strategy).replace("64", "63"), "x"), 0
    )
    assert plan.accumulate == 3
