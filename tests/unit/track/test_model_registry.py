"""The comparison of an exported graph with its network."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from raysuite.errors import RaysuiteError
from raysuite.track.model_registry import Network, export
from raysuite.track.store import quiet

PLAN = {"spec": {"model": {"name": "own:Net"}}}
EXAMPLE = np.ones((2, 4), np.float32)


class Negative(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (-inputs).relu()


@pytest.mark.parametrize(("outputs", "differs"), [(0.0, False), (1.0, True), (np.nan, True)])
def test_a_network_whose_outputs_are_0_is_equal_to_its_graph(
    outputs: float, differs: bool, tmp_path: Path
) -> None:
    """Such as one that ends with a ReLU, for two negative examples."""
    network = Network(Negative().eval(), EXAMPLE, np.full_like(EXAMPLE, outputs), [])
    refused = pytest.raises(RaysuiteError, match="outputs of the exported graph differ")
    with quiet(), refused if differs else nullcontext():
        export(network, PLAN, tmp_path / "model")
