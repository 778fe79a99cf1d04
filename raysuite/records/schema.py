"""The Records of a run, one class per kind of line in a journal.

Times are seconds; `time` is the wall clock in seconds since 1970 (UTC). Memory is bytes.
"""

from __future__ import annotations

import json
import math
from statistics import fmean
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter

from raysuite.records.base import RecordBase
from raysuite.records.batch_trials import BatchFound
from raysuite.records.ends import RunFailed, RunFinished, RunPruned, RunStopped
from raysuite.records.judged import RunJudged
from raysuite.records.node_checks import nccl_sockets
from raysuite.records.power import PowerUse
from raysuite.spec.base import later
from raysuite.spec.descriptions import DescribedSchema
from raysuite.units import count

SCHEMA = 1
"""Version of the Records. It is increased when readers of the previous version could not read the
new Records."""


class RunStarted(RecordBase):
    """A run begins, or is resumed."""

    kind: Literal["run_started"] = "run_started"
    record_schema: int = 0
    """Version of this journal's schema; 0 in journals that do not state a version."""
    plan: dict[str, Any]
    """The whole RunPlan."""
    environment: dict[str, Any]
    """Hardware, versions, commit: see `raysuite.measure.environment`."""
    first_epoch: int = 0
    """0 for a new run, else the epoch, counted from 0, in which the run is resumed from a
    checkpoint."""
    first_step: int = 0
    """Optimiser steps before the checkpoint, which may be inside an epoch; 0 for a new run."""
    unread: str = ""
    """Why a newer checkpoint was not used, such as a damaged file."""
    not_loaded: list[str] = Field(default_factory=list)
    """Names of the tensors of the classification layer that began with random values, because the
    file in `model.weights` has other classes."""
    transports: list[str] = Field(default_factory=list)
    """How ranks exchange data, as found before the first epoch: see `raysuite.measure.transport`.
    Empty if there is only one rank, if the transports could not be determined, and in old
    journals."""

    @property
    def words(self) -> str:
        """As text: the epoch, counted from 1, at which the run is resumed; why a later checkpoint
        was not used; and which tensors begin with random values although `model.weights` is set."""
        begun = self.first_epoch or self.first_step
        what = f"resumed at epoch {self.first_epoch + 1}" if begun else "started"
        if self.unread:
            what += f"; a newer checkpoint was left out: {self.unread}"
        if self.not_loaded:
            names = ", ".join(self.not_loaded)
            what += (
                "; the file in model.weights has other classes, so these tensors begin with random "
                f"values: {names}"
            )
        return what

    @property
    def over_tcp(self) -> bool:
        """Whether gradients are sent between hosts by TCP. If NCCL is in use, only its transport
        counts."""
        if any(name.startswith("NCCL") for name in self.transports):
            return nccl_sockets(self.transports)
        return any(name.startswith("TCP") and name != "TCP, this host" for name in self.transports)


class GateVerdict(RecordBase):
    """Whether the strategy computes correctly on this machine, with this number of workers."""

    kind: Literal["gate_verdict"] = "gate_verdict"
    strategy: str
    workers: int
    passed: bool
    ranks_equal: bool
    """Whether all ranks hold bit-equal weights."""
    error: float
    """Largest relative error of a weight tensor against one process on the same global batch."""
    error_batchnorm: float
    """`error` for a network with BatchNorm, compared with one process that normalises each rank's
    slice of the batch separately."""
    error_16_bits: float | None = None
    """For a run in bf16 or fp16, without lossy options: largest relative error of the updates, the
    logits and the losses against one process in fp32; None in fp32."""
    error_compiled: float | None = None
    """For a run with torch.compile: largest relative error of weights, logits and losses of the
    compiled networks, in fp32, against one process without torch.compile."""
    error_rebuilt: float | None = None
    """For a framework that rebuilds the network: largest relative error of weights, running
    statistics, logits and loss after one step of the run's own network, against torch."""
    error_network: float | None = None
    """For the run's own network, after two steps in fp32 on small batches: largest difference
    between a weight tensor and the same tensor in one process that computes the slices of all
    ranks, relative to the tensor's update. None if this was not compared."""
    network: str = ""
    """The result for the run's own network, or why it was not compared, as text."""
    network_seconds: float | None = None
    """Seconds of the comparison on the run's own network; for a cached result, seconds of the
    original comparison."""
    tolerance: float | None
    """Largest `error` that passes. None if the strategy has no exact form: there are then bounds
    for single gradients (see `rule`), but none for trained weights."""
    rule: str
    """The checks that were made, as text."""
    steps: int
    cached: bool = False
    """Whether the result is that of an earlier check on this machine, with the same versions and
    options."""
    message: str = ""


class SamplesSkipped(RecordBase):
    """Unreadable samples that were found before the first epoch. They are left out of every
    epoch."""

    kind: Literal["samples_skipped"] = "samples_skipped"
    split: Literal["train", "val"]
    samples: int
    """Number of samples in the split, including the skipped samples."""
    skipped: int
    """Number of samples that cannot be read; all ranks leave them out."""
    places: list[str]
    """The first few skipped samples, and why they cannot be read."""
    lacking: tuple[str, ...] = ()
    """Data that `skipped` does not count: classes without an image, and records after damaged bytes
    if no index states their number."""
    known: int
    """Number of samples that were not checked again: an earlier run had checked them, and they have
    not changed since."""
    seconds: float
    """Seconds that the check of the samples took; not included in any epoch's time."""

    @property
    def words(self) -> str:
        """The samples left out and the missing data, in one line; empty if there are none."""
        first = f"; the first: {self.places[0]}" if self.places else ""
        out = f"leaves out {self.skipped:,} of {self.samples:,} {self.split} samples{first}"
        lacks = f"{self.split} lacks {self.lacking[0]}" if self.lacking else ""
        return "; ".join(filter(None, [out if self.skipped else "", lacks]))


class EpochFinished(RecordBase):
    """One epoch of training and the validation after it.

    Losses are means over samples, or over tokens. If the task's throughput counts samples or tokens
    (see the plan's `task`), `images` and `steady_images` are numbers of these.
    """

    kind: Literal["epoch_finished"] = "epoch_finished"
    epoch: int
    """Counted from 0."""
    first_step: int
    """Optimiser steps before this epoch."""
    losses: list[float]
    """Mean training loss of the global batch, one per optimiser step."""
    learning_rates: list[float]
    """Learning rate used, one per optimiser step."""
    figures: dict[str, list[float]] = later({})
    """Name of a metric of each optimiser step, such as `gradient_norm` -> the metric's values; NaN
    at a step without a value, and at a step that fp16 skipped."""
    skipped_steps: int = 0
    """Steps that changed no weight, because gradients overflowed in fp16."""
    attempts: int = 1
    """Number of attempts in which the epoch's steps were made: 1, plus the number of stops within
    the epoch. Times of the epoch are sums over attempts. Times of the steps after the warm-up leave
    out the warm-up of each attempt."""
    images: int
    """Training images (or other units of the task's throughput) of this epoch over all workers,
    without samples that are left out."""
    seconds: float
    """Training time of this epoch on the slowest worker, without validation."""
    steady_images: int
    """Images of the steps after the warm-up, over all workers."""
    steady_seconds: float
    """Device-synchronised time of the steps after the warm-up, on the slowest worker."""
    step_seconds: list[float] = Field(default_factory=list)
    """Seconds of each step after the warm-up, on the slowest worker of that step: from the end of
    the previous step to the end of this step, including the wait for data. On a GPU, the durations
    are measured by events in the GPU's stream, without synchronisation. Empty in old journals."""
    data_wait_seconds: list[float]
    """Per worker: time in which the training loop waited for its loader in this epoch."""
    validation_seconds: float
    compile_seconds: float = 0.0
    """Compile time of torch.compile, or of a framework other than torch, summed over the epoch's
    steps and its validation; for each of them, it is the time of the slowest worker. Of the times
    in this Record, only `elapsed_seconds` includes it."""
    graphs: int = 0
    """Number of graphs that rank 0 has compiled in this attempt so far: one for each shape, in
    training and in validation, and for each part of a model with graph breaks."""
    graph_breaks: dict[str, int] = Field(default_factory=dict)
    """Reason why torch.compile cut rank 0's graphs -> number of these cuts; empty if the model is
    one graph."""
    train_loss: float
    val_loss: float
    val_accuracy: float | None = later(None)
    """In classification: top-1 accuracy over the whole validation set and all ranks, in [0, 1]."""
    val_top5: float | None = None
    """Top-5 accuracy; None if there are at most five classes."""
    val_metrics: dict[str, float] = later({})
    """Metrics of other tasks over the whole validation set, by name: see the plan's `task`."""
    elapsed_seconds: float
    """Seconds from the start of training, before the first sample is loaded, to the end of this
    validation, summed over this attempt and the attempts from whose checkpoints it resumed."""
    power: PowerUse | None = None
    """Energy use of the training; None if no counter can be read, or if it was not requested."""
    other_cores: list[float] = Field(default_factory=list)
    """Per worker: mean number of cores of its machine that were busy during the training with other
    processes than the workers and their children. Ray and its tasks count as other processes. Empty
    in old journals."""

    @property
    def validation(self) -> dict[str, float]:
        """The task's metrics over the whole validation set, by name."""
        known = {"accuracy": self.val_accuracy, "top5": self.val_top5}
        return {name: each for name, each in known.items() if each is not None} | self.val_metrics

    @property
    def mean_figures(self) -> dict[str, float]:
        """Name in `figures` -> mean of its finite values. Names that have only NaN or infinite
        values are left out."""
        finite = {name: [*filter(math.isfinite, each)] for name, each in self.figures.items()}
        return {name: fmean(values) for name, values in finite.items() if values}


class RunCosts(RecordBase):
    """Size of the run's network, operations of one image, and the device's peak rate."""

    kind: Literal["run_costs"] = "run_costs"
    parameters: int | None
    """Number of the model's parameters; None if it could not be counted."""
    forward_flops: int | None
    """Multiply-adds of one image's forward pass, each counted once."""
    gradient_bytes: int | None
    """Bytes of the fp32 gradients of the trainable parameters."""
    small_parameters: int | None = None
    """Number of parameters in tensors of up to 100,000 values, which ZeRO-3 does not shard; None if
    unknown."""
    message: str = ""
    """Why the model's parameters or operations could not be counted."""
    device: str = ""
    """Name of the workers' device, as the driver reports it; empty for CPUs, and if the devices
    differ."""
    peak_flops: float | None = None
    """Peak operations per second of one `device`; a multiply-add counts as two."""
    peak_format: str = ""
    """The dtype to which `peak_flops` applies."""
    peak_source: str = ""
    """The vendor's document that states `peak_flops`."""


class ScriptMeasured(RecordBase):
    """Further measurements of a training script. Lists hold a value per worker."""

    kind: Literal["script_measured"] = "script_measured"
    steps: int
    """Optimiser steps that every rank made."""
    left_out: int
    """Steps after the warm-up that follow an evaluation or a pause, such as for a checkpoint; no
    figure includes them."""
    samples_per_step: float | None
    """Number of samples in a step over all workers, mean over the timed steps; None if unknown."""
    samples_source: Literal["given", "loader", "mark", ""] = ""
    tokens_per_step: float | None = None
    pass_samples: int | None = None
    """Number of samples in one pass over the training DataLoader, over all ranks; None if
    unknown."""
    steps_per_second: float
    parameters: int | None
    """Number of parameters that the first optimiser trains; None if a rank has only a part of
    them."""
    optimizer: str = ""
    hosts: list[str]
    start_seconds: dict[str, list[float]]
    """Phase of the start -> seconds per worker. The phases are in order, from the launcher to the
    end of the first step."""
    first_samples: list[int] = Field(default_factory=list)
    """With `--check`: a hash of all ranks' samples in each of the first steps, independent of their
    order; 0 if none were read from a DataLoader."""
    first_rates: list[float] = Field(default_factory=list)
    """With `--check`: learning rates of the parameter groups at the first step."""
    first_losses: list[float] = Field(default_factory=list)
    """With `--check`: mean over ranks of the loss in each of the first steps; empty if the script
    never calls `backward` on a scalar."""
    without_energy: str = ""
    """Why the energy of a device or host was not measured, and on which host; empty if it was
    measured or not requested."""
    notes: list[str] = Field(default_factory=list)

    @property
    def starts_by_host(self) -> dict[str, dict[str, float]]:
        """Host -> phase of the start -> seconds of its slowest rank."""
        return {
            host: {
                phase: max(s for s, own in zip(seconds, self.hosts, strict=True) if own == host)
                for phase, seconds in self.start_seconds.items()
            }
            for host in dict.fromkeys(self.hosts)
        }


class TimeShares(RecordBase):
    """Shares of the time of some steps, measured by a profiler after the timed training.

    Lists hold a value per worker. The times of computation, exposed communication and exposed
    loading do not overlap. The rest of the window is other time.
    """

    kind: Literal["time_shares"] = "time_shares"
    steps: int
    """Optimiser steps of the window; these are not the run's timed steps."""
    warmup_steps: int
    """Steps before the window, without the profiler."""
    window_seconds: list[float]
    """Seconds from the start of the window's first step to the end of its last step, at which the
    device is synchronised."""
    computation_seconds: list[float]
    """Time in which the device computes; on a CPU, time of the training thread in torch's
    operators."""
    communication_seconds: list[float]
    """Time in which a collective runs or is waited for."""
    communication_exposed_seconds: list[float]
    """The part of the communication time in which nothing is computed."""
    data_seconds: list[float]
    """Time in which the loop waits for its loader; on a GPU, also the time of copies and of DALI's
    kernels."""
    data_exposed_seconds: list[float]
    """The part of the data time in which nothing is computed or communicated."""
    kernel_seconds: dict[str, list[float]] = Field(default_factory=dict)
    """On a GPU: class of kernels -> time in which a kernel of this class runs."""
    sources: list[str] = Field(default_factory=list)
    """Sources of rank 0's communication time, such as `kernels` or `timeline`."""
    trace: str = ""
    """Name of the file in the run's folder with rank 0's trace, which Perfetto opens; empty if no
    trace was kept."""
    seconds: float
    """Duration of the profile on the slowest worker, with warm-up and writing; not included in any
    other time."""
    message: str = ""
    """Why the lists are empty, or why the trace could not be written."""

    @property
    def words(self) -> str:
        """Means over workers and the message, in one line; only the message if there are no
        means."""
        if not self.window_seconds:
            return self.message
        parts = {
            "computation": self.computation_seconds,
            "exposed communication": self.communication_exposed_seconds,
            "exposed loading": self.data_exposed_seconds,
        }
        told = [
            f"{name} {sum(seconds) / sum(self.window_seconds):.0%}"
            for name, seconds in parts.items()
        ]
        cost = f"the profile took {self.seconds:.1f} s"
        return "; ".join(
            filter(None, [f"{', '.join(told)} of {self.steps} steps", cost, self.message])
        )


class Slot(NamedTuple):
    """One operation of a pipeline's worker; times are in seconds since the window began."""

    kind: Literal["forward", "backward", "update"]
    micro_batch: int
    stage: int
    begin: float
    """Time at which the operation's input was available."""
    end: float


class StagesMeasured(RecordBase):
    """Measurements of a pipeline's stages in some steps, after the timed training.

    Lists hold one value for each worker of each copy of the pipeline, unless noted otherwise.
    Devices are synchronised in every operation, unlike in training.
    """

    kind: Literal["stages_measured"] = "stages_measured"
    schedule: str
    stages: int
    micro_batches: int
    steps: int
    """Number of optimiser steps in the window. An asynchronous pipeline is already full when the
    window begins."""
    partition: list[int]
    """Number of the network's blocks in each stage."""
    window_seconds: float
    """Seconds from a barrier before the first step to the end of the last step on the slowest
    worker."""
    forward_seconds: list[float]
    """Seconds of forward passes, without waiting for other workers. Recomputed forward passes count
    as backward passes."""
    backward_seconds: list[float]
    update_seconds: list[float]
    wait_seconds: list[float]
    """Seconds of waiting for activations, for gradients and for other copies of the pipeline."""
    bubble: list[float]
    """Share of the window outside of the worker's forward passes, backward passes and updates."""
    ideal_bubble: float
    """Bubble of the schedule if all stages were equally fast and transfers took no time; 0 for an
    asynchronous schedule."""
    weight_bytes: list[int]
    """Bytes of one version of the weights."""
    versions: list[int]
    """Largest number of weight versions held at a time."""
    activation_bytes: list[int]
    """Largest size of the activations kept from forward to backward passes, without weights."""
    sent_bytes: list[int]
    """Bytes that are sent to other stages in one step."""
    slots: list[list[Slot]]
    """The operations of the window's first step, one list for each worker of the first copy of the
    pipeline."""
    block_seconds: list[tuple[float, float]] = Field(default_factory=list)
    """(forward, backward) seconds of each block for one micro-batch, if they were measured for the
    option `balance`."""

    @property
    def imbalance(self) -> float:
        """Time in forward and backward passes: that of the slowest worker / the mean over
        workers."""
        each = [f + b for f, b in zip(self.forward_seconds, self.backward_seconds, strict=True)]
        return max(each) * len(each) / sum(each) if sum(each) > 0 else 1.0

    @property
    def words(self) -> str:
        idle = sum(self.bubble) / len(self.bubble)
        kept = max(self.activation_bytes) / 2**20
        return (
            f"{self.schedule}: bubble {idle:.0%} (with equal stages {self.ideal_bubble:.0%}), "
            f"slowest worker {self.imbalance:.2f} times the mean, "
            f"activations up to {kept:.1f} MiB, "
            f"up to {count(max(self.versions), 'version')} of weights"
        )


Record = Annotated[
    BatchFound
    | RunStarted
    | GateVerdict
    | SamplesSkipped
    | EpochFinished
    | RunCosts
    | ScriptMeasured
    | TimeShares
    | StagesMeasured
    | RunFinished
    | RunFailed
    | RunPruned
    | RunStopped
    | RunJudged,
    Field(discriminator="kind"),
]


def record_schema() -> dict[str, Any]:
    """The JSON Schema of a line of a journal, and of a line that `--json` prints."""
    schema: dict[str, Any] = TypeAdapter(Record).json_schema(schema_generator=DescribedSchema)
    return {"title": f"Records of raysuite, version {SCHEMA}", **schema}


def json_line(record: RecordBase) -> str:
    """A Record as valid JSON, in which null stands for NaN. Journals keep NaN."""
    return json.dumps(finite(record.model_dump(mode="json")), ensure_ascii=False)


def finite(data: Any) -> Any:
    """The same data with None for numbers that are not valid in JSON."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
