"""Where this process stands, from torchrun's variables, or alone."""

from __future__ import annotations

import os

import torch

from raysuite.errors import UserError
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
        raise UserError("the run wants a GPU, and torch sees none; set resources.device to cpu")
    chosen = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen
