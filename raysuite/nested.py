"""Inputs and outputs of networks: single tensors, and tensors in tuples and dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """`value` with `function` applied to each tensor; other values stay as they are. Lists become
    tuples, and all mappings become dictionaries."""
    if isinstance(value, Mapping):
        return {key: mapped(each, function) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return tuple(mapped(each, function) for each in value)
    return function(value) if hasattr(value, "is_floating_point") else value


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of `value`: tensors, and all other values except tuples, lists and mappings."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for each in value:
            yield from leaves(each)
    else:
        yield value


def rebuilt(like: Any, parts: Iterator[Any]) -> Any:
    """Copy the structure of `like`, with the items of `parts` as its leaves, in order."""
    if isinstance(like, Mapping):
        return {key: rebuilt(each, parts) for key, each in like.items()}
    if isinstance(like, tuple | list):
        return tuple(rebuilt(each, parts) for each in like)
    return next(parts)


def unpadded(value: Any, real: int) -> Any:
    """A batch's outputs or targets without the padding after the first `real` samples, and with
    floating-point numbers as fp32."""

    def own(each: Any) -> Any:
        each = each.float() if each.is_floating_point() else each
        return each[:real] if each.dim() else each

    return mapped(value, own)


def called(network: Callable[..., Any], inputs: Any) -> Any:
    """Call a network. A tuple becomes positional arguments, a dictionary keyword arguments."""
    if isinstance(inputs, dict):
        return network(**inputs)
    return network(*inputs) if isinstance(inputs, tuple) else network(inputs)


def real_views(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors, with each complex tensor replaced by its real view [..., 2], in which both parts
    are separate numbers."""
    import torch

    return [torch.view_as_real(each) if each.is_complex() else each for each in tensors]
