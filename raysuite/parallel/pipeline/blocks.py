"""Divide a network into a list of blocks; a pipeline can be cut between any two of them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from raysuite.errors import UserError

_EXTRA_STATE = "_extra_state"
"""A `state_dict` contains the result of a module's get_extra_state under a key with this suffix."""

Part = Callable[[Tensor], Tensor]
"""A module of the network, or a function without weights."""


@dataclass(frozen=True)
class Block:
    """Parts that are called in order; exactly one tensor passes between blocks."""

    parts: tuple[Part, ...]

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    @property
    def modules(self) -> Iterator[nn.Module]:
        """Every module of the block, including submodules and their containers."""
        for part in self.parts:
            if isinstance(part, nn.Module):
                yield from part.modules()

    @property
    def parameters(self) -> dict[nn.Parameter, None]:
        """All parameters of the block, each once."""
        return {each: None for module in self.modules for each in module.parameters(recurse=False)}


def blocks_of(model: nn.Module) -> list[Block]:
    """The blocks of `model`. Parts without parameters belong to the block before.

    Supported are raysuite's CIFAR ResNets, torchvision's ResNets, VGGs and MobileNetV2,
    nn.Sequential, and any module with a method `layers()` that returns its layers in the order of
    calls. A layer is a module, a function without weights, or a sequence of modules and functions
    that stays in one block.

    Raises UserError for any other model, for a parameter that is in no block or in several blocks,
    and for a module with an extra state.
    """
    merged: list[list[Part]] = [[]]
    for parts in _layers(model):
        own = Block(tuple(parts))
        if own.parameters and Block(tuple(merged[-1])).parameters:
            merged.append([])
        merged[-1] += parts
    found = [Block(tuple(parts)) for parts in merged]
    seen = Counter(id(each) for block in found for each in block.parameters)
    named = dict(model.named_parameters())
    wrong = {
        "its layers do not contain {}": [n for n, each in named.items() if not seen[id(each)]],
        "several blocks contain {}; weights cannot be tied": [
            name for name, each in named.items() if seen[id(each)] > 1
        ],
        "{} would be lost; keep it in a buffer, not in get_extra_state()": [
            name for name in model.state_dict() if name.rpartition(".")[2] == _EXTRA_STATE
        ],
    }
    told = [text.format(", ".join(names[:5])) for text, names in wrong.items() if names]
    if told:
        raise UserError(
            f"strategy.name: the value `pipeline` cannot be used with {type(model).__name__}: "
            f"{'; '.join(told)}"
        )
    return found


def entered(x: Tensor) -> Tensor:
    """Pass the input of a stage through an operation, because autograd does not allow a layer to
    change a leaf, or a view of a leaf, in place."""
    found: Tensor = _Entered.apply(x) if x.requires_grad else x
    return found


class _Entered(torch.autograd.Function):
    """The identity, without a copy."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


_IN_16_BITS = {
    *("conv1d", "conv2d", "conv3d", "conv_transpose2d", "linear", "matmul", "__matmul__", "mm"),
    *("bmm", "addmm", "baddbmm", "prelu", "scaled_dot_product_attention"),
}
_IN_32_BITS = {"layer_norm", "group_norm", "softmax", "log_softmax", "cross_entropy"}
"""Functions that networks call and that torch.autocast computes in 16 or 32 bits on a GPU
("Automatic Mixed Precision package", CUDA op reference)."""


class _Formats(TorchFunctionMode):
    """Casts inputs as torch.autocast does, also on the meta device."""

    def __init__(self, lower: torch.dtype) -> None:
        super().__init__()
        self._lower = lower

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        wanted = {name in _IN_16_BITS: self._lower, name in _IN_32_BITS: torch.float32}.get(True)

        def cast(value: Any) -> Any:
            floats = isinstance(value, Tensor) and value.is_floating_point()
            return value.to(wanted) if floats and wanted else value

        return func(*map(cast, args), **{k: cast(v) for k, v in (kwargs or {}).items()})


def sent_bytes(blocks: Sequence[Block], x: Tensor, lower: torch.dtype | None) -> list[int]:
    """The bytes of each block's output for one sample. `x`: a batch, which may be on the meta
    device; `lower`: the 16-bit dtype of mixed precision, or None."""
    found = []
    with torch.no_grad(), _Formats(lower) if lower else nullcontext():
        for block in blocks:
            x = block(x)
            found.append(x.numel() * x.element_size() // len(x))
    return found


@contextmanager
def counted(own: set[int]) -> Iterator[dict[int, int]]:
    """Data pointer -> bytes of each storage that forward passes in the context keep until the
    backward pass, except the storages whose data pointers are in `own`."""
    kept: dict[int, int] = {}

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return value.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        yield kept


def _layers(model: Any) -> list[list[Part]]:
    flat = partial(torch.flatten, start_dim=1)
    if inspect.ismethod(getattr(model, "layers", None)):  # a submodule may be called `layers` too
        return [[each] if callable(each) else list(each) for each in model.layers()]
    from torchvision.models import VGG, MobileNetV2, ResNet  # slow, and rarely needed

    if isinstance(model, ResNet):
        stem: list[Part] = [model.conv1, model.bn1, model.relu, model.maxpool]
        stages = [model.layer1, model.layer2, model.layer3, model.layer4]
        bodies: list[list[Part]] = [[block] for stage in stages for block in stage]
        return [stem, *bodies, [model.avgpool, flat, model.fc]]
    if isinstance(model, VGG):
        head = model.classifier
        last = _in_a_row(head) if isinstance(head, nn.Sequential) else [[head]]
        return [*_in_a_row(model.features), [model.avgpool, flat], *last]
    if isinstance(model, MobileNetV2):
        pool = nn.AdaptiveAvgPool2d(1)
        return [*([each] for each in model.features), [pool, flat], *_in_a_row(model.classifier)]
    if isinstance(model, nn.Sequential):
        return _in_a_row(model)
    raise UserError(
        "strategy.name: the value `pipeline` needs a network that raysuite can divide into layers, "
        f"and {type(model).__name__} is not one; valid: raysuite's CIFAR ResNets, torchvision's "
        "ResNets, VGGs and mobilenet_v2, nn.Sequential, and any module with a method layers() "
        "that returns its layers in the order of calls"
    )


def _in_a_row(sequence: nn.Sequential) -> list[list[Part]]:
    """One block per layer; a layer that changes its input in place joins the block before."""
    found: list[list[Part]] = []
    for layer in sequence:
        if found and getattr(next(layer.modules()), "inplace", False):
            found[-1].append(layer)
        else:
            found.append([layer])
    return found


def prune(model: nn.Module, kept: Sequence[Block], blocks: Sequence[Block]) -> None:
    """Remove from `model` each module that is in one of `blocks` but in none of the blocks `kept`.

    The remaining modules keep their names. Modules outside all blocks remain, because functions
    between layers may call them. `model` itself can no longer be called.
    """
    own = {module for block in kept for module in block.modules}
    freed = {module for block in blocks for module in block.modules} - own
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child in freed and own.isdisjoint(child.modules()):
                module._modules[name] = None
