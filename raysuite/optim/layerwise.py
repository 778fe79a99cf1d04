"""LARS and LAMB: the step of each weight tensor is proportional to the tensor's norm.

LARS: You, Gitman, Ginsburg 2017, "Large Batch Training of Convolutional Networks",
arXiv:1708.03888, algorithm 1. LAMB: You et al. 2020, "Large Batch Optimization for Deep Learning:
Training BERT in 76 minutes", arXiv:1904.00962, algorithm 2, with the identity for phi.

Both need the norms of whole tensors: results differ if a strategy shards or flattens tensors. All
settings of a step are in the parameter groups, from which Horovod makes its own optimiser. torch
has neither LARS nor LAMB. timm, which has both, is not used: it is optional, its LARS multiplies
by the learning rate after the momentum, and its LAMB reads `max_grad_norm` from the optimiser's
`defaults`, in which Horovod's optimiser has timm's default instead of the set value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from raysuite.nested import real_views

_Tensors = list[Tensor] | tuple[Tensor, ...]


class Lars(Optimizer):
    """LARS with momentum.

    With eta = trust_coefficient, beta = weight_decay, for each tensor w with gradient g:

        v <- momentum * v + lr * eta * |w| / (|g| + beta * |w|) * (g + beta * w)
        w <- w - v

    v contains the learning rate, as in the paper; torch's SGD multiplies v by the rate. If |w| or
    |g| is 0, and in groups with `adapt` False, v <- momentum * v + lr * (g + beta * w).
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        adapt: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "adapt": adapt,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            weights, gradients = _with_gradient(group)
            if not weights:
                continue
            updates = torch._foreach_add(gradients, weights, alpha=group["weight_decay"])
            if group["adapt"]:
                own, slope = _norms(weights), _norms(gradients)
                decayed = slope + group["weight_decay"] * own
                _scale(updates, group["trust_coefficient"] * own, decayed, (own > 0) & (slope > 0))
            speeds = _state_of(self, weights, "momentum_buffer")
            torch._foreach_mul_(speeds, group["momentum"])
            torch._foreach_add_(speeds, updates, alpha=group["lr"])
            torch._foreach_sub_(weights, speeds)


class Lamb(Optimizer):
    """LAMB.

    For each tensor w with gradient g, in step t = 1, 2, ..., elementwise except for the norms:

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g ^ 2
        u <- m / (1 - beta1 ^ t) / (sqrt(v / (1 - beta2 ^ t)) + eps) + weight_decay * w
        w <- w - lr * |w| / |u| * u

    The ratio |w| / |u| is replaced by 1 where a norm is 0, and in groups with `adapt` False.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adapt: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "adapt": adapt,
            "steps": 0,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            group["steps"] += 1
            weights, gradients = _with_gradient(group)
            if not weights:
                continue
            beta1, beta2 = group["betas"]
            means = _state_of(self, weights, "exp_avg")
            squares = _state_of(self, weights, "exp_avg_sq")
            weights, gradients, means, squares = map(
                real_views, (weights, gradients, means, squares)
            )
            torch._foreach_lerp_(means, gradients, 1 - beta1)
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)

            roots = torch._foreach_sqrt(squares)
            torch._foreach_div_(roots, (1 - beta2 ** group["steps"]) ** 0.5)
            torch._foreach_add_(roots, group["eps"])
            updates = torch._foreach_div(means, roots)
            torch._foreach_div_(updates, 1 - beta1 ** group["steps"])
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
            if group["adapt"]:
                own, step = _norms(weights), _norms(updates)
                _scale(updates, own, step, (own > 0) & (step > 0))
            torch._foreach_add_(weights, updates, alpha=-group["lr"])


def _with_gradient(group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    weights = [weight for weight in group["params"] if weight.grad is not None]
    return weights, [weight.grad for weight in weights]


def _state_of(optimizer: Optimizer, weights: list[Tensor], name: str) -> list[Tensor]:
    """The state `name` of each weight; zeros before the weight's first step."""
    for weight in weights:
        if name not in optimizer.state[weight]:
            optimizer.state[weight][name] = torch.zeros_like(weight)
    return [optimizer.state[weight][name] for weight in weights]


def _norms(tensors: _Tensors) -> Tensor:
    """The L2 norm of each tensor, [tensors]."""
    return torch.stack(list(torch._foreach_norm(tensors)))


def _scale(tensors: _Tensors, above: Tensor, below: Tensor, defined: Tensor) -> None:
    """Multiply each tensor by its ratio `above / below` where `defined` is True; all three have the
    shape [tensors]."""
    ratios = torch.where(defined, above / below, 1.0)
    torch._foreach_mul_(tensors, list(ratios.unbind()))
