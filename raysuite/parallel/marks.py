"""Mark an engine's communication for a profiler, where the framework's events do not show it.

A profiler shows torch.distributed's collectives even if they are not marked. But it shows no
operator while a rank waits for a collective; these waits are therefore marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.profiler import record_function

COMMUNICATION = "raysuite::communication"


def communication() -> AbstractContextManager[object]:
    """Mark the context's block as communication; computation in it still counts as computation.

    Costs nothing without a running profiler.
    """
    return record_function(COMMUNICATION) if _profiled() else nullcontext()


@contextmanager
def backward_waits(loss: Tensor) -> Iterator[None]:
    """On a CPU, mark the time from the last gradient of `loss.backward()` to the end of the call.

    In this time DDP waits for its buckets, in an autograd callback that it queues with the last
    gradient. The mark begins in a callback that is queued with the first gradient, and that
    therefore runs before DDP's callback. On a GPU the host does not wait, and the kernels show the
    communication.
    """
    if loss.device.type != "cpu" or not _profiled():
        yield
        return
    mark = record_function(COMMUNICATION)
    entered = []

    def enter() -> None:
        mark.__enter__()
        entered.append(mark)

    def at_the_first_gradient(_: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(enter)

    handle = loss.register_hook(at_the_first_gradient)
    try:
        yield
    finally:
        handle.remove()
        for each in entered:
            each.__exit__(None, None, None)


def _profiled() -> bool:
    return torch.autograd.profiler._is_profiler_enabled
