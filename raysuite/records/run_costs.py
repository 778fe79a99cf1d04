"""The costs of a run: operations, traffic, energy, and projected run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from raysuite.records.names import Plan, task_of
from raysuite.records.power import once
from raysuite.records.schema import EpochFinished, RunCosts, TimeShares
from raysuite.spec.strategies import StrategyOptions, Traffic

_OPTIONS: TypeAdapter[StrategyOptions] = TypeAdapter(StrategyOptions)

PROJECTED_EPOCHS = 90
"""Number of epochs to which run times are projected: that of a training run on ImageNet (Aach et
al. 2023)."""

OPERATIONS_PER_MULTIPLY_ADD = 2
PASSES = 3
"""Cost of a step in forward passes: a backward pass counts as two, one for the gradient of the
weights and one for the gradient of the inputs (Kaplan et al. 2020, arXiv:2001.08361, section
2.1)."""


@dataclass(frozen=True)
class Costs:
    """Costs of one run. A figure is None if it is unknown, not measured, or may not be reported."""

    projected_seconds: float | None
    """Training time of PROJECTED_EPOCHS epochs of mean length."""
    flops: float | None
    """Operations per second of the model's arithmetic, over all workers."""
    mfu: float | None
    """`flops` as a share of the devices' peak rate (Chowdhery et al. 2022, arXiv:2204.02311,
    appendix B)."""
    traffic: Traffic | None
    """Bytes of an optimiser step's collectives, computed, not measured."""
    bus_bandwidth: float | None
    """Bytes per second that each worker sends while a collective is under way."""
    device_busy: float | None
    """Share of the training time in which a kernel ran, mean over workers."""
    device_joules: float | None
    """Energy of the devices per training image."""
    host_joules: float | None
    """Energy of the hosts' processors and memory per training image."""
    counted: RunCosts | None
    """The Record with the counts from which operations, traffic and `mfu` are computed."""


def step_traffic(
    plan: Plan, parameters: int, gradient_bytes: int, small: int | None = None
) -> Traffic | None:
    """Bytes of the collectives in an optimiser step, computed from the strategy's algorithm.

    `parameters` is the number of the model's parameters, `gradient_bytes` the size of the fp32
    gradients, `small` the number of parameters in tensors that ZeRO-3 does not shard. None if the
    strategy declares no traffic. A test compares the result with counts of each framework's
    collectives. Collectives of flags, norms and loss scales are left out, because each has only a
    few bytes.
    """
    if int(plan["workers"]) == 1:
        return Traffic()
    try:
        options = _OPTIONS.validate_python(plan["spec"]["strategy"])
    except ValidationError:  # the plan was made by a version with other options
        return None
    return options.traffic(int(plan["accumulate"]), parameters, gradient_bytes, small)


def run_costs(
    plan: Plan,
    counted: RunCosts | None,
    shares: TimeShares | None,
    epochs: Sequence[EpochFinished],
    epoch_seconds: float | None,
    throughput: float | None,
) -> Costs:
    """The costs of a run whose times may be reported. `epoch_seconds` is the mean over `epochs`."""
    flops = traffic = None
    task, sequence = task_of(plan), plan["dataset"].get("sequence") or 0
    forward = None if counted is None else counted.forward_flops
    if forward and throughput is not None and task.units_are_known(sequence):
        of_unit = forward / task.units(1, sequence)
        flops = PASSES * OPERATIONS_PER_MULTIPLY_ADD * of_unit * throughput
    if counted is not None and counted.parameters is not None:
        sizes = counted.parameters, counted.gradient_bytes or 0, counted.small_parameters
        traffic = step_traffic(plan, *sizes)
    workers = int(plan["workers"])
    peak = counted.peak_flops if counted is not None else None
    return Costs(
        projected_seconds=None if epoch_seconds is None else PROJECTED_EPOCHS * epoch_seconds,
        flops=flops,
        mfu=flops / (workers * peak) if flops is not None and peak else None,
        traffic=traffic,
        bus_bandwidth=_bus_bandwidth(traffic, workers, shares),
        device_busy=_busy(epochs),
        device_joules=_joules(epochs, lambda use: once(use.devices, use.device_joules)),
        host_joules=_joules(epochs, lambda use: once(use.hosts, use.host_joules)),
        counted=counted,
    )


def _bus_bandwidth(
    traffic: Traffic | None, workers: int, shares: TimeShares | None
) -> float | None:
    """Bytes per second in the profiled steps, computed for the worker with the least communication
    time, because the communication time of other workers includes waiting for this worker."""
    if traffic is None or shares is None or not traffic.total:
        return None
    seconds = min(shares.communication_seconds, default=0.0)
    return shares.steps * traffic.sent(workers) / seconds if seconds > 0 else None


def _busy(epochs: Sequence[EpochFinished]) -> float | None:
    """Mean utilisation, weighted by the epochs' length."""
    seconds = total = 0.0
    for epoch in epochs:
        busy = epoch.power.device_busy if epoch.power is not None else []
        for each in busy:
            if each is None:
                return None
            seconds += epoch.seconds
            total += epoch.seconds * each
    return total / seconds if seconds > 0 else None


def _joules(epochs: Sequence[EpochFinished], energy: Callable[..., float | None]) -> float | None:
    """Energy per training image in joules; None unless it was measured in every epoch."""
    known = [None if epoch.power is None else energy(epoch.power) for epoch in epochs]
    images = sum(epoch.images for epoch in epochs)
    joules = [each for each in known if each is not None]
    return sum(joules) / images if images and len(joules) == len(known) else None
