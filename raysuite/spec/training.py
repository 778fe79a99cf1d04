"""The section `training` of a spec."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from raysuite.spec.base import Options, later, off
from raysuite.spec.batches import AUTO, AutoBatch, NumberOrAuto


class EarlyStoppingOptions(Options):
    """End a run before its last epoch, when its validation no longer improves."""

    metric: str = Field(default="val_loss", pattern=r"^val_[a-z0-9_]+$")
    """The value that is compared after each epoch: `val_loss`, or the primary metric of the
    task, such as `val_accuracy`."""
    patience: int = Field(ge=1)
    """Number of epochs without improvement after which the run ends."""
    min_delta: float = Field(default=0.0, ge=0)
    """An epoch is an improvement if its value is better than the best value so far by more than
    this."""


class TrainingOptions(Options):
    """The training recipe, which is the same for all strategies."""

    epochs: int = Field(ge=1)
    """Passes over the training set."""
    global_batch: int | None = Field(default=None, ge=1)
    """Number of samples in one optimiser step, over all workers (strong scaling)."""
    batch_per_worker: NumberOrAuto | None = None
    """Number of samples in one optimiser step on each worker (weak scaling). `auto`, or `{auto:
    fastest, at_most: 256}`: trials before the run find the number, which depends on the
    machine."""
    accumulate: NumberOrAuto = 1
    """Number of micro-batches per optimiser step on each worker. `auto`: the smallest number with
    which a micro-batch fits into memory, found by trials before the run; the global batch size
    stays as given."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest global L2 norm of the gradients; larger gradients are scaled down to it."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast dtype of forward and backward; the weights stay fp32."""
    memory_format: Literal["auto", "channels_last", "contiguous"] = later("auto")
    """Memory format of images and of convolutions' weights. `auto`: channels_last for 16-bit
    precision on GPUs, because tensor cores use this format; else contiguous."""
    cudnn_benchmark: bool = later(False)
    """Let cuDNN time its algorithms for each new shape and use the fastest. Two runs, or a run and
    its resumed part, may then use different algorithms and round differently."""
    compile: Annotated[
        Literal["off", "default", "reduce-overhead", "max-autotune"], BeforeValidator(off)
    ] = later("off")
    """torch.compile's mode, for the network; not every strategy supports it. `reduce-overhead` and
    `max-autotune` record CUDA graphs on GPUs; `max-autotune` also times variants of kernels.
    Compilation is timed separately."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Weight of the uniform distribution in the target of the cross-entropy."""
    class_weights: Literal["auto"] | tuple[Annotated[float, Field(ge=0)], ...] | None = later(None)
    """A weight for each class in the training loss, which is then the weighted mean over the global
    batch. `auto`: samples / (classes * samples of the class). Validation is not weighted."""
    sampler: Literal["shuffled", "balanced"] = later("shuffled")
    """How the samples of an epoch are chosen. `shuffled`: each sample once, in random order.
    `balanced`: the same number of samples in total, but equally many of each class, in random
    order; samples of rare classes are repeated, and some samples of other classes are left
    out."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Also keep an exponential moving average of the weights, and use the average in validation.
    The value is the share of the old average that each step keeps."""
    target_accuracy: float | None = Field(default=None, gt=0, le=1)
    """Validation accuracy for which the time to accuracy is reported."""
    target: float | None = later(None)
    """For tasks other than classification: target of the primary metric. The time until it is met
    is reported."""
    early_stopping: EarlyStoppingOptions | None = later(None)
    """End the run before its last epoch when validation no longer improves. The schedule of the
    learning rate does not become shorter; model.pt has the weights after the last trained epoch,
    not those of the best epoch."""
    checkpoint_every: int = Field(default=1, ge=0)
    """Epochs between two checkpoints; 0 for no checkpoints."""

    @field_validator("global_batch", mode="before")
    @classmethod
    def _not_auto(cls, value: Any) -> Any:
        if value == AUTO or isinstance(value, dict):
            raise ValueError(
                f"got {value!r}; it should be a whole number. To let trials find a number, give "
                "batch_per_worker: auto, or a number for global_batch and accumulate: auto"
            )
        return value

    @model_validator(mode="after")
    def _one_batch(self) -> TrainingOptions:
        if (self.global_batch is None) == (self.batch_per_worker is None):
            raise ValueError("give exactly one of global_batch and batch_per_worker")
        if isinstance(self.batch_per_worker, AutoBatch) and isinstance(self.accumulate, AutoBatch):
            raise ValueError(
                "batch_per_worker and accumulate cannot both be auto: give one of them as a number"
            )
        return self

    @model_validator(mode="after")
    def _some_class_counts(self) -> TrainingOptions:
        weights = self.class_weights
        if weights is not None and weights != "auto" and not any(weights):
            raise ValueError("class_weights: every weight is 0; give at least one above 0")
        return self

    @property
    def goal(self) -> float | None:
        """The target of the task's primary metric: the time until it is met is reported."""
        return self.target_accuracy if self.target is None else self.target

    @property
    def auto(self) -> AutoBatch | None:
        """Options of the trials that find a batch size before the run; None without trials."""
        for value in (self.batch_per_worker, self.accumulate):
            if isinstance(value, AutoBatch):
                return value
        return None
