"""A trained network as others use it: pixels in, logits out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raysuite import models
from raysuite.data.prepared import normalisation
from raysuite.errors import UserError
from raysuite.parallel.base import read_state
from raysuite.plan import RunPlan

EXAMPLES = 2
"""Images of an example: a graph that is traced with one image accepts one image only."""


class Served(nn.Module):
    """A network preceded by its normalisation: its users need to know neither mean nor std."""

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


def served(plan: RunPlan, weights: Path) -> Served:
    """`network_of`, for pixels."""
    network = network_of(plan, weights)
    return Served(network, *normalisation(plan.spec.data, plan.dataset.channels)).eval()


def network_of(plan: RunPlan, weights: Path) -> nn.Module:
    """The network of a run with the state that it kept in `weights`, on the CPU, for inference.

    Raises UserError where the file is not that network's state: the user's own model may have
    changed since.
    """
    network = models.build(plan.spec.model, plan.dataset)
    try:
        network.load_state_dict(read_state(weights))
    except RuntimeError as error:
        raise UserError(
            f"{weights} is not the state of {plan.spec.model.name!r} as it is now: "
            f"{str(error).splitlines()[-1].strip()}; check out the code that the run was made with"
        ) from error
    return network.eval()


def example(plan: RunPlan) -> NDArray[np.uint8]:
    """Two synthetic images of the size and channels that the network takes, the same each time."""
    facts = plan.dataset
    shape = (EXAMPLES, facts.channels, facts.image_size, facts.image_size)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def logits(module: Served, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What the network gives for `pixels`: [b, channels, size, size] -> [b, classes]."""
    with torch.no_grad():
        found: NDArray[np.float32] = module(torch.from_numpy(pixels)).numpy()
    return found
