"""Pixels cut out -> the size that the network sees, by torch's vectorised kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raysuite.data.pixels import Part, fit, whole

_resize: Any = torch.ops.aten._upsample_bilinear2d_aa.out
"""What `torch.nn.functional.interpolate(mode="bilinear", antialias=True)` calls, with a place to
write to. On uint8 it counts as Pillow does, with weights of 15 bits instead of 22."""


def fit_into(cut: NDArray[np.uint8], part: Part, out: NDArray[np.uint8]) -> None:
    """Write `fit(cut, part, size)` to `out` [size, size, C]; levels may differ by 1 from Pillow's.

    A part that is not the whole of `cut` is left to Pillow: torch resizes whole images only.
    """
    size = len(out)
    if cut.shape[:2] == (size, size) or part != whole(cut):
        out[...] = fit(cut, part, size)
        return
    if not cut.flags.writeable:  # torch takes no other
        cut = cut.copy()
    _resize(_channels_first(cut), [size, size], False, None, None, out=_channels_first(out))


def _channels_first(pixels: NDArray[np.uint8]) -> torch.Tensor:
    """[1, C, H, W], on the same memory."""
    return torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)
