"""Discrete-event simulation of one optimiser step, with the schedule that a run would execute.

A step consists of tasks in lanes (a worker's device, a link, a group's collectives). A lane runs
its tasks in order. A task begins when its lane is free and all tasks that it depends on have ended.
Identical workers share one lane with a count, so a million workers need no more tasks than two.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import groupby
from pathlib import Path
from statistics import NormalDist
from typing import Any

import yaml
from pydantic import Field, ValidationError

from raysuite.errors import UserError
from raysuite.spec.base import Strict
from raysuite.spec.schedules import Schedule
from raysuite.spec.strategies import Reductions

# Networks


class Link(Strict):
    """The cost of a message: its latency, plus its bytes divided by the rate."""

    latency_us: float = Field(ge=0)
    """Microseconds of an empty message, including software."""
    gb_per_s: float = Field(gt=0)
    """Rate in one direction for each worker, in 10^9 bytes per second."""

    def seconds(self, count: float) -> float:
        """Seconds of one message of `count` bytes."""
        return self.latency_us * 1e-6 + count / (self.gb_per_s * 1e9)


class Network(Strict):
    """The costs of the network between workers, from a YAML file (examples: `shipped_networks`), or
    measured by a calibration."""

    name: str
    source: str
    workers_per_node: int = Field(ge=1)
    inside: Link
    """Link between two workers of a node."""
    between: Link
    """Link between workers of two nodes, while all workers of a node send at once."""
    nodes_per_group: int | None = Field(default=None, ge=1)
    """Number of nodes that are connected without taper; None: all. A group is a cell of DragonFly+,
    or the nodes below one switch of a tapered tree."""
    taper: float = Field(default=1.0, gt=0, le=1)
    """Share of the rate of `between` that each worker has if all workers send to other groups."""
    group_latency_us: float = Field(default=0.0, ge=0)
    """Latency that is added to a message that leaves its group."""

    @classmethod
    def read(cls, name: str) -> Network:
        """Read a YAML file by its path, or a shipped file by its name. Raises UserError if the
        file cannot be read."""
        shipped = sorted((Path(__file__).parent / "shipped_networks").glob("*.yaml"))
        file = next((each for each in shipped if each.stem == name), Path(name))
        try:
            return cls.model_validate(yaml.safe_load(file.read_text("utf-8")))
        except (OSError, yaml.YAMLError, ValueError) as error:
            why = "; ".join(
                f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
                for each in (error.errors() if isinstance(error, ValidationError) else ())
            ) or str(error)
            known = ", ".join(each.stem for each in shipped)
            raise UserError(
                f"network {name!r} cannot be read: {why}; valid: {known}, or the path of a YAML "
                "file with the same keys as those in raysuite/perf/shipped_networks"
            ) from error

    def far(self, workers: int) -> Link:
        """The link between nodes, for a job of `workers` workers."""
        nodes = math.ceil(workers / self.workers_per_node)
        if self.nodes_per_group is None or nodes <= self.nodes_per_group:
            return self.between
        return Link(
            latency_us=self.between.latency_us + self.group_latency_us,
            gb_per_s=self.between.gb_per_s * self.taper,
        )

    def all_reduce(self, workers: int, count: float) -> float:
        """Seconds of an all-reduce of `count` bytes; between nodes, by the faster of ring and tree.

        Inside a node there is a reduce-scatter and an all-gather by ring. Between N nodes, each
        worker reduces its part with workers of the other nodes: by a ring of 2 (N - 1) messages,
        each with 1 / N of the part (Patarasuk and Yuan 2009), or by two binary trees of 2 log2 N
        messages in pipelined pieces (Sanders, Speck and Traff 2009, Parallel Comput. 35:581).
        """
        if count <= 0:
            return 0.0
        n = min(workers, self.workers_per_node)
        nodes = math.ceil(workers / self.workers_per_node)
        seconds = 2 * (n - 1) * self.inside.seconds(count / n)
        if nodes == 1:
            return seconds
        link, part = self.far(workers), count / n
        ring = 2 * (nodes - 1) * link.seconds(part / nodes)
        tree = 2 * math.log2(nodes) * link.latency_us * 1e-6 + 2 * part / (link.gb_per_s * 1e9)
        return seconds + min(ring, tree)

    def all_gather(self, workers: int, count: float) -> float:
        """Seconds of an all-gather, or a reduce-scatter, whose whole buffer has `count` bytes."""
        return self.all_reduce(workers, count) / 2

    def send(self, count: float, source: int, target: int) -> float:
        """Seconds of a message from one rank to another; ranks fill the nodes in order."""
        same = source // self.workers_per_node == target // self.workers_per_node
        link = self.inside if same else self.far(abs(target - source) + 1)
        return link.seconds(count)


# Tasks in lanes


@dataclass(frozen=True)
class Task:
    """One piece of work."""

    name: str
    lane: str
    seconds: float
    after: tuple[int, ...] = ()
    """Indices of the tasks that must end before this task begins."""
    kind: str = "computation"


@dataclass(frozen=True)
class Event:
    """A task, and the times in seconds at which it begins and ends."""

    task: Task
    begin: float
    end: float


Pace = Callable[[int], float]
"""Number of lanes that compute at once -> relative speed of each: 1 if each lane has a processor, 2
/ n if n lanes share two processors (processor sharing)."""


def run(tasks: Sequence[Task], pace: Pace = lambda _: 1.0) -> list[Event]:
    """One event for each task, in the order of `tasks`. Raises ValueError if tasks depend on
    each other in a cycle."""
    waiting = [0] * len(tasks)
    follows: dict[int, list[int]] = defaultdict(list)
    last: dict[str, int] = {}
    for place, task in enumerate(tasks):
        before = set(task.after)
        if task.lane in last:
            before.add(last[task.lane])
        last[task.lane] = place
        waiting[place] = len(before)
        for each in before:
            follows[each].append(place)
    now = done = 0.0
    begins, ends = [0.0] * len(tasks), [math.inf] * len(tasks)
    computing: list[tuple[float, int]] = []
    """(value of `done` at which the task ends, index of the task). `done` is the computing time, in
    seconds at full speed, of a lane that has always computed."""
    sending: list[tuple[float, int]] = []
    """(value of `now` at the task's end, index of the task)."""

    def begin(place: int) -> None:
        begins[place] = now
        computes = tasks[place].kind != "communication"
        end = (done if computes else now) + tasks[place].seconds
        heappush(computing if computes else sending, (end, place))

    for place, count in enumerate(waiting):
        if count == 0:
            begin(place)
    while computing or sending:
        speed = pace(len(computing)) if computing else 1.0
        computed = now + (computing[0][0] - done) / speed if computing else math.inf
        sent = sending[0][0] if sending else math.inf
        passed = min(computed, sent) - now
        done = computing[0][0] if computed <= sent else done + passed * speed
        now += passed
        _, place = heappop(computing if computed <= sent else sending)
        ends[place] = now
        for each in follows[place]:
            waiting[each] -= 1
            if waiting[each] == 0:
                begin(each)
    stuck = [task.name for task, end in zip(tasks, ends, strict=True) if math.isinf(end)]
    if stuck:
        raise ValueError(f"deadlock: {len(stuck)} tasks wait for each other, such as {stuck[0]}")
    return [Event(task, begins[n], ends[n]) for n, task in enumerate(tasks)]


# Steps

OUTSIDE = -1
STORAGE = "storage"
"""The lane of storage, which belongs to no worker."""


@dataclass(frozen=True)
class Layer:
    """A part of a network, with its times and bytes for one micro-batch on one worker."""

    name: str
    forward_s: float
    backward_s: float
    gradient_bytes: float = 0.0
    output_bytes: float = 0.0
    unit: int = OUTSIDE
    """Number of the unit with which the layer's weights are gathered. Layers outside of all units
    are gathered once for both passes."""
    frozen_bytes: float = 0.0
    """Bytes of weights without gradients."""


@dataclass(frozen=True)
class Crowd:
    """A group of identical workers."""

    count: int
    slower: float = 1.0
    """Factor for the time of each worker's computation."""

    def slowest(self, jitter: float) -> float:
        """Factor for the time of the slowest worker, if a step's computation has the relative
        standard deviation `jitter`: the expected largest of `count` normal values (Blom 1958)."""
        if jitter <= 0 or self.count <= 1:
            return self.slower
        z = NormalDist().inv_cdf((self.count - 0.375) / (self.count + 0.25))
        return self.slower * (1 + jitter * z)


def data_parallel(
    layers: Sequence[Layer],
    crowds: Sequence[Crowd],
    network: Network,
    reductions: Reductions,
    accumulate: int = 1,
    update_s: float = 0.0,
    jitter: float = 0.0,
    load_s: float = 0.0,
    storage_s: float = 0.0,
) -> list[Task]:
    """Tasks of a data-parallel step.

    These are forward and backward passes layer by layer, the reduction of gradients in buckets from
    the last layer on (in the last backward pass or in each backward pass), and the update. If
    weights are sharded, the weights of a bucket are gathered while the layers of the previous
    bucket compute. Weights of small layers are gathered only for the first micro-batch. Workers
    wait `load_s` seconds for each micro-batch. During the step, storage delivers the samples of the
    next step in `storage_s` seconds.
    """
    step = _DataParallel(layers, crowds, network, reductions, jitter)
    if storage_s:
        step.add("read the next batch", STORAGE, storage_s, (), "loader")
    lanes = list(step.factors)
    loads = [step.add("load", lane, load_s * accumulate, (), "loader") for lane in lanes if load_s]
    for index in range(accumulate):
        step.forward([*loads, *([] if reductions.overlap else step.reduced)])
        step.backward(reducing=reductions.every_pass or index == accumulate - 1)
    updated = [step.add("update", lane, update_s, step.reduced, "overhead") for lane in lanes]
    if reductions.gathers == "updated weights" and step.workers > 1:
        seconds = network.all_gather(step.workers, sum(step.held.values()))
        step.add("gather weights", "collectives", seconds, updated[-1:], "communication")
    return step.tasks


class _DataParallel:
    """The passes of a data-parallel step, task by task."""

    def __init__(
        self,
        layers: Sequence[Layer],
        crowds: Sequence[Crowd],
        network: Network,
        reductions: Reductions,
        jitter: float,
    ) -> None:
        self.tasks: list[Task] = []
        self.reduced: list[int] = []
        self.workers = sum(crowd.count for crowd in crowds)
        self._network, self._reductions = network, reductions
        self._segments = _segments(layers, reductions)
        self.held: dict[int, float] = defaultdict(float)
        """Bytes of each bucket's gradients."""
        self._sizes: dict[int, float] = defaultdict(float)
        """Bytes of each bucket's weights that the passes of the current micro-batch gather."""
        self._freed: dict[int, float] = defaultdict(float)
        for bucket, own in self._segments:
            weights = [layer.gradient_bytes + layer.frozen_bytes for layer in own]
            self.held[bucket] += sum(layer.gradient_bytes for layer in own)
            self._sizes[bucket] += sum(weights)
            self._freed[bucket] += sum(count for count in weights if count > reductions.kept_bytes)
        lanes = [f"{crowd.count:,} workers" for crowd in crowds]
        if len(crowds) > 1:
            lanes = [f"{lane}, group {number}" for number, lane in enumerate(lanes)]
        pairs = zip(crowds, lanes, strict=True)
        self.factors = {lane: crowd.slowest(jitter) for crowd, lane in pairs}
        self._sharded = reductions.gathers == "weights" and self.workers > 1
        self._gathered: dict[int, int] = {}
        self._done: list[list[int]] = []
        """For each finished segment, a list of its last task in each lane."""
        self._beside = 2 if reductions.overlap else 1

    def add(
        self, name: str, lane: str, seconds: float, after: Iterable[int] = (), kind: str = ""
    ) -> int:
        self.tasks.append(Task(name, lane, seconds, tuple(after), kind or "computation"))
        return len(self.tasks) - 1

    def forward(self, before: Sequence[int]) -> None:
        for bucket, own in reversed(self._segments):
            after = (*before, *self._gather(bucket, self._beside))
            self._pass([(f"forward {each.name}", each.forward_s) for each in own[::-1]], after)

    def backward(self, reducing: bool) -> None:
        overlap = self._reductions.overlap
        if self._reductions.gathers_again:
            kept = self._gathered.items()
            self._gathered = {bucket: task for bucket, task in kept if bucket == OUTSIDE}
        ends: dict[int, list[int]] = {}
        for place, (bucket, own) in enumerate(self._segments):
            # the segment at place 0 was freed at the end of the forward pass
            after = self._gather(bucket, self._beside if place else 1)
            if reducing and overlap and place:
                self._reduce_whole(place - 1, ends)
            self._pass([(f"backward {each.name}", each.backward_s) for each in own], after)
            ends[bucket] = self._done[-1]
        self._sizes, self._gathered = self._freed, {}
        if reducing and overlap:
            self._reduce_whole(len(self._segments) - 1, ends)
        elif reducing:
            for bucket in ends:
                self._reduce(bucket, self._done[-1])

    def _pass(self, named: Sequence[tuple[str, float]], after: tuple[int, ...]) -> None:
        for name, seconds in named:
            lanes = self.factors.items()
            tasks = [self.add(name, lane, factor * seconds, after) for lane, factor in lanes]
        self._done.append(tasks)

    def _gather(self, bucket: int, ahead: int) -> tuple[int, ...]:
        if not self._sharded:
            return ()
        if bucket not in self._gathered:
            size = self._reductions.gathered_bytes * self._sizes[bucket]
            seconds = self._network.all_gather(self.workers, size)
            after = self._done[-ahead] if len(self._done) >= ahead else ()
            name = f"gather weights {bucket}"
            self._gathered[bucket] = self.add(name, "collectives", seconds, after, "communication")
        return (self._gathered[bucket],)

    def _reduce(self, bucket: int, after: Iterable[int]) -> None:
        if self.workers > 1:
            # sharded weights need a reduce-scatter, which takes as long as an all-gather
            combine = self._network.all_gather if self._sharded else self._network.all_reduce
            seconds = combine(self.workers, self._reductions.compression * self.held[bucket])
            name = f"reduce bucket {bucket}"
            self.reduced.append(self.add(name, "collectives", seconds, after, "communication"))

    def _reduce_whole(self, place: int, ends: dict[int, list[int]]) -> None:
        """Reduce the bucket of the segment at `place`, unless a later segment belongs to it."""
        bucket = self._segments[place][0]
        if all(each != bucket for each, _ in self._segments[place + 1 :]):
            self._reduce(bucket, ends[bucket])


def _segments(layers: Sequence[Layer], reductions: Reductions) -> list[tuple[int, list[Layer]]]:
    """(number, layers) of each segment of the network, from the last layer to the first. A segment
    has the layers whose gradients fill a bucket, or consecutive layers of a unit; its number is
    that of the bucket or unit."""
    if reductions.by_unit:
        return [
            (unit, list(own)) for unit, own in groupby(reversed(layers), lambda each: each.unit)
        ]
    found: list[list[Layer]] = [[]]
    limit = reductions.first_bucket_bytes or reductions.bucket_bytes
    held = 0.0
    for layer in reversed(layers):
        if held >= limit:
            found.append([])
            held, limit = 0.0, reductions.bucket_bytes
        found[-1].append(layer)
        held += layer.gradient_bytes
    return list(enumerate(found))


def pipeline(
    stages: Sequence[Layer],
    schedule: Schedule,
    network: Network | None,
    copies: int = 1,
    update_s: float = 0.0,
    steps: int = 1,
) -> list[Task]:
    """Tasks of a pipeline's steps. Each worker executes its operations in order, and an operation
    begins after the transfer of its input. Before an update, there is an all-reduce between all
    workers of the stage in all copies.

    A transfer occupies its link (one link for each direction), but not the two workers. Without a
    network, transfers and all-reduces take no time.
    """
    tasks: list[Task] = []
    done: dict[tuple[str, int, int], int] = {}
    """(kind, stage, micro-batch) -> the task after which the result is at its destination."""
    peers: dict[tuple[int, int], list[int]] = defaultdict(list)
    """(stage, last micro-batch) of an update -> for each worker of the stage, the index of its last
    task before the update; the all-reduce waits for these tasks."""
    later: list[tuple[int, tuple[str, int, int]]] = []
    updates: list[tuple[int, tuple[int, int]]] = []
    for worker, own in enumerate(schedule.operations(steps)):
        lane, before = f"worker {worker}", -1
        for operation in own:
            stage, index = operation.stage, operation.micro_batch
            if operation.kind == "update":
                peers[stage, index].append(before)
                updates.append((len(tasks), (stage, index)))
                tasks.append(Task("update", lane, update_s, (), "overhead"))
                before = len(tasks) - 1
                continue
            forward = operation.kind == "forward"
            seconds = stages[stage].forward_s if forward else stages[stage].backward_s
            source, to = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
            if 0 <= source < len(stages):
                later.append((len(tasks), (operation.kind, source, index)))
            tasks.append(Task(f"{operation.kind} {index}", lane, seconds))
            before = len(tasks) - 1
            if 0 <= to < len(stages):
                target = schedule.worker(to, index)
                if target != worker:
                    count = stages[min(stage, to)].output_bytes
                    seconds = network.send(count, worker, target) if network else 0.0
                    link = f"link {worker} to {target}"
                    name = f"send {operation.kind} {index}"
                    tasks.append(Task(name, link, seconds, (before,), "communication"))
                done[operation.kind, stage, index] = len(tasks) - 1
    for place, key in later:
        tasks[place] = replace(tasks[place], after=(done[key],))
    reduced = {}
    for (stage, index), group in peers.items():
        count = len(group) * copies
        seconds = 0.0
        if count > 1 and network is not None:
            # assumes that workers of one stage are on different nodes
            apart = network.model_copy(update={"workers_per_node": 1})
            seconds = apart.all_reduce(count, stages[stage].gradient_bytes)
        lane = f"collectives of stage {stage}"
        after = tuple(each for each in group if each >= 0)
        tasks.append(Task("reduce", lane, seconds, after, "communication"))
        reduced[stage, index] = len(tasks) - 1
    for place, update in updates:
        tasks[place] = replace(tasks[place], after=(reduced[update],))
    return tasks


def pipeline_step(
    stages: Sequence[Layer],
    schedule: Schedule,
    network: Network | None,
    copies: int = 1,
    update_s: float = 0.0,
    pace: Pace = lambda _: 1.0,
    epoch: float = math.inf,
) -> Step:
    """Simulate a step. With a synchronous schedule, the pipeline is empty before and after the
    step. With an asynchronous schedule, it is empty only before and after an epoch of `epoch`
    steps, and the duration is the mean over these steps."""

    def simulated(steps: int) -> Step:
        return Step.of(pipeline(stages, schedule, network, copies, update_s, steps), pace, steps)

    if not schedule.asynchronous:
        return simulated(1)
    filled = schedule.steps_to_fill + 3
    shown = simulated(int(min(epoch, filled)))
    if epoch <= filled:
        return shown
    # in a full pipeline, durations repeat after a multiple of the micro-batches that are in flight
    in_flight = (schedule.delay(worker) + 1 for worker in range(schedule.workers))
    cycle = min(math.lcm(*in_flight), _LONGEST_CYCLE)
    few = filled + cycle
    if epoch <= few + cycle:
        return shown.lasting(simulated(int(epoch)).seconds)
    begun, more = simulated(few).span, simulated(few + cycle).span
    once_full = (more - begun) / cycle
    return shown.lasting(once_full + (begun - few * once_full) / epoch)


_LONGEST_CYCLE = 60
"""Maximum number of steps over which a full pipeline's step is averaged."""


# A simulation's results


@dataclass(frozen=True)
class Step:
    """A simulated step."""

    events: list[Event] = field(repr=False)
    steps: int
    """Number of steps that the events cover."""
    seconds: float
    """Mean duration of a step."""
    shares: dict[str, float]
    """Shares of the step's time on the busiest device lane: computation, overhead, loader, and the
    rest. The rest is exposed communication (and storage, if storage takes longest), or the bubble
    and transfers of a pipeline."""

    @classmethod
    def of(cls, tasks: Sequence[Task], pace: Pace = lambda _: 1.0, steps: int = 1) -> Step:
        """Simulate the tasks of `steps` steps. Raises ValueError if lanes wait for each other."""
        events = run(tasks, pace)
        seconds = max(event.end for event in events)
        busy: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for event in events:
            if event.task.kind != "communication" and event.task.lane != STORAGE:
                busy[event.task.lane][event.task.kind] += event.end - event.begin
        lane = max(busy, key=lambda name: sum(busy[name].values()))
        shares = {kind: part / seconds for kind, part in busy[lane].items()} if seconds else {}
        left = max(0.0, 1 - sum(shares.values()))
        name = "bubble and transfers" if lane.startswith("worker ") else "exposed communication"
        if any(event.end == seconds and event.task.lane == STORAGE for event in events):
            name = "exposed communication and storage"
        return cls(events, steps, seconds / steps, {**shares, name: left})

    def lasting(self, seconds: float) -> Step:
        """This step with the mean duration `seconds`, and with unchanged seconds of computation,
        overhead and loader."""
        *worked, rest = self.shares
        shares = {kind: self.shares[kind] * self.seconds / seconds for kind in worked}
        left = max(0.0, 1 - sum(shares.values()))
        return replace(self, seconds=seconds, shares={**shares, rest: left})

    @property
    def idle(self) -> float:
        """Mean share of the time in which a device lane is idle: a pipeline's bubble."""
        lanes: dict[str, float] = defaultdict(float)
        for event in self.events:
            if event.task.kind != "communication" and event.task.lane != STORAGE:
                lanes[event.task.lane] += event.end - event.begin
        return 1 - sum(lanes.values()) / (len(lanes) * self.steps * self.seconds)

    @property
    def span(self) -> float:
        """Seconds of all events, which for an asynchronous pipeline cover several steps."""
        return max(event.end for event in self.events)

    def trace(self) -> str:
        """The events in Chrome's trace format, which Perfetto opens; times are in microseconds."""
        lanes = list(dict.fromkeys(event.task.lane for event in self.events))
        named: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": place, "args": {"name": lane}}
            for place, lane in enumerate(lanes)
        ]
        named += [
            {
                "ph": "X",
                "name": event.task.name,
                "cat": event.task.kind,
                "pid": 0,
                "tid": lanes.index(event.task.lane),
                "ts": event.begin * 1e6,
                "dur": (event.end - event.begin) * 1e6,
            }
            for event in self.events
            if event.end > event.begin
        ]
        return json.dumps({"traceEvents": named, "displayTimeUnit": "ms"})

    def gantt(self, width: int = 100) -> list[str]:
        """One line of text per lane: F forward, B backward, c communication, u update, l load (a
        worker waits for its loader), r read (storage delivers the samples of the next step)."""
        lanes = list(dict.fromkeys(event.task.lane for event in self.events))
        longest = max(map(len, lanes))
        drawn = {lane: [" "] * width for lane in lanes}
        for event in self.events:
            first = int(event.begin / self.span * width)
            last = max(first + 1, round(event.end / self.span * width))
            mark = "c" if event.task.kind == "communication" else event.task.name[0]
            mark = mark.upper() if mark in "fb" else mark
            if event.end > event.begin:
                drawn[event.task.lane][first:last] = mark * (min(last, width) - first)
        return [f"{lane:<{longest}} |{''.join(drawn[lane])[:width]}|" for lane in lanes]
