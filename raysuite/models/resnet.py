"""torchvision's ResNets, ResNeXts and wide ResNets, with a stem that depends on the image size.

The large stem is torchvision's. The small stem is a 3 x 3 convolution of stride 1 without pooling,
as in DDLBench on MNIST and CIFAR-10. With both stems, the state_dict has torchvision's names. In a
bottleneck block that downsamples, torchvision's 3 x 3 convolution has the stride 2 (ResNet "v1.5");
in He et al. 2015 (arXiv:1512.03385), the first 1 x 1 convolution has it. torchvision's networks
need 2 to 6 % more FLOPs.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from raysuite.models.base import first_convolution, torchvision_model
from raysuite.spec.stems import stem_of


def resnet(
    name: str,
    *,
    num_classes: int,
    in_channels: int,
    image_size: int,
    stem: str | None = None,
    **options: Any,
) -> nn.Module:
    """[b, in_channels, H, W] -> [b, num_classes] logits, for images of any size.

    `options` are options of torchvision's ResNet, such as zero_init_residual.
    """
    model = torchvision_model(name, num_classes, options)
    if stem_of(name, image_size, stem) == "small":
        model.conv1 = first_convolution(model.conv1, in_channels, kernel_size=3, stride=1)
        model.maxpool = nn.Identity()
    elif in_channels != model.conv1.in_channels:
        model.conv1 = first_convolution(model.conv1, in_channels)
    built: nn.Module = model
    return built
