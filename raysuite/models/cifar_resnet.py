"""The residual networks for small images of He et al. 2015, "Deep Residual Learning for Image
Recognition", section 4.2 (arXiv:1512.03385): 6n+2 layers, of 16, 32 and 64 channels.

The depths 20, 32, 44, 56 and 110 have n = 3, 5, 7, 9 and 18. With RGB images and 10 classes, they
have 0.27, 0.46, 0.66, 0.85 and 1.7 million parameters (the paper's Table 6). Unlike in the paper,
images may have any size and any number of channels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (16, 32, 64)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut. [b, C_in, H, W] -> [b, C_out, H/stride, W/stride]."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = _conv3x3(out_channels, out_channels, 1)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.stride = stride
        self.new_channels = out_channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        """The paper's option A, which has no parameters: the input, subsampled by the stride, with
        zeros in the new channels."""
        if self.stride == 1 and self.new_channels == 0:
            return x
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


class CifarResNet(nn.Module):
    """[b, in_channels, H, W] -> [b, num_classes] logits, for square images of any size.

    Raises ValueError for a depth that is not 6n+2.
    """

    def __init__(self, depth: int, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        n, rest = divmod(depth - 2, 6)
        if n < 1 or rest:
            raise ValueError(f"depth is {depth}; it should be 6n+2, such as 20, 32, 44, 56 or 110")
        self.conv1 = _conv3x3(in_channels, WIDTHS[0], 1)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.stage1 = _stage(WIDTHS[0], WIDTHS[0], n, stride=1)
        self.stage2 = _stage(WIDTHS[0], WIDTHS[1], n, stride=2)
        self.stage3 = _stage(WIDTHS[1], WIDTHS[2], n, stride=2)
        self.fc = nn.Linear(WIDTHS[2], num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                # He et al. 2015, arXiv:1502.01852, eq. 10, as in section 3.4 of the networks' paper
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers():
            for part in layer:
                x = part(x)
        return x

    def layers(self) -> list[list[Callable[[Tensor], Tensor]]]:
        """The parts of each layer, in order of calls. A pipeline can be cut between layers."""
        stages = (self.stage1, self.stage2, self.stage3)
        bodies: list[list[Callable[[Tensor], Tensor]]]
        bodies = [[block] for stage in stages for block in stage]
        return [[self.conv1, self.bn1, F.relu], *bodies, [_mean, self.fc]]


def _mean(x: Tensor) -> Tensor:
    return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)


def _stage(in_channels: int, out_channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(in_channels, out_channels, stride)
    return nn.Sequential(
        first, *(BasicBlock(out_channels, out_channels, 1) for _ in range(blocks - 1))
    )


def _conv3x3(in_channels: int, out_channels: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
