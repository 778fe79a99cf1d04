"""Optimisers, learning-rate schedules, and the average of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from raysuite.errors import UserError, unmatched
from raysuite.lazy import load
from raysuite.optim.schedule import factor
from raysuite.spec.optimizers import (
    AdamWOptions,
    LambOptions,
    LarsOptions,
    MuonOptions,
    OptimizerOptions,
    ScheduleFreeOptions,
    SgdOptions,
)

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

__all__ = ["build_optimizer", "factor", "parameter_groups"]


def build_optimizer(
    options: OptimizerOptions,
    parameters: Iterable[Tensor],
    lr: float,
    names: Mapping[Tensor, str] | None = None,
) -> Optimizer:
    """The optimiser of `parameters`, which are not sharded yet, with the learning rate `lr`.

    `lr` is the rate after scaling (`RunPlan.peak_lr`); the rate of a step is `lr` times `factor`.
    `names` are the parameters' names, which the patterns in `options` match; without `names`, the
    patterns are ignored.

    Raises UserError for a pattern that does not match any of the `names`.
    """
    from torch.optim import SGD, AdamW

    from raysuite.optim.layerwise import Lamb, Lars
    from raysuite.optim.muon import MuonWithAdamW

    groups, decay = parameter_groups(options, parameters, names), options.weight_decay
    match options:
        case SgdOptions(momentum=momentum, nesterov=nesterov):
            return SGD(groups, lr, momentum, weight_decay=decay, nesterov=nesterov)
        case LarsOptions(momentum=momentum, trust_coefficient=trust):
            return Lars(groups, lr, momentum, decay, trust)
        case LambOptions(betas=betas, eps=eps):
            return Lamb(groups, lr, betas, eps, decay)
        case AdamWOptions(betas=betas, eps=eps):
            return AdamW(groups, lr, betas, eps, decay)
        case MuonOptions(momentum=momentum, nesterov=nesterov, betas=betas, eps=eps):
            muon = {"momentum": momentum, "nesterov": nesterov, "adjust_lr_fn": options.adjust_lr}
            adamw = {"betas": betas, "eps": eps}
            of_all = {"lr": lr, "weight_decay": decay}
            return MuonWithAdamW(
                [{**of_all, **(muon if each["matrices"] else adamw), **each} for each in groups]
            )
        case ScheduleFreeOptions(betas=betas, eps=eps):
            averaging = load("schedulefree:AdamWScheduleFree")(groups, lr, betas, eps, decay)
            averaging.train()
            found: Optimizer = averaging
            return found


def parameter_groups(
    options: OptimizerOptions,
    parameters: Iterable[Tensor],
    names: Mapping[Tensor, str] | None = None,
) -> list[dict[str, Any]]:
    """Groups of the trainable parameters, split by `lr_factors`, by whether they have weight decay,
    and for Muon by whether Muon updates them (`matrices`).

    Unless `decay_bias_and_norm` is set, parameters of at most one dimension (biases, and scales and
    shifts of normalisation layers) have no weight decay, and LARS and LAMB use no ratio of norms
    for them. Google's implementations have the same default (`exclude_from_layer_adaptation`).
    """
    exempt: dict[str, Any] = {"weight_decay": 0.0}
    if isinstance(options, LarsOptions | LambOptions):
        exempt["adapt"] = False
    factors = options.lr_factors if names is not None else {}
    muon = isinstance(options, MuonOptions)
    patterns = {key: each if names is not None else () for key, each in options.patterns.items()}
    outer = options.adamw if isinstance(options, MuonOptions) and names is not None else ()
    groups: dict[tuple[str | None, bool, bool], dict[str, Any]] = {}
    seen = []
    for parameter in parameters:
        name = "" if names is None else names[parameter]
        seen.append(name)
        if not parameter.requires_grad:
            continue
        pattern = next((each for each in factors if fnmatchcase(name, each)), None)
        decays = options.decay_bias_and_norm or parameter.ndim > 1
        matrix = muon and parameter.ndim == 2 and not any(fnmatchcase(name, each) for each in outer)
        group = groups.setdefault((pattern, decays, matrix), {"params": []})
        group["params"].append(parameter)
        group |= {} if decays else exempt
        group |= {} if pattern is None else {"lr_factor": factors[pattern]}
        group |= {"matrices": matrix} if muon else {}
    for key, each in patterns.items():
        if wrong := unmatched(each, seen):
            raise UserError(f"optimizer.{key}: {wrong}")
    return sorted(groups.values(), key=lambda group: "weight_decay" in group)
