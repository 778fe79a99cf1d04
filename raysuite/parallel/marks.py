"""An engine's communication as marks for a profiler, where the framework's events do not show it.

torch.distributed's collectives show by themselves. Marks are for waits: a rank that waits for a
collective computes nothing, and no operator shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor
from torch.profiler import record_function

COMMUNICATION = "raysuite::communication"


def communication() -> AbstractContextManager[object]:
    """Marks its block as communication; what is computed in it still counts as computation.

    Costs nothing where no profiler runs.
    """
    return record_function(COMMUNICATION) if _profiled() else nullcontext()


@contextmanager
def backward_waits(loss: Tensor) -> Iterator[None]:
    """Around `loss.backward()` on a CPU: marks what comes after its last gradient.

    There DDP waits for its buckets, in a callback that it gives autograd with its last gradient.
    A callback of ours, given with the first, is run before it. On a GPU the host waits for
    nothing, and the kernels show it.
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
