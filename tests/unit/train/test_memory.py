"""Which errors say that memory ran out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysuite.parallel.base import World
from raysuite.train.memory import figures, is_out_of_memory
from tests.unit.train.conftest import plan_of


def test_torchs_own_allocator_says_so() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    assert is_out_of_memory(caught.value)


def test_so_does_numpys() -> None:
    with pytest.raises(MemoryError) as caught:
        np.ones(10**15)
    assert is_out_of_memory(caught.value)


def test_what_began_with_it_counts_and_what_names_it_does_not() -> None:
    error = ValueError("the model could not be built")
    error.__cause__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError("a model that is out of memory lanes"))
    assert not is_out_of_memory(RuntimeError("shapes do not agree"))


def test_the_figures_name_the_keys_that_ask_for_less() -> None:
    plan = plan_of(data={"name": "digits", "image_size": 32})
    told = figures(plan, World(1, 2, 1, torch.device("cpu")))
    assert "240 images of 32 x 32" in told
    assert "rank 1 held" in told
    for key in ("training.global_batch", "training.accumulate", "data.image_size"):
        assert key in told
