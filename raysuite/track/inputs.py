"""Describe a run's data set as MLflow's dataset inputs, one for training and one for validation."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from raysuite.records.names import Plan, script_name
from raysuite.track.store import without_password

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

CONTEXTS = {"train": "training", "val": "validation"}
"""Split -> MLflow's name for the use of the split."""

_DIGEST = 8
"""Number of hex digits of a digest: as many as in MLflow's own digests."""
_OF_THE_SET = ("name", "format", "path", "root", "image_size", "channels", "classes", "bad_samples")


def dataset_inputs(plan: Plan) -> list[DatasetInput]:
    """MLflow's dataset inputs for both splits of a plan's data set.

    The digest is computed from the description (name, format, path, counts, image shape), not from
    the files: equal digests do not prove equal content. The list is empty for a training script.
    """
    if script_name(plan):
        return []
    from mlflow.entities import Dataset, DatasetInput, InputTag

    data = plan["spec"]["data"]
    kind, source = _source(data)
    return [
        DatasetInput(
            Dataset(
                name=dataset_name(plan, split),
                digest=dataset_digest(plan, split),
                source_type=kind,
                source=json.dumps(source),
                schema=_schema(plan["dataset"]),
                profile=json.dumps({"num_rows": plan["dataset"][f"{split}_samples"]}),
            ),
            [InputTag("mlflow.data.context", context)],
        )
        for split, context in CONTEXTS.items()
    ]


def dataset_digest(plan: Plan, split: str) -> str:
    """Eight hex digits of a hash over a split's description in the plan."""
    data = {key: plan["spec"]["data"].get(key) for key in _OF_THE_SET}
    told = json.dumps([data, plan["dataset"], split], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:_DIGEST]


def dataset_name(plan: Plan, split: str) -> str:
    """A split's name in MLflow, such as `digits-val`."""
    return f"{plan['spec']['data']['name']}-{split}".replace(":", ".")


def _source(data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """MLflow's source type, and the data set's origin without options, which may be secret."""
    place = data.get("path") or data.get("root")
    if place:
        return "local", {"uri": without_password(str(place))}
    return "code", {"tags": {"mlflow.source.name": data["name"], "mlflow.source.type": "raysuite"}}


def _schema(facts: dict[str, Any]) -> str:
    """MLflow's schema of inputs and targets; empty for a user's own data set, whose inputs vary."""
    if facts.get("inputs"):
        return ""
    size = facts["image_size"]
    image = {"dtype": "uint8", "shape": [-1, facts["channels"], size, size]}
    label = {"dtype": "int64", "shape": [-1]}
    if tokens := facts.get("sequence"):
        image = label = {"dtype": "int64", "shape": [-1, tokens]}
    features, targets = (
        json.dumps([{"type": "tensor", "tensor-spec": spec}]) for spec in (image, label)
    )
    return json.dumps({"mlflow_tensorspec": {"features": features, "targets": targets}})
