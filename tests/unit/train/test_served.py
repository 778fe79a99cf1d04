"""A trained network as others use it gives what the run's validation saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from raysuite.data import make_loader, permutation, prepare, rank_slices
from raysuite.data.prepared import normalisation
from raysuite.data.rendering import Rendering
from raysuite.errors import UserError
from raysuite.plan import RunPlan
from raysuite.records import EpochFinished
from raysuite.train.served import EXAMPLES, example, outputs, served
from tests.unit.train.conftest import plan_of, run


@pytest.fixture(scope="module")
def plan() -> RunPlan:
    return plan_of()


def scans(plan: RunPlan) -> tuple[np.ndarray, np.ndarray]:
    """The validation images as they lie on disk, [n, 1, 8, 8] uint8, and their labels."""
    prepared = prepare(plan.spec.data, plan.dataset)
    loader = make_loader(prepared, "val", plan.spec.loader, torch.device("cpu"))
    (step,) = rank_slices(permutation(360, 0, 0), 360, 1, 0)
    (batch,) = loader.batches(step)
    shift, scale = Rendering(prepared, "exact").constants
    pixels = np.rint(batch.images.numpy() / scale + shift).astype(np.uint8)
    labels = batch.labels.numpy().copy()
    loader.close()
    return pixels, labels


@pytest.mark.parametrize("which", ["", "tied", "buffers"])
def test_pixels_give_the_accuracy_that_was_told(tmp_path: Path, plan: RunPlan, which: str) -> None:
    if which:
        plan = plan_of(model={"name": "tests.networks:made", "options": {"which": which}})
    records = run(plan, model_file=tmp_path / "model.pt")
    last = [record for record in records if isinstance(record, EpochFinished)][-1]
    pixels, labels = scans(plan)
    found = outputs(served(plan, tmp_path / "model.pt"), pixels).argmax(1)
    assert float((found == labels).mean()) == pytest.approx(last.val_accuracy)


def test_the_example_is_what_the_network_takes(tmp_path: Path, plan: RunPlan) -> None:
    run(plan, model_file=tmp_path / "model.pt")
    images = example(plan)
    assert images.shape == (EXAMPLES, 1, 8, 8)
    assert (images == example(plan)).all()
    found = outputs(served(plan, tmp_path / "model.pt"), images)
    assert found.shape == (EXAMPLES, 10)
    assert found.dtype == np.float32


def test_weights_of_another_network_are_told(tmp_path: Path, plan: RunPlan) -> None:
    run(plan, model_file=tmp_path / "model.pt")
    changed = plan_of(model={"name": "tests.tiny_model:Tiny", "options": {}})
    with pytest.raises(UserError, match=r"does not fit 'tests\.tiny_model:Tiny' as it is now"):
        served(changed, tmp_path / "model.pt")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half of a file"])
def test_damaged_weights_are_told_without_the_advice_to_remove_the_runs_folder(
    content: bytes, tmp_path: Path, plan: RunPlan
) -> None:
    (file := tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(UserError, match=r"model\.pt is damaged, .*; restore it from a copy, or"):
        served(plan, file)


@pytest.mark.parametrize("data", ["digits", "cifar10", "mnist"])
def test_what_normalises_needs_no_data_set(data: str) -> None:
    block = {"name": data} if data == "digits" else {"name": data, "path": "/nowhere"}
    spec = plan_of().spec.model_copy(
        update={"data": type(plan_of().spec.data).model_validate(block)}
    )
    channels = 3 if data == "cifar10" else 1
    mean, std = normalisation(spec.data, channels)
    assert len(mean) == len(std) == channels
    if data == "digits":
        prepared = prepare(spec.data, plan_of().dataset)
        assert (mean, std) == (prepared.mean, prepared.std)
