"""How gradients are made equal on all ranks: one block of options per strategy."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from raysuite.spec.base import IMPORT_PATH, Options, expand_shorthand


class SingleOptions(Options):
    """One process, no distribution: the baseline."""

    name: Literal["single"] = "single"


class DdpOptions(Options):
    """PyTorch DistributedDataParallel."""

    name: Literal["ddp"] = "ddp"
    bucket_mb: float = Field(default=25.0, gt=0)
    """Gradients are all-reduced in buckets of this size, in MiB."""
    compression: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Gradient compression hook. All but `none` change the arithmetic."""
    powersgd_rank: int = Field(default=1, ge=1)
    """Rank of PowerSGD's low-rank approximation."""
    static_graph: bool = False
    """Promise that the graph is the same in each step."""
    find_unused_parameters: bool = False
    """Search each step's graph for parameters without a gradient."""


class HorovodOptions(Options):
    """Horovod's DistributedOptimizer."""

    name: Literal["horovod"] = "horovod"
    compression: Literal["none", "fp16"] = "none"
    """Send gradients as 16-bit floats. Changes the arithmetic."""
    fusion_threshold_mb: float = Field(default=128.0, ge=0)
    """Tensors are fused up to this size, in MiB, before they are all-reduced."""
    cycle_time_ms: float = Field(default=1.0, gt=0)
    """Milliseconds between two looks at the queue of tensors that are ready."""
    backward_passes_per_step: int | None = Field(default=None, ge=1)
    """Backward passes between two all-reduces: Horovod's name for `training.accumulate`."""
    adasum: bool = False
    """Combine gradients by Adasum instead of their mean. Changes the arithmetic."""


class DeepSpeedOptions(Options):
    """DeepSpeed's engine with ZeRO."""

    name: Literal["deepspeed"] = "deepspeed"
    zero_stage: Literal[0, 1, 2, 3] = 1
    """Sharded over ranks: 0 nothing, 1 optimiser state, 2 also gradients, 3 also weights."""
    offload: Literal["none", "optimizer", "parameters"] = "none"
    """Keep the optimiser state (stages 1 to 3), or also the weights (stage 3), in host memory."""
    bucket_mb: float = Field(default=200.0, gt=0)
    """Gradients are reduced in buckets of this many MiB of fp32 values."""
    overlap_comm: bool | None = None
    """Reduce gradients while the backward pass still runs (stages 1 to 3). Left out: as DeepSpeed
    does by itself, in stage 3 alone."""


class CustomOptions(Options):
    """A strategy of your own, which the gate checks like any other."""

    name: Literal["custom"] = "custom"
    target: str = Field(pattern=IMPORT_PATH)
    """`module:attribute` of a class that implements `raysuite.parallel.base.Strategy`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to it as they are."""


StrategyOptions = Annotated[
    SingleOptions | DdpOptions | HorovodOptions | DeepSpeedOptions | CustomOptions,
    Field(discriminator="name"),
    BeforeValidator(expand_shorthand),
]
