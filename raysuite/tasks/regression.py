"""Regression: one or more numbers for each sample.

The loss is the squared, absolute or Huber error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from raysuite.errors import UserError
from raysuite.spec.datasets import DatasetFacts
from raysuite.tasks.base import Metric, Task, Total, same_shape

_LOSSES: dict[str, Callable[..., Tensor]] = {
    "mse": functional.mse_loss,
    "mae": functional.l1_loss,
    "huber": functional.huber_loss,
}


def _errors(output: Tensor, targets: Tensor) -> Tensor:
    return (output.double() - targets.double()).abs().flatten()


def _moments(output: Tensor, targets: Tensor) -> Tensor:
    """The sums of squared errors, targets and squared targets, and the number of targets."""
    values = targets.double().flatten()
    count = values.new_tensor(len(values))
    return torch.stack(
        [_errors(output, targets).square().sum(), values.sum(), values @ values, count]
    )


_ROUNDING = 1e-12
"""Upper bound of the rounding error of `spread` in `_r2`, relative to the sum of squared
targets."""


def _r2(sums: Sequence[float], total: Total) -> float:
    squares, values, squared, count = sums
    spread = squared - values**2 / count
    # equal targets leave a spread of rounding errors
    return 1 - squares / spread if spread > _ROUNDING * squared else 0.0


class Regression(Task):
    """Output and targets are floating-point tensors of one shape [b, ...]."""

    metrics = (
        Metric(
            "mae",
            "Mean absolute error",
            "Mean of |output - target|",
            value=lambda sums, total: sums[0] / sums[1],
            sums=lambda output, targets: torch.stack(
                [(e := _errors(output, targets)).sum(), e.new_tensor(len(e))]
            ),
            higher_is_better=False,
        ),
        Metric(
            "rmse",
            "Root mean squared error",
            "Root of the mean of (output - target)^2",
            value=lambda sums, total: math.sqrt(sums[0] / sums[3]),
            sums=_moments,
            higher_is_better=False,
        ),
        Metric("r2", "R2", "Share of the targets' variance that is explained", _r2, _moments),
    )

    def __init__(self, facts: DatasetFacts, loss: str = "mse") -> None:
        """`loss`: mse, mae or huber (with delta 1). Raises UserError for any other value."""
        super().__init__(facts)
        if loss not in _LOSSES:
            raise UserError(f"task.options.loss: got {loss!r}; valid: {', '.join(_LOSSES)}")
        self._loss = _LOSSES[loss]

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """The sum over the samples; the loss of a sample is the mean over its numbers."""
        each = self._loss(output, targets.to(output.dtype), reduction="sum")
        return each * (len(targets) / max(1, targets.numel()))

    def check(self, output: Any, targets: Tensor) -> None:
        same_shape(output, targets, "numbers")
