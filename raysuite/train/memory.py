"""Whether an error says that memory ran out, the device's or the host's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysuite.units import human_bytes

if TYPE_CHECKING:
    from raysuite.parallel.base import World
    from raysuite.plan import RunPlan

_WORDS = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "MemoryError")
"""CUDA's; those of torch's CPU allocator, which has no class of its own; cuBLAS's; and what a
loader tells of its processes."""
_RAYS_WORDS = ("OutOfMemoryError", "running low on memory")
"""Of Ray's memory monitor, which ends a worker before the system would."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it is, or began with, an allocation that failed."""
    import torch  # which the driver, that asks about Ray's words, does without

    found: BaseException | None = error
    while found is not None:
        if isinstance(found, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(found, RuntimeError) and any(words in str(found) for words in _WORDS):
            return True
        found = found.__cause__ or found.__context__
    return False


def figures(plan: RunPlan, world: World) -> str:
    """What this rank holds and what is left, and the keys that ask for less."""
    import psutil
    import torch

    from raysuite.measure.memory import available_bytes

    held = psutil.Process().memory_info().rss
    if world.device.type == "cuda":
        held = torch.cuda.max_memory_allocated(world.device)
    left = available_bytes(world.device)
    return (
        f"a micro-batch of {plan.micro_batch} images of {plan.dataset.image_size} x "
        f"{plan.dataset.image_size} pixels was too much: rank {world.rank} held "
        f"{human_bytes(held)}, and {human_bytes(left)} are left; lower training.global_batch or "
        "training.batch_per_worker, set training.accumulate to auto, or lower data.image_size"
    )


def tells_of_memory(text: str) -> bool:
    """Whether Ray says so of a worker that died."""
    return any(words in text for words in _RAYS_WORDS)
