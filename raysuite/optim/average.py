"""The exponential moving average of the weights, by torch's `swa_utils`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class WeightAverage:
    """A copy of a model that follows it slowly.

    After step 1 the average is the weights themselves; after step t > 1 it is
    decay * average + (1 - decay) * weights. Buffers, such as BatchNorm's running statistics, are
    averaged alike. It is elementwise: ranks with equal weights have equal averages.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """`model` is bare: whole on this rank, and not yet in a framework's hands."""
        self._averaged = AveragedModel(
            model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True
        )
        self._averaged.eval()

    @property
    def model(self) -> nn.Module:
        """The model that holds the average, in evaluation mode."""
        return self._averaged.module

    def update(self, model: nn.Module) -> None:
        """Follow `model` by one step."""
        self._averaged.update_parameters(model)

    def weights(self) -> dict[str, Tensor]:
        """The averaged weights by name, on the CPU."""
        return {
            name: parameter.detach().cpu().clone()
            for name, parameter in self.model.named_parameters()
        }

    def save(self, file: Path) -> None:
        """Write the average, and how many steps it has seen."""
        torch.save(self._averaged.state_dict(), file)

    def load(self, file: Path) -> None:
        """Take up what `save` wrote."""
        self._averaged.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
