"""The optimiser and its learning rate over time."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from raysuite.spec.base import Options, expand_shorthand


class SgdOptions(Options):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.1, gt=0)
    """Learning rate after the warm-up, before scaling."""
    lr_reference_batch: int | None = Field(default=None, ge=1)
    """Linear scaling: the rate used is `lr * global_batch / lr_reference_batch`."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the last update that is added to the next."""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty: this times the weight is added to each gradient."""
    nesterov: bool = False
    """Nesterov's momentum."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> SgdOptions:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self


OptimizerOptions = Annotated[SgdOptions, BeforeValidator(expand_shorthand)]


class _Schedule(Options):
    warmup_epochs: float = Field(default=0.0, ge=0)
    """Epochs over which the rate rises linearly to its full value."""


class ConstantOptions(_Schedule):
    """The full rate throughout."""

    name: Literal["constant"] = "constant"


class StepOptions(_Schedule):
    """The rate is multiplied by `factor` at each milestone."""

    name: Literal["step"] = "step"
    milestones: tuple[float, ...] = (30, 60, 80)
    """Epochs at which the rate drops (default: Aach et al. 2023)."""
    factor: float = Field(default=0.1, gt=0, le=1)
    """What the rate is multiplied by at each milestone (default: Aach et al. 2023)."""


class CosineOptions(_Schedule):
    """Half a cosine from the full rate down to `min_factor` of it."""

    name: Literal["cosine"] = "cosine"
    min_factor: float = Field(default=0.0, ge=0, le=1)
    """The lowest rate, relative to the full rate."""


class ExponentialOptions(_Schedule):
    """The rate is multiplied by `gamma` every epoch."""

    name: Literal["exponential"] = "exponential"
    gamma: float = Field(default=0.95, gt=0, le=1)
    """Decay per epoch (default: Aach et al. 2023)."""


ScheduleOptions = Annotated[
    ConstantOptions | StepOptions | CosineOptions | ExponentialOptions,
    Field(discriminator="name"),
    BeforeValidator(expand_shorthand),
]
