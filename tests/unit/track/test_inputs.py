"""What MLflow is told of a run's data set: its use, its shape, and no secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mlflow.data.schema import TensorDatasetSchema

from raysuite.plan import make_plans
from raysuite.records.names import Plan
from raysuite.spec import Document
from raysuite.track.inputs import dataset_digest, dataset_inputs


def plan_with(**data: Any) -> Plan:
    block: dict[str, Any] = {
        "name": "unit",
        "model": "resnet20",
        "data": {"name": "digits"},
        "training": {"epochs": 1, "global_batch": 64},
        "resources": {"device": "cpu"},
    }
    plan = make_plans(Document(block, "test"), gpus=0)[0].model_dump(mode="json")
    return {**plan, "spec": {**plan["spec"], "data": {**plan["spec"]["data"], **data}}}


def test_both_splits_with_their_use_their_counts_and_their_shape() -> None:
    train, val = dataset_inputs(plan_with())
    assert [(each.tags[0].key, each.tags[0].value) for each in (train, val)] == [
        ("mlflow.data.context", "training"),
        ("mlflow.data.context", "validation"),
    ]
    assert (train.dataset.name, val.dataset.name) == ("digits-train", "digits-val")
    assert json.loads(train.dataset.profile) == {"num_rows": 1437}
    assert json.loads(val.dataset.profile) == {"num_rows": 360}
    schema = TensorDatasetSchema.from_dict(json.loads(train.dataset.schema))
    assert [spec.shape for spec in schema.features.inputs] == [(-1, 1, 8, 8)]
    assert str(schema.targets.inputs[0].type) == "int64"
    assert schema.targets.inputs[0].shape == (-1,)


def test_a_users_own_inputs_have_no_schema_tokens_have_their_length_and_a_script_has_none() -> None:
    plan = plan_with()
    [own, _] = dataset_inputs({**plan, "dataset": {**plan["dataset"], "inputs": ["float32"]}})
    assert own.dataset.schema == ""
    [text, _] = dataset_inputs({**plan, "dataset": {**plan["dataset"], "sequence": 128}})
    schema = TensorDatasetSchema.from_dict(json.loads(text.dataset.schema))
    for side in (schema.features, schema.targets):
        assert [(str(each.type), each.shape) for each in side.inputs] == [("int64", (-1, 128))]
    script = {**plan["spec"], "script": {"command": ["train.py"]}}
    assert dataset_inputs({**plan, "spec": script}) == []


def test_digests_tell_sets_apart_and_not_what_is_done_to_them() -> None:
    plan = plan_with()
    assert dataset_digest(plan, "train") != dataset_digest(plan, "val")
    assert dataset_digest(plan, "val") == dataset_digest(plan_with(augment="none"), "val")
    for key in ("name", "format", "path", "root", "image_size", "channels", "bad_samples"):
        assert dataset_digest(plan, "val") != dataset_digest(plan_with(**{key: "other"}), "val")
    fewer = {**plan, "dataset": {**plan["dataset"], "val_samples": 359}}
    assert dataset_digest(plan, "val") != dataset_digest(fewer, "val")


@pytest.mark.parametrize(
    ("data", "kind", "source"),
    [
        (
            {"name": "imagenet", "path": "s3://me:hush@host/imagenet"},
            "local",
            {"uri": "s3://host/imagenet"},
        ),
        ({"name": "cifar10", "root": "/data"}, "local", {"uri": "/data"}),
        (
            {"name": "theirs:Set", "options": {"token": "hush"}},
            "code",
            {"tags": {"mlflow.source.name": "theirs:Set", "mlflow.source.type": "raysuite"}},
        ),
    ],
)
def test_no_secret_is_told(data: dict[str, Any], kind: str, source: dict[str, Any]) -> None:
    for each in dataset_inputs(plan_with(**data)):
        assert (each.dataset.source_type, json.loads(each.dataset.source)) == (kind, source)
        assert "hush" not in json.dumps(each.to_dictionary())
