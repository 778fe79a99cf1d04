"""Where this process stands, from torchrun's variables, or alone."""

from __future__ import annotations

import os
import socket

import torch

from raysuite.errors import UserError
from raysuite.measure.environment import cuda_mistake_here
from raysuite.parallel.base import World


def world_from_environment(device: str) -> World:
    """The World that RANK, WORLD_SIZE and LOCAL_RANK describe; one process without them."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    return World(
        rank=int(os.environ.get("RANK", "0")),
        size=int(os.environ.get("WORLD_SIZE", "1")),
        local_rank=local_rank,
        device=torch_device(device, local_rank),
    )


def torch_device(device: str, local_rank: int) -> torch.device:
    """This worker's device; on a GPU machine also the current one of CUDA."""
    if device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = cuda_mistake_here() or f"CUDA_VISIBLE_DEVICES is {visible}"
        raise UserError(
            f"the run needs a GPU, and torch can use none on {socket.gethostname()}: {why}; or set "
            "resources.device to cpu"
        )
    chosen = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen
