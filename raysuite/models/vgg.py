"""torchvision's VGGs, with a head that depends on the image size.

The large head is torchvision's, three layers on 7 x 7 pixels. The small head is one layer from 512
channels to the classes, as in DDLBench on MNIST and CIFAR-10. For 28 x 28 pixels, DDLBench leaves
the fifth pooling out, because one pixel is left after four poolings. raysuite leaves out each
pooling whose input has one pixel, so that images may have any size. If several pixels are left
after the last pooling (for images of at least 64 x 64 pixels), the head gets their mean.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torchvision.models.vgg import VGG, cfgs, make_layers

from raysuite.models.base import first_convolution, torchvision_model
from raysuite.spec.stems import stem_of

_CONFIGURATIONS = {"vgg11": "A", "vgg13": "B", "vgg16": "D", "vgg19": "E"}
"""torchvision's letters for the configurations of Simonyan and Zisserman 2014 (arXiv:1409.1556)."""


def vgg(
    name: str,
    *,
    num_classes: int,
    in_channels: int,
    image_size: int,
    stem: str | None = None,
    **options: Any,
) -> nn.Module:
    """[b, in_channels, size, size] -> [b, num_classes] logits.

    `options` are options of torchvision's VGG (dropout, init_weights), only for the large head.
    """
    if stem_of(name, image_size, stem) == "small":
        return SmallVGG(name, num_classes, in_channels, image_size, **options)
    model = torchvision_model(name, num_classes, options)
    if in_channels != model.features[0].in_channels:
        model.features[0] = first_convolution(model.features[0], in_channels)
    built: nn.Module = model
    return built


class SmallVGG(VGG):
    """torchvision's features, their mean, and one linear layer, initialised as in torchvision.

    Layers in `features` keep torchvision's names: an Identity replaces each omitted pooling.
    """

    def __init__(self, name: str, num_classes: int, in_channels: int, image_size: int) -> None:
        nn.Module.__init__(self)  # VGG.__init__ would draw half a gigabyte of classifier weights
        base, _, norm = name.partition("_")
        self.features = make_layers(cfgs[_CONFIGURATIONS[base]], batch_norm=norm == "bn")
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(512, num_classes)
        side = image_size
        for index, layer in enumerate(self.features):
            if isinstance(layer, nn.Conv2d):
                channels = layer.in_channels if index else in_channels
                self.features[index] = first_convolution(layer, channels)
            elif isinstance(layer, nn.MaxPool2d):
                if side == 1:
                    self.features[index] = nn.Identity()
                side = max(1, side // 2)
        nn.init.normal_(self.classifier.weight, 0, 0.01)
        nn.init.zeros_(self.classifier.bias)
