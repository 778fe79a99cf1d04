"""Pipeline schedules as data: the order of each worker's passes, and the weight version of each
pass.

A `Schedule` makes lists of `Operation`. The runtime in `raysuite.parallel.pipeline` executes them,
`raysuite plan --schedule` draws them, and the gate's reference takes the versions of weights from
them. The order of sends and receives follows from these lists: a worker receives the input of a
pass right before the pass, and sends the output right after it.

All schedules follow one rule: forward pass n, then backward pass n - d, where the delay d depends
on the worker. Synchronous schedules empty the pipeline in each step, before the weights change.
Asynchronous schedules keep the pipeline full: the weights of a pass may lack the updates of passes
that are in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

ScheduleName = Literal[
    "model_parallel", "gpipe", "1f1b", "interleaved_1f1b", "pipedream", "pipedream_2bw"
]
ASYNCHRONOUS = ("pipedream", "pipedream_2bw")


@dataclass(frozen=True)
class Operation:
    """A pass of one micro-batch through one stage, or an update of a stage's weights."""

    kind: Literal["forward", "backward", "update"]
    micro_batch: int
    """Number of the micro-batch, counted from 0 in the schedule's first step. For an update, the
    last micro-batch whose gradient it uses."""
    stage: int = 0
    """Number of the stage, counted from 0 in the order of the network."""
    version: int = 0
    """Number of updates, since the schedule's first step, that the weights of this pass include.
    Both passes of a micro-batch through a stage use the same version. For an update: the number of
    earlier updates of the stage."""


@dataclass(frozen=True)
class Schedule:
    """The schedule of one copy of a pipeline."""

    name: ScheduleName
    micro_batches: int
    """Number of micro-batches in a step. A step ends with one update of every stage."""
    replicas: tuple[int, ...] = (1,)
    """Number of workers of each stage; in interleaved_1f1b, the number 1 for each worker. The
    workers of a stage take the micro-batches in turn."""
    chunks: int = 1
    """Number of stages per worker in interleaved_1f1b: worker w has stages w, w + W, w + 2 W,
    ..."""

    @property
    def asynchronous(self) -> bool:
        """Whether the pipeline stays full from step to step."""
        return self.name in ASYNCHRONOUS

    @property
    def stages(self) -> int:
        """Number of contiguous parts of the network."""
        return len(self.replicas) * self.chunks

    @property
    def workers(self) -> int:
        """Number of workers of one copy of the pipeline; the workers of a stage have consecutive
        numbers."""
        return sum(self.replicas)

    def place(self, worker: int) -> tuple[int, int]:
        """Return the first stage of a worker, and the worker's number among the workers of this
        stage."""
        for stage, count in enumerate(self.replicas):
            if worker < count:
                return stage, worker
            worker -= count
        raise ValueError("the pipeline has fewer workers")

    def worker(self, stage: int, micro_batch: int) -> int:
        """The worker that passes a micro-batch through a stage; a stage's workers take turns."""
        part = stage % len(self.replicas)
        return sum(self.replicas[:part]) + micro_batch % self.replicas[part]

    def delay(self, worker: int) -> int:
        """Number of forward passes by which a worker is ahead of its backward passes.

        gpipe: Huang et al. 2019, "GPipe", figure 2c. 1f1b: Narayanan et al. 2021, "Memory-Efficient
        Pipeline-Parallel DNN Training", PipeDream-Flush. interleaved_1f1b: Narayanan et al. 2021,
        "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section
        2.2. These three match torch.distributed.pipelining. pipedream and pipedream_2bw: Narayanan
        et al. 2019, "PipeDream", section 3.2; the workers of a stage take turns (1F1B-RR).
        """
        stage, _ = self.place(worker)
        behind = len(self.replicas) - 1 - stage
        match self.name:
            case "model_parallel":
                return 0
            case "gpipe":
                return self.micro_batches
            case "interleaved_1f1b":
                return 2 * behind + (self.chunks - 1) * len(self.replicas)
            case _:
                return sum(self.replicas[stage + 1 :]) // self.replicas[stage]

    def step(self, worker: int, index: int) -> Iterator[Operation]:
        """A worker's operations in step `index`. Step 0 begins with an empty pipeline."""
        count, delay = self._passes(worker), self.delay(worker)
        first = index * count
        begin = 0 if self.asynchronous else first  # the first pass after the pipeline was empty
        for number in range(first, first + count):
            yield self._pass("forward", worker, number)
            if number - delay >= begin:
                yield from self._backward(worker, number - delay)
        if not self.asynchronous:
            for number in range(max(first, first + count - delay), first + count):
                yield from self._backward(worker, number)

    def drain(self, worker: int, steps: int) -> Iterator[Operation]:
        """A worker's operations after `steps` steps, until the pipeline is empty."""
        if self.asynchronous:
            end = steps * self._passes(worker)
            for number in range(max(0, end - self.delay(worker)), end):
                yield from self._backward(worker, number)

    def operations(self, steps: int = 1) -> tuple[tuple[Operation, ...], ...]:
        """[workers][operations] of `steps` steps; the pipeline is empty before and after them."""
        return tuple(
            (
                *(each for index in range(steps) for each in self.step(worker, index)),
                *self.drain(worker, steps),
            )
            for worker in range(self.workers)
        )

    @property
    def steps_to_fill(self) -> int:
        """Number of steps after which an asynchronous pipeline is full; 0 for a synchronous
        pipeline."""
        if not self.asynchronous:
            return 0
        return max(-(-self.delay(worker) // self._passes(worker)) for worker in range(self.workers))

    def version(self, stage: int, micro_batch: int) -> int:
        """Number of updates that are included in the weights that a stage uses for a micro-batch.

        pipedream: the stage's updates before the forward pass ("weight stashing"). pipedream_2bw:
        the updates of all steps before the previous step, in every stage (PipeDream-2BW, section
        3.1). Other schedules: the updates of all earlier steps.
        """
        step = micro_batch // self.micro_batches
        if self.name == "pipedream_2bw":
            return max(step - 1, 0)
        if self.name != "pipedream":
            return step
        worker = self.worker(stage, micro_batch)
        before = micro_batch // self.replicas[self.place(worker)[0]] - self.delay(worker)
        return max(before, 0) // self._passes(worker)

    def _passes(self, worker: int) -> int:
        """Number of forward passes of a worker in a step; it makes as many backward passes."""
        return self.micro_batches * self.chunks // self.replicas[self.place(worker)[0]]

    def _backward(self, worker: int, number: int) -> Iterator[Operation]:
        found = self._pass("backward", worker, number)
        yield found
        count = self._passes(worker)
        if (number + 1) % count == 0:
            stage, _ = self.place(worker)
            last = (number + 1) // count * self.micro_batches - 1
            for chunk in range(self.chunks):
                yield Operation("update", last, stage + chunk * len(self.replicas), number // count)

    def _pass(self, kind: Literal["forward", "backward"], worker: int, number: int) -> Operation:
        stage, place = self.place(worker)
        parts = len(self.replicas)
        if self.chunks > 1:  # a group of `parts` micro-batches passes one chunk, then the next
            group, rest = divmod(number, parts * self.chunks)
            chunk, inner = divmod(rest, parts)
            chunk = chunk if kind == "forward" else self.chunks - 1 - chunk
            stage, micro_batch = stage + chunk * parts, group * parts + inner
        else:
            micro_batch = number * self.replicas[stage] + place
        return Operation(kind, micro_batch, stage, self.version(stage, micro_batch))


def in_flight(own: Sequence[Operation]) -> int:
    """Largest number of forward passes whose activations a worker holds at a time."""
    held = most = 0
    for each in own:
        held += {"forward": 1, "backward": -1, "update": 0}[each.kind]
        most = max(most, held)
    return most


def versions_held(own: Sequence[Operation]) -> int:
    """Largest number of weight versions that a worker with these operations holds at a time."""
    last_use: dict[tuple[int, int], int] = {}
    for index, each in enumerate(own):
        last_use[each.stage, each.version] = index
    most = 1
    for index, each in enumerate(own):
        if each.kind == "update":  # an update makes the next version
            held = sum(
                stage == each.stage and version <= each.version and last > index
                for (stage, version), last in last_use.items()
            )
            most = max(most, held + 1)
    return most


class Slot(NamedTuple):
    """An operation of a worker, with begin and end in units of one forward pass."""

    operation: Operation
    begin: float
    end: float


def unit_times(operation: Operation) -> float:
    """A backward pass takes twice as long as a forward pass, and an update takes no time."""
    return {"forward": 1.0, "backward": 2.0, "update": 0.0}[operation.kind]


def timeline(
    schedule: Sequence[Sequence[Operation]], times: Callable[[Operation], float] = unit_times
) -> list[list[Slot]]:
    """Begin and end of each operation, [workers][operations]. An operation begins as soon as its
    worker is free and its input is available.

    Transfers take no time. The workers of one stage update its weights at the same time. Raises
    ValueError if every worker waits for another worker.
    """
    found: list[list[Slot]] = [[] for _ in schedule]
    ends: dict[tuple[str, int, int], float] = {}
    last = max(each.stage for own in schedule for each in own)

    def ready(worker: int, operation: Operation) -> float | None:
        """Time at which an operation's input is available; None if not known yet."""
        index = len(found[worker])
        if operation.kind == "update":
            peers = [
                other
                for other, own in enumerate(schedule)
                if index < len(own) and own[index] == operation
            ]
            if any(len(found[peer]) < index for peer in peers):
                return None
            return max(found[peer][index - 1].end if index else 0.0 for peer in peers)
        source = operation.stage + (-1 if operation.kind == "forward" else 1)
        if not 0 <= source <= last:
            return 0.0
        return ends.get((operation.kind, source, operation.micro_batch))

    while any(len(slots) < len(own) for slots, own in zip(found, schedule, strict=True)):
        before = sum(map(len, found))
        for worker, own in enumerate(schedule):
            while len(found[worker]) < len(own):
                operation = own[len(found[worker])]
                given = ready(worker, operation)
                if given is None:
                    break
                begin = max(given, found[worker][-1].end if found[worker] else 0.0)
                end = begin + times(operation)
                ends[operation.kind, operation.stage, operation.micro_batch] = end
                found[worker].append(Slot(operation, begin, end))
        if sum(map(len, found)) == before:
            raise ValueError("every worker waits for another")
    return found


def bubble(slots: Sequence[Sequence[Slot]]) -> float:
    """The share of all workers' time in which they are idle, for a result of `timeline`.

    It is (W - 1) / (W - 1 + m) for gpipe and 1f1b with W stages and m micro-batches (Huang et al.
    2019, "GPipe", section 2.3), 1 - 1 / W for model parallelism, (W - 1) / (W - 1 + v m) for
    interleaved_1f1b with v stages on each worker (Megatron-LM, section 2.2.2).
    """
    span = max(slot.end for own in slots for slot in own)
    busy = sum(slot.end - slot.begin for own in slots for slot in own)
    return 1 - busy / (span * len(slots))
