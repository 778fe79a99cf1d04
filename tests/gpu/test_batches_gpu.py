"""A batch that is found by trial on a GPU, whose allocator refuses what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raysuite.parallel.base import World
from raysuite.plan import make_plans
from raysuite.plan.batch_candidates import outcome
from raysuite.records.batch_trials import TriedFile
from raysuite.spec import Document
from raysuite.train.batch_search import search_batch
from tests.require import require

pytestmark = pytest.mark.gpu

_GIB = 2**30


def test_the_largest_batch_within_a_gibibyte(tmp_path: Path) -> None:
    require("gpu")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(_GIB / total)
    data = {
        "name": "found",
        "model": "resnet56",
        "data": {"name": "digits", "image_size": 64},
        "training": {"epochs": 1, "batch_per_worker": "auto"},
        "resources": {"device": "gpu"},
    }
    plan = make_plans(Document(data, "test"), gpus=1)[0]
    file = TriedFile(tmp_path / "tried")
    try:
        size = search_batch(plan, World(0, 1, 0, torch.device("cuda", 0)), file)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    _, found = outcome(plan, file.read(), 1.0)
    assert found.bound == "memory"
    smallest = min(each.micro_batch for each in found.tried if not each.fits)
    assert smallest == 2 * size
    messages = {each.message for each in found.tried if not each.fits}
    assert messages == {"out of memory on rank 0"}
    peaks = {each.micro_batch: each.peak_bytes[0] for each in found.tried if each.fits}
    assert 0 < peaks[size] < _GIB
