"""Cut a network into stages: measure the cost of each block, and find the best partition."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

from raysuite.errors import UserError
from raysuite.parallel.comm import TorchComm, gather_plain
from raysuite.parallel.pipeline.blocks import Block, counted, entered
from raysuite.spec.schedules import Schedule, in_flight, versions_held
from raysuite.spec.strategies import PipelineOptions

_WARM_UP, _TIMED = 2, 5


@dataclass(frozen=True)
class BlockCosts:
    """The costs of one block for one micro-batch; times are 0 if not measured."""

    parameter_bytes: int
    forward_s: float = 0.0
    backward_s: float = 0.0
    kept_bytes: int = 0
    """Bytes that the forward pass saves for the backward pass, without weights."""
    output_bytes: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of both passes."""
        return self.forward_s + self.backward_s


def partition(count: int, stages: int, cost: Callable[[int, int, int], float]) -> list[int]:
    """The number of blocks in each stage. Stages are contiguous and have at least one block; the
    largest cost of a stage is minimal.

    `cost(stage, begin, end)` is the cost of a stage with the blocks [begin, end). The minimum is
    found by dynamic programming over the number of stages and the number of leading blocks, in
    O(stages * count^2). Among equally good partitions, the one with fewer blocks in the earlier
    stages is returned. Raises UserError if there are fewer blocks than stages.
    """
    if count < stages:
        raise UserError(
            f"strategy.stages: got {stages}, but the network has only {count} blocks; give "
            f"at most {count} stages"
        )
    # best[n]: (largest cost, sizes) of the first n blocks in the stages so far
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage in range(stages):
        best = {
            end: min(
                (max(worst, cost(stage, start, end)), (*sizes, end - start))
                for start, (worst, sizes) in best.items()
                if start < end
            )
            for end in range(1, count + 1)
            if any(start < end for start in best)
        }
    return list(best[count][1])


def stage_sizes(
    options: PipelineOptions, blocks: Sequence[Block], costs: Sequence[BlockCosts] | None = None
) -> Sequence[int]:
    """The number of blocks in each stage. `costs`: the measured costs by which stages are balanced;
    by default, parameters are balanced. Raises UserError if the network has fewer blocks than
    stages, or not as many blocks as `options.partition` states."""
    schedule = options.pipeline()
    if options.partition != "auto":
        if sum(options.partition) != len(blocks):
            raise UserError(
                f"strategy.partition: got {list(options.partition)}, {sum(options.partition)} "
                f"blocks, but the network has {len(blocks)}; give {schedule.stages} numbers that "
                "add up to the blocks of the network, or the word auto"
            )
        return options.partition
    known = costs or [BlockCosts(_parameter_bytes(block)) for block in blocks]
    balance = options.balance if costs is not None else "parameters"
    return partition(
        len(blocks), schedule.stages, stage_cost(balance, schedule, known, options.recompute)
    )


def stage_cost(
    balance: str, schedule: Schedule, costs: Sequence[BlockCosts], recompute: bool = False
) -> Callable[[int, int, int], float]:
    """The function that `partition` takes as `cost`, for one value of `balance`.

    time: seconds per micro-batch, divided by the number of workers of the stage. parameters: bytes
    of the weights. memory: bytes of all versions of the weights, of gradient and momentum, and of
    the activations of all micro-batches in flight. A stage that recomputes activations holds the
    activations of only one micro-batch, and its own inputs for all micro-batches in flight.
    """

    def sums(values: Sequence[float]) -> list[float]:
        return [0.0, *accumulate(values)]

    if balance == "memory":
        steps = schedule.steps_to_fill + 3
        operations = schedule.operations(steps)
        parts = len(schedule.replicas)
        own = [operations[schedule.worker(stage, 0)] for stage in range(parts)]
        held = [in_flight(each) / schedule.chunks for each in own]
        copies = [versions_held(each) + 2 for each in own]
        weights = sums([each.parameter_bytes for each in costs])
        kept = sums([each.kept_bytes for each in costs])

        def size(stage: int, begin: int, end: int) -> float:
            part, activations = stage % parts, kept[end] - kept[begin]
            if recompute and schedule.delay(schedule.worker(part, 0)):
                # images of the first stage are not counted: they are in the loader's memory
                given = costs[begin - 1].output_bytes if begin else 0
                activations += held[part] * given
            else:
                activations *= held[part]
            return copies[part] * (weights[end] - weights[begin]) + activations

        return size
    each = sums([one.seconds if balance == "time" else one.parameter_bytes for one in costs])
    replicas = schedule.replicas if balance == "time" else (1,)
    return lambda stage, begin, end: (each[end] - each[begin]) / replicas[stage % len(replicas)]


def measured_costs(
    model: nn.Module, blocks: Sequence[Block], images: Tensor, autocast: Callable[[], object]
) -> list[BlockCosts]:
    """Rank 0's `block_costs`, returned on all ranks. All ranks must call this."""
    found = block_costs(model, blocks, images, autocast) if dist.get_rank() == 0 else []
    rows = gather_plain(TorchComm(torch.device("cpu")), [astuple(each) for each in found])
    return [BlockCosts(*row) for row in rows[0]]


def block_costs(
    model: nn.Module, blocks: Sequence[Block], images: Tensor, autocast: Callable[[], object]
) -> list[BlockCosts]:
    """The costs of each block for `images` [b, C, H, W]; times are medians of five passes.

    Leaves torch's random state and the model's buffers unchanged.
    """
    before = [(each, each.clone()) for each in model.buffers()]
    cuda = [images.device] if images.device.type == "cuda" else []
    model.train()
    with torch.random.fork_rng(devices=cuda):
        rounds = [_once(blocks, images, autocast) for _ in range(_WARM_UP + _TIMED)]
    for buffer, value in before:
        buffer.copy_(value)
    return [
        BlockCosts(
            each[0].parameter_bytes,
            statistics.median(one.forward_s for one in each),
            statistics.median(one.backward_s for one in each),
            each[0].kept_bytes,
            each[0].output_bytes,
        )
        for each in zip(*rounds[_WARM_UP:], strict=True)
    ]


def _once(
    blocks: Sequence[Block], images: Tensor, autocast: Callable[[], object]
) -> list[BlockCosts]:
    found, x = [], images
    for index, block in enumerate(blocks):
        weights = {each.untyped_storage().data_ptr() for each in block.parameters}
        x = x.detach().requires_grad_(index > 0)
        with counted(weights) as kept:
            began = _now(x)
            with autocast():  # type: ignore[attr-defined]
                result = block(entered(x))
            forward = _now(x) - began
        gradient = torch.ones_like(result)
        began = _now(x)
        torch.autograd.grad(
            result, [*block.parameters, *([x] if index else [])], gradient, allow_unused=True
        )
        backward = _now(x) - began
        size = result.numel() * result.element_size()
        found.append(
            BlockCosts(_parameter_bytes(block), forward, backward, sum(kept.values()), size)
        )
        x = result
    return found


def _now(value: Tensor) -> float:
    if value.device.type == "cuda":
        torch.cuda.synchronize(value.device)
    return time.perf_counter()


def _parameter_bytes(block: Block) -> int:
    return sum(each.numel() * each.element_size() for each in block.parameters)
