"""Simulate a step of a RunPlan, with costs from a calibration or from one worker's throughput."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from raysuite.errors import UserError
from raysuite.models import layers_of
from raysuite.models.layers import LayerCost
from raysuite.perf.calibration import Calibration
from raysuite.perf.costs import (
    best_checkpoint_interval,
    expected_run_seconds,
    loader_kind,
    strategy_kind,
    work_name,
)
from raysuite.perf.prediction import FORWARD_SHARE
from raysuite.perf.simulator import (
    OUTSIDE,
    Crowd,
    Layer,
    Link,
    Network,
    Step,
    data_parallel,
    pipeline_step,
)
from raysuite.perf.validation import Kind, of_plan, of_rate
from raysuite.plan.run_plan import RunPlan
from raysuite.spec.strategies import DdpOptions, FsdpOptions, PipelineOptions

_DDP = strategy_kind({"spec": {"strategy": DdpOptions().model_dump(mode="json")}})


def measured_network(plan: RunPlan, calibration: Calibration | None) -> Network:
    """The network inside a node, with the latency and bandwidth in the calibration. Raises
    UserError if the calibration lacks them, or if the plan needs several nodes."""
    costs = {} if calibration is None else calibration.seconds.costs
    kind = strategy_kind(plan.model_dump(mode="json"))
    if plan.schedule is not None:  # assumed: activations cost as much per byte as gradients
        sent = [term.partition("/")[2] for term in costs if term[:5] == "byte/"]
        kind = _DDP if _DDP in sent else next(iter(sent), kind)
    byte, message = costs.get(f"byte/{kind}"), costs.get(f"message/{kind}", 0.0)
    nodes = 1 if calibration is None else calibration.workers_per_node
    if plan.workers == 1 or (byte is not None and plan.workers <= nodes):
        link = Link(latency_us=message * 1e6, gb_per_s=1 / byte / 1e9 if byte else 1e6)
        return Network(
            name="measured", source="calibration", workers_per_node=nodes, inside=link, between=link
        )
    if plan.workers <= nodes:
        raise UserError(
            f"the calibration has no run with {kind} on several workers; measure one, or give "
            "--network NAME"
        )
    raise UserError(
        f"the network between {plan.workers} workers is not known: "
        + (f"the calibration measured up to {nodes} workers on one node; " if calibration else "")
        + "give --network NAME, such as hdr-fat-tree, or a file like those in "
        "raysuite/perf/shipped_networks"
    )


def pipeline_seconds(plan: dict[str, Any], calibration: Calibration) -> float:
    """Seconds of one simulated step of a pipeline, with the costs of `calibration`."""
    run = RunPlan.model_validate(plan)
    return step_of(run, calibration, None, measured_network(run, calibration)).seconds


def step_of(
    plan: RunPlan,
    calibration: Calibration | None,
    rate: float | None,
    network: Network,
    jitter: float = 0.0,
    straggler: float = 1.0,
    storage: float | None = None,
) -> Step:
    """Simulate one step of a plan, with the costs of `calibration`, or with `rate`, the throughput
    of a single worker in images, samples or tokens per second.

    `storage`: images, samples or tokens per second that storage delivers to all workers together.
    A data-parallel step lasts at least as long as storage needs to deliver the next batch.
    """
    data, pace = plan.model_dump(mode="json"), partial(_pace, plan.workers, 0.0)
    update = load = 0.0
    if calibration is not None:
        work, kind, costs = work_name(data), strategy_kind(data), calibration.seconds.costs
        wanted = [f"image/{work}", f"load/{loader_kind(data)}"]
        if plan.workers > 1 and plan.schedule is None:
            wanted.append(f"step/{kind}")
        if missing := [term.partition("/")[2] for term in wanted if term not in costs]:
            raise UserError(
                f"the calibration has no run with {', '.join(missing)}; measure one, or give "
                "--per-second in place of --calibration"
            )
        alone = plan.micro_batch * costs[f"image/{work}"] + costs[f"pass/{work}"]
        load = plan.micro_batch * costs[f"load/{loader_kind(data)}"]
        near = plan.micro_batch * costs.get(f"neighbour/{work}", 0.0)
        neighbours = min(plan.workers, calibration.workers_per_node)
        together = alone + near * (neighbours - 1) / neighbours
        if plan.workers > 1:
            flops = calibration.works[work].forward_flops or 0
            together += plan.micro_batch * flops * costs.get(f"beside/{kind}", 0.0)
            together += costs.get(f"hook/{kind}", 0.0)
        update = costs[f"update/{work}"] + costs.get(f"step/{kind}", 0.0)
        update += 4 * calibration.works[work].parameters * costs.get(f"copy/{kind}", 0.0)
        if plan.device == "cpu":
            processors = calibration.processors // plan.spec.resources.cpus_per_worker
            pace = partial(_pace, max(1, processors), near / (alone + load))
    else:
        assert rate is not None
        alone = together = plan.units(plan.micro_batch) / rate
    if plan.schedule is not None:
        beside = 0.0
        if calibration is not None:
            beside = calibration.operations.get(plan.schedule.name, calibration.operation)
        stages = [
            replace(each, forward_s=each.forward_s + beside, backward_s=each.backward_s + beside)
            for each in _layers(plan, alone + load, calibration)
        ]
        per_stage = update / len(stages)
        epoch = plan.steps_per_epoch
        return pipeline_step(stages, plan.schedule, network, plan.replicas, per_stage, pace, epoch)
    layers = _layers(plan, together, calibration)
    if straggler > 1 and plan.workers > 1:
        crowds: Sequence[Crowd] = [Crowd(plan.workers - 1), Crowd(1, straggler)]
    else:
        crowds = [Crowd(plan.workers, straggler)]
    reductions = plan.spec.strategy.reductions()
    if reductions is None:
        raise UserError(
            f"strategy {plan.spec.strategy.model_dump_json()} cannot be simulated; valid: single, "
            "ddp (without powersgd), fabric, accelerate, horovod, deepspeed (without offload), "
            "fsdp (without offload, and with one copy) and pipeline"
        )
    if plan.device == "cpu" and network.source == "calibration":
        # the calibrated costs include only the communication that did not overlap with the passes
        reductions = replace(reductions, overlap=False)
    read = plan.units(plan.global_batch) / storage if storage else 0.0
    return Step.of(
        data_parallel(
            layers, crowds, network, reductions, plan.accumulate, update, jitter, load, read
        )
    )


def epoch_seconds(plan: RunPlan, step: Step, simulated: Callable[[RunPlan], Step]) -> float:
    """Seconds of an epoch's steps; `step` is a step with a whole global batch. The last step has
    the remaining samples, in as many micro-batches as the other steps; in training, micro-batches
    of fewer than two samples are padded to two. If all micro-batches of a plan have one sample, all
    are padded, and all steps take the same time."""
    whole, rest = divmod(plan.dataset.train_samples, plan.global_batch)
    if not rest:
        return whole * step.seconds
    parts = plan.global_batch // plan.micro_batch
    micro_batch = max(min(2, plan.micro_batch), math.ceil(rest / parts))
    last = plan.model_copy(update={"global_batch": rest, "micro_batch": micro_batch})
    return whole * step.seconds + simulated(last).seconds


def _pace(processors: int, near: float, workers: int) -> float:
    """Speed of each of `workers` workers that compute at once, relative to one that computes alone.
    They share `processors`, the number of workers that can compute at the same time. If n workers
    do so, each takes 1 + `near` (n - 1) / n times as long."""
    busy = min(workers, processors)
    return busy / workers / (1 + near * (busy - 1) / busy)


_COUNTED: dict[str, _Counted] = {}


def _layers(plan: RunPlan, seconds: float, calibration: Calibration | None) -> list[Layer]:
    """The network's layers, or a pipeline's stages. `seconds`, the time of both passes, is divided
    among layers in proportion to their FLOPs. If the calibration has measured times of a
    pipeline's blocks, `seconds` is divided in proportion to these times instead."""
    parts = plan.spec.strategy.model_dump(include={"name", "units"})
    precision = plan.spec.training.precision
    key = json.dumps([plan.spec.model.model_dump(), str(plan.dataset), parts, precision])
    if key not in _COUNTED:
        _COUNTED[key] = _counted(plan)
    counted = _COUNTED[key]
    whole = sum(each.forward_flops for each in counted.layers) or 1
    layers = [
        Layer(
            each.name,
            seconds * FORWARD_SHARE * each.forward_flops / whole,
            seconds * (1 - FORWARD_SHARE) * each.forward_flops / whole,
            each.trained * 4.0,
            each.output_bytes * float(plan.micro_batch),
            counted.units.get(each.name, OUTSIDE),
            (each.parameters - each.trained) * 4.0,
        )
        for each in counted.layers
    ]
    if plan.schedule is None:
        return layers
    from raysuite.parallel.pipeline.partition import BlockCosts, stage_sizes

    joined = [
        replace(each, output_bytes=count * float(plan.micro_batch))
        for each, count in zip(_joined(layers, counted.ends), counted.sent, strict=True)
    ]
    timed = calibration.blocks.get(work_name(plan.model_dump(mode="json"))) if calibration else None
    if timed is not None and len(timed) == len(joined):
        took = sum(map(sum, timed))
        joined = [
            replace(each, forward_s=seconds * forward / took, backward_s=seconds * backward / took)
            for each, (forward, backward) in zip(joined, timed, strict=True)
        ]
    costs = [
        BlockCosts(int(each.gradient_bytes), each.forward_s, each.backward_s) for each in joined
    ]
    options = plan.spec.strategy
    assert isinstance(options, PipelineOptions)
    stages = _joined(joined, list(accumulate(stage_sizes(options, counted.blocks, costs))))
    # with recompute, a worker with a delay repeats a forward pass before its backward pass
    again = [
        options.recompute and plan.schedule.delay(plan.schedule.worker(stage, 0)) > 0
        for stage in range(len(stages))
    ]
    return [
        replace(each, backward_s=each.backward_s + repeated * each.forward_s)
        for each, repeated in zip(stages, again, strict=True)
    ]


def _joined(layers: Sequence[Layer], ends: Sequence[int]) -> list[Layer]:
    """Merge consecutive layers into groups; `ends` has the end index of each group."""
    return [
        Layer(
            f"stage {number}",
            sum(each.forward_s for each in layers[begin:end]),
            sum(each.backward_s for each in layers[begin:end]),
            gradient_bytes=sum(each.gradient_bytes for each in layers[begin:end]),
            output_bytes=layers[end - 1].output_bytes,
        )
        for number, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    ]


class _Counted(NamedTuple):
    """The layers of a plan's network, and for a pipeline its blocks."""

    layers: list[LayerCost]
    blocks: Sequence[Any] = ()
    """The blocks of a pipeline's network."""
    ends: Sequence[int] = ()
    """For each block, the number of layers from the start of the network to the block's end."""
    sent: Sequence[int] = ()
    """Bytes of each block's output for one sample."""
    units: Mapping[str, int] = {}
    """Name of a layer -> number of the FSDP unit that has its weights; layers outside the units are
    absent."""


def _counted(plan: RunPlan) -> _Counted:
    counted, strategy = layers_of(plan.spec.model, plan.dataset), plan.spec.strategy
    if plan.schedule is None and not isinstance(strategy, FsdpOptions):
        return _Counted(counted)
    import torch

    from raysuite.models import build

    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        model = build(plan.spec.model, plan.dataset)
    names = {id(module): name for name, module in model.named_modules()}
    if isinstance(strategy, FsdpOptions):
        from raysuite.parallel.fsdp import units

        parts = enumerate(units(model, strategy.units))
        inside = {names[id(each)]: number for number, part in parts for each in part.modules()}
        return _Counted(counted, units=inside)
    from raysuite.models.base import example
    from raysuite.parallel.pipeline.blocks import blocks_of, sent_bytes
    from raysuite.parallel.precision import DTYPES

    blocks = blocks_of(model)
    places = {each.name: place for place, each in enumerate(counted)}
    ends = [0]
    for block in blocks:
        held = [places.get(names.get(id(module), ""), -1) + 1 for module in block.modules]
        ends.append(max([ends[-1], *held]))
    precision = plan.spec.training.precision
    lower = None if precision == "fp32" else DTYPES[precision]
    sent = sent_bytes(blocks, example(plan.dataset, 2, "meta"), lower)
    return _Counted(counted, blocks, ends[1:], sent)


def beside_training(
    plan: RunPlan, step: Step, calibration: Calibration | None
) -> tuple[float, float]:
    """(seconds of a run's validations, seconds of the run's start-up).

    Assumptions: there is one validation after each epoch, in which a sample takes as long as in a
    forward pass in training. Without a calibration, the start-up time is 0.
    """
    computing = step.shares.get("computation", 0.0) * step.seconds / plan.global_batch
    each = FORWARD_SHARE * computing * plan.dataset.val_samples
    start = 0.0 if calibration is None else calibration.start.value
    return plan.spec.training.epochs * each, start


def kind_of(plan: RunPlan, calibration: Calibration | None, network: str | None) -> Kind | None:
    """The kind of the simulation; None if its errors are not known. Pipelines simulated from a
    calibration were compared with measurements. Data parallelism simulated from one worker's rate
    was compared with published figures."""
    data = plan.model_dump(mode="json")
    if calibration is not None:
        return of_plan(data) if plan.schedule is not None and network is None else None
    return None if plan.schedule is not None else of_rate(data)


def with_failures(
    plan: RunPlan,
    network: Network,
    training: float,
    mtbf_hours: float,
    write: float,
    restart: float,
) -> dict[str, float | None]:
    nodes = math.ceil(plan.workers / network.workers_per_node)
    mtbf = mtbf_hours * 3600 / nodes
    every = min(best_checkpoint_interval(write, mtbf), training)
    expected = expected_run_seconds(training, every, write, mtbf, restart)
    return {"expected_s": None if math.isinf(expected) else expected, "checkpoint_every_s": every}


def idle_of(plan: dict[str, Any]) -> tuple[float, float]:
    """(share of an epoch's time that a pipeline loses to its bubble, share that it loses because
    stages take unequal times). Assumptions: a stage's time is proportional to its FLOPs, and
    transfers take no time."""
    run = RunPlan.model_validate(plan)
    assert run.schedule is not None
    stages = _layers(run, 1.0, None)
    count = len(stages)
    forward, backward = (
        sum(each.forward_s for each in stages) / count,
        sum(each.backward_s for each in stages) / count,
    )
    equal = [replace(each, forward_s=forward, backward_s=backward) for each in stages]
    real, ideal = (
        pipeline_step(each, run.schedule, None, epoch=run.steps_per_epoch)
        for each in (stages, equal)
    )
    bubble = ideal.idle
    if run.schedule.asynchronous:  # the cost of filling and emptying the pipeline in each epoch
        bubble = 1 - pipeline_step(equal, run.schedule, None).seconds / ideal.seconds
    return bubble * ideal.seconds / real.seconds, 1 - ideal.seconds / real.seconds
