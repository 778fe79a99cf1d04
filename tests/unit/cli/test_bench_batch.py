"""`raysuite bench batch` and `raysuite plan`: what is open, before anything is tried."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from raysuite.cli import app
from raysuite.cli.bench import _batch_data, search_summary
from raysuite.plan import make_plans
from raysuite.plan.batch_candidates import opened, outcome
from raysuite.records import BatchTried
from raysuite.spec import parse_document

SPEC = """\
name: open
model: resnet20
data: digits
training: {epochs: 1, global_batch: 24, accumulate: auto}
resources: {device: cpu, workers: 2}
repeats: 2
matrix: {loader: [native, memory], strategy: [ddp, {name: deepspeed, zero_stage: 2}]}
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "open.yaml").write_text(SPEC)
    return str(tmp_path / "open.yaml")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def tried(*arguments: str) -> dict[str, list[int]]:
    result = invoke("bench", "batch", *arguments, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, list[int]] = json.loads(result.stdout)
    return found


def test_repeats_and_loaders_share_a_search(spec: str) -> None:
    names = ["resnet20 · ddp · 2 workers", "resnet20 · deepspeed(zero_stage=2) · 2 workers"]
    assert tried(spec) == {name: [1, 2, 3, 4, 6, 12] for name in names}
    shown = invoke("bench", "batch", spec, "strategy=ddp", "--dry-run").stdout
    sizes = "1, 2, 3, 4, 6, 12 samples, if they fit into memory"
    assert shown == f"{names[0]}: micro-batches of {sizes}\n"


def test_a_batch_that_is_given_as_it_is_gives_way_to_doubling(spec: str) -> None:
    words = ("strategy=ddp", "matrix.training.global_batch=[24, 32]", "--at-most", "20")
    found = tried(spec, "training.accumulate=1", *words)
    assert found == {"resnet20 · ddp · 2 workers": [1, 2, 4, 8, 16]}
    cut = {24: [1, 2, 3, 4, 6, 12], 32: [1, 2, 4, 8, 16]}
    names = {size: f"resnet20 · ddp · 2 workers · global_batch={size}" for size in cut}
    assert tried(spec, *words) == {names[size]: tries for size, tries in cut.items()}


def test_the_plan_shows_what_is_open(spec: str) -> None:
    shown = invoke("plan", spec, "strategy=ddp", "loader=native", "repeats=1").stdout
    assert "batch 24 · micro x acc. auto" in " ".join(shown.split())
    (plan,) = json.loads(
        invoke("plan", spec, "strategy=ddp", "loader=native", "repeats=1", "--json").stdout
    )
    assert (plan["global_batch"], plan["micro_batch"], plan["accumulate"]) == (24, None, None)
    assert plan["total_steps"] == 60
    again = ["training.global_batch=null", "training.accumulate=1"]
    again += ["training.batch_per_worker=auto", "strategy=ddp", "--json"]
    plans = json.loads(invoke("plan", spec, *again).stdout)
    open_keys = ("run_id", "global_batch", "micro_batch", "total_steps", "peak_lr")
    assert {plan[key] for plan in plans for key in open_keys} == {None}


def test_the_table_says_what_fits_and_what_is_fastest() -> None:
    def tried(size: int, speed: float | None = None, **more: object) -> BatchTried:
        stage = "alone" if speed is None else "together"
        facts = {"stage": stage, "micro_batch": size, "fits": True, "images_per_second": speed}
        return BatchTried.model_validate({**facts, **more})

    wish = opened(make_plans(parse_document(SPEC, "x"), 0)[0])
    memory = {"peak_bytes": [2**20, 2**21], "limit_bytes": [2**30, 2**30]}
    timed = [tried(size, speed, **memory) for size in (4, 2) for speed in (100.0, 101.0, 99.0)]
    left_out = tried(6, fits=False, message="out of memory on rank 1")
    _, found = outcome(wish, [tried(2), tried(4), left_out, *timed], 1.0)
    data = _batch_data(wish, found)
    assert (data["largest"], data["fastest"], data["seconds"]) == (4, 2, 1.0)
    sizes = [(each["micro_batch"], each["images_per_second"]) for each in data["sizes"]]
    assert sizes == [(2, [100.0, 101.0, 99.0]), (4, [100.0, 101.0, 99.0]), (6, [])]
    tokens = wish.model_copy(update={"task": wish.task.model_copy(update={"unit": "tokens"})})
    assert [[*each][-1] for each in _batch_data(tokens, found)["sizes"]] == [
        "samples_per_second"
    ] * 3
    console = Console(width=100, record=True, file=io.StringIO())
    for each in search_summary(wish, found):
        console.print(each)
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines[0] == "resnet20 · ddp · 2 workers"
    assert "2 yes 2.0 MiB 1.0 GiB 100 [98, 103] fastest" in lines
    assert "6 no – – – out of memory on rank 1" in lines
    largest = "largest: 4 samples per worker (no larger one fits); fastest: 2"
    assert any(largest in it for it in lines)
