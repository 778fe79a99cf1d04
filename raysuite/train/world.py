"""This process's rank and world size, from torchrun's variables. The default is one process."""

from __future__ import annotations

import os
import socket

import torch

from raysuite.errors import UserError
from raysuite.measure.environment import cuda_mistake_here
from raysuite.parallel.base import World


def world_from_environment(device: str) -> World:
    """The World from RANK, WORLD_SIZE and LOCAL_RANK; one process if they are not set."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    return World(
        rank=int(os.environ.get("RANK", "0")),
        size=int(os.environ.get("WORLD_SIZE", "1")),
        local_rank=local_rank,
        device=torch_device(device, local_rank),
    )


def torch_device(device: str, local_rank: int) -> torch.device:
    """This worker's device; a GPU also becomes CUDA's current device."""
    if device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = cuda_mistake_here() or f"CUDA_VISIBLE_DEVICES is {visible}"
        raise UserError(
            f"the run needs a GPU, but torch can use none on {socket.gethostname()}: {why}; "
            "correct this, or set resources.device to cpu"
        )
    chosen = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


# Distinguish a rank's own failure from the loss of another rank during a collective.

_PEER_LOSS = ("DistError", "HorovodInternalError")
"""Names of exception classes: torch.distributed's base class of NCCL, network and store errors, and
Horovod's only class."""


def is_peer_loss(error: BaseException) -> bool:
    """Whether an error comes from a failed collective, for example because another rank died.

    Gloo raises plain RuntimeErrors, whose messages begin with a position in Gloo's source code:
    `[.../gloo/transport/tcp/pair.cc:547] Connection closed by peer`.
    """
    while (cause := error.__cause__ or error.__context__) is not None:
        if str(cause) == str(error):  # Horovod raises the same RuntimeError again as its own class
            break
        error = cause
    kinds = {kind.__name__ for kind in type(error).__mro__}
    gloo = isinstance(error, RuntimeError) and "gloo/" in str(error).partition("]")[0]
    return gloo or not kinds.isdisjoint(_PEER_LOSS)
