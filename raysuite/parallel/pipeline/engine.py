"""A network cut into stages, one on each worker, through which micro-batches pass.

Ranks [r * stages, (r + 1) * stages) are copy r of the pipeline, in the order of its stages. All
of them load the micro-batches of that copy: the first stage uses the images, the last one the
labels, and each knows by them how many samples it is sent. So micro-batches may differ in size and
are those of one process that accumulates; each sample counts once, on the last stage.

Activations go to the next stage and their gradients to the one before, each by a process group of
its own: within one, the transfers of two neighbours are in the order of micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
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
    World,
    kept_settings,
    set_lr,
)
from raysuite.parallel.comm import TorchComm, join_torch_group, leave_torch_group
from raysuite.parallel.pipeline.blocks import Block, blocks_of, partition, prune
from raysuite.parallel.precision import MEMORY_FORMATS
from raysuite.spec.strategies import PipelineOptions

if TYPE_CHECKING:
    from raysuite.data.base import Batch

_MOST_DIMENSIONS = 8


class Pipeline:
    """Gradients are those of one process that accumulates over the micro-batches."""

    lossy = False

    def __init__(self, options: PipelineOptions) -> None:
        self.options = options
        self._joined = False
        self._world: World | None = None
        self._groups: list[Any] = []
        """Activations, their gradients, the ranks of this copy, the ranks of this stage."""

    def start(self, world: World) -> None:
        if self._groups:
            return
        if world.size % self.options.stages:
            raise UserError(
                f"strategy.stages: {self.options.stages} stages need as many workers or a multiple "
                f"of it; given were {world.size}"
            )
        self._world = world
        self._joined = join_torch_group(world.rank, world.size, world.device)
        # all ranks make all groups, in the same order
        stages, ranks = self.options.stages, range(world.size)
        copies = [dist.new_group(ranks[at : at + stages]) for at in ranks[::stages]]
        alike = [dist.new_group(ranks[stage::stages]) for stage in range(stages)]
        self._groups = [
            dist.new_group(),
            dist.new_group(),
            copies[world.rank // stages],
            alike[world.rank % stages],
        ]

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        assert self._world is not None, "start() comes first"
        return PipelineEngine(
            model, make_optimizer, self._world, settings, self.options, self._groups
        )

    def stop(self) -> None:
        for group in self._groups:
            dist.destroy_process_group(group)
        self._groups = []
        if self._joined:
            leave_torch_group()
            self._joined = False


class PipelineEngine(TorchEngine):
    """One stage: executes its operations of the schedule."""

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        world: World,
        settings: StepSettings,
        options: PipelineOptions,
        groups: Sequence[Any],
    ) -> None:
        self.options = options
        self.stage = world.rank % options.stages
        self.last = options.stages - 1
        self._forwards, self._backwards, self._copy, self._alike = groups
        blocks = blocks_of(model)
        sizes = stage_sizes(options, blocks)
        first = sum(sizes[: self.stage])
        self.blocks = blocks[first : first + sizes[self.stage]]
        # of the whole model, before the other stages' part of it is freed
        self._parameters = [name for name, _ in model.named_parameters()]
        whole = make_optimizer(model.parameters())
        self._whole_groups = whole.state_dict()["param_groups"]
        self._place = {name: index for index, name in enumerate(_names(whole, model))}
        """Parameter -> its place in an optimiser of the whole model."""
        del whole
        ends = list(accumulate(sizes))
        self._held = [
            _Held(key, each.shape, each.dtype, stage)
            for key, each in _tensors(model).items()
            for stage, end in enumerate(ends)
            if _holds(blocks[end - sizes[stage] : end], each)
        ]
        prune(model, self.blocks)
        super().__init__(model, TorchComm(world.device), world, settings)
        self.replicas = world.size // options.stages
        self.replica = world.rank // options.stages
        self.counts = self.stage == self.last
        self.optimizer = make_optimizer(model.parameters())
        self._own_order = _names(self.optimizer, model)
        self._sends: list[tuple[Any, Tensor]] = []
        self._incoming: tuple[torch.Size, torch.dtype] | None = None
        self._told = False
        self._classes: int | None = None

    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        set_lr(self.optimizer, lr)
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.world.device)
        under_way: dict[int, tuple[Tensor, Tensor]] = {}
        for operation in self.options.pipeline(len(micro_batches)).step(self.stage, 0):
            if operation.kind == "update":
                continue
            batch = micro_batches[operation.micro_batch]
            if operation.kind == "forward":
                given = self._given(batch.images)
                if self.stage:
                    given.requires_grad_()
                result = self._through(given)
                if self.stage == self.last:
                    result, summed = self.loss(batch, result)
                    total += summed
                else:
                    self._pass_on(result.detach())
                under_way[operation.micro_batch] = given, result
            else:
                given, result = under_way.pop(operation.micro_batch)
                gradient = None
                if self.stage < self.last:
                    gradient = torch.empty_like(result)
                    dist.recv(gradient, self.world.rank + 1, self._backwards)
                result.backward(gradient)
                if self.stage:
                    assert given.grad is not None
                    self._send(given.grad, self.world.rank - 1, self._backwards)
        self._sent()
        self._average_gradients()
        self.take_step()
        return total

    def forward(self, images: Tensor) -> Tensor:
        result = self._through(self._given(images))
        if self.stage < self.last:
            self._pass_on(result)
        self._sent()
        # the loop asks for the logits on every rank of a copy
        source = (self.replica + 1) * self.options.stages - 1
        if self._classes is None:
            classes = torch.tensor([result.shape[-1]], device=self.world.device)
            dist.broadcast(classes, source, self._copy)
            self._classes = int(classes)
        if self.stage < self.last:
            result = result.new_empty(len(images), self._classes)
        dist.broadcast(result, source, self._copy)
        return result

    def clip(self) -> None:
        """Scale the gradients down to `clip_norm`, by the norm over all stages."""
        if self.settings.clip_norm is None:
            return
        gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
        own = torch.stack([each.norm() for each in gradients]).double().norm() ** 2
        stages = self.comm.all_gather(own).view(self.replicas, -1)[self.replica]
        # as torch.nn.utils.clip_grad_norm_
        factor = self.settings.clip_norm / (float(stages.sum().sqrt()) + 1e-6)
        if factor < 1:
            torch._foreach_mul_(gradients, factor)

    def weights(self) -> dict[str, Tensor]:
        whole = self._gathered()
        return {name: whole[name] for name in self._parameters}

    def whole_state(self, weights: dict[str, Tensor]) -> dict[str, Any]:
        return self._gathered() | weights

    def average_buffers(self) -> None:
        buffers = [each for each in self.model.buffers() if each.is_floating_point()]
        if buffers:
            self._average(buffers)

    def save(self, folder: Path) -> None:
        """Rank 0 writes the whole model's state as engines of one process do, so that it can be
        resumed with another number of stages, or without any."""
        own = self.optimizer.state_dict()["state"]
        mine = {name: own[index] for index, name in enumerate(self._own_order) if index in own}
        found: list[Any] = [None] * self.world.size
        cpu = {
            name: {key: _on_cpu(value) for key, value in one.items()} for name, one in mine.items()
        }
        dist.gather_object(cpu, found if self.world.rank == 0 else None)
        model = self._gathered()
        if self.world.rank:
            return
        by_name = {name: each for stage in found for name, each in stage.items()}
        state = {self._place[name]: each for name, each in by_name.items()}
        optimizer = {"state": dict(sorted(state.items())), "param_groups": self._whole_groups}
        torch.save(
            {"model": model, "optimizer": optimizer, "scale": self.scale.state()},
            folder / "engine.pt",
        )

    def load(self, folder: Path) -> None:
        state = torch.load(folder / "engine.pt", map_location="cpu", weights_only=True)
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
        self.blocks = []

    def _through(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def _given(self, images: Tensor) -> Tensor:
        """What this stage is given for `images` [b, C, H, W]: them, or the activations [b, ...] of
        the stage before."""
        if self.stage == 0:
            return images.contiguous(memory_format=MEMORY_FORMATS[self.settings.memory_format])
        source, device = self.world.rank - 1, self.world.device
        if self._incoming is None:  # the shape of one sample stays the same
            head = torch.empty(_MOST_DIMENSIONS, dtype=torch.int64, device=device)
            dist.recv(head, source, self._forwards)
            self._incoming = torch.Size(head[head >= 0].tolist()), torch.float32
        shape, dtype = self._incoming
        activations = torch.empty((len(images), *shape), dtype=dtype, device=device)
        dist.recv(activations, source, self._forwards)
        return activations

    def _pass_on(self, activations: Tensor) -> None:
        if not self._told:
            head = torch.full((_MOST_DIMENSIONS,), -1, dtype=torch.int64)
            head[: activations.dim() - 1] = torch.tensor(activations.shape[1:])
            self._send(head.to(self.world.device), self.world.rank + 1, self._forwards)
            self._told = True
        self._send(activations, self.world.rank + 1, self._forwards)

    def _send(self, value: Tensor, rank: int, group: Any) -> None:
        value = value.contiguous()
        self._sends.append((dist.isend(value, rank, group), value))

    def _sent(self) -> None:
        """Wait for all that was sent; until then its memory is kept."""
        for work, _ in self._sends:
            work.wait()
        self._sends.clear()

    def _average_gradients(self) -> None:
        self._average([each.grad for each in self.model.parameters() if each.grad is not None])

    def _average(self, tensors: Sequence[Tensor]) -> None:
        """Give all copies of this stage the mean of each tensor."""
        if self.replicas == 1:
            return
        flat = torch.cat([each.flatten() for each in tensors])
        dist.all_reduce(flat, group=self._alike)
        parts = (flat / self.replicas).split([each.numel() for each in tensors])
        for each, mean in zip(tensors, parts, strict=True):
            each.copy_(mean.view_as(each))

    def _gathered(self) -> dict[str, Tensor]:
        """The state of the whole model on the CPU, from the stages of this copy. All ranks must
        call it."""
        own, found = _tensors(self.model), {}
        for held in self._held:
            value = torch.empty(held.shape, dtype=held.dtype)
            if held.stage == self.stage:
                value.copy_(own[held.key].detach())
            dist.broadcast(value, self.replica * self.options.stages + held.stage, self._copy)
            found[held.key] = value
        return found


@dataclass(frozen=True)
class _Held:
    """An entry of the whole model's `state_dict`, and who has it."""

    key: str
    shape: torch.Size
    dtype: torch.dtype
    stage: int


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return model.state_dict(keep_vars=True)


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


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


def stage_sizes(options: PipelineOptions, blocks: Sequence[Block]) -> Sequence[int]:
    """Blocks of each stage. Raises UserError where the network has too few, or another number than
    the options' partition."""
    if options.partition == "auto":
        costs = [sum(each.numel() for each in block.parameters) for block in blocks]
        return partition(costs, options.stages)
    if sum(options.partition) != len(blocks):
        raise UserError(
            f"strategy.partition: given was {list(options.partition)}, {sum(options.partition)} "
            f"blocks, and the network has {len(blocks)}; give {options.stages} numbers with that "
            "sum, or auto"
        )
    return options.partition
