"""Batch sizes that are found by trials before a run, if its spec has `auto`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from raysuite.spec.base import CHOSEN, Options

AUTO = "auto"


class AutoBatch(Options):
    """A batch size or number of micro-batches that trials find on the workers before a run."""

    auto: Literal["largest", "fastest"] = "largest"
    """`largest`: the largest number of samples per pass that fits into memory. `fastest`: the
    smallest micro-batch whose mean throughput is within 5 % of the highest."""
    at_most: int | None = Field(default=None, ge=1)
    """Largest micro-batch to try, in samples; default: a worker's share of the global batch or, if
    the spec has no global batch, of the training set."""

    def __str__(self) -> str:
        return AUTO

    memory_share: float = Field(default=0.9, gt=0, le=1)
    """Largest share of the free memory that a worker may use. The free memory is that of the GPU
    or, on CPUs, that of the node divided by the node's number of workers."""


def _spelled_out(value: Any) -> Any:
    """Expand `auto` to `{auto: largest}`."""
    return {AUTO: "largest"} if value == AUTO else value


def _which(value: Any) -> str:
    return f"{CHOSEN}block" if isinstance(value, dict | AutoBatch) else f"{CHOSEN}number"


NumberOrAuto = Annotated[
    Annotated[Annotated[int, Field(ge=1)], Tag(f"{CHOSEN}number")]
    | Annotated[AutoBatch, Tag(f"{CHOSEN}block")],
    Discriminator(_which),
    BeforeValidator(_spelled_out),
]
"""A whole number of at least 1, or `auto`, or `{auto: fastest, at_most: 256}`."""
