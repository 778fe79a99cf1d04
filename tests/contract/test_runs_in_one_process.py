"""Runs in the same processes do not depend on each other, and end alike under each strategy.

One launch a sequence of runs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from raysuite.parts import installed
from raysuite.spec.strategies import STRATEGY_OPTIONS
from tests.contract.launches import found_by
from tests.contract.variants import EXACT, PIPELINES, VARIANTS

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STRATEGIES: dict[str, dict[str, Any]] = {
    **{name: each.options for name, each in VARIANTS.items() if each.plain and each.kind == EXACT},
    "gpipe": PIPELINES["gpipe"],
    "pipedream": {"name": "pipeline", "schedule": "pipedream"},
}
WORLDS = pytest.mark.parametrize(
    "workers", [1, pytest.param(2, marks=pytest.mark.thorough)], ids="{}-workers".format
)


def able(workers: int) -> list[str]:
    """The strategies that are installed, and have so many workers."""
    return [
        name
        for name, each in STRATEGIES.items()
        if installed(STRATEGY_OPTIONS[each["name"]].part)
        and (workers == 1 or name != "single")
        and (workers == 2 or each["name"] != "pipeline")
    ]


def launched(
    names: list[str],
    workers: int,
    precision: str,
    training: dict[str, Any] | None = None,
    poisoned_step: int = 0,
    watched: bool = False,
) -> list[list[dict[str, Any]]]:
    """What each rank found of each of the runs, one after the other."""
    request = []
    for name in names:
        passes = STRATEGIES[name].get("micro_batches", 1)
        model = {"poisoned_at": poisoned_step * passes}
        own = {"precision": precision, **(training or {})}
        asked = {"strategy": STRATEGIES[name], "model": model, "training": own}
        request.append({**asked, "watched": watched})
    ranks = found_by("deepspeed", workers, "runs_worker", request, timeout_s=900)
    return [list(run) for run in zip(*ranks, strict=True)]


def pairs(names: list[str]) -> list[str]:
    """A closed walk in which each name follows each, itself too (Hierholzer's algorithm)."""
    left = {name: list(names) for name in names}
    walk, stack = [], [names[0]]
    while stack:
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            walk.append(stack.pop())
    return walk[::-1]


def figures(run: list[dict[str, Any]]) -> list[Any]:
    return [(rank["end"], rank["losses"]) for rank in run]


@pytest.mark.thorough
@WORLDS
def test_a_run_leaves_its_process_as_it_was(workers: int) -> None:
    names = able(workers)
    for name, run in zip(names, launched(names, workers, "fp32", watched=True), strict=True):
        for rank in run:
            assert (name, rank["end"][0], rank["changed"]) == (name, "run_finished", {})


def test_ddp_after_zero_3_is_ddp_alone() -> None:
    alone, _, again = launched(["ddp", "deepspeed-3", "ddp"], 2, "bf16")
    assert figures(again) == figures(alone)


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_after_any_other_is_that_run_alone(workers: int, precision: str) -> None:
    names = able(workers)
    alone = {name: figures(launched([name], workers, precision)[0]) for name in names}
    walk = pairs(names)
    found = map(figures, launched(walk, workers, precision))
    next(found)
    differing = [
        two for two, each in zip(pairwise(walk), found, strict=True) if each != alone[two[1]]
    ]
    assert differing == []
    assert len(set(pairwise(walk))) == len(names) ** 2


@pytest.mark.parametrize(
    ("precision", "workers", "names"),
    [
        ("fp32", 1, ["ddp", "deepspeed-2", "deepspeed-3"]),
        *(
            pytest.param(precision, workers, able(workers), marks=pytest.mark.thorough)
            for precision in ("fp32", "bf16")
            for workers in (1, 2)
        ),
    ],
)
@pytest.mark.parametrize("clip_norm", [None, pytest.param(1.0, marks=pytest.mark.thorough)])
def test_a_gradient_that_is_not_finite_ends_each_run_alike(
    precision: str, workers: int, names: list[str], clip_norm: float | None
) -> None:
    names = [name for name in names if name != "pipedream" or clip_norm is None]
    runs = launched(names, workers, precision, {"clip_norm": clip_norm}, poisoned_step=2)
    found = {
        name: (rank["end"], rank["skipped"], [each == "nan" for each in rank["losses"]])
        for name, run in zip(names, runs, strict=True)
        for rank in run
    }
    # the losses of three steps and of the validation
    expected = (["run_failed", "diverged", 3], 0, [False, False, True, True])
    late = found.pop("pipedream", expected)  # its gradients are applied in later steps
    assert late[0][:2] == expected[0][:2]
    assert found == {name: expected for name in names if name != "pipedream"}


@pytest.mark.thorough
@WORLDS
def test_an_overflow_of_fp16_is_one_skipped_step_of_each_run(workers: int) -> None:
    names = [name for name in able(workers) if name != "pipedream"]
    runs = launched(names, workers, "fp16", poisoned_step=2)
    found = {
        name: (rank["end"][0], rank["skipped"])
        for name, run in zip(names, runs, strict=True)
        for rank in run
    }
    assert found == dict.fromkeys(names, ("run_finished", 1))
