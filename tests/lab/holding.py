"""A user's model that waits in mid-run, so that a fault finds it there."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

HOLD_AT_CALL = 15
"""A forward pass of the third epoch, where an epoch has six steps."""


class Net(nn.Module):
    """Its last rank waits while the file `hold-SEED` is there, and says in `held-SEED` where it is.

    The other ranks wait for it in a collective. Steps after the wait are slow: who is asked to
    stop then can do so between two of them.
    """

    def __init__(self, num_classes: int, in_channels: int, image_size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(in_channels * image_size**2, num_classes)
        self._hold = Path(f"hold-{torch.initial_seed()}").absolute()
        self._calls, self._waited = 0, False

    def forward(self, images: Tensor) -> Tensor:
        self._calls += self.training
        # a dry batch is one process without a group
        last = dist.is_initialized() and dist.get_rank() == dist.get_world_size() - 1
        if last and self._calls == HOLD_AT_CALL and self._hold.exists():
            where = {"host": socket.gethostname(), "pid": os.getpid()}
            partial = self._hold.with_name(f"{self._hold.name}.partial")
            partial.write_text(json.dumps(where))
            partial.replace(self._hold.with_name(self._hold.name.replace("hold", "held")))
            while self._hold.exists():
                time.sleep(0.05)
            self._waited = True
        if self._waited and self.training:
            time.sleep(1.0)
        logits: Tensor = self.layer(images.flatten(1))
        return logits
