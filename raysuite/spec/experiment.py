"""ExperimentSpec: what a person asks for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from raysuite.spec.base import IMPORT_PATH, Options, expand_shorthand, later
from raysuite.spec.batches import AUTO, AutoBatch, NumberOrAuto
from raysuite.spec.data import DataOptions
from raysuite.spec.loaders import LoaderOptions, NativeOptions
from raysuite.spec.optimizers import ConstantOptions, OptimizerOptions, ScheduleOptions, SgdOptions
from raysuite.spec.script import EXCLUDED, STANDS_FOR, ScriptOptions
from raysuite.spec.search import SearchOptions
from raysuite.spec.stems import MODELS
from raysuite.spec.strategies import SingleOptions, StrategyOptions
from raysuite.spec.tasks import TaskOptions

# What of a named data set is made up, where a spec asks for a synthetic data set.


class SyntheticDataOptions(Options):
    """A synthetic data set, as `raysuite data make` takes it; what is left out is the paper's."""

    fraction: float | None = Field(default=None, gt=0, le=1)
    """Share of the paper's number of images."""
    images: int | None = Field(default=None, ge=2)
    """Instead of `fraction`: number of training images; validation images keep their proportion."""
    classes: int | None = Field(default=None, ge=1)
    """Number of classes."""
    size: int | str | None = None
    """Pixels, such as 64, or 500x375 (width, height)."""
    content: Literal["natural", "noise"] = "natural"
    """`natural`: pictures with a 1/f spectrum whose classes can be learned; `noise`: DDLBench's."""
    seed: int = Field(default=0, ge=0)
    """Equal seeds give equal bytes."""


NOT_IN_A_MATRIX = (
    "matrix",
    "repeats",
    "name",
    "description",
    "scales",
    "scale",
    "synthetic_data",
    "search",
    "task",
    "track",
)
"""Keys of the whole experiment, which no single run can have for itself."""

FREE_FORM = (
    "data.options.",
    "model.options.",
    "strategy.options.",
    "task.options.",
    "script.arguments.",
    "script.environment.",
)
"""Below these, keys are the user's own."""


class ModelOptions(Options):
    """The network."""

    name: str
    """A classifier of torchvision by its name there (resnet50, vgg16, mobilenet_v2, ...), a CIFAR
    ResNet (resnet20, 32, 44, 56, 110), `gpt` (a language model), `timm:NAME`, or `module:attribute`
    of your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the model's constructor as they are. `stem: small` or `large`, for torchvision's
    ResNets, VGGs and mobilenet_v2; default: small for images of up to 64 pixels. Of `gpt`: layers,
    heads, width, dropout, tied."""
    weights: str | None = later(None)
    """File to begin from instead of random weights: a state_dict by torch.save, such as a run's
    model.pt, or .safetensors. A last layer for another number of classes begins at random."""
    freeze: tuple[str, ...] = later(())
    """Patterns of names of parameters that are not trained, such as `layer1.*`. BatchNorm's
    running statistics follow the images there too."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name in MODELS or re.fullmatch(IMPORT_PATH, name):
            return name
        if ":" in name:
            raise ValueError(f"{name!r} is not an import path; write it as 'module:attribute'")
        near = difflib.get_close_matches(name, MODELS, n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"no model is called {name!r}; {hint}valid are the CIFAR ResNets (resnet20, 32, 44, "
            "56, 110), torchvision's classifiers, gpt, 'timm:NAME', or 'module:attribute' of your "
            "own"
        )


class EarlyStoppingOptions(Options):
    """When a run ends before its last epoch: its validation no longer gets better."""

    metric: str = Field(default="val_loss", pattern=r"^val_[a-z0-9_]+$")
    """What is compared after each epoch: `val_loss`, or a metric of the task, such as
    `val_accuracy`."""
    patience: int = Field(ge=1)
    """Epochs without a better value after which the run ends."""
    min_delta: float = Field(default=0.0, ge=0)
    """By how much a value has to be better than the best so far to count as better."""


def _off(value: Any) -> Any:
    """YAML 1.1 reads `off` as false."""
    return "off" if value is False else value


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
        Literal["off", "default", "reduce-overhead", "max-autotune"], BeforeValidator(_off)
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


CpuList = Annotated[str, Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$")]


class ResourceOptions(Options):
    """The resources of a run."""

    workers: int = Field(default=1, ge=1)
    """World size: one rank, one device or one CPU share each."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """`auto`: GPUs where there is one for each worker, else CPUs."""
    cpus_per_worker: int = Field(default=1, ge=1)
    """CPUs, and so threads of torch, of each worker."""
    binding: Literal["auto", "none"] | tuple[CpuList, ...] = later("auto")
    """CPUs that the threads and loaders of each worker may run on. `auto`: on hosts with several
    memory nodes those next to its GPU, or an even share without GPUs; else all. A list has the
    CPUs of each worker of a host, as the kernel writes them: [0-11, 12-23]."""
    retries: int = Field(default=2, ge=0)
    """How many times a run whose worker died is resumed from its last checkpoint."""
    fresh_workers: bool = False
    """Start new worker processes for every run instead of sharing them between runs with equal
    resources."""
    placement: Literal["pack", "spread"] = "pack"
    """`pack`: workers on as few nodes as hold them; `spread`: on as many as there are."""
    wait_for_nodes_s: float = Field(default=300.0, ge=0)
    """Seconds to wait for a lost node to return, or another in its place, before the run fails."""
    elastic: bool = False
    """If the lost node does not return, run with as many workers as still fit instead: a separate
    run from its first epoch, with the same global batch and its own row in the report."""
    min_workers: int = Field(default=1, ge=1)
    """The fewest workers of such a run."""
    elastic_of: int | None = Field(default=None, ge=2)
    """Workers of the run in whose place this one is made; raysuite sets it."""


class MeasureOptions(Options):
    """What is measured, and from when on."""

    warmup_steps: int = Field(default=10, ge=0)
    """Optimiser steps left out of the throughput, at the start of the run and of each retry."""
    profile: Annotated[Literal["off", "torch", "nsight"], BeforeValidator(_off)] = "off"
    """Where the time goes, in extra steps after the timed training: `torch` records the shares of
    computation, communication and loading, and a trace; `nsight` has nsys watch the GPU workers."""
    profile_steps: int = Field(default=20, ge=1)
    """Optimiser steps of the profile's window, after `warmup_steps` others."""
    power: Annotated[Literal["auto", "off"], BeforeValidator(_off)] = "auto"
    """Sample energy and use of GPUs by NVML, and the energy of CPUs by RAPL, where they can be
    read."""


def _is_part(part: dict[str, Any], block: Any) -> bool:
    return isinstance(block, dict) and all(block.get(key) == part[key] for key in part)


def _is_default(block: Any, default: Any) -> bool:
    whole = default.model_dump(mode="json") if isinstance(default, Options) else default
    return block in (whole, default)


Logger = Literal["mlflow", "tensorboard", "wandb"]


def _several(value: Any) -> Any:
    """`tensorboard` means `[tensorboard]`."""
    return [value] if isinstance(value, str) else value


_TRACK: tuple[Logger, ...] = ("mlflow",)


def track_of(spec: Mapping[str, Any]) -> Sequence[str]:
    """The `track` of a spec that is data and without mistakes."""
    found: Sequence[str] = _several(spec.get("track", _TRACK))
    return found


class ExperimentSpec(Options):
    """One experiment: a run, or the matrix of runs that it expands into."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Letters, digits, dots, dashes and underscores; folders and MLflow's experiment are named
    after it."""
    description: str = ""
    """One sentence for the report."""
    seed: int = Field(default=0, ge=0, lt=10**18)
    """Repeat r uses seed + r for weights and for the order of samples."""
    repeats: int = Field(default=1, ge=1)
    """Number of repeats of each run, for mean and spread."""
    model: Annotated[ModelOptions, BeforeValidator(expand_shorthand)]
    """The network."""
    data: Annotated[DataOptions, BeforeValidator(expand_shorthand)]
    """The data set, and its format on disk."""
    task: Annotated[TaskOptions, BeforeValidator(expand_shorthand)] = later(TaskOptions())
    """What the network is trained for: its loss, its metrics, and what its throughput counts."""
    loader: LoaderOptions = NativeOptions()
    """How samples reach a worker."""
    strategy: StrategyOptions = SingleOptions()
    """How gradients are made equal on all workers."""
    optimizer: OptimizerOptions = SgdOptions()
    """The optimiser."""
    schedule: ScheduleOptions = ConstantOptions()
    """The learning rate over time, relative to its full value."""
    training: TrainingOptions
    """The recipe: the same work whatever the strategy."""
    resources: ResourceOptions = ResourceOptions()
    """The resources of a run."""
    measure: MeasureOptions = MeasureOptions()
    """What is measured, and from when on."""
    track: Annotated[tuple[Logger, ...], BeforeValidator(_several)] = later(_TRACK)
    """Where the records are shown beside the report: `mlflow`, `tensorboard` (event files) and
    `wandb` (Weights & Biases, offline), any of them or none."""
    matrix: dict[str, list[Any]] = Field(default_factory=dict)
    """Dotted key -> values. Every combination is a run; the last key varies fastest. Keys that go
    together share a line: `data.name, training.global_batch: [[mnist, 128], [cifar10, 64]]`."""
    script: ScriptOptions | None = later(None)
    """A training script of your own, in place of `model`, `data`, `training` and a strategy."""
    search: SearchOptions | None = later(None)
    """A sweep: what `raysuite sweep SPEC` varies, towards which goal."""
    scales: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Other forms of the experiment, chosen by `--scale NAME`: dotted key -> its value in that
    form. `matrix` replaces the whole matrix, `matrix.KEY` one sweep."""
    scale: str = ""
    """The form that was chosen; `--scale` sets it."""
    synthetic_data: dict[str, SyntheticDataOptions] = Field(default_factory=dict)
    """Data set -> the synthetic data set that `raysuite data make SPEC` writes for it."""

    removed: ClassVar[Mapping[str, Any]] = {"stand_ins": {}}

    @model_validator(mode="before")
    @classmethod
    def _script_in_place_of_a_network(cls, data: Any) -> Any:
        """Fill the blocks that a script replaces, unless they are those of a plan's own spec."""
        if not isinstance(data, dict) or data.get("script") is None:
            return data
        given = [
            key
            for key, own in STANDS_FOR.items()
            if key in data and not _is_part(own, expand_shorthand(data[key]))
        ]
        defaults = {key: cls.model_fields[key].get_default() for key in EXCLUDED}
        given += [
            key for key in EXCLUDED if data.get(key) and not _is_default(data[key], defaults[key])
        ]
        if given:
            raise ValueError(
                f"a script has its own {', '.join(given)}; leave out either that or `script`"
            )
        return {**data, **{key: data.get(key, own) for key, own in STANDS_FOR.items()}}

    @property
    def auto(self) -> AutoBatch | None:
        """What is to be found by trial before the run; None where all numbers are given."""
        return self.strategy.auto or self.training.auto
