"""Tensors alone, in tuples and in dictionaries: what a network is given and returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """`value` with `function` of each of its tensors; what is no tensor, tuple, list or mapping
    stays as it is. Mappings with a constructor of their own become dictionaries."""
    if isinstance(value, Mapping):
        return {key: mapped(each, function) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return tuple(mapped(each, function) for each in value)
    return function(value) if hasattr(value, "is_floating_point") else value


def leaves(value: Any) -> Iterator[Any]:
    """The tensors, or whatever is no tuple, list or mapping, in their order."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for each in value:
            yield from leaves(each)
    else:
        yield value


def rebuilt(like: Any, parts: Iterator[Any]) -> Any:
    """The next of `parts` for each of `leaves(like)`, in tuples and dictionaries as there."""
    if isinstance(like, Mapping):
        return {key: rebuilt(each, parts) for key, each in like.items()}
    if isinstance(like, tuple | list):
        return tuple(rebuilt(each, parts) for each in like)
    return next(parts)


def unpadded(value: Any, real: int) -> Any:
    """A batch's outputs or targets without its padding, which follows the first `real` samples,
    and with floating-point numbers in fp32."""

    def own(each: Any) -> Any:
        each = each.float() if each.is_floating_point() else each
        return each[:real] if each.dim() else each

    return mapped(value, own)


def called(network: Callable[..., Any], inputs: Any) -> Any:
    """`network(inputs)`: a tuple gives the positional arguments, a dictionary those with names."""
    if isinstance(inputs, dict):
        return network(**inputs)
    return network(*inputs) if isinstance(inputs, tuple) else network(inputs)
