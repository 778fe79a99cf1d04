"""Optimisers, and the learning rate over time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from raysuite.optim.schedule import factor
from raysuite.spec.optimizers import OptimizerOptions

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

__all__ = ["build_optimizer", "factor"]


def build_optimizer(
    options: OptimizerOptions,
    parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
    lr: float,
) -> Optimizer:
    """The optimiser over parameters or parameter groups, at the rate `lr`.

    `lr` is the rate after linear scaling (`RunPlan.peak_lr`); `factor` times it is the rate of a
    step.
    """
    from torch.optim import SGD

    return SGD(
        parameters,
        lr=lr,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
        nesterov=options.nesterov,
    )
