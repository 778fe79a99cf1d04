"""The section `training` of a spec."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from raysuite.spec.base import Options, later, off
from raysuite.spec.batches import AUTO, AutoBatch, NumberOrAuto


class EarlyStoppingOptions(Options):
    """When a run ends before its last epoch: its validation no longer gets better."""

    metric: str = Field(default="val_loss", pattern=r"^val_[a-z0-9_]+$")
    """What is compared after each epoch: `val_loss`, or a metric of the task, such as
    `val_accuracy`."""
    patience: int = Field(ge=1)
    """Epochs without a better value after which the run ends."""
    min_delta: float = Field(default=0.0, ge=0)
    """By how much a value has to be better than the best so far to count as better."""


class TrainingOptions(Options):
    """The recipe: the same work whatever the strategy."""

    epochs: int = Field(ge=1)
    """Passes over the training set."""
    global_batch: int | None = Field(default=None, ge=1)
    """Samples of one optimiser step over all workers (strong scaling)."""
    batch_per_worker: NumberOrAuto | None = None
    """Samples of one optimiser step on each worker (weak scaling). `auto`: found by trial before
    the run, so that the work depends on the machine; `{auto: fastest, at_most: 256}`."""
    accumulate: NumberOrAuto = 1
    """Micro-batches per optimiser step, on each worker. `auto`: the fewest that fit into memory,
    found by trial before the run; the work stays the same."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Gradients are scaled down to this global L2 norm."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast of forward and backward; the weights stay fp32."""
    memory_format: Literal["auto", "channels_last", "contiguous"] = later("auto")
    """Strides of images and convolutions. `auto`: channels_last, which the tensor cores of GPUs
    compute in, for 16-bit precision on GPUs, else contiguous."""
    cudnn_benchmark: bool = later(False)
    """Let cuDNN time its algorithms for each new shape and take the fastest. Two runs may then take
    different ones and round differently, also a run and its own continuation."""
    compile: Annotated[
        Literal["off", "default", "reduce-overhead", "max-autotune"], BeforeValidator(off)
    ] = later("off")
    """torch.compile's mode, for the network under any strategy. The last two record CUDA graphs on
    GPUs; `max-autotune` also times variants of kernels. Compiling is timed apart."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Weight of the uniform distribution in the target of the cross-entropy."""
    class_weights: Literal["auto"] | tuple[Annotated[float, Field(ge=0)], ...] | None = later(None)
    """A weight for each class in the training loss, which is then the weighted mean over the global
    batch. `auto`: samples / (classes * samples of the class). Validation is not weighted."""
    sampler: Literal["shuffled", "balanced"] = later("shuffled")
    """The order of an epoch. `shuffled`: each sample once; `balanced`: as many samples, of each
    class equally many, so that those of rare classes are repeated and some of others left out."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Also keep an exponential moving average of the weights, which then replaces them in
    validation: each step keeps this share of the average."""
    target_accuracy: float | None = Field(default=None, gt=0, le=1)
    """Validation accuracy whose time is reported as time to accuracy."""
    target: float | None = later(None)
    """The same for another task than classification: a value of its primary metric."""
    early_stopping: EarlyStoppingOptions | None = later(None)
    """End the run before its last epoch where validation no longer gets better. The schedule of
    the learning rate stays that of all `epochs`; model.pt holds the last weights."""
    checkpoint_every: int = Field(default=1, ge=0)
    """Epochs between two checkpoints; 0 keeps none."""

    @field_validator("global_batch", mode="before")
    @classmethod
    def _not_auto(cls, value: Any) -> Any:
        if value == AUTO or isinstance(value, dict):
            raise ValueError(
                f"given was {value!r}; it should be a whole number. What is found by trial is "
                "batch_per_worker: auto, or, with the global batch as it is, accumulate: auto"
            )
        return value

    @model_validator(mode="after")
    def _one_batch(self) -> TrainingOptions:
        if (self.global_batch is None) == (self.batch_per_worker is None):
            raise ValueError("give exactly one of global_batch and batch_per_worker")
        if isinstance(self.batch_per_worker, AutoBatch) and isinstance(self.accumulate, AutoBatch):
            raise ValueError(
                "batch_per_worker and accumulate cannot both be auto: give accumulate as a number, "
                "or the batch"
            )
        return self

    @model_validator(mode="after")
    def _some_class_counts(self) -> TrainingOptions:
        weights = self.class_weights
        if weights is not None and weights != "auto" and not any(weights):
            raise ValueError("class_weights: every weight is 0, so that nothing would be trained")
        return self

    @property
    def goal(self) -> float | None:
        """The value of the task's primary metric whose time is reported."""
        return self.target_accuracy if self.target is None else self.target

    @property
    def auto(self) -> AutoBatch | None:
        """What is found by trial before the run; None where both numbers are given."""
        for value in (self.batch_per_worker, self.accumulate):
            if isinstance(value, AutoBatch):
                return value
        return None
