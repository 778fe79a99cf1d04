"""A rank's place among all, from torchrun's variables, and its device."""

from __future__ import annotations

import pytest
import torch

from raysuite.errors import UserError
from raysuite.parallel.base import World
from raysuite.train import world as module
from raysuite.train.world import torch_device, world_from_environment


def test_a_process_has_the_place_that_torchrun_gives_it_or_is_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    for name in given:
        monkeypatch.delenv(name, raising=False)
    cpu = torch.device("cpu")
    assert world_from_environment("cpu") == World.alone(cpu)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert world_from_environment("cpu") == World(5, 8, 1, cpu)


def test_a_worker_has_the_gpu_of_its_place_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert [torch_device("gpu", place).index for place in (0, 3, 5)] == [0, 3, 1]
    assert [each.index for each in chosen] == [0, 3, 1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(module, "cuda_mistake_here", lambda: "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES is 7; correct this, or set"):
        torch_device("gpu", 0)
