"""A batch that is found by trial on two ranks, of which one has less memory than the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from raysuite.records import BatchFound, EpochFinished, Results, RunStarted
from tests.contract.launches import LOADED
from tests.ranks import ranks
from tests.require import require

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RANKS = 2
STRATEGIES: dict[str, Any] = {
    "ddp": "ddp",
    "horovod": "horovod",
    "deepspeed": {"name": "deepspeed", "zero_stage": 3},
}


def trained(
    folder: Path, strategy: Any, hungry: dict[str, int], *more: str, fails: bool = False
) -> str:
    spec = {
        "name": "found",
        "model": {"name": "tests.hungry_model:Hungry", "options": hungry},
        "data": "digits",
        "strategy": strategy,
        "optimizer": {"name": "sgd", "lr": 0.01, "lr_reference_batch": 16},
        "training": {"epochs": 1, "batch_per_worker": {"auto": "largest", "at_most": 64}},
        "resources": {"device": "cpu", "workers": RANKS},
    }
    file = folder / "spec.yaml"
    file.write_text(yaml.safe_dump(spec), "utf-8")
    words = ("raysuite.train", file, "--results", folder / "results", *more)
    name = strategy if isinstance(strategy, str) else strategy["name"]
    return ranks(RANKS, *words, loaded=LOADED.get(name, ()), fails=fails)


def found_in(folder: Path) -> tuple[BatchFound, list[EpochFinished], dict[str, Any]]:
    results = Results.open(folder / "results")
    (plan,) = results.plans()
    records = results.records(plan["run_id"])
    (found,) = [each for each in records if isinstance(each, BatchFound)]
    return found, [each for each in records if isinstance(each, EpochFinished)], plan


@pytest.mark.parametrize(
    "name",
    ["ddp", "horovod", pytest.param("deepspeed", marks=pytest.mark.thorough)],
)
def test_what_one_rank_has_no_memory_for_is_not_taken_on_any(name: str, tmp_path: Path) -> None:
    if name != "ddp":
        require(name)
    trained(tmp_path, STRATEGIES[name], {"above": 24})
    found, epochs, plan = found_in(tmp_path)
    assert (found.micro_batch, found.global_batch, found.bound) == (16, 32, "memory")
    assert [(each.stage, each.micro_batch, each.fits) for each in found.tried] == [
        ("alone", 2, True),
        ("alone", 4, True),
        ("alone", 8, True),
        ("alone", 16, True),
        ("alone", 32, False),
        ("together", 16, True),
    ]
    assert found.tried[4].message == "out of memory on rank 1"
    assert all(len(each.peak_bytes) == RANKS for each in found.tried)
    assert (found.tried[-1].images_per_second or 0) > 0
    # the run that follows is the one that was found, and its rate goes with the batch
    assert (plan["global_batch"], plan["peak_lr"]) == (32, pytest.approx(0.02))
    assert [len(each.losses) for each in epochs] == [45]
    records = Results.open(tmp_path / "results").records(plan["run_id"])
    (started,) = [each for each in records if isinstance(each, RunStarted)]
    assert started.transports == ["TCP, this host"]


@pytest.mark.thorough
def test_a_pipeline_is_cut_into_the_micro_batches_that_are_fastest(tmp_path: Path) -> None:
    spec = {
        "name": "found",
        "model": "tests.tiny_model:sequential",
        "data": "digits",
        "training": {"epochs": 1, "global_batch": 64},
        "resources": {"device": "cpu", "workers": RANKS},
        "matrix": {
            "strategy": [
                {"name": "pipeline", "schedule": "1f1b", "micro_batches": "auto"},
                {"name": "pipeline", "schedule": "pipedream_2bw", "micro_batches": "auto"},
            ]
        },
    }
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec), "utf-8")
    ranks(RANKS, "raysuite.train", file, "--results", tmp_path / "results")
    results = Results.open(tmp_path / "results")
    for plan, most in zip(results.plans(), (64, 32), strict=True):
        records = results.records(plan["run_id"])
        (found,) = [each for each in records if isinstance(each, BatchFound)]
        assert found.key == "strategy.micro_batches"
        assert {each.stage for each in found.tried} == {"together"}
        assert {each.micro_batch for each in found.tried} == {
            2**n for n in range(7) if 2**n <= most
        }
        assert found.micro_batch * found.accumulate == found.global_batch == 64
        assert plan["spec"]["strategy"]["micro_batches"] == plan["accumulate"] == found.accumulate
        assert [len(e.losses) for e in records if isinstance(e, EpochFinished)] == [23]


def test_ranks_that_end_in_a_true_step_are_started_again_behind_it(tmp_path: Path) -> None:
    said = trained(tmp_path, "ddp", {"above": 24, "at_call": 2}, fails=True)
    assert "rank 1: out of memory in steps of 64 samples" in said
    assert "--resume" in said
    said = trained(tmp_path, "ddp", {"above": 24, "at_call": 2}, "--resume", fails=True)
    assert "rank 1: out of memory in steps of 32 samples" in said
    trained(tmp_path, "ddp", {"above": 24, "at_call": 2}, "--resume")
    found, epochs, _ = found_in(tmp_path)
    assert (found.micro_batch, found.bound) == (16, "memory")
    together = [each for each in found.tried if each.stage == "together"]
    assert [(each.micro_batch, each.fits) for each in together] == [
        (64, False),
        (32, False),
        (16, True),
    ]
    assert "a worker ended" in together[0].message
    assert len(epochs) == 1
