"""The gate for other people's code: it needs torch, but neither Ray nor Horovod nor a compiler.

Call `check` on every rank, for example under torchrun in a framework's continuous integration.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raysuite.errors import GateError, UserError, some
from raysuite.measure.script_steps import digest

if TYPE_CHECKING:
    import torch
    from torch import nn

TOLERANCE = 1e-5
"""Default upper bound of the relative error, for fp32. A different order of summation causes an
error of about 1e-7; a gradient that is not averaged causes an error of about 1."""


@dataclass(frozen=True)
class Checked:
    """The result of a check that passed."""

    steps: int
    parameters: int
    """Number of the model's parameters and buffers whose names are not in `ignore`."""
    ranks: int
    ranks_compared: bool
    """Whether all tensors were compared between ranks; False if a tensor is sharded, because no two
    ranks hold the same part of it."""
    error: float | None
    """Largest relative error compared with the reference; None if there is no reference."""


def check(
    step: Callable[[int], object],
    model: nn.Module,
    *,
    steps: int = 3,
    reference: nn.Module | None = None,
    reference_step: Callable[[int], object] | None = None,
    tolerance: float = TOLERANCE,
    ignore: tuple[str, ...] = (),
) -> Checked:
    """Train for some steps and compare: all ranks with rank 0 and, if given, with a reference.

    `step(n)` takes optimiser step n, counted from 0, on this rank's part of the global batch, and
    changes `model`. `reference_step(n)` takes this step in one process on the whole global batch,
    and changes `reference`, which starts with the same weights as `model`. Without
    torch.distributed there is one rank.

    After each step every parameter and buffer must be bit-equal on all ranks, unless it is sharded
    or its name is in `ignore`. If there is a reference, ||w - r|| / ||r - r0|| must be at most
    `tolerance` for each parameter w that is not in `ignore`, where r is the reference's value and
    r0 is r before the first step; if r = r0, w must equal r. Sharded tensors are gathered for this
    comparison.

    Raises GateError on every rank; the message names the first parameter that differs, its rank and
    its step. Raises UserError for `steps` below 1, if only one of `reference` and `reference_step`
    is given, if the two networks differ in the names or shapes of parameters, for layers that are
    still lazy, and for shards that are not DTensors (FullyShardedDataParallel, ZeRO 3), because
    these cannot be compared.
    """
    ranks = _Ranks()
    if (reference is None) != (reference_step is None):
        raise UserError("reference and reference_step go together; give both, or neither")
    if steps < 1:
        raise UserError(f"steps: got {steps}; it should be at least 1")
    _refuse_incomparable(model, reference)
    before: dict[str, torch.Tensor] = {}
    if reference is not None:
        before = {name: _whole(each).clone() for name, each in _parameters(reference).items()}
        own = {(name, each.shape) for name, each in _parameters(model).items()}
        unequal = own ^ {(name, each.shape) for name, each in before.items()}
        if unequal:
            listed = some(sorted({name for name, _ in unequal}), 5)
            raise UserError(
                "the model and the reference differ in the names or shapes of the parameters "
                f"{listed}; build both from the same network"
            )
        _compare_begin(model, before, ranks)
    error, compared = None, True
    tensors: dict[str, torch.Tensor] = {}
    for n in range(steps):
        step(n)
        tensors = {name: each for name, each in _tensors(model).items() if name not in ignore}
        compared = _compare_ranks(tensors, ranks, n) and compared
        if reference is not None and reference_step is not None:
            reference_step(n)
            found = _compare_reference(tensors, reference, before, ranks, n, tolerance)
            error = max(error or 0.0, found)
    return Checked(steps, len(tensors), ranks.size, compared, error)


class _Ranks:
    """The number of ranks, and communication between them."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist = dist if dist.is_available() and dist.is_initialized() else None
        self.size: int = self._dist.get_world_size() if self._dist else 1

    def gathered(self, own: Any) -> list[Any]:
        """The ranks' values, in rank order. They are sent as JSON: unpickling could run code."""
        if self._dist is None:
            return [own]
        import torch

        backend = self._dist.get_backend()
        device = "cuda" if "nccl" in backend and "gloo" not in backend else "cpu"
        data = torch.tensor(list(json.dumps(own).encode()), dtype=torch.uint8, device=device)
        size = data.new_tensor([len(data)], dtype=torch.int64)
        sizes = [torch.empty_like(size) for _ in range(self.size)]
        self._dist.all_gather(sizes, size)
        padded = data.new_zeros(max(int(each) for each in sizes))
        padded[: len(data)] = data
        found = [torch.empty_like(padded) for _ in range(self.size)]
        self._dist.all_gather(found, padded)
        return [
            json.loads(bytes(each[: int(size)].tolist()))
            for each, size in zip(found, sizes, strict=True)
        ]


_WRAPPED = ("module", "_orig_mod", "_fsdp_wrapped_module", "_forward_module")
"""Attributes in which DistributedDataParallel, torch.compile, FSDP and Lightning Fabric keep the
wrapped model."""


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers by name, without the prefixes of wrappers."""
    found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    while any(found and all(name.startswith(f"{each}.") for name in found) for each in _WRAPPED):
        found = {name.partition(".")[2]: each for name, each in found.items()}
    return found


def _parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    own = {id(each) for each in model.parameters()}
    return {name: each for name, each in _tensors(model).items() if id(each) in own}


def _whole(tensor: Any) -> torch.Tensor:
    """A detached tensor, gathered from its shards."""
    whole: torch.Tensor = (
        tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    ).detach()
    return whole


def _in_64_bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the CPU in fp64, or in complex128 if it is complex."""
    import torch

    return tensor.to("cpu", torch.complex128 if tensor.is_complex() else torch.float64)


def _is_sharded(tensor: Any) -> bool:
    return any(not each.is_replicate() for each in getattr(tensor, "placements", ()))


def _refuse_incomparable(model: nn.Module, reference: nn.Module | None) -> None:
    from torch.nn.parameter import is_lazy

    own, whole = _tensors(model), {} if reference is None else _tensors(reference)
    if lazy := [name for name, each in (*own.items(), *whole.items()) if is_lazy(each)]:
        raise UserError(
            f"got lazy layers, whose tensors {some(lazy, 3)} have no shape yet; pass a batch "
            "through the network before the check"
        )
    wrapped = any(type(each).__name__ == "FullyShardedDataParallel" for each in model.modules())
    parameters = _parameters(model).items()
    # a network may have parameters without elements: then the reference has them too
    empty = [
        n for n, each in parameters if not each.numel() and (n not in whole or whole[n].numel())
    ]
    if wrapped or empty:
        given = (
            "FullyShardedDataParallel"
            if wrapped
            else f"parameters without elements ({some(empty, 3)})"
        )
        raise UserError(
            f"got {given}: the gate cannot compare these shards; shard with "
            "torch.distributed.fsdp.fully_shard, whose shards (DTensors) it can compare, or, if "
            "the unsharded network also has parameters without elements, give a reference"
        )


def _compare_ranks(tensors: Mapping[str, torch.Tensor], ranks: _Ranks, step: int) -> bool:
    """Whether all tensors could be compared. Raises GateError if a rank differs from rank 0."""
    whole = {name: digest(each) for name, each in tensors.items() if not _is_sharded(each)}
    everyone = ranks.gathered(whole)
    for rank, own in enumerate(everyone):
        for name in dict.fromkeys((*everyone[0], *own)):
            if own.get(name) != everyone[0].get(name):
                raise GateError(
                    f"{name} of rank {rank} differs from that of rank 0 after step {step}: its "
                    "gradient is not reduced, or the ranks began with different values"
                )
    return len(whole) == len(tensors)


def _compare_begin(model: nn.Module, before: Mapping[str, torch.Tensor], ranks: _Ranks) -> None:
    own = {name: _whole(each) for name, each in _parameters(model).items()}
    wrong = [n for n, each in own.items() if not bool((each.cpu() == before[n].cpu()).all())]
    for rank, names in enumerate(ranks.gathered(wrong)):
        if names:
            raise GateError(
                f"{names[0]} of rank {rank} differs from the reference before the first step; "
                "start both with the same weights"
            )


def _compare_reference(
    tensors: Mapping[str, torch.Tensor],
    reference: nn.Module,
    before: Mapping[str, torch.Tensor],
    ranks: _Ranks,
    step: int,
    tolerance: float,
) -> float:
    """The largest relative error on any rank. Raises GateError if it is above the tolerance."""
    errors: dict[str, float] = {}
    for name, wanted in _parameters(reference).items():
        if name not in tensors:
            continue
        right, start = _in_64_bits(_whole(wanted)), _in_64_bits(before[name])
        off = float((_in_64_bits(_whole(tensors[name])) - right).norm())
        change = float((right - start).norm())
        errors[name] = 0.0 if off == 0.0 else off / change if change > 0 else math.inf
    worst = 0.0
    for rank, found in enumerate(ranks.gathered(errors)):
        for name, error in found.items():
            if not error <= tolerance:
                raise GateError(
                    f"{name} of rank {rank} differs from the reference after step {step}: "
                    f"error / update is {error:.2g}; at most {tolerance:.0e} is allowed"
                )
            worst = max(worst, error)
    return worst
