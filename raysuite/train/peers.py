"""Whether a rank erred itself, or another one ended under its collective."""

from __future__ import annotations

_PEER_LOSS = ("DistError", "HorovodInternalError")
"""torch.distributed's base of NCCL, network and store errors, and Horovod's one error."""


def is_peer_loss(error: BaseException) -> bool:
    """Whether an error comes from a failed collective, as after the death of another rank.

    Gloo has no exception class of its own; its RuntimeErrors begin with a line of its source code,
    `[.../gloo/transport/tcp/pair.cc:547] Connection closed by peer`.
    """
    while (cause := error.__cause__ or error.__context__) is not None:
        if str(cause) == str(error):  # Horovod raises a RuntimeError anew, in its own class
            break
        error = cause
    kinds = {kind.__name__ for kind in type(error).__mro__}
    gloo = isinstance(error, RuntimeError) and "gloo/" in str(error).partition("]")[0]
    return gloo or not kinds.isdisjoint(_PEER_LOSS)
