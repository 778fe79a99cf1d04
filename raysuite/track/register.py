"""A trained network into MLflow's model registry, as a graph that holds no code."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from raysuite import __version__
from raysuite.errors import RaysuiteError, UserError
from raysuite.records import Results, RunFigures
from raysuite.records.names import Plan
from raysuite.track.entries import milliseconds, run_params, title
from raysuite.track.folder import digest, experiment_name, locked
from raysuite.track.inputs import dataset_digest, dataset_name
from raysuite.track.store import (
    Store,
    quiet,
    refuse_unwritable,
    tracking_address,
    without_password,
)
from raysuite.track.sync import one_line
from raysuite.track.upload import Upload

if TYPE_CHECKING:
    import numpy as np
    from mlflow import MlflowClient
    from numpy.typing import NDArray

# A network as an MLflow model: an exported graph with its signature, its spec and its plan.

TOLERANCE = 1e-4
"""Largest difference of the graph's logits from the network's, over the largest logit."""


class Network(NamedTuple):
    """A torch module for inference, with what shows how it is used."""

    module: Any
    """[b, channels, size, size] uint8 -> [b, classes] fp32."""
    example: NDArray[np.uint8]
    """At least two images: a graph that is traced with one accepts one only."""
    logits: NDArray[np.float32]
    """The module's logits for them."""
    classes: list[str]
    """Names by logit; empty where they are not known."""


def export(network: Network, plan: Plan, folder: Path) -> None:
    """Write an MLflow model: flavours pytorch and python_function, on any device's host.

    The graph is torch.export's: loading it imports none of the user's code and unpickles nothing
    but tensors. Beside it: the resolved spec and the plan.
    Raises UserError where the network cannot be traced, RaysuiteError where the graph computes
    something else than the network.
    """
    import mlflow.pyfunc
    import mlflow.pytorch
    import numpy as np
    import torch
    from mlflow.models import Model

    metadata = {"input": "pixels, 0 to 255", "output": "logits", "classes": network.classes}
    described = Model(metadata=metadata)
    try:
        mlflow.pytorch.save_model(
            network.module,
            str(folder),
            mlflow_model=described,
            signature=_signature(network),
            input_example=network.example,
            pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}"],
            serialization_format="pt2",
        )
    except Exception as error:  # a network may be anything, and so may what its tracing raises
        first = next(iter(str(error).splitlines()), "")
        raise UserError(
            f"{plan['spec']['model']['name']} cannot be exported as a graph: "
            f"{type(error).__name__}: {first}; what its forward does may not depend on the values "
            "of its input (docs.pytorch.org: torch.export)"
        ) from error
    # MLflow would load it on a GPU where there is one, and refuse this one, which is a CPU's
    described.flavors["python_function"]["config"]["device"] = "cpu"
    described.save(str(folder / "MLmodel"))
    spec = {key: value for key, value in plan["spec"].items() if key not in ("matrix", "search")}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec, sort_keys=False), "utf-8")
    (folder / "plan.json").write_text(json.dumps(plan, indent=1), "utf-8")
    found = mlflow.pyfunc.load_model(folder.as_uri()).predict(network.example)
    worst = float(np.abs(found - network.logits).max() / np.abs(network.logits).max())
    if not worst <= TOLERANCE:
        raise RaysuiteError(
            f"the exported graph's logits differ from the network's by {worst:.1e} of the largest"
        )


def identify(folder: Path, model_id: str, run_id: str, location: str) -> None:
    """Write into an exported model which of MLflow's models it is."""
    from mlflow.models import Model

    model = Model.load(str(folder / "MLmodel"))
    model.model_id = model.model_uuid = model_id
    model.run_id, model.artifact_path = run_id, location
    model.save(str(folder / "MLmodel"))


def _signature(network: Network) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    inputs, outputs = (
        Schema([TensorSpec(values.dtype, (-1, *values.shape[1:]))])
        for values in (network.example, network.logits)
    )
    return ModelSignature(inputs, outputs)


WEIGHTS = "model.pt"
"""The trained state, beside the run's journal."""
MODEL = "model"
"""What MLflow calls the model of a run."""
DESCRIPTION = (
    "Takes pixels, uint8 from 0 to 255, and gives a logit for each class. Each version's "
    "`spec.yaml` trains it anew."
)
ACCURACY = "validation_accuracy"
"""Metric of a model: top-1 of these very weights on the validation set."""


@dataclass(frozen=True)
class Registration:
    address: str
    """The tracking store, without any password."""
    run: str
    """The run's name."""
    name: str = ""
    version: str = ""
    new: bool = False
    """Whether this version was made now; False if it was there."""
    error: str = ""
    """Why there is none; empty if all went well."""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def uri(self) -> str:
        """What MLflow's commands take."""
        return f"models:/{self.name}/{self.version}"

    def __str__(self) -> str:
        if not self.ok:
            return f"the model of {self.run} is not registered at {self.address}: {self.error}"
        how = "registered" if self.new else "registered before"
        return f"the model of {self.run} is {how} at {self.address} as {self.uri}"


def weights_of(results: Results, run_id: str) -> Path:
    """Where a run keeps its trained weights; the file is there once the run has finished."""
    return results.journal_file(run_id).with_name(WEIGHTS)


def register(
    results: Results,
    run_id: str,
    network: Network,
    name: str | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
) -> Registration:
    """Make a version of the registered model `name` (default: the spec's name) of a run's network.

    The run itself is written to MLflow too, unless it is there. The same weights of the same run
    are registered once, however often this is called. An unreachable or broken store raises
    nothing: the Registration has the reason.
    Raises UserError where the network cannot be exported, for a name that cannot be,
    and where the experiment was deleted in MLflow.
    """
    if name is not None and (set(name) & set("/:") or not name.strip()):
        raise UserError(f"no model can be called {name!r}: MLflow takes neither '/' nor ':'")
    uri = tracking_address(tracking_uri)
    shown = without_password(uri)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / MODEL
        try:
            refuse_unwritable(uri)
            with quiet(), locked(results.folder):
                store = Store(uri, experiment or experiment_name(results))
                upload = Upload(results, store)
                run = upload.figures(run_id)
                wanted = name or experiment_name(results)
                tags = _tags(results, run, upload.id)
                known = _version_with(store.client, wanted, tags)
                if known:
                    return Registration(shown, run.name, wanted, known)
                export(network, run.plan, file)
                upload.write_run(run_id)
                version = _write(store, upload.child(run).info.run_id, run, file, wanted, tags)
        except UserError:
            raise
        except Exception as error:  # whatever a store throws, the trained weights are on disk
            return Registration(shown, run_id, error=one_line(error))
    return Registration(shown, run.name, wanted, version, new=True)


def _tags(results: Results, run: RunFigures, results_id: str) -> dict[str, str]:
    """Identifies one trained network, and what is known of it."""
    tags = {
        "raysuite.results": results_id,
        "raysuite.run_id": run.run_id,
        "raysuite.weights": digest(weights_of(results, run.run_id)),
        "raysuite.gate": run.gate,
        "raysuite.version": __version__,
    }
    if run.final_accuracy is not None:
        tags["raysuite.accuracy"] = f"{run.final_accuracy:.4f}"
    return tags


def _version_with(client: MlflowClient, name: str, tags: Mapping[str, str]) -> str:
    """The version that holds these weights of this run; "" where there is none."""
    same = ("raysuite.results", "raysuite.run_id", "raysuite.weights")
    filters = " and ".join(f"tags.`{key}` = '{tags[key]}'" for key in same)
    found = client.search_model_versions(filters)
    return next((str(version.version) for version in found if version.name == name), "")


def _write(
    store: Store,
    mlflow_run: str,
    run: RunFigures,
    folder: Path,
    name: str,
    tags: dict[str, str],
) -> str:
    """The model of `folder` as an output of its run, and as a version of `name`."""
    from mlflow.entities import LoggedModelOutput
    from mlflow.exceptions import MlflowException

    client, step = store.client, len(run.epochs)
    model = client.create_logged_model(
        store.experiment_id, MODEL, mlflow_run, tags, run_params(run.plan), "classifier"
    )
    try:
        identify(folder, model.model_id, mlflow_run, model.artifact_location)
        client.log_model_artifacts(model.model_id, str(folder))
        _log_accuracy(client, mlflow_run, run, model.model_id)
        client.log_outputs(mlflow_run, [LoggedModelOutput(model.model_id, step)])
    except BaseException:
        client.finalize_logged_model(model.model_id, "FAILED")
        raise
    client.finalize_logged_model(model.model_id, "READY")
    try:
        client.create_registered_model(name, {"raysuite.kind": "model"}, DESCRIPTION)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    source = f"models:/{model.model_id}"
    made = client.create_model_version(
        name, source, mlflow_run, tags, description=title(run), model_id=model.model_id
    )
    return str(made.version)


def _log_accuracy(client: MlflowClient, mlflow_run: str, run: RunFigures, model_id: str) -> None:
    """The accuracy of these weights, tied to the model and to the data that it was measured on."""
    from mlflow.entities import Metric

    last = run.epochs[-1] if run.epochs else None
    if last is None or last.val_accuracy is None:
        return
    metric = Metric(
        ACCURACY,
        last.val_accuracy,
        milliseconds(last.time),
        last.epoch + 1,
        model_id=model_id,
        dataset_name=dataset_name(run.plan, "val"),
        dataset_digest=dataset_digest(run.plan, "val"),
    )
    client.log_batch(mlflow_run, metrics=[metric])
