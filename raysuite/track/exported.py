"""A network as an MLflow model: an exported graph with its signature, its spec and its plan."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from raysuite.errors import RaysuiteError, UserError
from raysuite.records.names import Plan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TOLERANCE = 1e-4
"""Largest difference of the graph's logits from the network's, over the largest logit."""


class Network(NamedTuple):
    """A torch module for inference, with what shows how it is used."""

    module: Any
    """[b, channels, size, size] uint8 -> [b, classes] fp32."""
    example: NDArray[np.uint8]
    """At least two images: a graph that is traced with one takes one for ever."""
    logits: NDArray[np.float32]
    """What the module gives for them."""


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

    described = Model(metadata={"input": "pixels, 0 to 255", "output": "logits"})
    try:
        with _without_advice():
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
    with _without_advice():
        found = mlflow.pyfunc.load_model(str(folder)).predict(network.example)
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


@contextmanager
def _without_advice() -> Iterator[None]:
    """MLflow advises on pip, which an environment of uv's does not have."""
    logger = logging.getLogger("mlflow.utils")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
