"""What options stand for: their exact form, several reductions in a step, networks refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from raysuite.spec.strategies import Lossy, Network, StrategyOptions, Traffic

options = TypeAdapter[Any](StrategyOptions).validate_python
EXACT_FSDP = {"gather_dtype": "fp32", "reduce_dtype": "fp32"}


@pytest.mark.parametrize(
    ("lossy", "exact"),
    [
        ({"name": "ddp", "compression": "powersgd", "bucket_mb": 3}, {"compression": "none"}),
        ({"name": "horovod", "compression": "fp16", "cycle_time_ms": 2}, {"compression": "none"}),
        ({"name": "fsdp", "gather_dtype": "bf16", "copies": 2}, EXACT_FSDP),
        ({"name": "fsdp", "reduce_dtype": "bf16", "units": "layers"}, EXACT_FSDP),
    ],
)
def test_the_exact_form_differs_in_what_changes_the_results_alone(
    lossy: dict[str, Any], exact: dict[str, Any]
) -> None:
    given, wanted = options(lossy), options(lossy | exact)
    assert given.lossless() == wanted.lossless() == wanted
    assert given.lossy
    assert wanted.lossy is None


SMALL = {"bucket_mb": 2**-9}  # of 512 fp32 values


@pytest.mark.parametrize(
    ("given", "changed", "pause_s"),
    [
        ({"name": "ddp", "compression": "fp16"}, SMALL, 0),
        ({"name": "ddp", "bucket_mb": 1e-3}, {}, 0),
        ({"name": "horovod", "cycle_time_ms": 2}, {}, 0.006),
        ({"name": "deepspeed", "zero_stage": 3}, SMALL, 0),
        ({"name": "fabric"}, SMALL, 0),
        ({"name": "fsdp", "copies": 2}, {"units": "layers"}, 0),
    ],
)
def test_gradients_of_the_gate_are_reduced_in_several_parts(
    given: dict[str, Any], changed: dict[str, Any], pause_s: float
) -> None:
    found, pause = options(given).several_reductions()
    assert (found, pause) == (options(given | changed), pytest.approx(pause_s))


@pytest.mark.parametrize(
    "given", [{"name": "single"}, {"name": "deepspeed", "zero_stage": 0}, {"name": "pipeline"}]
)
def test_no_options_reduce_gradients_in_several_parts(given: dict[str, Any]) -> None:
    assert options(given).several_reductions() is None


def test_a_pipeline_names_weights_that_it_cannot_send() -> None:
    [(key, message)] = options({"name": "pipeline"}).network_refusals(Network(complex=("a.b",)))
    assert (key, "a.b" in message) == ("strategy.name", True)


def test_zero_3_names_what_it_cannot_shard() -> None:
    assert not [*options({"name": "deepspeed", "zero_stage": 3}).network_refusals(Network())]
    for network, what in ((Network(empty=("a.b",)), "a.b"), (Network(scripted=True), "a Script")):
        [(key, message)] = options({"name": "deepspeed", "zero_stage": 3}).network_refusals(network)
        assert (key, what in message) == ("strategy.zero_stage", True)
        assert not [*options({"name": "deepspeed", "zero_stage": 2}).network_refusals(network)]


DEAD, RARE = {"unused": ("a",)}, {"sometimes": ("b",)}
COMPLEX, SYNCED, SCALAR = {"complex": ("c",)}, {"synced": ("d",)}, {"scalar": ("e",)}
DECAYS = {"decays": True}


@pytest.mark.parametrize(
    ("given", "network", "keys"),
    [
        ("ddp", DEAD, ["strategy.find_unused_parameters"]),
        ("ddp", RARE, ["strategy.find_unused_parameters"]),
        ({"name": "ddp", "find_unused_parameters": True}, DEAD | RARE, []),
        ("ddp", COMPLEX | SYNCED | SCALAR | DECAYS, []),
        ("fabric", DEAD, ["strategy.name"]),
        ("accelerate", RARE, ["strategy.name"]),
        ("horovod", DEAD, []),
        ("horovod", DEAD | DECAYS, ["model.freeze"]),
        ("horovod", RARE | COMPLEX | SYNCED, ["strategy.name", "strategy.name", "model.name"]),
        ("deepspeed", DEAD | DECAYS | COMPLEX, ["model.freeze", "strategy.name"]),
        ("deepspeed", RARE | SCALAR | SYNCED, ["strategy.name", "strategy.name"]),
        ("fsdp", DEAD | DECAYS | SYNCED, []),
        ("fsdp", RARE | COMPLEX | SCALAR, ["strategy.name"] * 3),
        ("fsdp", {"scripted": True, "hooked": ("f",)}, ["strategy.name"] * 2),
        ("pipeline", {"frozen": ("a",)} | COMPLEX | SYNCED, ["strategy.name"] * 2 + ["model.name"]),
        ("pipeline", DEAD | RARE | SCALAR | DECAYS, []),
    ],
)
def test_networks_that_a_strategy_refuses(given: Any, network: Any, keys: list[str]) -> None:
    found = [*options(given).network_refusals(Network(**network))]
    assert [key for key, _ in found] == keys


def of_spec(**sections: Any) -> SimpleNamespace:
    training = {"accumulate": 1, "clip_norm": None, "ema_decay": None, "precision": "fp32"}
    training |= {"compile": "off", **sections.get("training", {})}
    return SimpleNamespace(
        training=SimpleNamespace(**training),
        task=SimpleNamespace(name="x", classifies=sections.get("classifies", True)),
        optimizer=SimpleNamespace(name="lamb", whole=sections.get("whole", "")),
        measure=SimpleNamespace(figures=sections.get("figures", ())),
        resources=SimpleNamespace(workers=sections.get("workers", 4)),
    )


ALL = {"clip_norm": 1.0, "ema_decay": 0.9, "precision": "fp16"}
LATE = ["training.clip_norm", "training.ema_decay", "measure.figures", "training.precision"]


@pytest.mark.parametrize(
    ("given", "spec", "keys"),
    [
        ({"static_graph": True}, {"training": {"accumulate": 2}}, ["strategy.static_graph"]),
        ({"static_graph": True}, {}, []),
        ({}, {"training": {"accumulate": 2}}, []),
        ({"name": "fsdp", "copies": 3}, {}, ["strategy.copies"]),
        ({"name": "fsdp", "copies": 2}, {}, []),
        ({"name": "fsdp", "copies": "nodes"}, {}, []),
        ({"name": "pipeline", "balance": "time"}, {"classifies": False}, ["strategy.balance"]),
        ({"name": "pipeline", "balance": "time"}, {}, []),
        ({"name": "pipeline"}, {"classifies": False, "training": ALL, "figures": ("n",)}, []),
        (
            {"name": "pipeline", "schedule": "pipedream_2bw"},
            {"training": ALL, "figures": ("n",)},
            LATE,
        ),
        ({"name": "pipeline", "schedule": "pipedream"}, {"training": {"precision": "bf16"}}, []),
        (
            {"name": "deepspeed", "zero_stage": 3},
            {"training": {"compile": "x"}},
            ["training.compile"],
        ),
        (
            {"name": "deepspeed", "zero_stage": 2},
            {"training": {"compile": "x", "ema_decay": 0.9}},
            [],
        ),
        ({"name": "deepspeed", "zero_stage": 1}, {"whole": "norms"}, ["optimizer.name"]),
        ({"name": "deepspeed", "zero_stage": 0}, {"whole": "norms"}, []),
        ({"name": "deepspeed", "zero_stage": 1, "offload": "optimizer"}, {}, []),
    ],
)
def test_specs_that_a_strategy_refuses(given: Any, spec: Any, keys: list[str]) -> None:
    found = options({"name": "ddp"} | given).refusals(of_spec(**spec))
    assert [key for key, _ in found] == keys


def test_the_gate_checks_options_that_its_small_network_allows() -> None:
    for rank, examined in ((2, 2), (3, 3), (8, 3)):
        given = {"name": "ddp", "compression": "powersgd", "powersgd_rank": rank}
        assert options(given).examined() == options(given | {"powersgd_rank": examined})
    pipeline = {"name": "pipeline", "stages": 3, "partition": [5, 1, 1], "balance": "memory"}
    assert options(pipeline).examined() == options({"name": "pipeline", "stages": 3})
    assert options({"name": "horovod", "cycle_time_ms": 3}).examined().cycle_time_ms == 3


def test_a_step_is_tried_alone_where_weights_are_used_in_16_bits() -> None:
    both = {"name": "fsdp", "gather_dtype": "bf16", "copies": 2, "units": "layers"}
    assert options(both).alone() == (options(both | {"copies": 1}), "strategy.gather_dtype")
    assert options({"name": "fsdp", "reduce_dtype": "bf16"}).alone() is None


def test_horovod_settings_need_processes_with_them() -> None:
    for given, own in (((128, 1), False), ((64, 1), False), ((128, 2), False), ((64, 2), True)):
        found = options(
            {"name": "horovod", "fusion_threshold_mb": given[0], "cycle_time_ms": given[1]}
        )
        assert (found.process_settings, found.own_processes) == (given, own)
    assert (options("ddp").process_settings, options("ddp").own_processes) == (None, False)


def test_the_largest_buffer_of_gradients() -> None:
    for given, mib in (
        ({"name": "ddp", "bucket_mb": 5}, 5),
        ({"name": "horovod", "fusion_threshold_mb": 64}, 64),
        ({"name": "horovod", "fusion_threshold_mb": 0}, 128),
        ({"name": "fsdp"}, float("inf")),
    ):
        assert options(given).fused_bytes == mib * 2**20


@pytest.mark.parametrize(
    ("given", "traffic"),
    [
        ({"name": "fsdp", "gather_dtype": "bf16"}, Traffic(0, 1000, 4 * 250 * 6 // 2)),
        ({"name": "fsdp", "reduce_dtype": "bf16"}, Traffic(0, 500, 4 * 250 * 6)),
        ({"name": "fsdp", "reshard_after_forward": False}, Traffic(0, 1000, 4 * 250 * 3)),
        ({"name": "fsdp", "copies": 2}, None),
        ({"name": "ddp", "compression": "bf16"}, Traffic(500)),
        ({"name": "ddp", "compression": "powersgd"}, None),
        ({"name": "horovod", "compression": "fp16"}, Traffic(500)),
        ({"name": "deepspeed", "zero_stage": 1}, Traffic(1000, 0, 1000)),
        ({"name": "deepspeed", "zero_stage": 2}, Traffic(3000, 0, 1000)),
        # the 200 numbers of large tensors are gathered three times, the others once
        ({"name": "deepspeed", "zero_stage": 3}, Traffic(0, 3000, 4 * (3 * 200 + 50))),
        ({"name": "deepspeed", "zero_stage": 3, "offload": "optimizer"}, None),
    ],
)
def test_bytes_of_a_step_of_three_micro_batches(given: dict[str, Any], traffic: Any) -> None:
    assert options(given).traffic(3, 250, 1000, 50) == traffic


def test_messages_of_rings_by_hand() -> None:
    # buffers of 100 bytes: 3 that are all-reduced, 1 scattered, 2 gathered; of 4 workers
    assert Traffic(201, 100, 101).messages(4, 100) == 3 * (2 * 3 + 1 + 2)
    assert Traffic(1, 0, 0).messages(2, 100) == 2
    assert Traffic(200, 100, 60).sent(4) == 0.75 * (400 + 100 + 60)
    assert Traffic(2, 3, 4).total == 9


def test_results_are_changed_by_16_bits_as_they_are_named() -> None:
    for given, lossy in (
        ({"name": "fsdp", "gather_dtype": "bf16"}, Lossy("", False, 0.25)),
        ({"name": "fsdp", "reduce_dtype": "bf16"}, Lossy("bf16")),
        ({"name": "ddp", "compression": "bf16"}, Lossy("bf16")),
        ({"name": "ddp", "compression": "powersgd"}, Lossy(projected=True)),
        ({"name": "horovod", "compression": "fp16"}, Lossy("fp16")),
    ):
        assert options(given).lossy == lossy
