"""Pixels -> what the network takes: fp32, channels first, normalised; on the worker's device."""

from __future__ import annotations

import torch
from torch import Tensor

from raysuite.data.prepared import Prepared


class Normalise:
    """uint8 [b, H, W, C] in the CPU's memory -> fp32 [b, C, H, W] on `device`.

    (x - 255 mean) * (1 / (255 std)), per channel: bytes travel to the device, not floats.
    """

    def __init__(self, prepared: Prepared, device: torch.device) -> None:
        self._device = device
        self._shift = _per_channel(prepared.mean, device)
        self._scale = _per_channel(prepared.std, device).reciprocal()

    def __call__(self, images: Tensor) -> Tensor:
        floats = (
            self.moved(images)
            .permute(0, 3, 1, 2)
            .to(torch.float32, memory_format=torch.contiguous_format)
        )
        return floats.sub_(self._shift).mul_(self._scale)

    def moved(self, values: Tensor) -> Tensor:
        """`values` on the device; to a GPU without waiting for it."""
        if self._device.type == "cuda":
            values = values.pin_memory()
        return values.to(self._device, non_blocking=True)


def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    """[C, 1, 1] fp32, in the scale of pixels, 0 to 255."""
    return (torch.tensor(values) * 255).view(-1, 1, 1).to(device)
