"""A pipeline is one process that accumulates over the same micro-batches, whatever its schedule; an
asynchronous one is a process that applies gradients as late, with the same versions of weights."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from raysuite.records import Results, results_figures
from raysuite.spec.strategies import PipelineOptions
from tests.contract.launches import found_by
from tests.contract.pipeline_worker import FLAWS, flaws, has_copies
from tests.ranks import ranks

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NETWORKS = ("resnet20", "vgg11", "mobilenet_v2")
TOLERANCE = 1e-5


def pipelines(stages: int, copies: int) -> dict[str, dict[str, Any]]:
    """By name; a step of all copies has four micro-batches."""
    each = 4 // copies
    plain = {"stages": stages, "micro_batches": each}
    found: dict[str, dict[str, Any]] = {
        name: {"schedule": name, **plain} for name in ("model_parallel", "gpipe", "1f1b")
    }
    found["recompute"] = {"schedule": "gpipe", "recompute": True, "balance": "time", **plain}
    if each % stages == 0:
        found["interleaved"] = {"schedule": "interleaved_1f1b", "chunks": 2, **plain}
        found["interleaved"]["stages"] = 2 * stages
    found["pipedream"] = {"schedule": "pipedream", "stages": stages}
    if each >= stages:
        found["2bw"] = {"schedule": "pipedream_2bw", **plain}
    return found


Launch = tuple[int, tuple[str, ...], dict[str, dict[str, Any]]]
"""Workers, networks, pipelines by name."""
TWO = pipelines(2, 1)
LAUNCHES: list[tuple[Launch, bool]] = [
    ((2, ("resnet20",), TWO), False),
    ((2, NETWORKS[1:], TWO), True),
    *(((4, (network,), pipelines(4, 1)), True) for network in NETWORKS),
    *(((4, (network,), pipelines(2, 2)), True) for network in NETWORKS),
    (
        (
            4,
            ("resnet20",),
            {
                "3-1": {"schedule": "pipedream", "replicas": [3, 1]},
                "1-3": {"schedule": "pipedream", "replicas": [1, 3], "micro_batches": 6},
                "2-1-1": {
                    "schedule": "pipedream_2bw",
                    "stages": 3,
                    "replicas": [2, 1, 1],
                    "micro_batches": 4,
                },
            },
        ),
        True,
    ),
]


def seeded(launch: Launch, name: str) -> list[str]:
    """The flaws of a pipeline of a launch, of which "none" has to pass.

    CI gives `1f1b` to the gate with every flaw of a pipeline, and `2bw` with those of late updates;
    the others run the same passes in another order, and are given to it as they are.
    """
    every = flaws(PipelineOptions.model_validate(launch[2][name]), launch[0])
    if launch != LAUNCHES[0][0] or name == "1f1b":
        return every
    return [flaw for flaw in every if flaw == "none" or (name == "2bw" and flaw not in FLAWS)]


def found(launch: Launch, key: str) -> list[dict[str, Any]]:
    workers, networks, options = launch
    gate = {name: seeded(launch, name) for name in options if networks[0] == "resnet20"}
    request = {"pipelines": options, "networks": networks, "gate": gate}
    limit_s = 240 if workers == 2 else 1100
    return [
        each[key] for each in found_by("pipeline", workers, "pipeline_worker", request, limit_s)
    ]


def cases(gate: bool) -> list[Any]:
    return [
        pytest.param(
            launch,
            name,
            network,
            id=f"{launch[0]} workers {name} {network}",
            marks=[pytest.mark.thorough, pytest.mark.timeout(1200)] if thorough else [],
        )
        for launch, thorough in LAUNCHES
        for name in launch[2]
        for network in launch[1]
        if network == "resnet20" or not gate
    ]


@pytest.mark.parametrize(("launch", "name", "network"), cases(gate=False))
def test_equal_to_one_process(launch: Launch, name: str, network: str) -> None:
    each_rank = found(launch, f"{name} {network}")
    for each in each_rank:
        assert max(each[key] for key in ("state", "logits", "losses", "norms")) <= TOLERANCE, each
        assert each["resumed"] == 0.0
        assert each["resumed alone"] <= TOLERANCE
        if network == "resnet20":
            others = ("resumed on 2 stages", "resumed by ddp")
            assert max(each.get(key, 0.0) for key in others) <= TOLERANCE, each
    options = PipelineOptions.model_validate(launch[2][name])
    schedule = options.pipeline()
    if max(schedule.replicas) == 1:
        copies = launch[0] // schedule.workers
        assert (
            sum(each["own parameters"] for each in each_rank) == copies * each_rank[0]["parameters"]
        )
    assert max(each["own parameters"] for each in each_rank) < each_rank[0]["parameters"]
    if name == "pipedream":
        stages = range(options.stages)
        assert [each["versions"] for each in each_rank[: options.stages]] == [
            options.stages - stage for stage in stages
        ]
    elif name in ("2bw", "2-1-1"):
        assert {each["versions"] for each in each_rank} == {2}


@pytest.mark.parametrize(("launch", "name", "network"), cases(gate=False))
def test_nothing_of_an_engine_is_left_after_its_end(
    launch: Launch, name: str, network: str
) -> None:
    assert [each["left"] for each in found(launch, f"{name} {network}")] == [[]] * launch[0]


@pytest.mark.parametrize(("launch", "name", "network"), cases(gate=True))
def test_the_gate_passes_it_and_refuses_every_defect(
    launch: Launch, name: str, network: str
) -> None:
    options = PipelineOptions.model_validate(launch[2][name])
    passes = {"none"}
    if has_copies(options.pipeline(), launch[0]):
        # the running statistics are each copy's own, and the gate does not compare them
        passes.add("BatchNorm frozen")
    for each in found(launch, f"{name} gate"):
        assert each == {flaw: flaw in passes for flaw in seeded(launch, name)}
    for each in found(launch, f"{name} 16 bits"):
        assert not any(each.values()), each


@pytest.mark.parametrize(
    ("workers", "steps", "rounds"),
    [
        pytest.param(2, 200, 10, marks=[pytest.mark.thorough, pytest.mark.timeout(3000)]),
        pytest.param(4, 200, 10, marks=[pytest.mark.thorough, pytest.mark.timeout(3000)]),
    ],
)
def test_no_schedule_hangs(workers: int, steps: int, rounds: int, tmp_path: Path) -> None:
    request = {"pipelines": pipelines(workers, 1), "steps": steps, "rounds": rounds}
    file = tmp_path / "found"
    module = "tests.contract.pipeline_worker"
    ranks(workers, module, json.dumps(request), file, timeout_s=2900)
    found = json.loads(Path(f"{file}.{workers - 1}").read_text())
    assert {name: len(losses) for name, losses in found.items()} == dict.fromkeys(
        request["pipelines"], rounds
    )
    for losses in found.values():
        assert len(set(losses)) == 1  # the same arithmetic each time
        assert 0 < losses[0] < math.inf


RUNS = """
name: runs
model: resnet20
data: {name: "tests.small_sets:OwnSet", image_size: 8, options: {counts: {train: 48, val: 4}}}
strategy: pipeline
training: {epochs: 1, global_batch: 16}
measure: {warmup_steps: 0}
resources: {workers: 2, device: cpu}
matrix:
  strategy:
  - {name: pipeline, schedule: 1f1b, micro_batches: 8, balance: memory}
  - {name: pipeline, schedule: gpipe, micro_batches: 8, partition: [5, 6]}
  - {name: pipeline, schedule: gpipe, micro_batches: 8, partition: [5, 6], recompute: true}
  - {name: pipeline, schedule: pipedream, partition: [5, 6]}
"""


def test_runs_record_what_their_stages_do(tmp_path: Path) -> None:
    (tmp_path / "runs.yaml").write_text(RUNS)
    ranks(2, "raysuite.train", tmp_path / "runs.yaml", "--results", tmp_path / "results")
    figures = results_figures(Results.open(tmp_path / "results"))
    assert [each.status for each in figures] == ["finished"] * 4
    assert [each.gate for each in figures] == ["passed"] * 4
    stages = [each.stages for each in figures if each.stages is not None]
    one_by_one, gpipe, recomputed, pipedream = stages
    for each in stages:
        assert sum(each.partition) == 11
        assert len(each.slots) == 2
        assert all(0 < share < 1 for share in each.bubble)
        assert each.sent_bytes[0] == each.sent_bytes[1] > 0  # activations and their gradients
    for each in (gpipe, pipedream):  # of 16 samples: 32 channels of 4 x 4 values of fp32
        assert each.sent_bytes == [16 * 32 * 4 * 4 * 4] * 2
    assert len(one_by_one.block_seconds) == 11
    assert one_by_one.ideal_bubble == gpipe.ideal_bubble == pytest.approx(1 / 9)
    assert max(one_by_one.activation_bytes) < gpipe.activation_bytes[0] / 2
    assert recomputed.activation_bytes[0] < gpipe.activation_bytes[0] / 2
    assert pipedream.ideal_bubble == 0.0
    assert [each.versions for each in stages] == [[1, 1]] * 3 + [[2, 1]]
    assert [slot.kind for slot in pipedream.slots[0]] == ["forward", "backward", "update"]
