"""Whether an error says that memory ran out, the device's or the host's."""

from __future__ import annotations

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


def tells_of_memory(text: str) -> bool:
    """Whether Ray says so of a worker that died."""
    return any(words in text for words in _RAYS_WORDS)
