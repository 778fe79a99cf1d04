"""A trained network for use outside raysuite. A classifier takes pixels, which it normalises; the
networks of other tasks take the same inputs as in training."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raysuite import models
from raysuite.data import prepare
from raysuite.data.formats import open_source
from raysuite.data.formats.base import TensorSource
from raysuite.data.prepared import normalisation
from raysuite.errors import RunError, UserError
from raysuite.parallel.base import read_state
from raysuite.plan import RunPlan

EXAMPLES = 2
"""Number of images in an example; at least two, because a graph that is traced with one image
accepts only one."""


class Served(nn.Module):
    """A network that first normalises its input, so that users do not need the mean and std."""

    shift: Tensor
    scale: Tensor

    def __init__(self, network: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.network = network
        of_channel = (-1, 1, 1)
        self.register_buffer("shift", 255 * torch.tensor(mean).reshape(of_channel))
        self.register_buffer("scale", 1 / (255 * torch.tensor(std).reshape(of_channel)))

    def forward(self, pixels: Tensor) -> Tensor:
        """[b, channels, size, size] uint8, 0 to 255 -> [b, classes] logits, fp32."""
        logits: Tensor = self.network((pixels.to(torch.float32) - self.shift) * self.scale)
        return logits.to(torch.float32)


class Whole(nn.Module):
    """Wraps a network with one input, so that the parameter of `forward` is always called
    `inputs`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Any:
        return self.network(inputs)


def served(plan: RunPlan, weights: Path) -> nn.Module:
    """The network of `network_of`, wrapped so that a classifier takes pixels."""
    network = network_of(plan, weights)
    if not plan.spec.task.classifies:
        return Whole(network).eval()
    return Served(network, *normalisation(plan.spec.data, plan.dataset.channels)).eval()


def network_of(plan: RunPlan, weights: Path) -> nn.Module:
    """The network of a run with the state stored in `weights`, on the CPU, for inference.

    Raises UserError if the file is damaged, or does not contain a state of this network, for
    example because the user's own model has changed.
    """
    network = models.build(plan.spec.model, plan.dataset)
    try:
        network.load_state_dict(read_state(weights))
    except RunError as error:
        raise UserError(
            f"{weights} is damaged, or contains objects other than tensors and plain data; restore "
            "it from a copy, or choose another run"
        ) from error
    except RuntimeError as error:
        raise UserError(
            f"{weights} does not fit {plan.spec.model.name!r} as it is now: "
            f"{str(error).splitlines()[-1].strip()}; check out the code with which the run was "
            "made"
        ) from error
    return network.eval()


def example(plan: RunPlan) -> NDArray[Any]:
    """For a classifier, two synthetic images of its image size and number of channels, equal in all
    calls; for other tasks, two inputs of the validation set.

    Raises UserError if the inputs are several tensors.
    """
    facts = plan.dataset
    if not plan.spec.task.classifies:
        with closing(open_source(prepare(plan.spec.data, facts), "val")) as source:
            assert isinstance(source, TensorSource)
            inputs, _ = source.batch([0, min(1, facts.val_samples - 1)])
        return _single(inputs, "inputs")
    shape = (EXAMPLES, facts.channels, facts.image_size, facts.image_size)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def outputs(module: nn.Module, inputs: NDArray[Any]) -> NDArray[Any]:
    """The network's outputs for inputs, such as pixels [b, channels, size, size] -> [b, classes].

    Raises UserError if the outputs are several tensors.
    """
    with torch.no_grad():
        return _single(module(torch.from_numpy(inputs)), "outputs")


def _single(value: Any, what: str) -> NDArray[Any]:
    if not isinstance(value, Tensor):
        raise UserError(
            f"the network's {what} are a {type(value).__name__}, but a registered model needs a "
            "single tensor; use the run's model.pt, a state_dict, instead"
        )
    array: NDArray[Any] = value.numpy()
    return array
