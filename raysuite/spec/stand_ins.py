"""What of a named data set is made up, where a spec asks for a synthetic stand-in."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raysuite.spec.base import Options


class StandInOptions(Options):
    """A synthetic stand-in, as `raysuite data make` takes it; what is left out is the paper's."""

    fraction: float | None = Field(default=None, gt=0, le=1)
    """Part of the paper's images."""
    images: int | None = Field(default=None, ge=2)
    """Or: training images; validation images keep their proportion."""
    classes: int | None = Field(default=None, ge=1)
    """Number of classes."""
    size: int | str | None = None
    """Pixels, such as 64, or 500x375 (width, height)."""
    content: Literal["natural", "noise"] = "natural"
    """`natural`: pictures with a 1/f spectrum whose classes can be learned; `noise`: DDLBench's."""
    seed: int = Field(default=0, ge=0)
    """Equal seeds make equal bytes."""
