"""DALI's GPU pipeline against the native loader. Not yet run: no GPU was at hand."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from raysuite.data import Slice, make_loader, permutation, prepare, rank_slices
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DIGITS
from raysuite.spec.loaders import DaliOptions, NativeOptions
from tests.require import require

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_dali_equals_native_on_the_gpu(tmp_path: Path, where):
    require("gpu")
    require("dali")
    device = torch.device("cuda", 0)
    prepared = prepare(DataOptions(name="digits"), DIGITS, tmp_path)
    native = make_loader(prepared, "train", NativeOptions(processes=2), device)
    dali = make_loader(prepared, "train", DaliOptions(device=where, prefetch=3), device)
    for epoch in range(2):
        steps = rank_slices(permutation(1437, 0, epoch), 100, 1, 0)
        slices = list(itertools.chain(*steps))
        ours, theirs = list(native.batches(slices)), list(dali.batches(slices))
        for left, right in zip(ours, theirs, strict=True):
            assert left.images.device == right.images.device == device
            assert left.labels.device == right.labels.device == device
            assert (left.images - right.images).abs().max() <= 1e-6
            assert torch.equal(left.labels, right.labels)
    abandoned = dali.batches(slices)
    next(abandoned)
    (last,) = dali.batches([Slice(np.arange(3), 3, 3)])
    (same,) = native.batches([Slice(np.arange(3), 3, 3)])
    assert (last.images - same.images).abs().max() <= 1e-6
    native.close()
    dali.close()
