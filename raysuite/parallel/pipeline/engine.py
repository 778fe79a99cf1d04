"""The base of the pipeline engines: micro-batches pass through the stages of a network.

The ranks of a copy of the pipeline are consecutive, in the order of its stages. The first stage
loads the images of the copy's micro-batches. All ranks load the labels, and thus know how many
samples they receive. Micro-batches may therefore differ in size; each has the same samples as the
micro-batch of one process that accumulates gradients. The last stage computes the loss and counts
the samples.

Activations go to the next stage, and their gradients to the stage before. There is one process
group for each direction and chunk (see `Schedule`), so that transfers between two ranks of a group
are in the order of micro-batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from raysuite.errors import UserError
from raysuite.parallel.base import (
    Engine,
    MakeOptimizer,
    StepSettings,
    TorchEngine,
    TorchGroupStrategy,
    World,
    draws,
    kept_draws,
    kept_settings,
    read_state,
    restore_draws,
    set_lr,
)
from raysuite.parallel.comm import (
    Reduction,
    TorchComm,
    average_over_ranks,
    gather_plain,
    replace_by_mean,
)
from raysuite.parallel.marks import communication
from raysuite.parallel.pipeline.blocks import Block, blocks_of, counted, entered, prune
from raysuite.parallel.pipeline.partition import BlockCosts, measured_costs, stage_sizes
from raysuite.parallel.precision import DTYPES, MEMORY_FORMATS
from raysuite.spec.schedules import Operation
from raysuite.spec.strategies import PipelineOptions

if TYPE_CHECKING:
    from raysuite.data.base import Batch

_MOST_DIMENSIONS = 8
_SENT_DTYPES = tuple(DTYPES.values())


@dataclass(frozen=True)
class Groups:
    """Process groups of a rank."""

    forwards: Sequence[Any]
    """One group per chunk, for activations."""
    backwards: Sequence[Any]
    """One group per chunk, for the activations' gradients."""
    copy: Any
    """The ranks of this copy of the pipeline."""
    alike: Any
    """The ranks that hold the same stages as this rank."""

    def close(self) -> None:
        for group in (*self.forwards, *self.backwards, self.copy, self.alike):
            dist.destroy_process_group(group)


class Pipeline(TorchGroupStrategy):
    """With a synchronous schedule, gradients equal those of one process that accumulates over the
    micro-batches. With an asynchronous schedule, the weights of a pass may lack the latest updates,
    and some updates are made only in later steps."""

    def __init__(self, options: PipelineOptions) -> None:
        self.options = options
        self._groups: Groups | None = None

    def start(self, world: World) -> None:
        if self._groups:
            return
        schedule = self.options.pipeline()
        if world.size % schedule.workers:
            raise UserError(
                f"strategy.stages: one copy of the network takes {schedule.workers} workers; got "
                f"{world.size} workers; set resources.workers to a multiple of {schedule.workers}"
            )
        super().start(world)
        # all ranks must make all groups, in the same order
        own, ranks = schedule.workers, range(world.size)
        parts = [schedule.place(rank % own)[0] for rank in ranks]
        copies = [dist.new_group(ranks[at : at + own]) for at in ranks[::own]]
        alike = [
            dist.new_group([rank for rank in ranks if parts[rank] == part])
            for part in range(len(schedule.replicas))
        ]
        self._groups = Groups(
            [dist.new_group() for _ in range(schedule.chunks)],
            [dist.new_group() for _ in range(schedule.chunks)],
            copies[world.rank // own],
            alike[parts[world.rank]],
        )

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        assert self._groups is not None
        engine: type[PipelineEngine] = SynchronousEngine
        if self.options.pipeline().asynchronous:
            engine = import_module("raysuite.parallel.pipeline.asynchronous").AsynchronousEngine
        return engine(model, make_optimizer, self.world, settings, self.options, self._groups)

    def stop(self) -> None:
        if self._groups is not None:
            self._groups.close()
        self._groups = None
        super().stop()


@dataclass
class Measured:
    """Times and bytes of a worker's operations, recorded in `PipelineEngine.measured` if set."""

    clock: Callable[[], float]
    """Time in seconds, read after the device has finished its work."""
    memory: bool = False
    """Whether to count the bytes that forward passes save. Counting slows the passes down."""
    slots: list[tuple[Operation, float, float, float]] = field(default_factory=list)
    """(operation, begin, end, waiting for other workers in between); times in seconds."""
    waited_s: float = 0.0
    """Seconds of waiting in the current operation."""
    activation_bytes: int = 0
    """Largest number of bytes saved at the same time for backward passes, without weights."""
    sent_bytes: int = 0
    """Bytes sent to other stages."""


class PipelineEngine(TorchEngine):
    """Runs the forward and backward passes of one worker's stages, and exchanges activations and
    gradients with the neighbouring stages."""

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        world: World,
        settings: StepSettings,
        options: PipelineOptions,
        groups: Groups,
    ) -> None:
        self.options = options
        self.schedule = options.pipeline(settings.accumulate)
        self.groups = groups
        self.worker = world.rank % self.schedule.workers
        self.stage, place = self.schedule.place(self.worker)
        """The first of this worker's stages."""
        self.last = self.schedule.stages - 1
        blocks = blocks_of(model)
        self.costs: list[BlockCosts] | None = None
        """The costs of each block of the whole network, if measured."""
        if options.partition == "auto" and options.balance != "parameters":
            shape = (max(2, settings.micro_batch), *settings.image)
            images = torch.randn(shape, device=world.device)
            self.costs = measured_costs(model, blocks, images, partial(_autocast, world, settings))
        self.sizes = stage_sizes(options, blocks, self.costs)
        ends = list(accumulate(self.sizes))
        cut = [blocks[end - size : end] for end, size in zip(ends, self.sizes, strict=True)]
        own = range(self.stage, self.schedule.stages, len(self.schedule.replicas))
        self.blocks = {stage: cut[stage] for stage in own}
        # names in the whole model, read before other stages' modules are freed
        self._parameters = [name for name, _ in model.named_parameters()]
        whole = make_optimizer(model.parameters())
        self._whole_groups = whole.state_dict()["param_groups"]
        self._place = {name: index for index, name in enumerate(_names(whole, model))}
        """Parameter name -> its index in an optimiser of the whole model."""
        del whole
        self._held = [
            _Held(key, each.shape, each.dtype, stage)
            for key, each in _tensors(model).items()
            for stage, held in enumerate(cut)
            if _holds(held, each)
        ]
        of_stages = {held.key for held in self._held}
        self._of_none = [key for key in _tensors(model) if key not in of_stages]
        """Names of buffers outside all blocks, such as those of the network itself."""
        prune(model, [block for held in self.blocks.values() for block in held], blocks)
        self.measured: Measured | None = None
        """If set, operations are recorded here."""
        super().__init__(model, _MeasuredComm(world.device, self._waiting), world, settings)
        self.replicas = world.size // self.schedule.workers
        self.replica = world.rank // self.schedule.workers
        self.counts = self.last in self.blocks and place == 0
        self.takes_images = self.stage == 0
        self.own_statistics = world.size > len(self.schedule.replicas)
        self.scale.shares = self.replicas
        self.optimizer = make_optimizer(model.parameters())
        self.scale.guard(self.optimizer)
        self._own_order = _names(self.optimizer, model)
        self._under_way: dict[tuple[int, int], _Pass] = {}
        self._counted: dict[tuple[int, int], int] = {}
        self._sends: deque[tuple[Any, Tensor]] = deque()
        self._incoming: dict[tuple[int, int], tuple[torch.Size, torch.dtype]] = {}
        self._asked: dict[Operation, tuple[Any, Tensor]] = {}
        """Operation -> its receive in progress, and the tensor that is received."""
        self._returned: set[tuple[int, int]] = set()
        """(own stage, rank of the next stage) if a receive of gradients from it has begun."""
        self._announced: set[tuple[int, int]] = set()
        self._output: list[int] | None = None
        """The shape of the network's output for one sample: [classes], or [tokens, vocabulary]."""

    def execute(self, operations: Iterator[Operation], micro_batches: Sequence[Batch]) -> Tensor:
        """Run `operations`, and return the summed loss of this rank's samples, a scalar tensor.
        `micro_batches`: the micro-batches of the step, by index."""
        self._total = torch.zeros((), device=self.world.device)
        samples = [len(each.images) for each in micro_batches]
        todo = list(operations)
        for operation, following in zip_longest(todo, todo[1:]):
            begin = self._now()
            self._ask(operation, samples)
            # Gloo starts a transfer when requested. NCCL queues transfers on the device, where a
            # transfer that waits for this operation's result could block the operation
            if following is not None and self.world.device.type == "cpu":
                self._ask(following, samples, ahead=True)
            if operation.kind == "forward":
                batch = micro_batches[operation.micro_batch % self.schedule.micro_batches]
                self._pass_forward(operation, batch, self._given(batch.images, operation))
            elif operation.kind == "backward":
                self._pass_backward(operation)
            else:
                self.update(operation)
            if self.measured:
                self.measured.slots.append((operation, begin, self._now(), self.measured.waited_s))
                self.measured.waited_s = 0.0
        return self._total

    def _ask(self, operation: Operation, samples: Sequence[int], ahead: bool = False) -> None:
        """Begin to receive an operation's input, if it comes from another stage. Must be called in
        the order of operations. `samples`: the size of each micro-batch of the step. `ahead`:
        whether the operation before this one has not been executed yet. The input is then received
        only if its shape is known and an earlier transfer from the same rank has begun, because the
        first transfer between two ranks blocks until both take part."""
        stage = operation.stage
        if operation in self._asked:
            return
        if operation.kind == "forward" and stage:
            source = self._rank(stage - 1, operation.micro_batch)
            if not ahead or (stage - 1, source) in self._incoming:
                count = samples[operation.micro_batch % self.schedule.micro_batches]
                self._asked[operation] = self._activations(count, operation)
        elif operation.kind == "backward" and stage < self.last:
            made = self._under_way.get((stage, operation.micro_batch))
            source = self._rank(stage + 1, operation.micro_batch)
            if made is not None and (not ahead or (stage, source) in self._returned):
                self._returned.add((stage, source))
                group = self.groups.backwards[self._chunk(stage)]
                gradient = torch.empty(made.shape, dtype=made.dtype, device=self.world.device)
                self._asked[operation] = dist.irecv(gradient, source, group), gradient

    def _received(self, operation: Operation) -> Tensor:
        work, value = self._asked.pop(operation)
        with self._waiting():
            work.wait()
        return value

    def _now(self) -> float:
        return self.measured.clock() if self.measured else 0.0

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Record the time within the context as time of waiting for another worker."""
        began = self._now()
        with communication():
            yield
        if self.measured:
            self.measured.waited_s += self._now() - began

    def update(self, operation: Operation) -> None:
        """Update the weights of a stage with the gradients of a step."""
        raise NotImplementedError

    def graph(self, operation: Operation) -> AbstractContextManager[object]:
        """The context of a forward pass, in which saved memory is counted if requested."""
        return self._kept(operation) if self.measured and self.measured.memory else nullcontext()

    def _pass_forward(self, operation: Operation, batch: Batch, given: Tensor) -> None:
        stage, recompute = operation.stage, self._recomputes
        made = _Pass(given, batch, draws(self.world.device) if recompute else None)
        if stage and not recompute:
            given.requires_grad_()
        with torch.no_grad() if recompute else self.graph(operation):
            # a clone, because the first layer may change its input in place, and the repeated pass
            # needs the same input
            made.result = self._through(stage, given.clone() if recompute else given)
            if stage == self.last:
                made.result, summed = self.loss(batch, made.result)
                self._total += summed
        made.shape, made.dtype = made.result.shape, made.result.dtype
        if stage < self.last:
            self._pass_on(made.result.detach(), operation)
        if recompute:
            made.result = None
            if self.measured and self.measured.memory:
                self._count(operation, {given.untyped_storage().data_ptr(): _bytes(given)})
        self._under_way[stage, operation.micro_batch] = made

    def _pass_backward(self, operation: Operation) -> None:
        stage = operation.stage
        made = self._under_way.pop((stage, operation.micro_batch))
        result = made.result if made.result is not None else self._again(operation, made)
        gradient = self._received(operation) if stage < self.last else None
        if self.measured:
            self._counted.pop((stage, operation.micro_batch), None)
        result.backward(gradient)
        if stage:
            assert made.given.grad is not None
            target = self._rank(stage - 1, operation.micro_batch)
            self._send(made.given.grad, target, self.groups.backwards[self._chunk(stage - 1)])

    @property
    def _recomputes(self) -> bool:
        return self.options.recompute and self.schedule.delay(self.worker) > 0

    def _again(self, operation: Operation, made: _Pass) -> Tensor:
        """Repeat a forward pass, this time saving tensors for the backward pass. Random numbers are
        the same as before, and running statistics do not change."""
        buffers = [(each, each.clone()) for each in self.model.buffers()]
        with kept_draws(self.world.device):
            assert made.draws is not None
            restore_draws(self.world.device, made.draws)
            if operation.stage:
                made.given.requires_grad_()
            with self.graph(operation):
                result = self._through(operation.stage, made.given)
                if operation.stage == self.last:
                    result, _ = self.loss(made.batch, result)
        for buffer, before in buffers:
            # set by .data, because autograd refuses saved tensors that were changed in place
            buffer.data.copy_(before)
        return result

    @contextmanager
    def _kept(self, operation: Operation) -> Iterator[None]:
        """Count the bytes of the tensors that a forward pass saves for the backward pass, except
        parameters and buffers."""
        own = {
            each.untyped_storage().data_ptr()
            for each in (*self.model.parameters(), *self.model.buffers())
        }
        with counted(own) as kept:
            yield
        self._count(operation, kept)

    def _count(self, operation: Operation, kept: dict[int, int]) -> None:
        assert self.measured is not None
        self._counted[operation.stage, operation.micro_batch] = sum(kept.values())
        self.measured.activation_bytes = max(
            self.measured.activation_bytes, sum(self._counted.values())
        )

    def forward(self, images: Tensor) -> Tensor:
        result = images
        for stage in sorted(self.blocks):
            operation = Operation("forward", 0, stage)
            if self.schedule.worker(stage, 0) == self.worker:
                self._ask(operation, [len(images)])
                result = self._through(stage, self._given(images, operation))
                if stage < self.last:
                    self._pass_on(result, operation)
        self._sent()
        # the training loop expects logits on every rank of a copy
        source = self._rank(self.last, 0)
        if self._output is None:
            shape = torch.full((_MOST_DIMENSIONS,), -1, device=self.world.device)
            if self.counts:
                shape[: result.dim() - 1] = torch.tensor(result.shape[1:])
            dist.broadcast(shape, source, self.groups.copy)
            self._output = [size for size in shape.tolist() if size >= 0]
        if self.counts:
            result = result.float().contiguous()
        else:
            result = torch.empty(len(images), *self._output, device=self.world.device)
        dist.broadcast(result, source, self.groups.copy)
        return result

    def norm(self, own: Sequence[Tensor]) -> Tensor:
        square = torch.stack([each.norm() for each in own]).double().norm() ** 2
        stages = self.comm.all_gather(square).view(self.replicas, -1)[self.replica]
        return stages.sum().sqrt()

    def weights(self) -> dict[str, Tensor]:
        whole = self._gathered()
        return {name: whole[name] for name in self._parameters}

    def whole_state(self, weights: dict[str, Tensor]) -> dict[str, Any]:
        return self._gathered() | weights

    def complete(self, model: nn.Module) -> None:
        state = model.state_dict()
        for held in self._held:
            dist.broadcast(state[held.key], self._rank(held.stage, 0), self.groups.copy)

    def average_buffers(self) -> None:
        ranks = dist.get_world_size(self.groups.alike)
        if ranks > 1:
            average_over_ranks(self.model, self._summed, ranks)

    def save(self, folder: Path) -> None:
        """Write the whole model's state on rank 0 in the format of single-process engines, so that
        a run can resume with another number of stages, or without stages."""
        states, model = self._gathered_states(), self._gathered()
        if self.world.rank:
            return
        state = {self._place[name]: each for name, each in states.items()}
        optimizer = {"state": dict(sorted(state.items())), "param_groups": self._whole_groups}
        torch.save(
            {"model": model, "optimizer": optimizer, "scale": self.scale.state()},
            folder / "engine.pt",
        )

    def load(self, folder: Path) -> None:
        state = read_state(folder / "engine.pt")
        kept = {key: state["model"][key] for key in _tensors(self.model)}
        self.model.load_state_dict(kept)
        whole = state["optimizer"]["state"]
        own = self.optimizer.state_dict()
        own["state"] = {
            index: whole[self._place[name]]
            for index, name in enumerate(self._own_order)
            if self._place[name] in whole
        }
        with kept_settings(self.optimizer):
            self.optimizer.load_state_dict(own)
        self.scale.load_state(state["scale"])

    def close(self) -> None:
        super().close()
        self._under_way.clear()
        self.blocks = {}

    def _through(self, stage: int, x: Tensor) -> Tensor:
        x = entered(x)
        with _autocast(self.world, self.settings):
            for block in self.blocks[stage]:
                x = block(x)
        return x

    def _chunk(self, stage: int) -> int:
        """The chunk (see `Schedule`) to which a stage belongs."""
        return stage // len(self.schedule.replicas)

    def _rank(self, stage: int, micro_batch: int) -> int:
        first = self.replica * self.schedule.workers
        return first + self.schedule.worker(stage, micro_batch)

    def _given(self, images: Tensor, operation: Operation) -> Tensor:
        """The input of a stage: `images`, or activations [b, ...] of the stage before."""
        if operation.stage == 0:
            return images.contiguous(memory_format=MEMORY_FORMATS[self.settings.memory_format])
        return self._received(operation)

    def _activations(self, count: int, operation: Operation) -> tuple[Any, Tensor]:
        """Begin to receive the activations of `count` samples from the stage before."""
        before, device = operation.stage - 1, self.world.device
        source = self._rank(before, operation.micro_batch)
        group = self.groups.forwards[self._chunk(before)]
        if (before, source) not in self._incoming:  # the shape of a sample never changes
            head = torch.empty(1 + _MOST_DIMENSIONS, dtype=torch.int64, device=device)
            dist.recv(head, source, group)
            number, *sizes = head[head >= 0].tolist()
            self._incoming[before, source] = torch.Size(sizes), _SENT_DTYPES[number]
        shape, dtype = self._incoming[before, source]
        activations = torch.empty((count, *shape), dtype=dtype, device=device)
        return dist.irecv(activations, source, group), activations

    def _pass_on(self, activations: Tensor, operation: Operation) -> None:
        stage = operation.stage
        target = self._rank(stage + 1, operation.micro_batch)
        group = self.groups.forwards[self._chunk(stage)]
        if (stage, target) not in self._announced:
            head = torch.full((1 + _MOST_DIMENSIONS,), -1, dtype=torch.int64)
            shape = [_SENT_DTYPES.index(activations.dtype), *activations.shape[1:]]
            head[: len(shape)] = torch.tensor(shape)
            self._send(head.to(self.world.device), target, group)
            self._announced.add((stage, target))
        self._send(activations, target, group)

    def _send(self, value: Tensor, rank: int, group: Any) -> None:
        value = value.contiguous()
        self._sends.append((dist.isend(value, rank, group), value))
        if self.measured:
            self.measured.sent_bytes += _bytes(value)

    def _sent(self, left: int = 0) -> None:
        """Wait until all but the last `left` sends are done, then release their memory."""
        with self._waiting():
            while len(self._sends) > left:
                work, _ = self._sends.popleft()
                work.wait()

    @property
    def versions(self) -> int:
        """Largest number of weight versions in memory at the same time."""
        return 1

    def average_gradients(self) -> None:
        """Average gradients over copies of the pipeline. If a stage has several workers in a copy,
        each has the gradients of some micro-batches, and these are added."""
        gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
        if dist.get_world_size(self.groups.alike) > 1:
            replace_by_mean(gradients, self._summed, self.replicas)

    def _summed(self, flat: Tensor) -> Tensor:
        """Sum `flat`, in place, over the ranks with the same stages."""
        with self._waiting():
            dist.all_reduce(flat, group=self.groups.alike)
        return flat

    def _gathered(self) -> dict[str, Tensor]:
        """The whole model's state on the CPU, from all stages; buffers outside all blocks have this
        rank's values. All ranks must call this."""
        own = _tensors(self.model)
        found = {key: own[key].detach().cpu() for key in self._of_none}
        for held in self._held:
            value = torch.empty(held.shape, dtype=held.dtype)
            if held.stage in self.blocks:
                value.copy_(own[held.key].detach())
            dist.broadcast(value, self._rank(held.stage, 0), self.groups.copy)
            found[held.key] = value
        return found

    def _gathered_states(self) -> dict[str, dict[str, Any]]:
        """Parameter name in the whole model -> its optimiser state on the CPU, collected from the
        stages of this copy. All ranks must call this."""
        own = self.optimizer.state_dict()["state"]
        mine = {name: own[index] for index, name in enumerate(self._own_order) if index in own}
        own_kinds = {
            name: {key: _kind(value) for key, value in state.items()}
            for name, state in mine.items()
        }
        kinds = gather_plain(self.comm, own_kinds)
        found: dict[str, dict[str, Any]] = {}
        for held in self._held:
            source = self._rank(held.stage, 0)
            for key, (dtype, value) in kinds[source].get(held.key, {}).items():
                if dtype is not None:
                    value = torch.empty(value, dtype=_SENT_DTYPES[dtype])
                    if source == self.world.rank:
                        value.copy_(mine[held.key][key])
                    dist.broadcast(value, source, self.groups.copy)
                found.setdefault(held.key, {})[key] = value
        return found


class SynchronousEngine(PipelineEngine):
    """In each step, the pipeline runs until it is empty; then all stages are updated."""

    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        set_lr(self.optimizer, lr)
        self.optimizer.zero_grad()
        self.scale.carry(micro_batches[0].of_global)
        return self.execute(self.schedule.step(self.worker, 0), micro_batches)

    def update(self, operation: Operation) -> None:
        if operation.stage not in self.blocks or operation.stage != max(self.blocks):
            return  # one call updates all stages of the worker
        self._sent()
        self.average_gradients()
        self.take_step()


class _MeasuredComm(TorchComm):
    """Records the time of collectives as waiting. Stages wait for each other when gradients are
    clipped or checked for overflow in fp16."""

    def __init__(
        self, device: torch.device, waiting: Callable[[], AbstractContextManager[object]]
    ) -> None:
        super().__init__(device)
        self._waiting = waiting

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        with self._waiting():
            return super().all_reduce(value, reduction)

    def all_gather(self, value: Tensor) -> Tensor:
        with self._waiting():
            return super().all_gather(value)


@dataclass
class _Pass:
    """A micro-batch between its forward and backward pass through a stage."""

    given: Tensor
    batch: Batch
    draws: dict[str, Any] | None
    """The random states before the forward pass, if it will be repeated."""
    result: Tensor | None = None
    shape: Sequence[int] = ()
    """The shape of the result."""
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class _Held:
    """An entry of the whole model's `state_dict`, and the stage that holds it."""

    key: str
    shape: torch.Size
    dtype: torch.dtype
    stage: int


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return model.state_dict(keep_vars=True)


def _autocast(world: World, settings: StepSettings) -> AbstractContextManager[object]:
    if settings.precision == "fp32":
        return nullcontext()
    return torch.autocast(world.device.type, dtype=DTYPES[settings.precision])


def _bytes(value: Tensor) -> int:
    return value.numel() * value.element_size()


def _kind(value: Any) -> tuple[int | None, Any]:
    """(index of the dtype, shape) of a tensor; (None, value) of a number."""
    if isinstance(value, Tensor):
        return _SENT_DTYPES.index(value.dtype), list(value.shape)
    return None, value


def _holds(blocks: Sequence[Block], value: Tensor) -> bool:
    own = (
        each
        for block in blocks
        for module in block.modules
        for each in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    )
    return any(each is value for each in own)


def _names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    """The names of an optimiser's parameters, in the order of its state."""
    names = {each: name for name, each in model.named_parameters()}
    return [names[each] for group in optimizer.param_groups for each in group["params"]]
