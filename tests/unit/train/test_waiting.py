"""The error of a collective names each rank's layer, unless another rank has ended."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from raysuite.errors import RunError
from raysuite.parallel import comm
from raysuite.parallel.base import World
from raysuite.train import waiting
from raysuite.train.world import is_peer_loss

WAITED = "[/src/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv"
CLOSED = "[/src/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2"


class Failing(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, images: Tensor) -> Tensor:
        raise self.error


def raised(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Any:
    store = dist.HashStore()  # type: ignore[attr-defined]
    store.set("0", "features.2")
    monkeypatch.setattr(comm, "shared_store", lambda *_: store)
    monkeypatch.setattr(waiting, "_OTHERS_S", 0.01)
    net = nn.Sequential(nn.Identity(), nn.Sequential(Failing(error)))
    world = World(1, 3, 1, torch.device("cpu"))
    with (
        pytest.raises((RunError, RuntimeError, ValueError)) as got,
        waiting.layers_named(net, world),
    ):
        net(torch.zeros(1))
    return got.value


def test_a_collective_that_times_out_names_the_ranks_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = raised(RuntimeError(WAITED), monkeypatch)
    assert "rank 0: features.2, rank 1: 1.0, rank 2: not known" in str(found)
    assert is_peer_loss(found)  # it is not this rank's own error


@pytest.mark.parametrize("error", [RuntimeError(CLOSED), ValueError("its own")])
def test_other_errors_are_left(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    assert raised(error, monkeypatch) is error
