"""ExperimentSpec: an experiment as a user specifies it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from raysuite.spec.base import IMPORT_PATH, Options, expand_shorthand, later, off
from raysuite.spec.batches import AutoBatch
from raysuite.spec.data_set import DataOptions
from raysuite.spec.loaders import LoaderOptions, NativeOptions
from raysuite.spec.optimizers import ConstantOptions, OptimizerOptions, ScheduleOptions, SgdOptions
from raysuite.spec.resources import ResourceOptions
from raysuite.spec.script import EXCLUDED, STANDS_FOR, ScriptOptions
from raysuite.spec.search import SearchOptions
from raysuite.spec.stems import MODELS
from raysuite.spec.strategies import SingleOptions, StrategyOptions
from raysuite.spec.tasks import TaskOptions
from raysuite.spec.training import TrainingOptions

# How a synthetic version of a named data set differs from the original.


class SyntheticDataOptions(Options):
    """Options of a synthetic data set for `raysuite data make`; defaults imitate the original."""

    fraction: float | None = Field(default=None, gt=0, le=1)
    """Number of training images, as a share of the original data set's number."""
    images: int | None = Field(default=None, ge=2)
    """Number of training images, instead of `fraction`. The number of validation images is scaled
    by the same factor."""
    classes: int | None = Field(default=None, ge=1)
    """Number of classes."""
    size: int | str | None = None
    """Size in pixels, such as 64, or 500x375 (width, height)."""
    content: Literal["natural", "noise"] = "natural"
    """`natural`: images with a 1/f spectrum and learnable classes; `noise`: DDLBench's noise."""
    seed: int = Field(default=0, ge=0)
    """Seed of the images; equal seeds give equal files."""


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
"""Keys that have the same value in all runs of an experiment."""

FREE_FORM = (
    "data.options.",
    "model.options.",
    "strategy.options.",
    "task.options.",
    "script.arguments.",
    "script.environment.",
)
"""Prefixes of dotted keys that may have any name after the prefix."""


class ModelOptions(Options):
    """The network."""

    name: str
    """A torchvision classifier by torchvision's name (resnet50, vgg16, mobilenet_v2, ...), a CIFAR
    ResNet (resnet20, 32, 44, 56, 110), `gpt` (a language model), `timm:NAME`, or your own
    `module:attribute`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed unchanged to the model's constructor. `stem: small` or `large`, for torchvision's
    ResNets, VGGs and mobilenet_v2; default: small for images of up to 64 pixels. For `gpt`: layers,
    heads, width, dropout, tied."""
    weights: str | None = later(None)
    """File with initial weights: a state_dict written by torch.save, such as a run's model.pt, or
    .safetensors. The network's last layer keeps its random initial weights if the file's last layer
    has a different number of classes, or if the file is from a run whose classes have other names.
    In both cases, a message at the start of the run names the network's last layer."""
    freeze: tuple[str, ...] = later(())
    """Name patterns of parameters that are not trained, such as `layer1.*`. BatchNorm's running
    statistics are still updated in layers with frozen parameters."""

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
            f"no model is called {name!r}; {hint}valid: the CIFAR ResNets (resnet20, 32, 44, "
            "56, 110), torchvision's classifiers, gpt, 'timm:NAME', or 'module:attribute' of your "
            "own"
        )


def _several(value: Any) -> Any:
    """Expand `tensorboard` to `[tensorboard]`."""
    return [value] if isinstance(value, str) else value


class MeasureOptions(Options):
    """The measurements of a run."""

    warmup_steps: int = Field(default=10, ge=0)
    """Number of optimiser steps that are left out of the throughput, at the start of the run and
    after each restart from a checkpoint."""
    profile: Annotated[Literal["off", "torch", "nsight"], BeforeValidator(off)] = "off"
    """Profile extra steps after the timed training. `torch` records the time shares of computation,
    communication and loading, and a trace; `nsight` profiles the GPU workers with nsys."""
    profile_steps: int = Field(default=20, ge=1)
    """Number of profiled optimiser steps, after `warmup_steps` steps without the profiler."""
    power: Annotated[Literal["auto", "off"], BeforeValidator(off)] = "auto"
    """`auto`: measure energy and utilisation of GPUs with NVML, and the energy of CPUs with RAPL,
    as far as NVML and RAPL can be read."""
    figures: Annotated[tuple[str, ...], BeforeValidator(_several)] = later(())
    """Metrics to measure in each optimiser step, such as `gradient_norm`. Each of them slows down
    the steps, and is therefore measured only if it is listed here."""


def _is_part(part: dict[str, Any], block: Any) -> bool:
    return isinstance(block, dict) and all(block.get(key) == part[key] for key in part)


def _is_default(block: Any, default: Any) -> bool:
    whole = default.model_dump(mode="json") if isinstance(default, Options) else default
    return block in (whole, default)


Logger = Literal["mlflow", "tensorboard", "wandb"]


_TRACK: tuple[Logger, ...] = ("mlflow",)


def track_of(spec: Mapping[str, Any]) -> Sequence[str]:
    """The value of `track` in `spec`, the plain data of a valid spec."""
    found: Sequence[str] = _several(spec.get("track", _TRACK))
    return found


class ExperimentSpec(Options):
    """One experiment: a run, or the matrix of runs that it expands into."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the results folder and of MLflow's experiment: letters, digits, dots, dashes and
    underscores."""
    description: str = ""
    """One sentence for the report."""
    seed: int = Field(default=0, ge=0, lt=10**18)
    """Repeat r uses seed + r for the weights and the order of samples."""
    repeats: int = Field(default=1, ge=1)
    """Number of repeats of each run, for a mean and a spread."""
    model: Annotated[ModelOptions, BeforeValidator(expand_shorthand)]
    """The network."""
    data: Annotated[DataOptions, BeforeValidator(expand_shorthand)]
    """The data set, and its format on disk."""
    task: Annotated[TaskOptions, BeforeValidator(expand_shorthand)] = later(TaskOptions())
    """The task of the network: its loss, its metrics, and the unit of its throughput."""
    loader: LoaderOptions = NativeOptions()
    """The loader, which reads, decodes and transforms samples."""
    strategy: StrategyOptions = SingleOptions()
    """The strategy, which synchronises the workers."""
    optimizer: OptimizerOptions = SgdOptions()
    """The optimiser."""
    schedule: ScheduleOptions = ConstantOptions()
    """The learning rate over time, relative to its full value."""
    training: TrainingOptions
    """The training recipe, which is the same for all strategies."""
    resources: ResourceOptions = ResourceOptions()
    """The resources of a run."""
    measure: MeasureOptions = MeasureOptions()
    """The measurements of a run."""
    track: Annotated[tuple[Logger, ...], BeforeValidator(_several)] = later(_TRACK)
    """Loggers of the records, in addition to the report: any of `mlflow`, `tensorboard` (event
    files) and `wandb` (Weights & Biases, offline), or none."""
    matrix: dict[str, list[Any]] = Field(default_factory=dict)
    """Dotted key -> values. Every combination is a run; the last key varies fastest. Keys that vary
    together share a line: `data.name, training.global_batch: [[mnist, 128], [cifar10, 64]]`."""
    script: ScriptOptions | None = later(None)
    """Your own training script, instead of `model`, `data`, `training` and a strategy."""
    search: SearchOptions | None = later(None)
    """A sweep: the keys that `raysuite sweep SPEC` varies, and the goal."""
    scales: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Name -> another version of the experiment, chosen by `--scale NAME`. A version is a mapping:
    dotted key -> its value in that version. Its key `matrix` replaces the whole matrix; its key
    `matrix.KEY` replaces only the values of KEY."""
    scale: str = ""
    """Name of the chosen version; `--scale` sets it."""
    synthetic_data: dict[str, SyntheticDataOptions] = Field(default_factory=dict)
    """Data set -> the synthetic version of it that `raysuite data make SPEC` writes."""

    removed: ClassVar[Mapping[str, Any]] = {"stand_ins": {}}

    @model_validator(mode="before")
    @classmethod
    def _script_in_place_of_a_network(cls, data: Any) -> Any:
        """Put placeholders into the blocks that a script replaces. A spec with a script may contain
        these placeholders (a plan's spec has them), but no other values of these blocks."""
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
                f"`script` cannot be combined with {', '.join(given)}; leave out `script` or "
                "the other keys"
            )
        return {**data, **{key: data.get(key, own) for key, own in STANDS_FOR.items()}}

    @property
    def auto(self) -> AutoBatch | None:
        """Options of the trials that find a batch size before the run; None without trials."""
        return self.strategy.auto or self.training.auto
