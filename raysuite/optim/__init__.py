"""Optimisers, the learning rate over time, and the average of the weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from raysuite.optim.schedule import factor
from raysuite.spec.optimizers import (
    AdamWOptions,
    LambOptions,
    LarsOptions,
    OptimizerOptions,
    SgdOptions,
)

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

__all__ = ["build_optimizer", "factor", "parameter_groups"]


def build_optimizer(
    options: OptimizerOptions, parameters: Iterable[Tensor], lr: float
) -> Optimizer:
    """The optimiser over whole, not yet sharded parameters, at the rate `lr`.

    `lr` is the rate after scaling (`RunPlan.peak_lr`); `factor` times it is the rate of a step.
    """
    from torch.optim import SGD, AdamW

    from raysuite.optim.layerwise import Lamb, Lars

    groups, decay = parameter_groups(options, parameters), options.weight_decay
    match options:
        case SgdOptions(momentum=momentum, nesterov=nesterov):
            return SGD(groups, lr, momentum, weight_decay=decay, nesterov=nesterov)
        case LarsOptions(momentum=momentum, trust_coefficient=trust):
            return Lars(groups, lr, momentum, decay, trust)
        case LambOptions(betas=betas, eps=eps):
            return Lamb(groups, lr, betas, eps, decay)
        case AdamWOptions(betas=betas, eps=eps):
            return AdamW(groups, lr, betas, eps, decay)


def parameter_groups(
    options: OptimizerOptions, parameters: Iterable[Tensor]
) -> list[dict[str, Any]]:
    """One group, or one with and one without weight decay.

    Without decay are parameters of at most one dimension: biases, and what normalisation layers
    scale and shift by. LARS and LAMB take no ratio of norms there either, as Google's
    implementations of both do by default (`exclude_from_layer_adaptation`).
    """
    everything = list(parameters)
    if options.decay_bias_and_norm:
        return [{"params": everything}]
    exempt: dict[str, Any] = {"weight_decay": 0.0}
    if isinstance(options, LarsOptions | LambOptions):
        exempt["adapt"] = False
    decayed = {"params": [parameter for parameter in everything if parameter.ndim > 1]}
    exempt["params"] = [parameter for parameter in everything if parameter.ndim <= 1]
    return [group for group in (decayed, exempt) if group["params"]]
