"""`raysuite bench`: what loaders are asked for, and the strategy that follows from timed stages."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from raysuite.cli import app
from raysuite.cli.bench import _spread, measure_and_print
from tests.fake_loading import fake_bench

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


def test_threads_are_one_a_quarter_a_half_and_all():
    counts = {1: [1], 2: [1, 2], 3: [1, 3], 4: [1, 2, 4], 16: [1, 4, 8, 16]}
    assert {most: _spread(most) for most in counts} == counts


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
        "12 timings of 3 s each on digits folder: 36.0 s, plus the start of each process",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "code"), [("native · 1 thread", 0), ("decoding alone · 1 thread", 1), ("synthetic", 1)]
)
def test_without_a_loader_that_was_timed_it_exits_with_1(name, code, tmp_path, monkeypatch):
    """Which decoding alone, or random tensors, are not."""
    asked = []

    def measure(plan, folder, named, as_json, mlflow, tracking_uri):
        asked.append((folder, named, mlflow, plan.images))
        return fake_bench({name: ([9.0], 1.0)})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("raysuite.cli.bench.measure_and_print", measure)
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    words = ("digits", "--threads", "1", "--processes", "0")
    assert invoke(*words, "--out", "new/one").exit_code == code
    assert invoke(*words, "--loader", "native", "--no-mlflow", "--images", "7").exit_code == code
    (first, *plain), (second, *given) = asked
    assert (first, plain, given) == (Path("new/one"), [False, True, None], [True, False, 7])
    assert second.parent == Path("results/loaders-digits")
    assert [*tmp_path.glob("new/one"), *tmp_path.glob("results/loaders-digits/*")] == [
        tmp_path / first,
        tmp_path / second,
    ]


@pytest.mark.parametrize(("age_s", "is_shown"), [(3600.0, False), (-3600.0, True)])
def test_an_interrupt_shows_the_timings_of_this_command_and_of_no_earlier_one(
    age_s, is_shown, tmp_path, monkeypatch, capsys
):
    def compare(*_):
        raise KeyboardInterrupt

    bench = fake_bench({"native · 1 thread": ([9.0], 1.0)})
    bench.model_copy(update={"time": time.time() - age_s}).save(tmp_path)
    monkeypatch.setattr("raysuite.orchestrate.loader_timings.compare", compare)
    plan = SimpleNamespace(repeats=1, candidates=())
    with pytest.raises(KeyboardInterrupt):
        measure_and_print(plan, tmp_path, False, False, False, None)
    assert ("native" in capsys.readouterr().out) == is_shown
    assert (tmp_path / "loaders.html").exists() == is_shown
