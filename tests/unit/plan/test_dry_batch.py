"""Which plans one batch is tried for, and of which plans it is tried once."""

from __future__ import annotations

from typing import Any

import pytest

from raysuite.errors import UserError
from raysuite.plan import RunPlan, make_plans
from raysuite.plan.dry_batch import distinct, import_error, unknown_model, unproven
from raysuite.spec import Document


def plan_of(**changes: Any) -> RunPlan:
    """`training_epochs=3` sets `training.epochs`."""
    data: dict[str, Any] = {
        "name": "a",
        "model": {"name": "resnet20"},
        "data": {"name": "digits"},
        "strategy": {"name": "ddp"},
        "optimizer": {"name": "sgd"},
        "training": {"epochs": 1, "global_batch": 8},
    }
    for key, value in changes.items():
        block, _, name = key.partition("_")
        data[block] = {**data.get(block, {}), name: value} if name else value
    (plan,) = make_plans(Document(data, "x.yaml"), gpus=0)
    return plan


def with_blocks(plan: RunPlan, **blocks: Any) -> RunPlan:
    return plan.model_copy(update={"spec": plan.spec.model_copy(update=blocks)})


OWN: list[dict[str, Any]] = [
    {"model": "my:Net"},
    {"model_options": {"width": 4}},
    {"model_weights": "a.pt"},
    {"model_freeze": ["conv*"]},
    {"optimizer_lr_factors": {"fc*": 2.0}},
    {"optimizer": {"name": "schedule_free"}},
    {"optimizer": {"name": "muon", "adamw": ["fc.*"]}},
    {"optimizer": {"name": "muon", "lr_factors": {"fc.*": 2.0}}},
    {"data_transform": "my:cutout"},
    {"strategy": {"name": "fsdp", "gather_dtype": "bf16"}},
]


@pytest.mark.parametrize("own", OWN)
def test_what_raysuites_tests_do_not_train_is_tried(own: dict[str, Any]) -> None:
    plan, others = plan_of(**own), [plan_of(), plan_of(optimizer="muon"), plan_of(strategy="fsdp")]
    assert unproven([others[0], plan, *others[1:]]) == [plan]
    assert unproven([with_blocks(plan, script=plan.spec.task)]) == []


@pytest.mark.parametrize("block", ["task", "data"])
def test_another_task_than_classification_and_ones_own_data_are_tried(block: str) -> None:
    plan = plan_of()
    own = getattr(plan.spec, block).model_copy(update={"name": "my:Own"})
    other = with_blocks(plan, **{block: own})
    assert unproven([plan, other]) == [other]


@pytest.mark.parametrize(
    "change",
    [
        {"model": "resnet32"},
        {"data_image_size": 16},
        {"training_memory_format": "channels_last"},
        {"strategy": "fsdp"},
        {"optimizer_weight_decay": 1e-4},
        {"optimizer_lr_factors": {"fc*": 2.0}},
        {"optimizer": "schedule_free"},
        {"training_ema_decay": 0.9},
        {"loader": "synthetic"},
    ],
)
def test_a_batch_is_tried_for_each_plan_that_it_may_end_otherwise_of(
    change: dict[str, Any],
) -> None:
    first, same, other = plan_of(), plan_of(seed=3, optimizer_lr=0.2), plan_of(**change)
    assert distinct([first, other, same]) == [first, other]
    assert distinct([same, first, other, other]) == [same, other]


def test_devices_and_counts_of_a_data_set_are_told_apart() -> None:
    plan = plan_of()
    gpu = plan.model_copy(update={"device": "gpu"})
    larger = plan.model_copy(update={"dataset": plan_of(data_image_size=16).dataset})
    task = plan.spec.task.model_copy(update={"name": "my:Task"})
    other = with_blocks(plan, task=task)
    assert distinct([plan, gpu, larger, other, plan]) == [plan, gpu, larger, other]


def test_a_network_that_cannot_be_imported_is_a_mistake_of_its_name() -> None:
    assert unknown_model(plan_of().spec) == []
    missing = plan_of(model="json:Nothing")
    of_script = with_blocks(missing, script=missing.spec.task)
    assert unknown_model(of_script.spec) == [], "a script has its own network"
    [found] = unknown_model(missing.spec)
    assert found.key == "model.name"
    assert "Nothing" in found.message


def test_a_name_is_imported_once() -> None:
    asked = []

    def check(name: str) -> None:
        asked.append(name)
        if name == "b":
            raise UserError("there is no b")

    assert [import_error(check, name) for name in "abab"] == ["", "there is no b"] * 2
    assert asked == ["a", "b"]
