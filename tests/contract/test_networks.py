"""Networks as users write them: each is trained as by a plain loop under every strategy, or is
refused, with the key to change, by one batch before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from raysuite.gate import own_network
from raysuite.plan import make_plans
from raysuite.plan.dry_batch import unproven
from raysuite.spec import Document
from raysuite.train.trial_batch import mistakes
from tests.contract.launches import found_by
from tests.contract.network_worker import plan_of
from tests.contract.variants import VARIANTS
from tests.networks import NETWORKS

pytestmark = [pytest.mark.integration, pytest.mark.slow]

THOROUGH = ("fsdp", "deepspeed-0", "deepspeed-2")
"""Stage 3 has the shards of stage 2 and fsdp and, gathered, the network of stage 0."""
NOWHERE = (
    *("all_frozen", "tuple", "dict", "flat", "maps", "labels", "too_few", "too_many"),
    *("detached", "double", "sparse", "needs_argument", "raises", "ends"),
)
REFUSED = {
    variant: dict.fromkeys(NOWHERE, "model.name") | dict(each.refused)
    for variant, each in VARIANTS.items()
    if each.refused is not None
}
"""Variant -> network -> key to change."""
BY_RANK = ("batch_norm", "dropout")
"""Each rank has statistics, or draws, of its own: not as in one process."""
TOLERANCE = 1e-5


def workers(variant: str) -> int:
    return 1 if variant == "single" else 2


def caught(variant: str) -> list[str]:
    """Networks refused by the dry batch, and by the gate where they come to it."""
    zeroes = REFUSED[variant].get("unused") == "model.freeze"
    return ["every_second_step"] if zeroes else []


@pytest.mark.parametrize(
    ("model", "stages", "keys"),
    [
        ({"name": "resnet20"}, 2, []),
        (
            {"name": "tests.networks:made", "options": {"which": "frozen_norm"}},
            2,
            ["strategy.name"],
        ),
        ({"name": "tests.networks:made", "options": {"which": "dropout"}}, 2, ["strategy.name"]),
        ({"name": "resnet20"}, 64, ["strategy.stages"]),
        ({"name": "tests.tiny_model:frozen"}, 2, ["strategy.name"]),
    ],
)
def test_one_batch_says_what_cannot_be_cut_into_stages(
    model: dict[str, Any], stages: int, keys: list[str]
) -> None:
    data = {
        "name": "networks",
        "model": model,
        "data": {"name": "digits"},
        "strategy": {"name": "pipeline", "stages": stages, "micro_batches": 2},
        "training": {"epochs": 1, "global_batch": 64},
        "resources": {"workers": stages, "device": "cpu"},
    }
    (plan,) = make_plans(Document(data, "test"), gpus=0)
    assert [mistake.key for mistake in mistakes(plan)] == keys


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (
            {"model": {"name": "tests.networks:made", "options": {"which": "scripted"}}},
            "training.ema_decay",
        ),
        ({"model": {"name": "resnet20", "weights": "nowhere.pt"}}, "model.weights"),
        ({"data": {"name": "digits", "image_size": 10**7}}, "data.image_size"),
        (
            {"optimizer": {"name": "sgd", "lr": 0.1, "lr_factors": {"fc.*": 1, "head.*": 0.1}}},
            "optimizer.lr_factors",
        ),
    ],
)
def test_one_batch_says_what_no_strategy_can_train(given: dict[str, Any], key: str) -> None:
    data = {
        "name": "networks",
        "model": {"name": "resnet20"},
        "data": {"name": "digits"},
        "training": {"epochs": 1, "global_batch": 64, "ema_decay": 0.9},
        "resources": {"device": "cpu"},
        **given,
    }
    (plan,) = make_plans(Document(data, "test"), gpus=0)
    assert [mistake.key for mistake in mistakes(plan)] == [key]


SYNCED = {"name": "tests.tiny_model:synced"}
GATHERED = {"name": "fsdp", "gather_dtype": "bf16"}


@pytest.mark.parametrize(
    ("model", "strategy", "device", "keys"),
    [
        ({"name": "resnet20"}, GATHERED, "cpu", ["strategy.gather_dtype"]),
        ({"name": "resnet20"}, {**GATHERED, "copies": 2}, "cpu", ["strategy.gather_dtype"]),
        ({"name": "resnet20"}, GATHERED, "gpu", []),
        ({"name": "tests.tiny_model:Tiny"}, GATHERED, "cpu", []),
        (SYNCED, {"name": "single"}, "cpu", []),
        (SYNCED, {"name": "ddp"}, "cpu", ["model.name"]),
        (SYNCED, {"name": "ddp"}, "gpu", []),
        (SYNCED, {"name": "horovod"}, "gpu", ["model.name"]),
        (SYNCED, {"name": "pipeline", "micro_batches": 2}, "gpu", ["model.name"]),
    ],
)
def test_one_batch_says_which_layers_a_strategy_has_on_gpus_alone(
    model: dict[str, Any], strategy: dict[str, Any], device: str, keys: list[str]
) -> None:
    count = 1 if strategy["name"] == "single" else 2
    data = {
        "name": "networks",
        "model": model,
        "data": {"name": "digits"},
        "strategy": strategy,
        "training": {"epochs": 1, "global_batch": 64},
        "resources": {"workers": count, "device": device},
    }
    (plan,) = make_plans(Document(data, "test"), gpus=count)
    found = [mistake.key for each in unproven([plan]) for mistake in mistakes(each)]
    assert found == keys


@pytest.mark.parametrize("variant", REFUSED)
def test_one_batch_says_what_cannot_be_trained(variant: str) -> None:
    options = VARIANTS[variant].options
    found = {
        which: [mistake.key for mistake in mistakes(plan_of(which, options, workers(variant)))]
        for which in NETWORKS
    }
    refused = {which: [key] for which, key in REFUSED[variant].items()}
    assert found == {which: [] for which in NETWORKS} | refused


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=[pytest.mark.thorough] if name in THOROUGH else [])
        for name in REFUSED
    ],
)
def test_the_others_are_trained_as_by_a_plain_loop(variant: str) -> None:
    framework = VARIANTS[variant].name
    request = {
        each: (
            VARIANTS[each].options,
            [which for which in NETWORKS if which not in refused],
            caught(each),
        )
        for each, refused in REFUSED.items()
        if VARIANTS[each].name == framework and (each in THOROUGH) == (variant in THOROUGH)
    }
    for found in found_by(framework, workers(variant), "network_worker", request):
        for which in caught(variant):
            gate = found[variant].pop(which)["gate"]
            assert gate["error"] > own_network.TOLERANCE
            assert gate["differs"], which
        for which, figures in found[variant].items():
            assert figures["in_order"] == [True] * 3, which
            if workers(variant) > 1:
                gate = figures["gate"]
                assert gate["error"] is not None, (which, gate)
                assert gate["error"] <= own_network.TOLERANCE / 3, (which, gate)
                assert (gate["differs"], gate["ranks_equal"]) == ("", True), which
            if which in BY_RANK and workers(variant) > 1:
                continue
            assert figures["losses"] <= TOLERANCE, which
            assert max(figures["weights"].values()) <= TOLERANCE, (which, figures["weights"])
