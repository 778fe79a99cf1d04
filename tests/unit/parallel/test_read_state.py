"""What is read of a file of `torch.save` that is damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from raysuite.errors import RunError
from raysuite.parallel.base import read_state


@pytest.mark.parametrize("mapped", [False, True])
def test_damage_is_a_run_error_that_names_the_file(mapped: bool, tmp_path: Path) -> None:
    file, draw = tmp_path / "engine.pt", random.Random(1)
    torch.save({"model": {"a": torch.ones(20, 3)}, "optimizer": {"lr": 0.1, "of": [1, 2]}}, file)
    whole = file.read_bytes()
    refused: list[str] = []
    for number in range(200):
        damaged = bytearray(whole[: draw.randrange(len(whole))] if number % 2 else whole)
        for _ in range(3 if damaged else 0):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        try:
            read_state(file, mapped)
        except RunError as error:
            refused.append(str(error))
    assert len(refused) >= 100
    assert all("engine.pt is missing, damaged" in each for each in refused)
