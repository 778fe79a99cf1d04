"""Pipeline schedules as data: what each stage does in one optimiser step, in which order.

The order of sends and receives follows from it: a stage receives what an operation needs right
before it, and sends what the operation gives right after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

ScheduleName = Literal["model_parallel", "gpipe", "1f1b"]


@dataclass(frozen=True)
class Operation:
    """One pass of one micro-batch through one stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int
    """From 0, in the order of the optimiser step."""


def operations(
    schedule: ScheduleName, stages: int, micro_batches: int
) -> tuple[tuple[Operation, ...], ...]:
    """[stages][2 * micro_batches] operations. The passes of each kind are in the order of
    micro-batches in every stage, so that gradients are summed in the same order everywhere.

    gpipe: Huang et al. 2019, "GPipe", figure 2c. 1f1b: Narayanan et al. 2019, "PipeDream", figure
    8, with a flush (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training",
    PipeDream-Flush). Both are those of torch.distributed.pipelining.
    """
    return tuple(
        _interleaved(_warm_up(schedule, stages - stage, micro_batches), micro_batches)
        for stage in range(stages)
    )


def _warm_up(schedule: ScheduleName, from_the_end: int, micro_batches: int) -> int:
    """Forward passes before the first backward pass of a stage, 1 for the last."""
    wanted = {"model_parallel": 1, "gpipe": micro_batches, "1f1b": from_the_end}[schedule]
    return min(wanted, micro_batches)


def _interleaved(warm_up: int, micro_batches: int) -> tuple[Operation, ...]:
    """`warm_up` forward passes, then a backward and a forward pass in turn."""
    found = [Operation("forward", index) for index in range(warm_up)]
    for index in range(micro_batches):
        found.append(Operation("backward", index))
        if index + warm_up < micro_batches:
            found.append(Operation("forward", index + warm_up))
    return tuple(found)


class Slot(NamedTuple):
    """An operation of a stage and when it begins and ends, in units of one forward pass."""

    operation: Operation
    begin: float
    end: float


def timeline(
    schedule: Sequence[Sequence[Operation]], forward: float = 1.0, backward: float = 2.0
) -> list[list[Slot]]:
    """[stages][operations] of a step whose stages are equally fast, and whose transfers cost
    nothing: each operation begins as soon as its stage is free and its input is there.

    Raises ValueError where every stage waits for another.
    """
    found: list[list[Slot]] = [[] for _ in schedule]
    ends: dict[tuple[int, Operation], float] = {}
    while any(len(slots) < len(own) for slots, own in zip(found, schedule, strict=True)):
        before = len(ends)
        for stage, own in enumerate(schedule):
            while len(found[stage]) < len(own):
                operation = own[len(found[stage])]
                source = stage + (-1 if operation.kind == "forward" else 1)
                if 0 <= source < len(schedule) and (source, operation) not in ends:
                    break
                begin = max(
                    ends.get((source, operation), 0.0), found[stage][-1].end if found[stage] else 0
                )
                end = begin + (forward if operation.kind == "forward" else backward)
                ends[stage, operation] = end
                found[stage].append(Slot(operation, begin, end))
        if len(ends) == before:
            raise ValueError("every stage waits for another")
    return found


def bubble(slots: Sequence[Sequence[Slot]]) -> float:
    """The share of the stages' time in which they idle, of a step from `timeline`.

    (W - 1) / (W - 1 + m) for gpipe and 1f1b with W stages and m micro-batches (Huang et al. 2019,
    "GPipe", section 2.3), 1 - 1 / W for model parallelism.
    """
    step = max(slot.end for own in slots for slot in own)
    busy = sum(slot.end - slot.begin for own in slots for slot in own)
    return 1 - busy / (step * len(slots))
