"""Quantities of the cost models, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from raysuite.perf.costs import (
    Work,
    by_kind,
    epoch_terms,
    joules_terms,
    loader_kind,
    memory_terms,
    replicas,
    strategy_kind,
    work_name,
)
from raysuite.records.names import Plan
from tests.fake_calibration import NAME, plans

WORK = Work(parameters=270_000, gradient_bytes=1_080_000, forward_flops=10_000_000)
STEPS = 23  # of 64 images, for 1,437


def plan_of(strategy: dict[str, Any], workers: int, accumulate: int = 1) -> Plan:
    """Of epochs in steps of 64 images."""
    plan = plans("[[64, 1]]")[0]
    micro = 64 // workers // accumulate
    counts = {"workers": workers, "micro_batch": micro, "accumulate": accumulate}
    return {**plan, **counts, "spec": {**plan["spec"], "strategy": strategy}}


def terms(strategy: dict[str, Any], workers: int, accumulate: int = 1) -> dict[str, float]:
    """By the names of costs, of an epoch with two workers on a node."""
    return epoch_terms(plan_of(strategy, workers, accumulate), WORK, workers_per_node=2)


def test_an_epoch_of_four_workers_by_hand() -> None:
    found = terms({"name": "ddp"}, workers=4, accumulate=2)
    assert found == pytest.approx(
        {
            f"image/{NAME}": 1437 / 4,
            f"pass/{NAME}": STEPS * 2,
            f"update/{NAME}": STEPS,
            "load/native": 1437 / 4,
            "epoch/all": 1,
            f"neighbour/{NAME}": 1437 / 4 * 1 / 2,  # of two workers of a node
            "step/ddp": STEPS,
            "copy/ddp": STEPS * 270_000 * 4,
            "hook/ddp": STEPS * 2,
            "beside/ddp": 1437 / 4 * 10_000_000,
            "message/ddp": STEPS * 2 * 3,  # one buffer holds all
            "byte/ddp": STEPS * 2 * 3 / 4 * 1_080_000,
        }
    )


@pytest.mark.parametrize(
    ("strategy", "accumulate", "sent", "messages"),
    [
        ({"name": "ddp", "bucket_mb": 0.5}, 2, 1_080_000, 6),  # of 524,288 bytes
        ({"name": "ddp", "bucket_mb": 0.5, "compression": "fp16"}, 1, 540_000, 4),
        ({"name": "horovod", "fusion_threshold_mb": 0.25}, 1, 1_080_000, 10),
        ({"name": "deepspeed", "zero_stage": 1, "bucket_mb": 0.5}, 2, 1_080_000 * 1.5, 6 + 3),
        ({"name": "deepspeed", "zero_stage": 2, "bucket_mb": 0.5}, 2, 1_080_000 * 2.5, 10 + 3),
        ({"name": "fsdp"}, 1, 1_080_000 * 1.5, 1 + 1),  # nothing limits its buffers
    ],
)
def test_messages_are_of_all_that_is_reduced_and_gathered(
    strategy: dict[str, Any], accumulate: int, sent: float, messages: int
) -> None:
    """Two workers send what is all-reduced, and half of what is gathered (ZeRO's weights), which
    takes half as many messages."""
    found = {name.partition("/")[0]: each for name, each in terms(strategy, 2, accumulate).items()}
    assert found["byte"] == pytest.approx(STEPS * sent)
    assert found["message"] == STEPS * messages


def test_terms_that_a_plan_does_not_have() -> None:
    kinds = {"image", "pass", "update", "load", "epoch"}
    alone = terms({"name": "single"}, workers=1)
    assert {name.partition("/")[0] for name in alone} == {*kinds, "neighbour"}
    assert alone[f"neighbour/{NAME}"] == 0
    one = terms({"name": "ddp"}, workers=1)
    assert {*one} - {*alone} == {"step/ddp", "copy/ddp"}
    gpu = epoch_terms({**plan_of({"name": "ddp"}, 2), "device": "gpu"}, WORK)
    assert not any(name.startswith("neighbour/") for name in gpu)
    # on a node of its own, as many as there are
    near = epoch_terms(plan_of({"name": "ddp"}, 4), WORK)
    assert near[f"neighbour/{NAME}"] == pytest.approx(1437 / 4 * 3 / 4)
    unknown = terms({"name": "ddp", "compression": "powersgd"}, workers=2)
    assert "hook/ddp(compression=powersgd)" in unknown
    assert not any(name.startswith(("byte/", "message/")) for name in unknown)
    uncounted = epoch_terms(plan_of({"name": "ddp"}, 2), Work(270_000, 1_080_000))
    assert uncounted["beside/ddp"] == 0


def test_names_hold_what_changes_the_costs_of_an_image() -> None:
    plan = plan_of({"name": "ddp"}, 2)
    assert work_name(plan) == NAME
    for key, value, size in (
        ("sequence", 16, "16 tokens"),
        ("inputs", "[3] float32", "[3] float32"),
        ("image_size", 32, "32 px"),
    ):
        other = {**plan, "dataset": {**plan["dataset"], key: value}}
        assert work_name(other) == f"resnet20 at {size}, cpu"
    spec = plan["spec"]
    training = {"precision": "bf16", "compile": "default", "ema_decay": 0.9}
    changed = {
        **spec,
        "model": {
            **spec["model"],
            "options": {"stem": "small", "depth": 2},
            "freeze": ["conv*", "fc"],
        },
        "training": {**spec["training"], **training, "memory_format": "channels_last"},
        "optimizer": {**spec["optimizer"], "name": "adamw"},
        "resources": {**spec["resources"], "cpus_per_worker": 4},
    }
    assert work_name({**plan, "spec": changed}) == (
        'resnet20 at 16 px, {"depth": 2, "stem": "small"}, frozen conv*, fc, bf16, compile=default, '
        "memory_format=channels_last, ema_decay=0.9, adamw, 4 CPUs, cpu"
    )


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ({"name": "ddp", "bucket_mb": 1.0, "compression": "none"}, "ddp"),
        ({"name": "ddp", "bucket_mb": 1.0, "compression": "fp16"}, "ddp(compression=fp16)"),
        ({"name": "horovod", "fusion_threshold_mb": 4.0}, "horovod"),
        ({"name": "horovod", "fusion_threshold_mb": 0.0}, "horovod(fusion_threshold_mb=0.0)"),
        (
            {"name": "deepspeed", "zero_stage": 3, "offload": "optimizer"},
            "deepspeed(zero_stage=3, offload=optimizer)",
        ),
    ],
)
def test_a_kind_of_strategy_is_without_its_sizes(strategy: dict[str, Any], name: str) -> None:
    assert strategy_kind(plan_of(strategy, 2)) == name


def test_a_kind_of_loader_has_what_is_not_the_default() -> None:
    plan = plan_of({"name": "ddp"}, 2)
    assert loader_kind(plan) == "native"
    loader = {**plan["spec"]["loader"], "threads": 7}
    assert loader_kind({**plan, "spec": {**plan["spec"], "loader": loader}}) == "native(threads=7)"


def test_copies_of_a_pipeline() -> None:
    plan = {**plan_of({"name": "ddp"}, 4), "micro_batch": 8, "accumulate": 4}
    assert replicas(plan) == 2  # of 64 images


def test_memory_and_energy_by_hand() -> None:
    plan = plan_of({"name": "ddp"}, workers=4, accumulate=2)
    held = {
        "process/ddp, several": 1,
        f"activations/{NAME}": 8,  # images of a micro-batch
        "weights/ddp, several": 270_000 * 4,
        f"network/{NAME}": 1,
    }
    assert memory_terms(plan, WORK, 0.0) == held
    assert memory_terms(plan, WORK, 5e8) == {**held, "resident/before": 5e8}
    alone = memory_terms(plan_of({"name": "single"}, workers=1), WORK, 0.0)
    assert (alone["process/single, one"], alone[f"activations/{NAME}"]) == (1, 64)
    # four workers on nodes of three draw the power of two nodes, for ten seconds
    assert joules_terms(plan, 10.0, 3) == {"node/all": 2 * 10, "worker/cpu": 4 * 10}


def test_kinds_of_costs_add_up() -> None:
    parts = {"image/a": 1.0, "neighbour/a": 2.0, "message/b": 4.0, "hook/b": 8.0, "load/c": 16.0}
    assert by_kind(parts | {"epoch/all": 32.0, "update/a": 64.0}) == {
        "computation": 3,
        "communication": 12,
        "loader": 48,
        "overhead": 64,
    }
