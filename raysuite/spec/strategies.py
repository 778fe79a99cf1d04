"""How gradients are made equal on all ranks: one block of options per strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from raysuite.spec.base import IMPORT_PATH, Options, expand_shorthand
from raysuite.spec.schedules import Operation, ScheduleName, operations


class _StrategyOptions(Options):
    """What `plan`, the gate and the training loop ask of every strategy's options."""

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Dotted key of a spec -> the values with which this strategy runs; without an entry, all."""

    @property
    def model_workers(self) -> int:
        """Workers that together hold one copy of the network."""
        return 1

    @property
    def own_accumulation(self) -> int | None:
        """Micro-batches per optimiser step, where the strategy's options give them."""
        return None

    @property
    def own_accumulation_key(self) -> str:
        """The option that gives `own_accumulation`."""
        return ""

    def operations(self, micro_batches: int) -> tuple[tuple[Operation, ...], ...]:
        """[stages][...]: what each stage does in an optimiser step, in order; empty without
        stages."""
        return ()

    def examined(self) -> StrategyOptions:
        """The options with which the gate examines the strategy on its small network."""
        return self  # type: ignore[return-value]


class SingleOptions(_StrategyOptions):
    """One process, no distribution: the baseline."""

    name: Literal["single"] = "single"


class DdpOptions(_StrategyOptions):
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


class HorovodOptions(_StrategyOptions):
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

    @property
    def own_accumulation(self) -> int | None:
        return self.backward_passes_per_step

    @property
    def own_accumulation_key(self) -> str:
        return "strategy.backward_passes_per_step"


class DeepSpeedOptions(_StrategyOptions):
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


class PipelineOptions(_StrategyOptions):
    """The network is cut into stages, one on each worker; micro-batches pass through them."""

    name: Literal["pipeline"] = "pipeline"
    schedule: ScheduleName = "1f1b"
    """Order of the passes. `model_parallel`: one micro-batch at a time through all stages; `gpipe`:
    all forward passes, then all backward passes; `1f1b`: a backward pass as soon as it can be."""
    stages: int = Field(default=2, ge=2)
    """Contiguous parts of the network. `resources.workers` is that number, or a multiple of it: so
    many copies of the pipeline then share the global batch."""
    micro_batches: int = Field(default=4, ge=1)
    """Into how many micro-batches a copy's share of the global batch is cut: pipelines' name for
    `training.accumulate`."""
    partition: Literal["auto"] | tuple[int, ...] = "auto"
    """Blocks of the network per stage, such as `[5, 6]`. `auto`: the largest number of parameters
    of a stage is as small as it can be."""

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "training.precision": ("fp32",),
        "training.ema_decay": (None,),
        "model.freeze": ((),),
        "optimizer.name": ("sgd", "adamw"),
        "optimizer.lr_factors": ({},),
        "measure.profile": ("off",),
        "resources.elastic": (False,),
    }

    @model_validator(mode="after")
    def _every_stage_has_blocks(self) -> PipelineOptions:
        if self.partition == "auto":
            return self
        if len(self.partition) != self.stages or min(self.partition) < 1:
            raise ValueError(
                f"partition is {list(self.partition)}; it should be {self.stages} numbers of "
                "blocks of at least 1, one for each of the stages, or auto"
            )
        return self

    @property
    def model_workers(self) -> int:
        return self.stages

    @property
    def own_accumulation(self) -> int | None:
        return self.micro_batches

    @property
    def own_accumulation_key(self) -> str:
        return "strategy.micro_batches"

    def examined(self) -> PipelineOptions:
        return self.model_copy(update={"partition": "auto"})

    def operations(self, micro_batches: int) -> tuple[tuple[Operation, ...], ...]:
        return operations(self.schedule, self.stages, micro_batches)


class CustomOptions(_StrategyOptions):
    """A strategy of your own, which the gate checks like any other."""

    name: Literal["custom"] = "custom"
    target: str = Field(pattern=IMPORT_PATH)
    """`module:attribute` of a class that implements `raysuite.parallel.base.Strategy`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to it as they are."""


StrategyOptions = Annotated[
    SingleOptions
    | DdpOptions
    | HorovodOptions
    | DeepSpeedOptions
    | PipelineOptions
    | CustomOptions,
    Field(discriminator="name"),
    BeforeValidator(expand_shorthand),
]
