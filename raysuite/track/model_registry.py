"""Register a trained network in MLflow's model registry, as a graph without Python code."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from raysuite import __version__
from raysuite.errors import RaysuiteError, UserError
from raysuite.records import Results, RunFigures
from raysuite.records.names import Plan
from raysuite.spec.tasks import CLASSIFICATION
from raysuite.track.entries import milliseconds, run_params, title
from raysuite.track.inputs import dataset_digest, dataset_name
from raysuite.track.results_folder import digest, experiment_name, locked
from raysuite.track.store import Store, prepare_store, quiet, tracking_address, without_password
from raysuite.track.sync import one_line
from raysuite.track.upload import Upload

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from numpy.typing import NDArray

# A network as an MLflow model: an exported graph with its signature, its spec and its plan.

TOLERANCE = 1e-4
"""Largest allowed difference between the outputs of the graph and of the network, relative to the
largest output."""


class Network(NamedTuple):
    """A torch module for inference, with example inputs and their outputs."""

    module: Any
    """[b, channels, size, size] uint8 -> [b, classes] fp32; other tasks have other tensors."""
    example: NDArray[Any]
    """At least two input samples, because a graph that was traced with one sample accepts only one
    sample."""
    outputs: NDArray[Any]
    """The module's outputs for `example`."""
    classes: list[str]
    """Class names in the order of the logits; empty if they are not known."""
    takes: str = "pixels, 0 to 255"
    gives: str = "logits"

    @property
    def description(self) -> str:
        return (
            f"Takes {self.takes}, and gives {self.gives}. To train the network of a version "
            "again, call `raysuite run` with the version's `spec.yaml`."
        )


def export(network: Network, plan: Plan, folder: Path) -> None:
    """Write an MLflow model that runs on CPUs, with the flavours pytorch and python_function.

    torch.export makes the graph: loading it imports no user code and unpickles only tensors.
    The resolved spec and the plan are written next to the model. Raises UserError if the network
    cannot be traced, and RaysuiteError if the graph's outputs differ from the network's.
    """
    import mlflow.pyfunc
    import mlflow.pytorch
    import numpy as np
    import torch
    from mlflow.models import Model

    metadata = {"input": network.takes, "output": network.gives, "classes": network.classes}
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
    except Exception as error:  # tracing a user's network may raise anything
        first = next(iter(str(error).splitlines()), "")
        raise UserError(
            f"{plan['spec']['model']['name']} cannot be exported as a graph: "
            f"{type(error).__name__}: {first}; the operations of its forward must not depend on "
            "the values of its input (docs.pytorch.org: torch.export)"
        ) from error
    # the graph is for CPUs: by default, MLflow would try to load it on a host's GPU, and fail
    described.flavors["python_function"]["config"]["device"] = "cpu"
    described.save(str(folder / "MLmodel"))
    spec = {key: value for key, value in plan["spec"].items() if key not in ("matrix", "search")}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec, sort_keys=False), "utf-8")
    (folder / "plan.json").write_text(json.dumps(plan, indent=1), "utf-8")
    found = mlflow.pyfunc.load_model(folder.as_uri()).predict(network.example)
    worst, largest = (
        float(np.abs(each).max()) for each in (found - network.outputs, network.outputs)
    )
    if not worst <= TOLERANCE * largest:  # the outputs may all be 0
        raise RaysuiteError(
            "the outputs of the exported graph differ from those of the network by up to "
            f"{worst:.1e}; the network's largest absolute output is {largest:.1e}"
        )


def identify(folder: Path, model_id: str, run_id: str, location: str) -> None:
    """Write a model's id, the id of its run and its artifact location into its file MLmodel."""
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
        for values in (network.example, network.outputs)
    )
    return ModelSignature(inputs, outputs)


WEIGHTS = "model.pt"
"""File with the trained weights, in the folder of the run's journal."""
MODEL = "model"


@dataclass(frozen=True)
class Registration:
    address: str
    """The tracking store, without any password."""
    run: str
    name: str = ""
    version: str = ""
    new: bool = False
    """Whether this call made the version; False if the version already existed."""
    error: str = ""
    """Why there is no version; empty if all went well."""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def uri(self) -> str:
        """The model's URI for MLflow's commands."""
        return f"models:/{self.name}/{self.version}"

    def __str__(self) -> str:
        if not self.ok:
            return f"the model of {self.run} is not registered at {self.address}: {self.error}"
        how = "registered" if self.new else "already registered"
        return f"the model of {self.run} is {how} at {self.address} as {self.uri}"


def weights_of(results: Results, run_id: str) -> Path:
    """The path of a run's trained weights; the file exists once the run has finished."""
    return results.journal_file(run_id).with_name(WEIGHTS)


def register(
    results: Results,
    run_id: str,
    network: Network,
    name: str | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
) -> Registration:
    """Register a run's network as a version of the model `name` (default: the spec's name).

    The run itself is written to MLflow too, if MLflow does not have it yet. The same weights of the
    same run are registered only once under a name, however often this is called. If the store is
    unreachable or broken, nothing is raised: the Registration has the reason. Raises UserError if
    the network cannot be exported, if the name is invalid, or if the experiment was deleted in
    MLflow.
    """
    if name is not None and (set(name) & set("/:") or not name.strip()):
        raise UserError(
            f"no model can be called {name!r}: a name must not be empty or contain '/' or ':'"
        )
    uri = tracking_address(tracking_uri)
    shown = without_password(uri)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / MODEL
        try:
            prepare_store(uri)
            with quiet(), locked(results.folder), _default_store(uri):
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
                child = upload.child(run).info.run_id
                about = wanted, network.description
                version = _write(store, child, run, file, about, tags)
        except UserError:
            raise
        except Exception as error:  # a store may raise anything; the weights are on disk
            return Registration(shown, run_id, error=one_line(error))
    return Registration(shown, run.name, wanted, version, new=True)


@contextmanager
def _default_store(uri: str) -> Iterator[None]:
    """Make `uri` MLflow's default store, because every client looks up `models:/ID` in the default
    store, even a client of another store."""
    name, before = "MLFLOW_TRACKING_URI", os.environ.get("MLFLOW_TRACKING_URI")
    os.environ[name] = uri
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ |= {} if before is None else {name: before}


def _tags(results: Results, run: RunFigures, results_id: str) -> dict[str, str]:
    """Tags that identify one trained network, with its gate result and its primary metric."""
    tags = {
        "raysuite.results": results_id,
        "raysuite.run_id": run.run_id,
        "raysuite.weights": digest(weights_of(results, run.run_id)),
        "raysuite.gate": run.gate,
        "raysuite.version": __version__,
    }
    if run.final_primary is not None:
        tags[f"raysuite.{run.task.primary}"] = f"{run.final_primary:.4f}"
    return tags


def _version_with(client: MlflowClient, name: str, tags: Mapping[str, str]) -> str:
    """The version that was registered from the same weights and run; "" if there is none."""
    same = ("raysuite.results", "raysuite.run_id", "raysuite.weights")
    filters = " and ".join(f"tags.`{key}` = '{tags[key]}'" for key in same)
    found = client.search_model_versions(filters)
    return next((str(version.version) for version in found if version.name == name), "")


def _write(
    store: Store,
    mlflow_run: str,
    run: RunFigures,
    folder: Path,
    about: tuple[str, str],
    tags: dict[str, str],
) -> str:
    """Write the model in `folder` as an output of its run, and as a version of a registered model.
    `about` is the name and the description of the registered model. Return the version."""
    from mlflow.entities import LoggedModelOutput
    from mlflow.exceptions import MlflowException

    client, step, (name, description) = store.client, len(run.epochs), about
    kind = "classifier" if run.task == CLASSIFICATION else run.task.name
    model = client.create_logged_model(
        store.experiment_id, MODEL, mlflow_run, tags, run_params(run.plan), kind
    )
    try:
        identify(folder, model.model_id, mlflow_run, model.artifact_location)
        client.log_model_artifacts(model.model_id, str(folder))
        _log_primary(client, mlflow_run, run, model.model_id)
        client.log_outputs(mlflow_run, [LoggedModelOutput(model.model_id, step)])
    except BaseException:
        client.finalize_logged_model(model.model_id, "FAILED")
        raise
    client.finalize_logged_model(model.model_id, "READY")
    try:
        client.create_registered_model(name, {"raysuite.kind": "model"}, description)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    source = f"models:/{model.model_id}"
    made = client.create_model_version(
        name, source, mlflow_run, tags, description=title(run), model_id=model.model_id
    )
    return str(made.version)


def _log_primary(client: MlflowClient, mlflow_run: str, run: RunFigures, model_id: str) -> None:
    """Log the last epoch's primary metric, linked to the model and the validation set."""
    from mlflow.entities import Metric

    last = run.epochs[-1] if run.epochs else None
    primary = run.task.primary
    if last is None or primary not in last.validation:
        return
    metric = Metric(
        f"validation_{primary}",
        last.validation[primary],
        milliseconds(last.time),
        last.epoch + 1,
        model_id=model_id,
        dataset_name=dataset_name(run.plan, "val"),
        dataset_digest=dataset_digest(run.plan, "val"),
    )
    client.log_batch(mlflow_run, metrics=[metric])
