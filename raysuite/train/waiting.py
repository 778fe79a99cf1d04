"""If a collective fails, name the layer in which each rank was: ranks in different layers wait for
each other."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType

from torch import nn

from raysuite.errors import RunError
from raysuite.parallel import comm
from raysuite.parallel.base import World
from raysuite.train.world import is_peer_loss

_OTHERS_S = 5.0
"""Seconds to wait for the layer of each other rank. A short wait suffices, because ranks that wait
for each other time out almost at the same time."""


@contextmanager
def layers_named(model: nn.Module, world: World) -> Iterator[None]:
    """If a collective in the context fails, raise a RunError that names the layer of each rank. If
    it failed because a rank ended, the original exception is raised. A mismatched collective fails
    at its group's time limit, 30 minutes in torch's Gloo."""
    try:
        yield
    except Exception as error:
        if world.size == 1 or not is_peer_loss(error):
            raise
        ended = "Connection" in str(error)
        layers = _exchanged(_layer(model, error.__traceback__), world, not ended)
        if ended:
            raise
        where = ", ".join(f"rank {rank}: {layer}" for rank, layer in enumerate(layers))
        raise RunError(
            f"the ranks' collectives do not match; the ranks were in these layers: {where}; all "
            f"ranks have to use the same layers in the same order ({error})"
        ) from error


def _exchanged(layer: str, world: World, wait: bool) -> list[str]:
    """Publish this rank's layer, and return the layer of each rank.

    With `wait`, the other ranks' layers are waited for; the layer of a rank that does not publish
    it in time is "not known". Without `wait`, the layers of all other ranks are "not known".
    """
    layers = ["not known"] * world.size
    layers[world.rank] = layer
    with contextlib.suppress(Exception):  # the error may have ended the process with the store
        store = comm.shared_store("layers", world.rank, world.size)
        store.set(str(world.rank), layer)
        for rank in range(world.size if wait else 0):
            with contextlib.suppress(Exception):
                store.wait([str(rank)], timedelta(seconds=_OTHERS_S))
                layers[rank] = store.get(str(rank)).decode()
    return layers


def _layer(model: nn.Module, trace: TracebackType | None) -> str:
    """The innermost layer of `model` in a traceback."""
    names: dict[int, str] = {
        id(part): name or "the whole network" for name, part in model.named_modules()
    }
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    inside = [names.get(id(frame.f_locals.get("self"))) for frame in frames]
    backward = any(frame.f_code.co_name == "backward" for frame in frames)
    return [("a backward pass" if backward else "none"), *filter(None, inside)][-1]
