"""The sections `optimizer` and `schedule` of a spec."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from raysuite.spec.base import Options, expand_shorthand

SETTINGS = ("lr", "momentum", "nesterov", "weight_decay", "betas", "eps", "trust_coefficient")
"""Settings of an optimiser that may change from one step to the next."""


class _Optimizer(Options):
    part: ClassVar[str] = ""
    """The optional part (`raysuite.parts`) that it requires."""
    whole: ClassVar[str] = ""
    """What the optimiser needs and cannot get from weights that a framework flattens and shards, as
    a text after `NAME needs` in messages; empty if the optimiser can update such weights."""
    updates_in_bf16: ClassVar[bool] = False
    """Whether updates are rounded to bf16, whatever the precision of the training."""
    averages: ClassVar[bool] = False
    """Whether the optimiser averages the weights, so that validation uses other weights than
    training."""

    real: ClassVar[bool] = False
    """Whether the optimiser can update only real weights, not complex weights."""

    lr: float = Field(gt=0)
    """Learning rate after the warm-up, before it is scaled by `lr_scaling`."""
    lr_reference_batch: int | None = Field(default=None, ge=1)
    """The global batch size for which `lr` is given; null: `lr` is used for every global batch
    size."""
    lr_scaling: Literal["linear", "sqrt", "none"] = "linear"
    """How the learning rate grows with the ratio of the global batch size to `lr_reference_batch`:
    linearly, with the square root of the ratio, or not at all."""
    weight_decay: float = Field(ge=0)
    """Strength of the decay of weights towards zero."""
    decay_bias_and_norm: bool
    """Apply the weight decay also to biases and normalisation layers: all parameters of at most one
    dimension."""
    # left out if empty, so that runs keep their ids
    lr_factors: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict, exclude_if=lambda factors: not factors
    )
    """Name pattern of parameters -> factor of their learning rate, such as `{"fc.*": 10}`. The
    first matching pattern is used; parameters without a match have the factor 1."""

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        """Option -> its name patterns, each of which must match a parameter."""
        return {"lr_factors": tuple(self.lr_factors)}

    @model_validator(mode="after")
    def _sqrt_needs_a_reference(self) -> Self:
        if self.lr_scaling == "sqrt" and self.lr_reference_batch is None:
            raise ValueError(
                "lr_scaling `sqrt` needs lr_reference_batch, the global batch size for lr"
            )
        return self

    def peak_lr(self, global_batch: int) -> float:
        """The learning rate after the warm-up, scaled by `lr_scaling` to steps of `global_batch`
        samples."""
        if self.lr_reference_batch is None or self.lr_scaling == "none":
            return self.lr
        growth = global_batch / self.lr_reference_batch
        return self.lr * (growth if self.lr_scaling == "linear" else math.sqrt(growth))


class SgdOptions(_Optimizer):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.1, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the previous update that is added to each update."""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty: weight_decay * weight is added to each gradient."""
    decay_bias_and_norm: bool = True
    nesterov: bool = False
    """Use Nesterov's momentum."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class LarsOptions(_Optimizer):
    """Layer-wise adaptive rate scaling: SGD for large batches."""

    whole = "the norm of each whole weight tensor"

    name: Literal["lars"] = "lars"
    lr: float = Field(default=1.0, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the previous update that is added to each update."""
    weight_decay: float = Field(default=5e-4, ge=0)
    """weight_decay * weight is added to each gradient (default: You et al. 2017)."""
    decay_bias_and_norm: bool = False
    """Also decay biases and normalisation layers, and scale the update of each by the norm of the
    parameter."""
    trust_coefficient: float = Field(default=0.001, gt=0)
    """Norm of a weight tensor's update, divided by the norm of the tensor, at a learning rate of 1,
    without momentum and weight decay (default: You et al. 2017)."""


Beta = Annotated[float, Field(ge=0, lt=1)]


class LambOptions(_Optimizer):
    """Layer-wise adaptive moments: Adam for large batches."""

    whole = "the norm of each whole weight tensor"

    name: Literal["lamb"] = "lamb"
    lr: float = Field(default=1e-3, gt=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the root of the running mean of the gradient's square, by which each update is
    divided."""
    weight_decay: float = Field(default=0.01, ge=0)
    """weight_decay * weight is added to each update (default: You et al. 2020)."""
    decay_bias_and_norm: bool = False
    """Also decay biases and normalisation layers, and scale the update of each by the norm of the
    parameter."""


class AdamWOptions(_Optimizer):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"] = "adamw"
    lr: float = Field(default=1e-3, gt=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the running mean of the gradient's square, by which each update is
    divided."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Each step multiplies each weight by 1 - learning rate * weight_decay."""
    decay_bias_and_norm: bool = True


class ScheduleFreeOptions(_Optimizer):
    """AdamW with averaged weights instead of a schedule (Defazio et al. 2024, "The Road Less
    Scheduled"): a constant rate after a warm-up. Validation and `model.pt` use the average."""

    part = "schedulefree"
    whole = "weights that keep their shape, to exchange them for their average"
    averages = True
    real = True

    name: Literal["schedule_free"] = "schedule_free"
    lr: float = Field(default=2.5e-3, gt=0)
    betas: tuple[Annotated[float, Field(gt=0, lt=1)], Beta] = (0.9, 0.999)
    """First value: share of the averaged weights in the weights at which gradients are computed;
    the rest is the share of the latest weights. Second value: decay rate of the running mean of the
    gradient's square."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the running mean of the gradient's square, by which each update is
    divided."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Each step subtracts learning rate * weight_decay * weight from each weight."""
    decay_bias_and_norm: bool = True


OUTER = ("*embed*", "*.wte.*", "*.wpe.*", "*head*")
"""Name patterns of embeddings and last layers in raysuite's and Hugging Face's language models."""


class MuonOptions(_Optimizer):
    """Matrices are updated by their orthogonalised momentum (Jordan et al. 2024, "Muon"), all other
    parameters by AdamW."""

    whole = "each whole weight tensor, to make its update orthogonal"
    updates_in_bf16 = True
    real = True

    name: Literal["muon"] = "muon"
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate after the warm-up, before `lr_scaling`; AdamW uses the same rate."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Decay rate of the running mean of the gradient."""
    nesterov: bool = True
    """Use Nesterov's momentum."""
    adjust_lr: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    """How the learning rate of a matrix depends on the shape of the matrix. `match_rms_adamw`: so
    that updates are as large as AdamW's, and Muon and AdamW can use the same rate; `original`: by
    the factor of Muon's authors."""
    adamw: tuple[str, ...] = OUTER
    """Name patterns of matrices that AdamW updates instead of Muon, as is usual for embeddings and
    the last layer."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """For AdamW: decay rates of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-8, gt=0)
    """For AdamW: added to the root of the running mean of the gradient's square, by which each
    update is divided."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Each step multiplies each weight by 1 - learning rate * weight_decay."""
    decay_bias_and_norm: bool = False

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        own = tuple(each for each in self.adamw if each not in OUTER)
        return {**super().patterns, "adamw": own}


UNNAMED_OPTIMIZER = "sgd"
"""The optimiser if the block has options but no name: `optimizer: {lr: 0.2}`."""


def _with_name(value: Any) -> Any:
    value = expand_shorthand(value)
    return {"name": UNNAMED_OPTIMIZER, **value} if isinstance(value, dict) else value


OptimizerOptions = Annotated[
    SgdOptions | LarsOptions | LambOptions | AdamWOptions | ScheduleFreeOptions | MuonOptions,
    Field(discriminator="name"),
    BeforeValidator(_with_name),
]


class _Schedule(Options):
    warmup_epochs: float = Field(default=0.0, ge=0)
    """Number of epochs at the start in which the rate rises linearly to its full value."""


class ConstantOptions(_Schedule):
    """The full rate in all epochs after the warm-up."""

    name: Literal["constant"] = "constant"


class StepOptions(_Schedule):
    """The rate is multiplied by `factor` at each milestone."""

    name: Literal["step"] = "step"
    milestones: tuple[float, ...] = (30, 60, 80)
    """Epochs at which the rate drops (default: Aach et al. 2023)."""
    factor: float = Field(default=0.1, gt=0, le=1)
    """Factor of the rate at each milestone (default: Aach et al. 2023)."""


class CosineOptions(_Schedule):
    """Half a cosine from the full rate down to `min_factor` times the full rate."""

    name: Literal["cosine"] = "cosine"
    min_factor: float = Field(default=0.0, ge=0, le=1)
    """The lowest rate, relative to the full rate."""


class ExponentialOptions(_Schedule):
    """The rate is multiplied by `gamma` every epoch."""

    name: Literal["exponential"] = "exponential"
    gamma: float = Field(default=0.95, gt=0, le=1)
    """Factor of the rate in each epoch (default: Aach et al. 2023)."""


class PolynomialOptions(_Schedule):
    """The rate falls from the full rate to `min_factor` times the full rate, in proportion to a
    power of the share of steps left."""

    name: Literal["polynomial"] = "polynomial"
    power: float = Field(default=2.0, gt=0)
    """Exponent; 1 gives a straight line (default: You et al. 2017)."""
    min_factor: float = Field(default=0.0, ge=0, le=1)
    """The lowest rate, relative to the full rate."""


ScheduleOptions = Annotated[
    ConstantOptions | StepOptions | CosineOptions | ExponentialOptions | PolynomialOptions,
    Field(discriminator="name"),
    BeforeValidator(expand_shorthand),
]
