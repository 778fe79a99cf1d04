"""PyTorch's fully sharded data parallelism, version 2 (`torch.distributed.fsdp.fully_shard`; Zhao
et al. 2023, "PyTorch FSDP", VLDB 16:12, arXiv:2304.11277).

Each rank keeps its shard of every weight, gradient and optimiser state. The weights of a unit (see
`units`) are gathered before its forward pass and, with `reshard_after_forward`, again before its
backward pass. After the backward pass, its gradients are reduce-scattered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from raysuite.errors import UserError
from raysuite.parallel.base import (
    Engine,
    MakeOptimizer,
    StepSettings,
    TorchEngine,
    TorchGroupStrategy,
    World,
    kept_settings,
    read_state,
)
from raysuite.parallel.comm import TorchComm, gather_plain
from raysuite.parallel.precision import local_part
from raysuite.spec.strategies import FsdpOptions

if TYPE_CHECKING:
    from raysuite.data.base import Batch

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Fsdp(TorchGroupStrategy):
    """Weights, gradients and optimiser state are sharded over ranks."""

    options: FsdpOptions

    def __init__(self, options: FsdpOptions) -> None:
        super().__init__(options)
        self._mesh: DeviceMesh | None = None

    def start(self, world: World) -> None:
        """Join torch's group. Raises UserError if `copies` is `nodes` and nodes have different
        numbers of ranks, or the ranks of a node are not consecutive."""
        super().start(world)
        copies = self._copies(world)
        shape: tuple[int, ...] = (world.size,)
        names: tuple[str, ...] = ("shard",)
        if copies > 1:
            shape, names = (copies, world.size // copies), ("copy", "shard")
        self._mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=names)

    def _copies(self, world: World) -> int:
        if self.options.copies != "nodes":
            return self.options.copies
        hosts = gather_plain(TorchComm(world.device), gethostname())
        nodes = dict.fromkeys(hosts)
        if hosts != [node for node in nodes for _ in range(world.size // len(nodes))]:
            raise UserError(
                "strategy.copies: the value `nodes` needs the same number of workers on each node; "
                f"got {sorted(Counter(hosts).values())}; set resources.workers to a multiple of "
                "the number of nodes, or set strategy.copies to a number"
            )
        return len(nodes)

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        assert self._mesh is not None, "start() comes first"
        return FsdpEngine(model, make_optimizer, self.world, settings, self.options, self._mesh)


def units(model: nn.Module, each: str) -> list[nn.Module]:
    """The modules of `model` that are units: a unit's weights are gathered together, and its
    gradients are reduced together. All remaining weights form one more unit. A module that shares a
    weight with a module outside it is not a unit of its own, because torch can shard a weight only
    once.

    `each`: `blocks` selects the outermost modules that contain modules with weights and whose class
    occurs several times, such as residual blocks; containers such as nn.Sequential are not
    selected. `layers` selects every module with weights of its own.
    """
    uses = _uses(model)

    def apart(parts: Iterable[nn.Module]) -> list[nn.Module]:
        return [part for part in dict.fromkeys(parts) if _uses(part).items() <= uses.items()]

    if each == "layers":
        return apart(part for part in model.modules() if list(part.parameters(recurse=False)))

    def composite(part: nn.Module) -> bool:
        inner = any(list(child.parameters()) for child in part.children())
        return inner and not isinstance(part, _CONTAINERS)

    kinds = Counter(type(part) for part in model.modules() if composite(part))

    def below(part: nn.Module) -> Iterator[nn.Module]:
        for child in part.children():
            if composite(child) and kinds[type(child)] > 1:
                yield child
            else:
                yield from below(child)

    return apart(below(model))


def _uses(model: nn.Module) -> Counter[nn.Parameter]:
    """Parameter -> the number of the model's modules that have it."""
    return Counter(own for part in model.modules() for own in part.parameters(recurse=False))


class FsdpEngine(TorchEngine):
    """A training step that reduce-scatters the gradients in its last backward pass."""

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        world: World,
        settings: StepSettings,
        options: FsdpOptions,
        mesh: DeviceMesh,
    ) -> None:
        model.to(memory_format=torch.contiguous_format)  # FSDP can only shard contiguous weights

        # The optimiser is made before sharding: its patterns match the names of unsharded
        # parameters.
        self.optimizer = make_optimizer(model.parameters())
        names = {id(each): name for name, each in model.named_parameters()}
        offload = OffloadPolicy()
        if options.offload == "parameters":
            offload = CPUOffloadPolicy(pin_memory=world.device.type == "cuda")
        settings_of_all: dict[str, Any] = {
            "mesh": mesh,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=_DTYPES[options.gather_dtype],
                reduce_dtype=_DTYPES[options.reduce_dtype],
            ),
            "offload_policy": offload,
        }
        for part in units(model, options.units):
            if part is not model:
                fully_shard(
                    part, reshard_after_forward=options.reshard_after_forward, **settings_of_all
                )
        # Only the model's output is fp32. A unit's output keeps its dtype: the next layer may be in
        # bf16.
        settings_of_all["mp_policy"] = replace(
            settings_of_all["mp_policy"], output_dtype=torch.float32
        )
        self._root: FSDPModule = fully_shard(model, **settings_of_all)
        shards = dict(model.named_parameters())
        for group in self.optimizer.param_groups:
            group["params"] = [shards[names[id(each)]] for each in group["params"]]
        self.optimizer.state.clear()  # still empty; its keys are unsharded weights
        super().__init__(model, TorchComm(world.device), world, settings, whole_gradients=True)
        self.scale.guard(self.optimizer)
        self._shards = mesh.size(-1)

    def add_gradients(self, batch: Batch, last: bool) -> Tensor:
        self._root.set_requires_gradient_sync(last)
        return super().add_gradients(batch, last)

    def forward(self, images: Any) -> Any:
        logits = super().forward(images)
        for part in self.model.modules():  # else some weights stay gathered until a backward pass
            if isinstance(part, FSDPModule):
                part.reshard()
        return logits

    def weights(self) -> dict[str, Tensor]:
        return {
            name: each.detach().full_tensor().cpu().clone()  # type: ignore[attr-defined]
            for name, each in self.model.named_parameters()
        }

    def save(self, folder: Path) -> None:
        """Write this rank's shards, if the rank is in the first copy; all copies are equal."""
        if self.world.rank < self._shards:
            state = {"shards": self._shards, **_local(self._state())}
            torch.save(state, folder / f"engine-{self.world.rank}.pt")

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Read this rank's shards. The checkpoint may have been written by more or fewer ranks."""
        own = partial(share_of, ranks=self._shards, rank=self.world.rank % self._shards)
        first = read_state(folder / "engine-0.pt", mapped=True)
        others = range(1, first["shards"])
        parts = [first, *(read_state(folder / f"engine-{n}.pt", mapped=True) for n in others)]
        whole = {}
        for key, value in self.model.state_dict().items():
            if isinstance(value, DTensor):
                value.to_local().copy_(own([part["model"][key] for part in parts]))
            else:  # a buffer, or what a module's get_extra_state returned
                whole[key] = first["model"][key]
        self.model.load_state_dict(whole, strict=False)
        states = [part["optimizer"]["state"] for part in parts]
        weights = [each for group in self.optimizer.param_groups for each in group["params"]]
        resumed: dict[int, dict[str, Any]] = {}
        for index, found in states[0].items():
            resumed[index] = {}
            for key, value in found.items():
                if isinstance(value, Tensor) and value.ndim:  # value has its weight's shape
                    kept = torch.zeros_like(weights[index])
                    local_part(kept).copy_(own([each[index][key] for each in states]))
                else:
                    kept = value.clone() if isinstance(value, Tensor) else value
                resumed[index][key] = kept
        with kept_settings(self.optimizer):
            self.optimizer.load_state_dict({**first["optimizer"], "state": resumed})
        self.scale.load_state(first["scale"])


def share_of(shards: list[Tensor], ranks: int, rank: int) -> Tensor:
    """The rows that `rank` keeps if a tensor is sharded over `ranks` ranks by torch.chunk, as in
    `torch.distributed.tensor.Shard`. `shards`: the whole tensor, as any number of shards."""
    whole = torch.cat(shards)
    rows = -(-len(whole) // ranks)
    return whole[rows * rank :][:rows]


def _local(state: Any) -> Any:
    """`state` with each sharded tensor replaced by this rank's part."""
    if isinstance(state, dict):
        return {key: _local(value) for key, value in state.items()}
    return local_part(state) if isinstance(state, Tensor) else state
