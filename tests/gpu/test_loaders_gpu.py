"""Loaders whose batches come to lie on a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from raysuite.data import Slice, make_loader, prepare
from raysuite.data.normalise import Normalise
from raysuite.data.rendering import Rendering
from raysuite.spec.loaders import LoaderOptions, MemoryOptions, NativeOptions, SyntheticOptions
from tests import small_sets
from tests.require import require

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("options", [NativeOptions(), MemoryOptions()], ids=lambda each: each.name)
def test_batches_are_those_of_the_cpu(tmp_path: Path, options: LoaderOptions) -> None:
    require("gpu")
    small = small_sets.write("cifar10-binary", tmp_path / "set")
    prepared = prepare(small.data, small.facts, tmp_path / "cache")
    slices = [Slice(np.arange(start, start + 5), 5, 5, (0, start)) for start in (0, 5, 10)]
    both = []
    for device in ("cpu", "cuda"):
        loader = make_loader(prepared, "train", options, torch.device(device))
        both.append(list(loader.batches(slices)))
        loader.close()
    for left, right in zip(*both, strict=True):
        assert right.images.device.type == right.labels.device.type == "cuda"
        assert (left.images - right.images.cpu()).abs().max() <= 1e-6
        assert torch.equal(left.labels, right.labels.cpu())


def test_synthetic_batches_lie_on_the_gpu(tmp_path: Path) -> None:
    require("gpu")
    small = small_sets.write("cifar10-binary", tmp_path / "set")
    prepared = prepare(small.data, small.facts, tmp_path / "cache")
    loader = make_loader(prepared, "train", SyntheticOptions(), torch.device("cuda"))
    (batch,) = loader.batches([Slice(np.arange(5), 5, 5)])
    assert batch.images.device.type == batch.labels.device.type == "cuda"
    loader.close()


def test_memory_writes_into_pinned_memory(tmp_path: Path) -> None:
    require("gpu")
    small = small_sets.write("cifar10-binary", tmp_path / "set")
    prepared = prepare(small.data, small.facts, tmp_path / "cache")
    normalise = Normalise(Rendering(prepared, "exact"), torch.device("cuda"))
    assert normalise.room(3).is_pinned()
    assert normalise.pinned(np.arange(3)).is_pinned()
