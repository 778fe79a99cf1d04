"""ExperimentSpec: what a person asks for."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from raysuite.spec.base import Options, expand_shorthand
from raysuite.spec.loaders import LoaderOptions, NativeOptions
from raysuite.spec.names import MODELS
from raysuite.spec.optimizers import (
    ConstantOptions,
    OptimizerOptions,
    ScheduleOptions,
    SgdOptions,
)
from raysuite.spec.strategies import SingleOptions, StrategyOptions


class ModelOptions(Options):
    """The network."""

    name: str
    """A name of `raysuite.spec.names.MODELS`, or `module:attribute` of your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the model's constructor as they are."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if ":" in name or name in MODELS:
            return name
        near = difflib.get_close_matches(name, MODELS, n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"no model is called {name!r}; {hint}valid are the CIFAR ResNets (resnet20, 32, 44, "
            "56, 110), torchvision's classifiers, or 'module:attribute' of your own"
        )


class DataOptions(Options):
    """The data set, and the form in which it lies on disk."""

    name: Literal["digits", "image_folder"]
    format: Literal["folder", "tfrecord"] = "folder"
    """Single image files, or TFRecord shards with an index. Your own sets: `folder`."""
    path: str | None = None
    """`image_folder` only: a folder with train/CLASS/*.png and val/CLASS/*.png (or .jpg)."""
    image_size: int | None = Field(None, ge=1)
    """Side of the square images that the network sees, in pixels; default: the set's own."""
    channels: Literal[1, 3] | None = None
    """1 grey, 3 RGB; default: the set's own."""

    @model_validator(mode="after")
    def _path_belongs_to_folders(self) -> DataOptions:
        if self.name == "image_folder":
            if self.path is None:
                raise ValueError("image_folder needs `path`")
            if self.image_size is None:
                raise ValueError("image_folder needs `image_size`")
            if self.format != "folder":
                raise ValueError("image_folder is read as it lies: format must be 'folder'")
        elif self.path is not None:
            raise ValueError(f"`path` is for image_folder; {self.name} is kept in raysuite's cache")
        return self


class TrainingOptions(Options):
    """The recipe: the same work whatever the strategy."""

    epochs: int = Field(ge=1)
    global_batch: int | None = Field(None, ge=1)
    """Samples of one optimiser step over all workers (strong scaling)."""
    batch_per_worker: int | None = Field(None, ge=1)
    """Samples of one optimiser step on each worker (weak scaling)."""
    accumulate: int = Field(1, ge=1)
    """Micro-batches per optimiser step, on each worker."""
    clip_norm: float | None = Field(None, gt=0)
    """Gradients are scaled down to this global L2 norm."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast of forward and backward; the weights stay fp32."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    target_accuracy: float | None = Field(None, gt=0, le=1)
    """Validation accuracy whose time is reported as time to accuracy."""
    checkpoint_every: int = Field(1, ge=0)
    """Epochs between two checkpoints; 0 keeps none."""

    @model_validator(mode="after")
    def _one_batch(self) -> TrainingOptions:
        if (self.global_batch is None) == (self.batch_per_worker is None):
            raise ValueError("give exactly one of global_batch and batch_per_worker")
        return self


class ResourceOptions(Options):
    """What a run occupies."""

    workers: int = Field(1, ge=1)
    """World size: one rank, one device or one CPU share each."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    cpus_per_worker: int = Field(1, ge=1)
    """CPUs, and so threads of torch, of each worker."""
    retries: int = Field(2, ge=0)
    """How often a run whose worker died is taken up again from its last checkpoint."""
    fresh_workers: bool = False
    """Start new worker processes for every run instead of sharing them between runs alike."""


class MeasureOptions(Options):
    """What is measured, and from when on."""

    warmup_steps: int = Field(10, ge=0)
    """Optimiser steps left out of the throughput, counted from the start of the run."""


class ExperimentSpec(Options):
    """One experiment: a run, or the matrix of runs that it expands into."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Letters, digits, dots, dashes and underscores: it names folders and MLflow's experiment."""
    description: str = ""
    seed: int = Field(0, ge=0)
    """Repeat r uses seed + r for weights and for the order of samples."""
    repeats: int = Field(1, ge=1)
    model: Annotated[ModelOptions, BeforeValidator(expand_shorthand)]
    data: Annotated[DataOptions, BeforeValidator(expand_shorthand)]
    loader: LoaderOptions = NativeOptions()
    strategy: StrategyOptions = SingleOptions()
    optimizer: OptimizerOptions = SgdOptions()
    schedule: ScheduleOptions = ConstantOptions()
    training: TrainingOptions
    resources: ResourceOptions = ResourceOptions()
    measure: MeasureOptions = MeasureOptions()
    matrix: dict[str, list[Any]] = Field(default_factory=dict)
    """Dotted key -> values. Every combination is a run; the last key varies fastest."""
