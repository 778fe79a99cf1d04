"""Strategies: how gradients are made equal on all ranks.

One class per strategy holds its options and declares its capabilities, so that no other code tests
for a strategy's name. To add a strategy, write its class here and list it in `StrategyOptions`,
write its engine in `raysuite/parallel/`, and add its variants to tests/contract/variants.py.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from raysuite.errors import some
from raysuite.spec.base import IMPORT_PATH, Options, expand_shorthand, later
from raysuite.spec.batches import AUTO, AutoBatch, NumberOrAuto
from raysuite.spec.optimizers import OptimizerOptions
from raysuite.spec.resources import ResourceOptions
from raysuite.spec.schedules import ASYNCHRONOUS, Schedule, ScheduleName
from raysuite.spec.tasks import TaskOptions
from raysuite.spec.training import TrainingOptions

if TYPE_CHECKING:
    from raysuite.spec.experiment import MeasureOptions

COMPUTED_IN_16_BITS = 0.25
"""Value of `Lossy.within` for passes in bf16 or fp16."""

_MIB = 2**20
_BITS = {"none": 32, "fp32": 32, "fp16": 16, "bf16": 16}
"""Format -> bits of a number; `none`: not compressed."""

Refusals = Iterator[tuple[str, str]]
"""(key to change, message) of each refusal."""


class Trained(Protocol):
    """The sections of a spec whose values a strategy may refuse."""

    @property
    def task(self) -> TaskOptions: ...
    @property
    def optimizer(self) -> OptimizerOptions: ...
    @property
    def training(self) -> TrainingOptions: ...
    @property
    def resources(self) -> ResourceOptions: ...
    @property
    def measure(self) -> MeasureOptions: ...


@dataclass(frozen=True)
class Traffic:
    """The communication of one optimiser step: for each kind of collective, the bytes of the whole
    buffers before they are divided among workers."""

    all_reduced: int = 0
    reduce_scattered: int = 0
    all_gathered: int = 0

    @property
    def total(self) -> int:
        return self.all_reduced + self.reduce_scattered + self.all_gathered

    def sent(self, workers: int) -> float:
        """Bytes that each of n workers sends if the algorithms are bandwidth-optimal.

        They are `2 (n - 1) / n` of all-reduced bytes plus `(n - 1) / n` of all other bytes. Divided
        by the time, they are NCCL's bus bandwidth (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
        """
        part = (workers - 1) / workers
        return part * (2 * self.all_reduced + self.reduce_scattered + self.all_gathered)

    def messages(self, workers: int, buffer_bytes: float) -> int:
        """Number of messages that each of n workers sends in rings, in buffers of at most
        `buffer_bytes`: 2 (n - 1) for each buffer that is all-reduced, n - 1 for each buffer that is
        reduce-scattered or gathered."""
        reduced, scattered, gathered = (
            max(1, math.ceil(count / buffer_bytes)) if count else 0
            for count in (self.all_reduced, self.reduce_scattered, self.all_gathered)
        )
        return (workers - 1) * (2 * reduced + scattered + gathered)


@dataclass(frozen=True)
class Network:
    """Names of a network's parameters, and the properties of the network for which some strategies
    refuse to train it."""

    parameters: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    """Parameters that are not trained."""
    unused: tuple[str, ...] = ()
    """Parameters that got no gradient in any training step."""
    sometimes: tuple[str, ...] = ()
    """Parameters that got a gradient in some training steps only."""
    sparse: tuple[str, ...] = ()
    scalar: tuple[str, ...] = ()
    """Parameters without dimensions."""
    empty: tuple[str, ...] = ()
    """Parameters without elements."""
    complex: tuple[str, ...] = ()
    hooked: tuple[str, ...] = ()
    """Parameters with hooks on their gradients."""
    scripted: bool = False
    """Whether the network is a ScriptModule."""
    synced: tuple[str, ...] = ()
    """Layers of torch's SyncBatchNorm."""
    running: tuple[str, ...] = ()
    """Layers that update running statistics of their inputs in training."""
    decays: bool = False


@dataclass(frozen=True)
class Lossy:
    """How a strategy deliberately changes the mean of the ranks' gradients. The gate computes an
    error bound from the fields. If all fields have their default values, the gate check fails."""

    reduced: Literal["", "fp16", "bf16"] = ""
    """Format in which gradients are sent and summed."""
    projected: bool = False
    """Whether each matrix of the gradient, plus the error of earlier steps, is projected on a
    subspace, as by PowerSGD with error feedback."""
    within: float = 0.0
    """Upper bound of any other error of one parameter's gradient, relative to the mean of the
    ranks' absolute gradients. It must be below 0.5, because a gradient that is wrong by a factor of
    two would otherwise pass."""


@dataclass(frozen=True)
class Reductions:
    """How a data-parallel strategy reduces the gradients of a step."""

    bucket_bytes: float = 25 * _MIB
    first_bucket_bytes: float | None = None
    """Size of the first bucket; DDP makes it smaller, so that communication begins early."""
    overlap: bool = True
    """Whether buckets are reduced during the backward pass."""
    gathers: Literal["nothing", "updated weights", "weights"] = "nothing"
    """Which weights ZeRO gathers: `updated weights` after the update (stages 1 and 2), or `weights`
    before the passes (stage 3)."""
    gathers_again: bool = False
    """Whether `weights` are gathered again for the backward pass, instead of kept from the forward
    pass."""
    gathered_bytes: float = 1.0
    """Bytes gathered per byte of the fp32 weights."""
    kept_bytes: float = 0.0
    """Layers whose `weights` have at most this many bytes are gathered once per step."""
    by_unit: bool = False
    """Whether units of the network, not buckets, are gathered and reduced together."""
    compression: float = 1.0
    """Bytes sent per byte of the fp32 gradients."""
    every_pass: bool = False
    """Whether gradients are reduced after each micro-batch, as in ZeRO's stages 2 and 3, instead of
    once per step."""

    @classmethod
    def of_ddp(cls, bucket_mb: float, compression: float = 1.0) -> Reductions:
        """The reductions of torch's DDP, whose first bucket has at most 1 MiB
        (`_DEFAULT_FIRST_BUCKET_BYTES`)."""
        bucket = bucket_mb * _MIB
        return cls(bucket, min(bucket, 1 * _MIB), compression=compression)


class _StrategyOptions(Options):
    """Capabilities of a strategy; the defaults are those of most strategies."""

    engine: ClassVar[str] = ""
    """`module:attribute` of the strategy's implementation of `raysuite.parallel.base.Strategy`."""
    part: ClassVar[str] = ""
    """The optional part (`raysuite.parts`) that it requires."""
    gated: ClassVar[bool] = True
    """Whether the throughput is reported only if the gate check passes."""
    distributed: ClassVar[bool] = True
    """Whether the strategy can have several workers, which communicate in each step."""
    verified: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Options of the variants that `raysuite verify` checks by default."""
    recommended: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Options that `candidates` yields for any number of workers."""
    own_network: ClassVar[bool] = False
    """Whether the strategy uses a framework other than torch, which builds the network anew; the
    gate then checks the new network."""
    wraps: ClassVar[str] = ""
    """Name of the strategy that this strategy wraps; the options of both have the same names."""
    has_timeline: ClassVar[bool] = False
    """Whether the engine's class has a parameter `timeline`, which requests a record of the
    engine's collectives."""
    own_accumulation_key: ClassVar[str] = ""
    """The option that sets `own_accumulation`."""
    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Dotted key of a spec -> the values that this strategy supports; a key without an entry may
    have any value."""

    figures: ClassVar[tuple[str, ...] | None] = None
    """The metrics of a step that its engine can measure on request; None: all metrics, as for
    engines that inherit `step` from `raysuite.parallel.base.TorchEngine`."""

    @property
    def model_workers(self) -> int:
        """Number of workers that together hold one copy of the network."""
        return 1

    @property
    def own_accumulation(self) -> int | None:
        """Micro-batches per optimiser step, if the strategy's options set them."""
        return None

    @property
    def auto(self) -> AutoBatch | None:
        """Options of the trials that find the number of micro-batches before the run; in this
        case, `own_accumulation` is the smallest number that a step can have. None if the number of
        micro-batches is given."""
        return None

    def accumulates(self, micro_batches: int) -> bool:
        """Whether a step can have this number of micro-batches."""
        return True

    @property
    def process_settings(self) -> Hashable:
        """The settings that the strategy's framework reads once per process. Runs with different
        settings need different worker processes. None if there are no such settings."""
        return None

    @property
    def own_processes(self) -> bool:
        """Whether a run needs worker processes that no other run has used or will use."""
        return False

    @property
    def imports(self) -> Mapping[str, str]:
        """Dotted key -> import path that must exist on this machine."""
        return {}

    def refusals(self, spec: Trained) -> Refusals:
        """Why the strategy cannot run this spec, for reasons other than those in `only`."""
        yield from ()

    def network_refusals(self, network: Network) -> Refusals:
        """Why the strategy cannot train a network with these parameters."""
        yield from ()

    def traffic(
        self, accumulate: int, parameters: int, gradient_bytes: int, small: int | None = None
    ) -> Traffic | None:
        """The collectives of an optimiser step with more than one worker.

        `parameters` is the number of the model's parameters, `gradient_bytes` the bytes of the fp32
        gradients of the trained parameters, `small` the number of parameters in tensors of at most
        `SMALL` elements. None if these numbers do not determine the traffic. By default, all
        gradients are all-reduced once, in the format that `compression` names.
        """
        bits = _BITS.get(getattr(self, "compression", "none"))
        return None if bits is None else Traffic(gradient_bytes * bits // 32)

    @property
    def fused_bytes(self) -> float:
        """Size of the largest buffer in which gradients are reduced; infinite if not limited."""
        return float(getattr(self, "bucket_mb", math.inf)) * _MIB

    def reductions(self) -> Reductions | None:
        """How a step's gradients are reduced; None if the simulator does not model the strategy."""
        return None

    @classmethod
    def candidates(cls, workers: int, micro_batches: int) -> Iterator[dict[str, Any]]:
        """Options that `raysuite recommend` ranks for this number of workers. Their results equal
        those of one process: compression and asynchronous pipelines are left to the user."""
        yield from ({"name": cls.model_fields["name"].default, **each} for each in cls.recommended)

    @property
    def lossy(self) -> Lossy | None:
        """How the options change the results on purpose; None if the options do not change the
        results."""
        return None

    def lossless(self) -> Self | None:
        """A copy of these options that does not change the results; None if there is no such
        copy."""
        return None

    def several_reductions(self) -> tuple[Self, float] | None:
        """(options, pause): options with which the gradients of the gate's small network are
        reduced in several parts, and the pause between layers, in seconds, that keeps the parts
        separate (0 if none is needed). None if no options have this effect. By default, buckets
        have 512 fp32 gradients or less; the small network has 1,954."""
        bucket_mb = getattr(self, "bucket_mb", None)
        if bucket_mb is None:
            return None
        return self.model_copy(update={"bucket_mb": min(bucket_mb, 2 / 1024)}), 0.0

    def pipeline(self, micro_batches: int | None = None) -> Schedule | None:
        """The schedule of one copy of the network, with `micro_batches` per step (default:
        `own_accumulation`); None for a strategy without stages."""
        return None

    def staged(self) -> PipelineOptions | None:
        """These options if they cut the network into stages, else None."""
        return None

    def alone(self) -> tuple[Self, str] | None:
        """The options with which one process tries a step of the run's network on a CPU before the
        run, and the key to change if the step fails. None if the strategy does not change the
        inputs of layers: no step is tried then."""
        return None

    def examined(self) -> Self:
        """The options with which the gate checks the strategy on its small network."""
        return self


class SingleOptions(_StrategyOptions):
    """One process, no distribution: the baseline."""

    engine = "raysuite.parallel.single:Single"
    gated = False
    distributed = False

    name: Literal["single"] = "single"

    def refusals(self, spec: Trained) -> Refusals:
        if (workers := spec.resources.workers) != 1:
            yield (
                "resources.workers",
                f"strategy 'single' is one process; got {workers} workers; "
                "set strategy to ddp, or workers to 1",
            )

    def reductions(self) -> Reductions:
        return Reductions()

    @classmethod
    def candidates(cls, workers: int, micro_batches: int) -> Iterator[dict[str, Any]]:
        if workers == 1:
            yield {"name": "single"}


class DdpOptions(_StrategyOptions):
    """PyTorch's DDP: gradients are all-reduced in buckets during the backward pass."""

    engine = "raysuite.parallel.ddp:Ddp"
    verified = ({},)
    recommended = ({},)

    name: Literal["ddp"] = "ddp"
    bucket_mb: float = Field(default=25.0, gt=0)
    """Gradients are all-reduced in buckets of this size, in MiB."""
    compression: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Gradient compression hook. All except `none` change the results."""
    powersgd_rank: int = Field(default=1, ge=1)
    """Rank of PowerSGD's low-rank approximation."""
    static_graph: bool = False
    """DDP's `static_graph`: the autograd graph must then be the same in each step."""
    find_unused_parameters: bool = False
    """Search each step's graph for parameters without a gradient."""

    def refusals(self, spec: Trained) -> Refusals:
        if self.static_graph and spec.training.accumulate != 1:
            yield (
                "strategy.static_graph",
                f"training.accumulate is {spec.training.accumulate}, and torch's DDP cannot skip "
                "an all-reduce in a static graph; set training.accumulate to 1, or static_graph to "
                "false",
            )

    def network_refusals(self, network: Network) -> Refusals:
        without = [*network.unused, *network.sometimes]
        if without and not self.find_unused_parameters:
            yield (
                "strategy.find_unused_parameters",
                f"{listed(without)}: no gradient in a training step, but ddp waits for every "
                "gradient; set find_unused_parameters to true, or remove or freeze parameters on "
                "which the output does not depend",
            )

    def reductions(self) -> Reductions | None:
        if self.compression == "powersgd":
            return None
        return Reductions.of_ddp(self.bucket_mb, _BITS[self.compression] / 32)

    @property
    def lossy(self) -> Lossy | None:
        if self.compression in ("fp16", "bf16"):
            return Lossy(reduced=self.compression)
        return Lossy(projected=True) if self.compression == "powersgd" else None

    def lossless(self) -> Self:
        return self.model_copy(update={"compression": "none"})

    def examined(self) -> Self:
        # PowerSGD cannot compress any layer of the gate's small network to a rank above 3
        return self.model_copy(update={"powersgd_rank": min(self.powersgd_rank, 3)})


_CYCLES = 3
"""Length of the gate's pause between two layers, in Horovod's cycles."""


class HorovodOptions(_StrategyOptions):
    """Horovod: gradients are all-reduced, in buffers of fused tensors, during the backward pass."""

    engine = "raysuite.parallel.horovod:Horovod"
    part = "horovod"
    verified = ({},)
    recommended = ({},)
    has_timeline = True
    removed: ClassVar[Mapping[str, Any]] = {"adasum": False, "backward_passes_per_step": None}

    name: Literal["horovod"] = "horovod"
    compression: Literal["none", "fp16"] = "none"
    """Send gradients as 16-bit floats. Changes the results."""
    fusion_threshold_mb: float = Field(default=128.0, ge=0)
    """Largest size, in MiB, of a buffer in which tensors are fused before they are all-reduced; 0:
    tensors are not fused."""
    cycle_time_ms: float = Field(default=1.0, gt=0)
    """Milliseconds between two checks of the queue of ready tensors."""

    @property
    def process_settings(self) -> Hashable:
        return (self.fusion_threshold_mb, self.cycle_time_ms)

    @property
    def own_processes(self) -> bool:
        # Horovod 0.28.1 crashes (SIGSEGV) on a second start in a process with both settings
        own = HorovodOptions()
        return (
            self.fusion_threshold_mb != own.fusion_threshold_mb
            and self.cycle_time_ms != own.cycle_time_ms
        )

    def network_refusals(self, network: Network) -> Refusals:
        yield from _zero_gradients(self.name, network)
        yield from _complex(self.name, network)
        yield from _unsynchronised(self.name, network)

    @property
    def fused_bytes(self) -> float:
        # a threshold of 0 means no fusion; the calibrated costs of such runs include this effect
        return (self.fusion_threshold_mb or 128.0) * _MIB

    def reductions(self) -> Reductions:
        share = _BITS[self.compression] / 32
        return Reductions(self.fusion_threshold_mb * _MIB or 1, compression=share)

    @property
    def lossy(self) -> Lossy | None:
        return Lossy(reduced="fp16") if self.compression == "fp16" else None

    def lossless(self) -> Self:
        return self.model_copy(update={"compression": "none"})

    def several_reductions(self) -> tuple[Self, float]:
        # Horovod reads its fusion threshold when a process starts: pauses longer than a cycle keep
        # it from fusing the gradients of two layers
        return self, _CYCLES * self.cycle_time_ms / 1e3


SMALL = 10**5
"""DeepSpeed's `stage3_param_persistence_threshold`: tensors of at most this many elements are
gathered once per step, whatever the number of micro-batches."""
_REUSED_BELOW = 10**9
"""DeepSpeed's `stage3_max_reuse_distance`: models with fewer parameters keep the gathered weights
of the forward pass for the backward pass."""


class DeepSpeedOptions(_StrategyOptions):
    """DeepSpeed: the stage of ZeRO determines whether optimiser state, gradients and weights are
    sharded."""

    engine = "raysuite.parallel.deepspeed:DeepSpeed"
    part = "deepspeed"
    verified = tuple({"zero_stage": stage} for stage in range(4))
    recommended = verified
    figures = ("gradient_norm",)

    name: Literal["deepspeed"] = "deepspeed"
    zero_stage: Literal[0, 1, 2, 3] = 1
    """What is sharded over ranks: 0 nothing, 1 optimiser state, 2 also gradients, 3 also
    weights."""
    offload: Literal["none", "optimizer", "parameters"] = "none"
    """`optimizer`: keep the optimiser state in host memory (stages 1 to 3); `parameters`: also the
    weights (stage 3)."""
    bucket_mb: float = Field(default=200.0, gt=0)
    """Gradients are reduced in buckets of this many MiB of fp32 values."""
    overlap_comm: bool | None = None
    """Reduce gradients during the backward pass (stages 1 to 3). Default: as in DeepSpeed, which
    does this only in stage 3."""

    def refusals(self, spec: Trained) -> Refusals:
        needed = {"none": 0, "optimizer": 1, "parameters": 3}[self.offload]
        if self.zero_stage < needed:
            yield (
                "strategy.offload",
                f"offloading the {self.offload} needs zero_stage {needed} or more; "
                f"got {self.zero_stage}",
            )
        if spec.optimizer.whole and self.zero_stage >= 1:
            yield (
                "optimizer.name",
                f"{spec.optimizer.name} needs {spec.optimizer.whole}, and ZeRO's "
                f"stage {self.zero_stage} flattens and shards them; set strategy.zero_stage to 0 "
                "or optimizer to sgd or adamw, or choose another strategy",
            )
        if spec.training.compile != "off" and self.zero_stage == 3:
            yield (
                "training.compile",
                "ZeRO's stage 3 gathers weights by hooks, which would break compiled graphs; "
                "set strategy.zero_stage to 2 or less, or compile to off",
            )
        if spec.training.ema_decay is not None and self.zero_stage == 3:
            yield (
                "training.ema_decay",
                "the average of the weights needs whole weights on every rank, and ZeRO's stage 3 "
                "shards them; set strategy.zero_stage to 2 or less, or leave ema_decay out",
            )

    def network_refusals(self, network: Network) -> Refusals:
        yield from _zero_gradients(self.name, network)
        yield from _complex(self.name, network)
        if network.scalar:
            yield (
                "strategy.name",
                f"{listed(network.scalar)}: a tensor of 0 dimensions, which DeepSpeed cannot "
                "broadcast; give it the shape [1], or choose another strategy",
            )
        if self.zero_stage == 3 and (what := _unshardable(network)):
            yield (
                "strategy.zero_stage",
                f"{what}, which stage 3 cannot shard; set zero_stage to 2 or less",
            )

    def traffic(
        self, accumulate: int, parameters: int, gradient_bytes: int, small: int | None = None
    ) -> Traffic | None:
        """Return None if anything is offloaded. In stage 3 also return None for 10^9 parameters or
        more, or if `accumulate` is above 1 and `small` is None.

        With Ψ parameters, each worker sends 2 Ψ numbers in stages 1 and 2, and 3 Ψ in stage 3,
        according to Rajbhandari et al. 2020, "ZeRO", section 7. But DeepSpeed 0.19 sends 3 Ψ in
        stages 1 and 2: it all-reduces the gradients, although a reduce-scatter would be enough, and
        then gathers the weights. In stage 3 it sends 2 Ψ, because it gathers the weights once
        instead of twice, except in very large models. Stage 3 gathers weights for each micro-batch;
        only small tensors stay gathered for the whole step. Stages 2 and 3 reduce gradients for
        each micro-batch.
        """
        if self.offload != "none":
            return None
        if self.zero_stage == 0:
            return Traffic(gradient_bytes)
        if self.zero_stage < 3:  # stage 2 reduces the gradients of each micro-batch
            times = accumulate if self.zero_stage == 2 else 1
            return Traffic(gradient_bytes * times, 0, gradient_bytes)
        if parameters >= _REUSED_BELOW or (accumulate > 1 and small is None):
            return None
        again = (accumulate - 1) * (parameters - (small or 0))
        return Traffic(0, gradient_bytes * accumulate, 4 * (parameters + again))

    def reductions(self) -> Reductions | None:
        if self.offload != "none":
            return None
        stage, overlap = self.zero_stage, self.overlap_comm
        return Reductions(
            self.bucket_mb * _MIB,
            overlap=stage == 3 if overlap is None else overlap,
            gathers=("nothing", "updated weights", "updated weights", "weights")[stage],
            kept_bytes=4.0 * SMALL if stage == 3 else 0.0,
            every_pass=stage >= 2,
        )

    def several_reductions(self) -> tuple[Self, float] | None:
        # in stage 0, DeepSpeed reduces in a buffer of fixed size
        return None if self.zero_stage == 0 else super().several_reductions()


class _WrappedDdpOptions(_StrategyOptions):
    """PyTorch's DDP, set up by another library."""

    wraps = "ddp"
    verified = ({},)
    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {"measure.profile": ("off",)}

    bucket_mb: float = Field(default=25.0, gt=0)
    """Gradients are all-reduced in buckets of this size, in MiB."""

    def network_refusals(self, network: Network) -> Refusals:
        if without := [*network.unused, *network.sometimes]:
            yield (
                "strategy.name",
                f"{listed(without)}: no gradient in a training step, but DDP waits for every "
                "gradient; use ddp with find_unused_parameters: true, or remove or freeze "
                "parameters on which the output does not depend",
            )

    def reductions(self) -> Reductions:
        return Reductions.of_ddp(self.bucket_mb)


class FabricOptions(_WrappedDdpOptions):
    """PyTorch's DDP, set up and driven by Lightning Fabric."""

    engine = "raysuite.parallel.fabric:Fabric"
    part = "fabric"

    name: Literal["fabric"] = "fabric"


class AccelerateOptions(_WrappedDdpOptions):
    """PyTorch's DDP, set up and driven by Hugging Face Accelerate."""

    engine = "raysuite.parallel.accelerate:Accelerate"
    part = "accelerate"

    name: Literal["accelerate"] = "accelerate"


class _RebuiltOptions(_StrategyOptions):
    """A framework other than torch, on CPUs."""

    own_network = True
    figures = ()
    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "task.name": ("classification",),
        "training.precision": ("fp32",),
        "training.compile": ("off",),
        "training.ema_decay": (None,),
        "training.class_weights": (None,),
        "optimizer.name": ("sgd", "adamw"),
        "measure.profile": ("off",),
        "resources.device": ("cpu",),
    }

    @property
    def own_processes(self) -> bool:
        return True  # the framework reads the list of workers only once per process


class TensorflowOptions(_RebuiltOptions):
    """TensorFlow's MultiWorkerMirroredStrategy with raysuite's training loop."""

    engine = "raysuite.parallel.tensorflow:TensorFlow"
    part = "tensorflow"

    name: Literal["tensorflow"] = "tensorflow"


class KerasOptions(TensorflowOptions):
    """TensorFlow's MultiWorkerMirroredStrategy with Keras's `model.fit`."""

    engine = "raysuite.parallel.tensorflow:Keras"

    name: Literal["keras"] = "keras"  # type: ignore[assignment]


class JaxOptions(_RebuiltOptions):
    """JAX in several processes: gradients are averaged as one vector after the backward pass."""

    engine = "raysuite.parallel.jax:Jax"
    part = "jax"

    name: Literal["jax"] = "jax"


class FsdpOptions(_StrategyOptions):
    """PyTorch's `fully_shard`: weights, gradients and optimiser state, sharded block by block."""

    engine = "raysuite.parallel.fsdp:Fsdp"
    verified = ({},)
    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "training.compile": ("off",),
        "training.ema_decay": (None,),
        "optimizer.name": ("sgd", "adamw", "schedule_free", "muon"),
        "measure.profile": ("off",),
    }

    name: Literal["fsdp"] = "fsdp"
    units: Literal["blocks", "layers"] = "blocks"
    """What is gathered and reduced together. `blocks`: each residual block, transformer layer or
    similar block; `layers`: each layer."""
    reshard_after_forward: bool = True
    """Free a block's gathered weights after its forward pass and gather them again for its backward
    pass; if false, they stay gathered in between, as in ZeRO-2."""
    gather_dtype: Literal["fp32", "bf16"] = "fp32"
    """Dtype in which weights are gathered and used. bf16 changes the results."""
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    """Dtype in which gradients are reduced. bf16 changes the results."""
    offload: Literal["none", "parameters"] = "none"
    """Keep shards of weights, gradients and optimiser state in host memory."""
    copies: Annotated[int, Field(ge=1)] | Literal["nodes"] = 1
    """Hybrid sharding: number of copies of the network, each sharded over its share of the workers;
    gradients are then all-reduced between copies. `nodes`: one copy on each node."""

    def refusals(self, spec: Trained) -> Refusals:
        workers = spec.resources.workers
        if self.copies != "nodes" and workers % self.copies:
            yield (
                "strategy.copies",
                f"got {self.copies}, which does not divide the {workers} workers; set it to "
                f"a divisor of {workers}, or to the word nodes",
            )

    def network_refusals(self, network: Network) -> Refusals:
        yield from _complex(self.name, network)
        if network.sometimes:
            yield (
                "strategy.name",
                f"{listed(network.sometimes)}: a gradient in some steps only; if ranks use"
                " different layers in a step, fsdp mixes up the weights of layers, or waits for "
                "ever; use ddp with find_unused_parameters: true",
            )
        if network.scalar:
            yield (
                "strategy.name",
                f"{listed(network.scalar)}: a tensor of 0 dimensions, which fsdp cannot shard; "
                "give it the shape [1], or choose another strategy",
            )
        if what := _unshardable(network):
            yield "strategy.name", f"{what}, which fsdp cannot shard; choose another strategy"
        if network.hooked:
            yield (
                "strategy.name",
                f"{listed(network.hooked)}: a hook on the gradient, which fsdp would not call; "
                "remove it, or choose another strategy",
            )

    def traffic(
        self, accumulate: int, parameters: int, gradient_bytes: int, small: int | None = None
    ) -> Traffic | None:
        """Return None if there are several copies, because copies also all-reduce gradients.

        Weights are gathered for each micro-batch's forward pass, and again for its backward pass if
        `reshard_after_forward` is true. Gradients are reduce-scattered only in the last micro-batch
        (Zhao et al. 2023, arXiv:2304.11277, section 3; 3 Ψ numbers per worker, as counted by
        Rajbhandari et al. 2020, "ZeRO", section 7). Weights outside of all units, such as the first
        layer and the classifier if units are blocks, are gathered only once for both passes. The
        result counts them twice, so it is slightly too high.
        """
        if self.copies != 1:
            return None
        times = accumulate * (2 if self.reshard_after_forward else 1)
        scattered, gathered = (
            bits / 32 for bits in (_BITS[self.reduce_dtype], _BITS[self.gather_dtype])
        )
        whole = 4 * parameters * times
        return Traffic(0, int(gradient_bytes * scattered), int(whole * gathered))

    def reductions(self) -> Reductions | None:
        if self.copies != 1 or self.offload != "none":
            return None
        return Reductions(
            gathers="weights",
            gathers_again=self.reshard_after_forward,
            gathered_bytes=_BITS[self.gather_dtype] / 32,
            compression=_BITS[self.reduce_dtype] / 32,
            by_unit=True,
        )

    @property
    def lossy(self) -> Lossy | None:
        if self.lossless() == self:
            return None
        return Lossy(
            reduced="bf16" if self.reduce_dtype == "bf16" else "",
            within=COMPUTED_IN_16_BITS if self.gather_dtype == "bf16" else 0.0,
        )

    def lossless(self) -> Self:
        return self.model_copy(update={"gather_dtype": "fp32", "reduce_dtype": "fp32"})

    def alone(self) -> tuple[Self, str] | None:
        if self.gather_dtype == "fp32":
            return None
        return self.model_copy(update={"copies": 1}), "strategy.gather_dtype"

    def several_reductions(self) -> tuple[Self, float]:
        return self.model_copy(update={"units": "layers"}), 0.0


def _fastest(value: Any) -> Any:
    """Expand `auto` for micro-batches to `{auto: fastest}`: `largest` would give the smallest
    number of micro-batches, which leaves workers idle."""
    return {AUTO: "fastest"} if value == AUTO else value


class PipelineOptions(_StrategyOptions):
    """The network is cut into stages, by default one on each worker; micro-batches pass through the
    stages."""

    engine = "raysuite.parallel.pipeline.engine:Pipeline"
    own_accumulation_key = "strategy.micro_batches"

    name: Literal["pipeline"] = "pipeline"
    schedule: ScheduleName = "1f1b"
    """The order of forward and backward passes. `model_parallel`: one micro-batch at a time through
    all stages; `gpipe`: all forward passes, then all backward passes; `1f1b`: each backward pass as
    early as possible; `interleaved_1f1b`: like `1f1b`, with several stages on each worker;
    `pipedream`, `pipedream_2bw`: asynchronous, the pipeline stays full and gradients are applied
    late."""
    stages: int = Field(default=2, ge=2)
    """Number of contiguous parts of the network, each on one worker unless `chunks` or `replicas`
    is given. `resources.workers` must be a multiple of the number of workers of one copy of the
    network; several copies share the global batch."""
    micro_batches: Annotated[NumberOrAuto, BeforeValidator(_fastest)] = 4
    """Number of micro-batches into which a copy's share of the global batch is divided; replaces
    `training.accumulate` in pipelines. Default in `pipedream`: 1, or the least common multiple of
    `replicas` if these are given. `auto`: the fastest number, found by trials before the run;
    `{auto: largest}`: the smallest number that fits into memory."""
    partition: Literal["auto"] | tuple[int, ...] = "auto"
    """Number of blocks of the network in each stage, such as `[5, 6]`. `auto`: see `balance`."""
    balance: Literal["time", "memory", "parameters"] = later("parameters")
    """The network is cut so that the largest sum of this quantity over a stage is as small as
    possible. `parameters`: number of parameters. `time`: seconds of both passes. `memory`: bytes,
    with activations. Time and memory are measured on the first worker before the run."""
    chunks: int = later(1, ge=1)
    """Number of stages on each worker in `interleaved_1f1b`; `stages` must be a multiple of it."""
    replicas: tuple[int, ...] | None = later(None)
    """Number of workers of each stage in asynchronous schedules, such as `[3, 1]`. The workers of a
    stage process micro-batches in turn, and average their gradients. Default: one per stage."""
    recompute: bool = later(False)
    """Keep a stage's input instead of its activations, and repeat the forward pass before the
    backward pass. This takes less memory, but about a third more computation."""

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "task.name": ("classification", "language_model"),
        "training.compile": ("off",),
        "model.freeze": ((),),
        "optimizer.name": ("sgd", "adamw"),
        "optimizer.lr_factors": ({},),
        "resources.elastic": (False,),
    }

    @model_validator(mode="before")
    @classmethod
    def _one_micro_batch(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("schedule") == "pipedream":
            replicas = data.get("replicas") or [1]
            numbers = [each for each in replicas if isinstance(each, int) and each > 0]
            return {"micro_batches": lcm(*numbers), **data}
        return data

    @model_validator(mode="after")
    def _can_be(self) -> PipelineOptions:
        wrong = list(self._wrong())
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    def _wrong(self) -> Iterator[str]:
        late = self.schedule in ASYNCHRONOUS
        if self.partition != "auto" and (
            len(self.partition) != self.stages or min(self.partition) < 1
        ):
            yield (
                f"partition is {list(self.partition)}; it should be auto, or {self.stages} numbers "
                "of at least 1, the number of blocks in each stage"
            )
        if self.schedule == "interleaved_1f1b":
            workers = self.stages // self.chunks
            if self.chunks < 2 or self.stages % self.chunks or workers < 2:
                yield (
                    f"chunks is {self.chunks} and stages {self.stages}; with interleaved_1f1b, "
                    "chunks and stages / chunks must be whole numbers of 2 or more"
                )
            elif self._count % workers:
                near = max(1, round(self._count / workers)) * workers
                yield (
                    f"micro_batches is {self._count}; interleaved_1f1b on {workers} workers "
                    f"needs a multiple of {workers}; give {near}"
                )
        elif self.chunks != 1:
            yield (
                f"chunks is {self.chunks}, and {self.schedule} has one stage on each worker; leave "
                "chunks out"
            )
        if self.replicas is not None:
            if not late or len(self.replicas) != self.stages or min(self.replicas, default=0) < 1:
                yield (
                    f"replicas is {list(self.replicas)}, and the schedule is {self.schedule}; "
                    f"replicas should be {self.stages} numbers of at least 1, the number of "
                    "workers of each stage, with schedule pipedream or pipedream_2bw"
                )
            elif any(self._count % each for each in self.replicas):
                yield (
                    f"micro_batches is {self._count}; the workers of a stage take micro-batches in "
                    f"turn, so micro_batches should be a multiple of {lcm(*self.replicas)}"
                )
        if self.recompute and late:
            yield (
                f"recompute is true, but {self.schedule} changes the weights between a forward "
                "pass and its backward pass; set recompute to false"
            )
        if self.schedule == "pipedream_2bw" and self._count < self.stages:
            yield (
                f"micro_batches is {self._count}; pipedream_2bw keeps only two versions of the "
                f"weights, and needs at least one micro-batch for each of the {self.stages} stages"
            )

    @property
    def _count(self) -> int:
        """The given number of micro-batches, or the smallest that a step can have."""
        if isinstance(self.micro_batches, int):
            return self.micro_batches
        if self.schedule == "interleaved_1f1b":
            return max(1, self.stages // self.chunks)
        multiple = lcm(*(self.replicas or (1,))) or 1
        least = self.stages if self.schedule == "pipedream_2bw" else 1
        return -(-least // multiple) * multiple

    def refusals(self, spec: Trained) -> Refusals:
        training = spec.training
        if self.balance != "parameters" and not spec.task.classifies:
            yield (
                "strategy.balance",
                f"got {self.balance}, which is measured with images; for the task "
                f"{spec.task.name}, use parameters",
            )
        refused = {
            "training.clip_norm": training.clip_norm,
            "training.ema_decay": training.ema_decay,
            "measure.figures": ", ".join(spec.measure.figures) or None,
            "training.precision": "fp16" if training.precision == "fp16" else None,
        }
        for key, given in refused.items():
            if given is not None and self.schedule in ASYNCHRONOUS:
                yield (
                    key,
                    f"got {given}; this setting needs all stages to have taken the same step, but "
                    f"{self.schedule} updates stages at different times; leave the setting out, or "
                    "set strategy.schedule to 1f1b",
                )

    def network_refusals(self, network: Network) -> Refusals:
        if network.frozen:
            yield (
                "strategy.name",
                f"{listed(network.frozen)}: frozen, but pipeline trains all parameters; keep "
                "requires_grad True, or choose another strategy",
            )
        yield from _complex(self.name, network)
        yield from _unsynchronised(self.name, network)

    @property
    def model_workers(self) -> int:
        return self.pipeline().workers

    @property
    def own_accumulation(self) -> int:
        return self._count

    @property
    def auto(self) -> AutoBatch | None:
        return self.micro_batches if isinstance(self.micro_batches, AutoBatch) else None

    def accumulates(self, micro_batches: int) -> bool:
        return not list(self.model_copy(update={"micro_batches": micro_batches})._wrong())

    def examined(self) -> Self:
        return self.model_copy(update={"partition": "auto", "balance": "parameters"})

    def traffic(
        self, accumulate: int, parameters: int, gradient_bytes: int, small: int | None = None
    ) -> Traffic | None:
        return None

    def pipeline(self, micro_batches: int | None = None) -> Schedule:
        replicas = self.replicas or (1,) * (self.stages // self.chunks)
        count = micro_batches or self._count
        return Schedule(self.schedule, count, replicas, self.chunks)

    def staged(self) -> Self:
        return self

    @classmethod
    def candidates(cls, workers: int, micro_batches: int) -> Iterator[dict[str, Any]]:
        if workers > 1 and micro_batches > 1:  # as many stages as workers
            for schedule in ("gpipe", "1f1b"):
                own = {"stages": workers, "micro_batches": micro_batches}
                yield {"name": "pipeline", "schedule": schedule, **own}


class CustomOptions(_StrategyOptions):
    """Your own strategy, which the gate checks like any other."""

    name: Literal["custom"] = "custom"
    target: str = Field(pattern=IMPORT_PATH)
    """`module:attribute` of a class that implements `raysuite.parallel.base.Strategy`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed unchanged to the class."""

    @property
    def imports(self) -> Mapping[str, str]:
        return {"strategy.target": self.target}

    def traffic(
        self, accumulate: int, parameters: int, gradient_bytes: int, small: int | None = None
    ) -> Traffic | None:
        return None


def listed(names: Sequence[str]) -> str:
    """Format names of parameters: `parameters a, b and 3 more`."""
    return f"parameter{'s' if len(names) > 1 else ''} {some(names, 5)}"


def _unshardable(network: Network) -> str:
    """The properties of a network that prevent sharding; empty if the whole network can be
    sharded."""
    if network.empty:
        return f"{listed(network.empty)}: a tensor without elements"
    return "a ScriptModule" if network.scripted else ""


def _complex(name: str, network: Network) -> Refusals:
    if network.complex:
        yield (
            "strategy.name",
            f"{listed(network.complex)}: complex numbers, which {name} cannot send; use ddp, "
            "or a real parameter and torch.view_as_complex",
        )


def _zero_gradients(name: str, network: Network) -> Refusals:
    if network.sometimes:
        yield (
            "strategy.name",
            f"{listed(network.sometimes)}: a gradient in some steps only; {name} treats a missing "
            "gradient as zero, so that momentum and weight decay change the weights, which ddp "
            "leaves unchanged; use ddp with find_unused_parameters: true",
        )
    if network.unused and network.decays:
        yield (
            "model.freeze",
            f"{listed(network.unused)}: no gradient in any step; {name} treats a missing gradient "
            "as zero, so that weight decay changes the weights, which ddp leaves unchanged; "
            "freeze these parameters, or set optimizer.weight_decay to 0",
        )


def _unsynchronised(name: str, network: Network) -> Refusals:
    if network.synced:
        yield (
            "model.name",
            f"layers {some(network.synced, 5)}: SyncBatchNorm synchronises all ranks of torch's "
            f"group, but with {name} these are not the ranks that share a layer; use BatchNorm, "
            "or strategy ddp",
        )


StrategyOptions = Annotated[
    SingleOptions
    | DdpOptions
    | HorovodOptions
    | DeepSpeedOptions
    | FsdpOptions
    | FabricOptions
    | AccelerateOptions
    | TensorflowOptions
    | KerasOptions
    | JaxOptions
    | PipelineOptions
    | CustomOptions,
    Field(discriminator="name"),
    BeforeValidator(expand_shorthand),
]

STRATEGY_OPTIONS: dict[str, type[_StrategyOptions]] = {
    options.model_fields["name"].default: options
    for options in get_args(get_args(StrategyOptions)[0])
}
"""Strategy name -> its options; a user's own strategy has the name `custom`."""
