"""torchvision's MobileNetV2, with a stem that depends on the image size.

The large stem is torchvision's. With the small stem, the first convolution and the second stage
have stride 1, as in DDLBench on MNIST and CIFAR-10. Unlike the paper (Sandler et al. 2018,
arXiv:1801.04381), DDLBench has a 1 x 1 convolution in the first block, and in each shortcut where
the number of channels changes. raysuite leaves them out: with ten classes, its small network has
2.24 million parameters, and DDLBench's has 2.30 million.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from raysuite.models.base import first_convolution, torchvision_model
from raysuite.spec.stems import stem_of

_SMALL_STAGES = (
    # expansion, channels, blocks, stride
    (1, 16, 1, 1),
    (6, 24, 2, 1),  # stride 2 in the paper
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(
    *, num_classes: int, in_channels: int, image_size: int, stem: str | None = None, **options: Any
) -> nn.Module:
    """[b, in_channels, H, W] -> [b, num_classes] logits, for images of any size.

    `options` are options of torchvision's MobileNetV2, such as width_mult and dropout.
    """
    small = stem_of("mobilenet_v2", image_size, stem) == "small"
    if small:
        stages = [list(stage) for stage in _SMALL_STAGES]
        options = {"inverted_residual_setting": stages, **options}
    model = torchvision_model("mobilenet_v2", num_classes, options)
    first = model.features[0]
    if small:
        first[0] = first_convolution(first[0], in_channels, stride=1)
    elif in_channels != first[0].in_channels:
        first[0] = first_convolution(first[0], in_channels)
    built: nn.Module = model
    return built
