"""A torch network as a list of operations, from which other frameworks build the same network.

Traced by torch.fx. Known are the operations of raysuite's CIFAR ResNets and of torchvision's
ResNets, VGGs and MobileNetV2; `raysuite.parallel.tensorflow` and `.jax` compute each of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from raysuite.errors import UserError


@dataclass(frozen=True)
class Operation:
    """What is computed from the results of earlier operations."""

    name: str
    kind: str
    """input, output, conv, norm, linear, relu, relu6, max_pool, avg_pool, mean, flatten, dropout,
    same, add, cat, subsample or widen."""
    inputs: tuple[str, ...]
    module: str = ""
    """Name in the torch network of the layer that has its weights."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """stride, padding, ... by the names of torch."""


_MODULES: dict[type[nn.Module], tuple[str, tuple[str, ...]]] = {
    nn.Conv2d: ("conv", ("stride", "padding", "dilation", "groups")),
    nn.BatchNorm2d: ("norm", ("eps", "momentum")),
    nn.Linear: ("linear", ()),
    nn.ReLU: ("relu", ()),
    nn.ReLU6: ("relu6", ()),
    nn.MaxPool2d: ("max_pool", ("kernel_size", "stride", "padding")),
    nn.AvgPool2d: ("avg_pool", ("kernel_size", "stride", "padding")),
    nn.AdaptiveAvgPool2d: ("mean", ("output_size",)),
    nn.Flatten: ("flatten", ("start_dim",)),
    nn.Dropout: ("dropout", ("p",)),
    nn.Identity: ("same", ()),
}
_FUNCTIONS: dict[Callable[..., Any], str] = {
    F.relu: "relu",
    torch.relu: "relu",
    F.relu6: "relu6",
    F.adaptive_avg_pool2d: "mean",
    torch.flatten: "flatten",
    operator.add: "add",
    operator.iadd: "add",
    torch.add: "add",
    torch.cat: "cat",
    operator.getitem: "subsample",
    F.pad: "widen",
}


def operations_of(model: nn.Module) -> list[Operation]:
    """The operations of `model`'s forward pass on one tensor of images, in order.

    Raises UserError for a network that cannot be traced, or that has another operation.
    """
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:  # whatever a forward pass does with a proxy
        raise UserError(
            f"model.name: {type(model).__name__} cannot be traced by torch.fx ({error}), and only "
            "a traced network can be built in another framework; take a strategy of PyTorch's"
        ) from error
    modules = dict(model.named_modules())
    return [_operation(node, modules) for node in graph.nodes]


def _operation(node: fx.Node, modules: dict[str, nn.Module]) -> Operation:
    inputs = tuple(each.name for each in node.all_input_nodes)
    if node.op == "placeholder":
        return Operation(node.name, "input", inputs)
    if node.op == "output":
        return Operation(node.name, "output", inputs)
    kind, numbers, module = "", {}, ""
    if node.op == "call_module":
        module = str(node.target)
        layer: Any = modules[module]
        kind, keys = _MODULES.get(type(layer), ("", ()))
        numbers = {key: getattr(layer, key) for key in keys}
        if not _computed(layer):
            kind = ""
    elif node.op == "call_function":
        kind = _FUNCTIONS.get(node.target, "")  # type: ignore[arg-type]
        kind, numbers = _of_function(kind, node)
    if kind == "mean" and numbers["output_size"] not in (1, (1, 1)):
        kind = ""
    if not kind:
        what = f"layer {module}: {modules[module]}" if module else f"operation {node.format_node()}"
        raise UserError(f"model.name: no other framework builds its {what}; take another strategy")
    return Operation(node.name, kind, inputs, module, numbers)


def _computed(layer: Any) -> bool:
    """Whether the options of a layer are among those that are computed elsewhere."""
    if isinstance(layer, nn.Conv2d):
        groups = layer.groups in (1, layer.in_channels)
        multiple = layer.groups == 1 or layer.out_channels == layer.in_channels
        explicit = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return groups and multiple and explicit
    if isinstance(layer, nn.BatchNorm2d):
        return layer.affine and layer.track_running_stats and layer.momentum is not None
    if isinstance(layer, nn.MaxPool2d):
        return not layer.ceil_mode and layer.dilation == 1
    if isinstance(layer, nn.AvgPool2d):
        padded = layer.padding in (0, (0, 0)) or layer.count_include_pad
        return not layer.ceil_mode and padded and layer.divisor_override is None
    return True


def _of_function(kind: str, node: fx.Node) -> tuple[str, dict[str, Any]]:
    """The kind, or none, and the numbers of a function's call."""
    rest: tuple[Any, ...] = (*node.args[1:], *node.kwargs.values())
    if kind == "mean":
        return kind, {"output_size": rest[0]}
    if kind == "flatten":
        return (kind if rest[:1] == (1,) else ""), {"start_dim": 1}
    if kind == "add":
        return (kind if len(node.all_input_nodes) == len(node.args) else ""), {}
    if kind == "cat":
        return (kind if rest == (1,) else ""), {}
    if kind == "widen":  # zeros behind the last channel
        added = tuple(rest[0])
        fits = len(added) == 6 and not any(added[:5])
        return (kind if fits else ""), {"channels": added[-1]}
    if kind == "subsample":  # every n-th pixel, as option A of a ResNet's shortcut
        index: Any = rest[0]
        whole = slice(None)
        fits = isinstance(index, tuple) and len(index) == 4 and index[:2] == (whole, whole)
        step = index[2].step if fits and isinstance(index[2], slice) else None
        fits = fits and index[2] == index[3] == slice(None, None, step)
        return (kind if fits else ""), {"step": step or 1}
    return kind, {}
