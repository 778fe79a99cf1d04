"""A profile after the training: it changes nothing, and its trace is one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raysuite.measure.shares import KERNELS, Parts
from raysuite.parallel.comm import NoComm
from raysuite.records import EpochFinished, Record, RunFinished, TimeShares, run_figures
from raysuite.train import profiling
from raysuite.train.profiling import lacks_kernels
from tests.unit.train.conftest import plan_of, run

PROFILED = {"measure_profile": "torch", "measure_profile_steps": 4}


def profile_of(records: list[Record]) -> TimeShares:
    (found,) = (record for record in records if isinstance(record, TimeShares))
    return found


def outcome(records: list[Record]) -> list[Any]:
    epochs = [record for record in records if isinstance(record, EpochFinished)]
    return [(each.losses, each.val_loss, each.val_accuracy) for each in epochs]


def test_training_is_as_without_it(tmp_path: Path) -> None:
    """To the bit: its losses, its validations, and the model that is kept."""
    averaged = {"training_ema_decay": 0.9}
    plain, profiled = tmp_path / "plain.pt", tmp_path / "profiled.pt"
    without = run(plan_of(**averaged), model_file=plain)
    with_it = run(plan_of(**averaged, **PROFILED), model_file=profiled)
    assert outcome(without) == outcome(with_it)
    kept, expected = (torch.load(file, weights_only=True) for file in (profiled, plain))
    assert all(torch.equal(kept[name], tensor) for name, tensor in expected.items())
    assert isinstance(with_it[-1], RunFinished)
    assert isinstance(with_it[-2], TimeShares)


def test_a_trace_that_cannot_be_written_costs_no_run(tmp_path: Path) -> None:
    (tmp_path / "full").touch()
    records = run(plan_of(**PROFILED), trace_file=tmp_path / "full" / "trace.json.gz")
    shares = profile_of(records)
    assert shares.trace == ""
    assert "not be written: " in shares.message
    assert shares.window_seconds
    assert isinstance(records[-1], RunFinished)


def test_one_process_computes_and_loads(tmp_path: Path) -> None:
    plan = plan_of(**PROFILED)
    file = tmp_path / "run" / "trace.json.gz"
    records = run(plan, trace_file=file)
    found = profile_of(records)
    assert (found.steps, found.warmup_steps, found.trace) == (4, 4, "trace.json.gz")
    assert found.computation_seconds[0] > 0
    assert found.data_seconds[0] > 0
    assert found.communication_seconds == [0.0]
    assert found.sources == []
    assert found.seconds > found.window_seconds[0]
    shares = run_figures(plan.model_dump(mode="json"), records).shares
    assert shares is not None
    parts = (shares.computation, shares.communication_exposed, shares.data_exposed, shares.other)
    assert sum(part[0] for part in parts) == pytest.approx(1)
    trace = json.loads(gzip.decompress(file.read_bytes()))
    marks = [event for event in trace["traceEvents"] if event.get("name") == "raysuite::step"]
    assert len(marks) == 4 + 2
    assert all(event["ph"] == "X" and event["dur"] > 0 for event in marks)


@pytest.mark.parametrize(
    ("device", "kernels", "lacks"),
    [("cpu", {}, False), ("cuda", {}, True), ("cuda", {"other": 1.0}, False)],
)
def test_a_gpu_without_kernels_has_no_shares(
    device: str, kernels: dict[str, float], lacks: bool
) -> None:
    parts = Parts(1.0, 0.5, 0.0, 0.0, 0.0, 0.0, kernels)
    assert lacks_kernels(parts, torch.device(device), NoComm()) == lacks


@pytest.mark.parametrize("seen", [True, False])
def test_each_part_is_recorded_as_what_it_is_unless_no_kernel_was_seen(seen: bool) -> None:
    kernels = {name: float(number) for number, name in enumerate(KERNELS)} if seen else {}
    parts = Parts(8.0, 4.0, 3.0, 2.0, 1.5, 1.0, kernels, ("kernels",))
    loop: Any = SimpleNamespace(
        plan=plan_of(**PROFILED, measure_warmup_steps=3),
        world=SimpleNamespace(device=torch.device("cuda")),
        engine=SimpleNamespace(comm=NoComm()),
        per_worker=lambda value: [value],
    )
    found = profiling._record(loop, parts, Path("a/trace.json.gz"), 0.0, "disk full")
    expected = {
        "window_seconds": [8.0],
        "computation_seconds": [4.0],
        "communication_seconds": [3.0],
        "communication_exposed_seconds": [2.0],
        "data_seconds": [1.5],
        "data_exposed_seconds": [1.0],
    }
    given = {name: getattr(found, name) for name in expected}
    assert given == (expected if seen else {key: [] for key in expected})
    assert found.kernel_seconds == {name: [value] for name, value in kernels.items()}
    assert (found.steps, found.warmup_steps) == (4, 3 + 2)
    assert (found.sources, found.trace) == (["kernels"], "trace.json.gz")
    assert found.message.endswith("disk full")
    assert (found.message == "disk full") == seen


@pytest.mark.parametrize(
    "changes",
    [
        {"training_global_batch": 1437},  # an epoch is one step
        {"training_global_batch": 700},  # two full steps and a small one
        {"loader": {"name": "native", "threads": 2}},
        pytest.param(
            {"loader": {"name": "native", "processes": 1}},
            marks=pytest.mark.thorough,  # a process that imports torch, for what threads show
        ),
        {"loader": "memory"},
        {"loader": "synthetic"},
    ],
)
def test_as_many_steps_as_are_asked_for(changes: dict[str, Any]) -> None:
    """Over several epochs where one is shorter, and with loaders that run ahead of the window."""
    found = profile_of(run(plan_of(**PROFILED, training_epochs=1, **changes)))
    assert found.trace == ""
    assert 0 < found.computation_seconds[0] < found.window_seconds[0]
