"""The digits: three forms of the same scans, and the constants of their pixels."""

from __future__ import annotations

import dataclasses
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from sklearn.datasets import load_digits

from raysuite.data import Prepared, Slice, make_loader, prepare
from raysuite.data import digits as module
from raysuite.data.formats import open_source
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DIGITS, DIGITS_MEAN, DIGITS_STD
from raysuite.spec.loaders import NativeOptions


def arrays(prepared: Prepared, split: str) -> tuple[np.ndarray, np.ndarray]:
    folder = prepared.files.parent / "arrays"
    return np.load(folder / f"{split}-images.npy"), np.load(folder / f"{split}-labels.npy")


def test_the_splits_are_the_scans_each_once(digits):
    parts = [arrays(digits, split) for split in ("train", "val")]
    assert [len(labels) for _, labels in parts] == [1437, 360]
    written = np.concatenate([images for images, _ in parts])
    scans = np.round(load_digits().images * 255 / 16).astype(np.uint8)
    assert sorted(image.tobytes() for image in written) == sorted(scan.tobytes() for scan in scans)
    assert (written.min(), written.max()) == (0, 255)


def test_the_split_is_stratified(digits):
    held_out = np.bincount(arrays(digits, "val")[1])
    assert np.abs(held_out - np.bincount(load_digits().target) / 5).max() < 1


@pytest.mark.parametrize("form", ["folder", "tfrecord"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_sample_i_is_the_same_scan_in_every_form(cache, form, split):
    prepared = prepare(DataOptions(name="digits", format=form), DIGITS, cache)
    images, labels = arrays(prepared, split)
    source = open_source(prepared, split)
    for sample in range(prepared.samples(split)):
        data, label = source.read(sample)
        assert label == labels[sample]
        with Image.open(io.BytesIO(data)) as image:
            assert image.format == "PNG"
            assert np.array_equal(np.asarray(image), images[sample])
    source.close()


def test_files_are_named_by_class_and_place(cache):
    prepared = prepare(DataOptions(name="digits"), DIGITS, cache)
    scans, target = load_digits().images, load_digits().target
    for path in list((prepared.files / "val").rglob("*.png"))[:20]:
        place = int(path.stem)
        assert int(path.parent.name) == target[place]
        expected = np.round(scans[place] * 255 / 16).astype(np.uint8)
        assert np.array_equal(np.asarray(Image.open(path)), expected)


def test_mean_and_std_are_those_of_the_training_split(digits):
    pixels = arrays(digits, "train")[0] / 255
    assert DIGITS_MEAN[0] == pytest.approx(pixels.mean(), abs=5e-5)
    assert DIGITS_STD[0] == pytest.approx(pixels.std(), abs=5e-5)


def test_ones_own_mean_and_std(cache):
    data = DataOptions(name="digits", mean=(0.5,), std=(0.25,))
    prepared = prepare(data, DIGITS, cache)
    plain = prepare(DataOptions(name="digits"), DIGITS, cache)
    step = [Slice(np.arange(4), 4, 4)]
    found, expected = (
        next(make_loader(each, "val", NativeOptions(), torch.device("cpu")).batches(step)).images
        for each in (prepared, plain)
    )
    pixels = expected * plain.std[0] + plain.mean[0]
    torch.testing.assert_close(found, (pixels - 0.5) / 0.25)
    for wrong in ({"mean": (0.5,)}, {"mean": (0.5,), "std": (0.1, 0.1)}, {"std": (0.0,)}):
        with pytest.raises(ValidationError):
            DataOptions(name="digits", **wrong)


def test_other_sizes_are_enlarged(cache):
    facts = dataclasses.replace(DIGITS, image_size=20, channels=3)
    prepared = prepare(DataOptions(name="digits", image_size=20, channels=3), facts, cache)
    images, _ = arrays(prepared, "train")
    assert images.shape == (1437, 20, 20)
    assert len(np.unique(images)) > 17, "enlarged by repeating pixels"
    assert prepared.mean == DIGITS_MEAN * 3


def test_a_damaged_file_is_named(tmp_path):
    data = DataOptions(name="digits", format="tfrecord")
    folder = prepare(data, DIGITS, tmp_path).files
    victim = folder / "train-00001-of-00004.tfrecord"
    content = bytearray(victim.read_bytes())
    content[100] ^= 1
    victim.write_bytes(content)
    with pytest.raises(DataError, match=r"train-00001-of-00004\.tfrecord is damaged"):
        prepare(data, DIGITS, tmp_path)
    prepare(DataOptions(name="digits"), DIGITS, tmp_path)  # the other form is sound


def test_facts_of_another_set_are_refused(cache):
    facts = dataclasses.replace(DIGITS, train_samples=1400)
    with pytest.raises(DataError, match="the plan has 1400 training"):
        prepare(DataOptions(name="digits"), facts, cache)


def test_the_package_loads_neither_torch_nor_dali():
    code = "import sys, raysuite.data; print({'torch', 'nvidia', 'sklearn'} & set(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(module.__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "set()"
