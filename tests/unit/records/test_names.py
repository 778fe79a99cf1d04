"""Names of variants, and which runs have equal keys."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from raysuite.plan import make_plans
from raysuite.records.names import (
    Plan,
    current_spec,
    extras,
    key_names,
    script_name,
    series_key,
    series_name,
    unnamed_differences,
    variant_key,
    work_key,
    work_name,
)
from raysuite.spec import Document

SPEC: dict[str, Any] = {
    "name": "a",
    "model": "resnet20",
    "data": {"name": "mnist", "root": "x"},
    "strategy": "ddp",
    "training": {"epochs": 2, "global_batch": 64},
    "resources": {"device": "cpu", "workers": 2},
    "matrix": {
        **{"seed": [3], "loader": ["memory"]},
        **{"resources.workers": [2], "measure.profile": ["off"]},
    },
}
(PLAN,) = (
    plan.model_dump(mode="json")
    for plan in make_plans(Document(SPEC, "spec.yaml"), gpus=0, elsewhere=True)
)
IMAGES = {"name": "image_folder", "path": "x", "image_size": 8}


def changed(key: str, value: Any, plan: Plan = PLAN) -> Plan:
    """The plan with another value at a dotted key."""
    found = deepcopy(plan)
    *blocks, name = key.split(".")
    block = found
    for each in blocks:
        block = block[each]
    block[name] = value
    return found


def test_a_series_is_named_by_all_but_its_workers_and_seeds() -> None:
    assert series_name(PLAN) == "ddp · memory · profile=off"
    assert extras(changed("label", {"schedule.name": "step", "seed": 1, "a.b": None})) == [
        "schedule=step"
    ]
    assert key_names(["a.x", "b.x", "c.y", "schedule.name"]) == {
        "a.x": "a.x",
        "b.x": "b.x",
        "c.y": "y",
        "schedule.name": "schedule",
    }


@pytest.mark.parametrize(
    ("command", "name"), [(["a/b/train.py", "--x"], "train.py"), (["-m", "my.train"], "my.train")]
)
def test_a_script_is_named_by_its_file_or_module(command: list[str], name: str) -> None:
    script = changed("spec.script", {"command": command})
    assert script_name(script) == work_name(script) == name
    assert series_name(script) == f"{name} · profile=off"
    assert work_key(script) == work_key(changed("spec.model.name", "x", script)) != work_key(PLAN)


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("spec.seed", 7, True),
        ("spec.track", {"name": "wandb"}, True),
        ("label", {}, True),
        ("index", 9, True),
        ("repeat", 1, True),
        ("device", "gpu", False),
        ("spec.resources.workers", 4, False),
        ("spec.optimizer.lr", 7.0, False),
        ("spec.loader.name", "native", False),
    ],
)
def test_repeats_of_a_variant_differ_in_seed_and_tracking(key: str, value: Any, same: bool) -> None:
    assert (variant_key(changed(key, value)) == variant_key(PLAN)) == same


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("spec.seed", 7, True),
        ("spec.resources.workers", 4, True),
        ("device", "gpu", True),
        ("spec.resources.device", "gpu", False),
        ("spec.training.epochs", 3, False),
    ],
)
def test_a_series_differs_in_workers_alone(key: str, value: Any, same: bool) -> None:
    before = deepcopy(PLAN)
    assert (series_key(changed(key, value)) == series_key(PLAN)) == same
    found = series_key(changed(key, value), "training.global_batch")
    assert (found == series_key(PLAN, "training.global_batch")) == same
    assert before == PLAN


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("spec.data.root", "y", True),
        ("spec.data.path", "y", True),
        ("spec.data.format", "tfrecord", True),
        ("spec.data.augment", "none", False),
        ("spec.model.name", "resnet32", False),
        ("dataset.train_samples", 7, False),
        ("dataset.classes", 7, False),
        ("spec.training.epochs", 3, True),
        ("spec.loader.name", "native", True),
    ],
)
def test_work_is_a_model_on_images(key: str, value: Any, same: bool) -> None:
    assert (work_key(changed(key, value)) == work_key(PLAN)) == same


@pytest.mark.parametrize(("key", "same"), [("path", False), ("root", False), ("format", True)])
def test_work_on_a_folder_of_images_depends_on_its_path(key: str, same: bool) -> None:
    folder = changed("spec.data", IMAGES)
    assert (work_key(changed(f"spec.data.{key}", "y", folder)) == work_key(folder)) == same
    assert (work_name(folder), work_name(PLAN)) == (
        "resnet20 on image_folder at 8 pixels",
        "resnet20 on mnist",
    )


def test_differences_that_no_name_has_are_those_of_the_work() -> None:
    other = PLAN
    for key, value in (
        ("spec.training.epochs", 3),
        ("spec.optimizer.lr", 7.0),
        ("spec.training.accumulate", 2),
        *(("spec.data.format", "tfrecord"), ("spec.data.root", "y"), ("spec.data.path", "y")),
        *(("spec.loader.name", "native"), ("spec.resources.workers", 4), ("spec.seed", 7)),
    ):
        other = changed(key, value, other)
    first, second = unnamed_differences([PLAN, other], ["training.accumulate"])
    assert second == {"optimizer.lr": 7.0, "training.epochs": 3}
    assert first == {"optimizer.lr": PLAN["spec"]["optimizer"]["lr"], "training.epochs": 2}
    named = changed("label", {"optimizer": "sgd", "training.epoch": 3}, other)
    assert unnamed_differences([PLAN, named], ["training.accumulate"])[1] == {"training.epochs": 3}
    folders = [changed("spec.data", {**IMAGES, "path": path}) for path in "xy"]
    assert [each.get("data.path") for each in unnamed_differences(folders)] == ["x", "y"]


def test_a_spec_of_an_earlier_version_has_the_defaults_of_newer_options() -> None:
    spec = PLAN["spec"]
    older = deepcopy(spec) | {"stand_ins": {}}
    older["training"].pop("accumulate")
    older["strategy"] |= {"backward_passes_per_step": 2}
    assert current_spec(older) == older, "an option that is no more was used"
    del older["strategy"]["backward_passes_per_step"]
    assert current_spec(older) == current_spec(spec) == spec
