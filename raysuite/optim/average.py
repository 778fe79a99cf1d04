"""The exponential moving average of the weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

_STEPS, _MODEL = "n_averaged", "module."
"""Keys of a checkpoint, named as in torch.optim.swa_utils.AveragedModel."""


class WeightAverage:
    """A copy of a model, with the average of the model's weights.

    After step t the average is

        weights                                    for t = 1
        decay * average + (1 - decay) * weights    for t > 1

    Floating-point and complex buffers, such as BatchNorm's running statistics, are averaged in the
    same way; other buffers, such as indices and counts, are copied. All operations are elementwise,
    so ranks with equal weights have equal averages.

    torch's AveragedModel is not used: it averages and truncates integers, and waits for the device.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """`model` has all its weights on this rank; no framework has wrapped it yet."""
        self._decay = decay
        self._steps = 0
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        """The model with the averaged weights, in evaluation mode."""

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Update the average after one step. `model` may have only this rank's weights."""
        averaged = _tensors(self.model)
        averages, weights = [], []
        for name, value in _tensors(model).items():
            own = averaged[name]
            if self._steps and (own.is_floating_point() or own.is_complex()):
                averages.append(own)
                weights.append(value)
            else:
                own.copy_(value)
        if averages:
            torch._foreach_lerp_(averages, weights, 1 - self._decay)
        self._steps += 1

    def weights(self) -> dict[str, Tensor]:
        """The averaged weights by name, on the CPU."""
        return {
            name: parameter.detach().cpu().clone()
            for name, parameter in self.model.named_parameters()
        }

    def state(self) -> dict[str, Tensor]:
        """The average and the number of steps in it, for a checkpoint."""
        averaged = {_MODEL + name: value for name, value in self.model.state_dict().items()}
        return {_STEPS: torch.tensor(self._steps), **averaged}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the state that `state` returned."""
        self._steps = int(state.pop(_STEPS))
        self.model.load_state_dict(
            {name.removeprefix(_MODEL): value for name, value in state.items()}
        )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
