"""A network of a user's own, small enough for tests that train."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from torch import Tensor, nn


class Tiny(nn.Module):
    """One convolution and a classifier; BatchNorm and dropout on demand."""

    def __init__(
        self, num_classes: int, in_channels: int, batch_norm: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8) if batch_norm else nn.Identity(),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(8 * 16, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits [b, num_classes] for images [b, in_channels, 8, 8]."""
        logits: Tensor = self.layers(images)
        return logits


class Killed(Tiny):
    """One rank is killed after the first validation, as by the kernel, where the file `mark` is."""

    def __init__(self, num_classes: int, in_channels: int, rank: int, mark: str) -> None:
        super().__init__(num_classes, in_channels)
        self._mark, self._validated = Path(mark), False
        self._here = os.environ.get("RANK", "0") == str(rank)

    def forward(self, images: Tensor) -> Tensor:
        """As Tiny's."""
        self._validated |= not self.training
        if self._here and self.training and self._validated and self._mark.exists():
            self._mark.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)


def sequential(
    num_classes: int, in_channels: int, batch_norm: bool = False, dropout: float = 0.0
) -> nn.Sequential:
    """The same as a list of layers, which can be cut into stages."""
    return Tiny(num_classes, in_channels, batch_norm, dropout).layers


def synced(num_classes: int, in_channels: int) -> nn.Module:
    """With torch's SyncBatchNorm."""
    model = sequential(num_classes, in_channels, batch_norm=True)
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)


def frozen(num_classes: int, in_channels: int) -> nn.Sequential:
    """Its first layer is not trained."""
    model = sequential(num_classes, in_channels)
    model[0].requires_grad_(False)
    return model


class Wrapped(nn.Module):
    """Its parameters are called `network.…`."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.network = Tiny(num_classes, in_channels)

    def forward(self, images: Tensor) -> Tensor:
        """As Tiny's."""
        logits: Tensor = self.network(images)
        return logits
