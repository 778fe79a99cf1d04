"""Code that the families of models share."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from raysuite.spec.datasets import DatasetFacts

Constructor = tuple[Callable[..., Any], dict[str, Any]]
"""The function that makes a model, and its arguments from the data set."""


def example(facts: DatasetFacts, count: int, device: torch.device | str | None = None) -> Any:
    """Zeros with the shape of `count` samples: images [count, C, H, W], tokens [count, T], or the
    shape of the user's own data set."""
    if facts.inputs:
        return _zeros(json.loads(facts.inputs), count, device)
    if facts.sequence:
        return torch.zeros(count, facts.sequence, dtype=torch.long, device=device)
    size = facts.image_size
    return torch.zeros(count, facts.channels, size, size, device=device)


def _zeros(described: Any, count: int, device: torch.device | str | None) -> Any:
    """Zeros with the dtypes and shapes of DatasetFacts' `inputs`."""
    if isinstance(described, dict):
        return {name: _zeros(each, count, device) for name, each in described.items()}
    if isinstance(described, list):
        return tuple(_zeros(each, count, device) for each in described)
    dtype, _, shape = described.partition("[")
    sizes = [int(size) for size in shape.rstrip("]").split(",") if size]
    return torch.zeros(count, *sizes, dtype=getattr(torch, dtype), device=device)


def torchvision_model(name: str, num_classes: int, options: dict[str, Any]) -> Any:
    """The torchvision model `name`, untrained unless the options set `weights`."""
    import torchvision

    return torchvision.models.get_model(
        name, **{"weights": None, "num_classes": num_classes, **options}
    )


_WITHOUT_HEADS = {"aux_logits": False, "init_weights": True}
"""With auxiliary heads, a network in training mode would return more than its logits.
`init_weights` is set because torchvision will change its default."""


def torchvision_constructor(name: str, facts: DatasetFacts) -> Constructor:
    """The constructor of a torchvision model, and its arguments for the data set. The image size is
    given to ViT and MaxViT only; the layers of other models are not adapted to it."""
    import torchvision

    arguments: dict[str, Any] = {"weights": None, "num_classes": facts.classes}
    if name in ("googlenet", "inception_v3"):
        arguments |= _WITHOUT_HEADS
    if name.startswith("vit_"):  # the position embedding has a fixed size
        arguments["image_size"] = facts.image_size
    if name.startswith("maxvit_"):  # the windows must tile the image
        arguments["input_size"] = (facts.image_size, facts.image_size)
    return partial(torchvision.models.get_model, name), arguments


def first_convolution(
    theirs: nn.Conv2d, in_channels: int, kernel_size: int | None = None, stride: int | None = None
) -> nn.Conv2d:
    """A new convolution to replace `theirs`, the first convolution of a network. It has
    `in_channels` input channels and, if given, another kernel size and stride. With stride 1 and an
    odd kernel size, the output has the height and width of the input.

    Weights are initialised as in torchvision's ResNets, VGGs and MobileNetV2: normal, with variance
    2 / fan-out (He et al. 2015, arXiv:1502.01852, eq. 14), for any number of input channels.
    """
    size = kernel_size or theirs.kernel_size[0]
    ours = nn.Conv2d(
        in_channels,
        theirs.out_channels,
        size,
        stride=stride or theirs.stride[0],
        padding=size // 2,
        bias=theirs.bias is not None,
    )
    nn.init.kaiming_normal_(ours.weight, mode="fan_out", nonlinearity="relu")
    if ours.bias is not None:
        nn.init.zeros_(ours.bias)
    return ours
