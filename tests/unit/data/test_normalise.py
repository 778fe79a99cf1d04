"""Batches in the memory format that the network takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from raysuite.data import Prepared, Slice, make_loader, prepare
from raysuite.data.normalise import Normalise
from raysuite.data.rendering import Rendering
from raysuite.spec.loaders import DaliOptions, SyntheticOptions
from tests import small_sets
from tests.require import require

CPU = torch.device("cpu")
FORMATS = (torch.contiguous_format, torch.channels_last)


@pytest.fixture(scope="module")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("coloured")
    small = small_sets.write("cifar10-binary", folder / "set")
    return prepare(small.data, small.facts, folder / "cache")


def test_a_gpu_writes_the_format_of_the_run(coloured: Prepared) -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8, generator=generator)
    found = [
        Normalise(Rendering(coloured, "exact"), CPU, last)._by_gpu(pixels) for last in (False, True)
    ]
    assert torch.equal(*found)
    for images, strides in zip(found, FORMATS, strict=True):
        assert images.contiguous(memory_format=strides) is images  # Autocast copies nothing


@pytest.mark.parametrize("options", [SyntheticOptions(), DaliOptions()], ids=lambda each: each.name)
def test_loaders_that_do_not_normalise_here(coloured: Prepared, options: Any) -> None:
    if options.name == "dali":
        require("dali")
    found = []
    for last in (False, True):
        loader = make_loader(coloured, "train", options, CPU, last)
        (batch,) = loader.batches([Slice(np.arange(3), 3, 3)])
        found.append(batch.images)
        loader.close()
    assert torch.equal(*found)
    for images, strides in zip(found, FORMATS, strict=True):
        assert images.is_contiguous(memory_format=strides)
