"""The gate lets right strategies pass and no wrong one, by itself and at the head of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from raysuite.gate import own_network
from raysuite.gate.small_network import TOLERANCE
from raysuite.orchestrate import torchrun as launcher
from raysuite.records import EpochFinished, Results, RunFailed, RunFinished
from raysuite.spec.strategies import CustomOptions
from tests.contract import gate_lossy_worker
from tests.contract.gate_16_bits_worker import DEFECTS
from tests.contract.gate_worker import CHECKED, TARGET
from tests.contract.launches import found_by
from tests.contract.variants import LOSSY as CHANGED
from tests.contract.variants import VARIANTS, zero
from tests.ranks import ranks
from tests.strategies.broken import FLAWS

pytestmark = pytest.mark.integration

LAYERS = 3
"""Of the small network, whose backward pass pauses between two."""
HANGS_S = 200
"""For a strategy and the start of its processes; not waited for, see `Leaping`."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    folder = tmp_path_factory.mktemp("gate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYSUITE_CACHE", str(folder / "cache"))
        ranks(2, "tests.contract.gate_worker", folder / "found")
    return [json.loads((folder / f"found.{rank}").read_text()) for rank in range(2)]


def test_a_right_strategy_passes(answers: list[dict[str, Any]]) -> None:
    assert answers[0]["none"]["passed"], answers[0]["none"]["message"]
    assert float(answers[0]["none"]["error"]) < 1e-6


@pytest.mark.parametrize("flaw", CHECKED)
def test_a_flaw_is_refused(answers: list[dict[str, Any]], flaw: str) -> None:
    assert not answers[0][flaw]["passed"]
    assert FLAWS[flaw] in answers[0][flaw]["message"]


def test_a_strategy_that_reduces_its_first_bucket_alone_is_refused(
    answers: list[dict[str, Any]],
) -> None:
    found = answers[0]["buckets"]
    assert (found["buckets of one"], found["buckets"]) == (1, 3)
    assert found["error of one"] < TOLERANCE  # right as long as it has no other bucket
    assert not found["passed"]


def test_all_ranks_agree(answers: list[dict[str, Any]]) -> None:
    # where the collectives fail, each rank says which numbers it got
    alike = [
        {name: answer for name, answer in each.items() if not name.startswith("comm_")}
        for each in answers
    ]
    assert alike[0] == alike[1]


def test_what_the_cache_keeps(answers: list[dict[str, Any]]) -> None:
    passed, cached = True, True
    found = answers[0]["cache"]
    for name, (did_pass, _, error) in found.items():  # of the run's own network, ResNet-20
        if did_pass:
            assert error is not None, name
            assert error < own_network.TOLERANCE, name
        else:
            assert error is None, name
    assert {name: each[:2] for name, each in found.items()} == {
        "first": [passed, not cached],
        "again": [passed, cached],
        "custom": [passed, not cached],
        "custom again": [not passed, not cached],
        "failing": [not passed, not cached],
        "failing again": [passed, not cached],
    }


SPEC = f"""
name: gated
model: tests.tiny_model:Tiny
data: digits
strategy: {{name: custom, target: "{TARGET}"}}
training: {{epochs: 2, global_batch: 240}}
resources: {{workers: 2, device: cpu}}
matrix: {{strategy.options.flaw: [none, no_sync, tires]}}
"""


def test_a_run_is_refused_before_its_speed_is_measured(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    said = ranks(2, "raysuite.train", spec, "--results", tmp_path / "results", fails=True)
    results = Results.open(tmp_path / "results")
    ends = {}
    for plan in results.plans():
        flaw = plan["label"]["strategy.options.flaw"]
        epochs = [r for r in results.records(plan["run_id"]) if isinstance(r, EpochFinished)]
        ends[flaw] = results.end_of(plan["run_id"]), len(epochs)
    assert isinstance(ends["none"][0], RunFinished), said
    end, epochs = ends["no_sync"]
    assert isinstance(end, RunFailed)
    assert (end.reason, epochs) == ("gate", 0)
    assert "different weights" in end.message
    end, epochs = ends["tires"]  # passes the gate, and fails at its end
    assert isinstance(end, RunFailed)
    assert (end.reason, epochs) == ("gate", 2)
    assert "of this run" in end.message


class Leaping:
    """A clock that leaps ahead once a strategy hangs."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def monotonic(self) -> float:
        return time.monotonic() + (HANGS_S + 1 if self._mark.exists() else 0)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_verify_outlives_crashes_and_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "hangs"
    monkeypatch.setattr(launcher, "time", Leaping(mark))
    flaws = ("none", "raises", "hangs", "sum")
    request = launcher.Request(
        [CustomOptions(target=TARGET, options={"flaw": flaw, "mark": str(mark)}) for flaw in flaws],
        workers=2,
        settings={"accumulate": 1},
        timeout_s=HANGS_S,
    )
    verdicts = dict(launcher.verify(request))
    messages = {flaw: verdicts[number].message for number, flaw in enumerate(flaws)}
    assert [verdicts[number].passed for number in range(4)] == [True, False, False, False]
    assert "rank 1: ValueError:" in messages["raises"]
    assert f"no result within {HANGS_S} s" in messages["hangs"]
    assert "differ by" in messages["sum"]


SHORT = [{"name": "ddp"}, {"name": "horovod"}, *map(zero, range(4))]


def in_ci(options: dict[str, Any]) -> bool:
    return options.get("zero_stage") in (None, 3)


def cases(*options: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(
            each,
            id="-".join(map(str, each.values())),
            marks=[] if in_ci(each) else [pytest.mark.thorough],
        )
        for each in options
    ]


def found_for(options: dict[str, Any]) -> list[dict[str, Any]]:
    """By each of two ranks."""
    name = options["name"]
    ours = [each for each in SHORT if each["name"] == name and in_ci(each) == in_ci(options)]
    request = {"strategies": ours, "defects": ["bf16", "fp16"]}
    found = found_by(name, 2, "gate_16_bits_worker", request)
    return [each[ours.index(options)] for each in found]


@pytest.mark.parametrize("options", cases(SHORT[1], *SHORT[3:]))
def test_gradients_are_reduced_in_several_parts_too(options: dict[str, Any]) -> None:
    found = found_for(options)[0]["reductions"]
    if options["name"] == "horovod":  # on a busy machine also without pauses
        assert found[1] >= LAYERS
    else:
        assert found[0] == 1 < found[1]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("options", cases(*SHORT))
def test_a_right_strategy_passes_in_16_bits(options: dict[str, Any], precision: str) -> None:
    for found in found_for(options):
        verdict = found[precision]
        assert verdict["passed"], verdict["message"]
        assert 1e-4 < verdict["error_16_bits"] < 0.15  # 16 bits were used


LOSSY: list[tuple[dict[str, Any], str]] = [
    *((each.options, "fp32") for each in VARIANTS.values() if each.kind == CHANGED),
    ({"name": "ddp", "compression": "fp16"}, "fp16"),
    ({"name": "ddp", "compression": "powersgd", "powersgd_rank": 3}, "bf16"),
    ({"name": "fsdp", "gather_dtype": "bf16", "reduce_dtype": "bf16"}, "bf16"),
    *((zero(stage), short) for stage in range(4) for short in ("bf16", "fp16")),
]
"""Options and precisions that change gradients on purpose."""


def unrefused(options: dict[str, Any], precision: str, size: int, defects: list[str]) -> set[str]:
    """Defects that some rank lets pass; "" is none, and has to."""
    request = [options, precision, defects]
    found = found_by(options["name"], size, "gate_lossy_worker", request, timeout_s=800)
    return {defect for each in found for defect, faults in each.items() if not faults}


def test_a_compression_that_sums_or_loses_is_refused() -> None:
    defects = ["sum for mean, after compression", "one rank lost", "half the buckets"]
    assert unrefused({"name": "ddp", "compression": "bf16"}, "fp32", 2, defects) == {""}


def test_powersgd_has_several_buckets_over_gloo() -> None:
    """Its collectives of one bucket would be paired with those of another, or wait for ever."""
    options = {"name": "ddp", "compression": "powersgd"}
    assert unrefused(options, "fp32", 2, []) == {""}


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("options", "precision"),
    LOSSY,
    ids=["-".join(map(str, [*options.values(), short])) for options, short in LOSSY],
)
def test_lossy_options_are_held_to_what_they_can_change(
    options: dict[str, Any], precision: str, size: int
) -> None:
    defects = [*gate_lossy_worker.DEFECTS]
    if options["name"] in ("ddp", "deepspeed"):
        defects += gate_lossy_worker.BUCKETS
    assert unrefused(options, precision, size, defects) == {""}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_16_bits_is_refused(defect: str) -> None:
    request = {"strategies": [{"name": "ddp"}], "defects": list(DEFECTS)}
    for found in found_by("ddp", 2, "gate_16_bits_worker", request):
        assert not found[0][defect]["passed"]
        assert found[0][defect]["error"] < TOLERANCE  # fp32 is right
