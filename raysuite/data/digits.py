"""scikit-learn's handwritten digits, written to disk as files, as TFRecords and as arrays.

1,797 real scans of 8 x 8 pixels (UCI, E. Alpaydin and C. Kaynak, 1998), values 0 to 16.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from raysuite.data.cache import publish, verify
from raysuite.data.formats.base import Listing
from raysuite.data.formats.tfrecord import Shard, encode_example, listed, write_records
from raysuite.data.pixels import encode
from raysuite.data.prepared import Prepared, prepared_of
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import SPLITS, DatasetFacts

VERSION = 1
"""To be increased with each change of the code that changes the files, so that older files are not
reused."""

CLASSES = tuple(str(digit) for digit in range(10))

_SHARDS = 4
"""Number of TFRecord files per split: more than one, so that tests read splits of several files."""


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """Write the digits at the requested size below `cache`, or check existing files."""
    root = cache / "data" / f"digits-{facts.image_size}-v{VERSION}"
    publish(root, partial(write_digits, size=facts.image_size))
    form = data.form or "folder"
    verify(root, ("listing", form))
    found = {split: len(Listing.read(root / "listing", split).labels) for split in SPLITS}
    return prepared_of(
        data,
        facts,
        found,
        classes=CLASSES,
        form=form,
        files=root / form,
        listing=root / "listing" if form == "folder" else _records(root / form, cache),
        exact=True,
    )


def _records(folder: Path, cache: Path) -> Path:
    shards = {split: sorted(folder.glob(f"{split}-*.tfrecord")) for split in SPLITS}
    found = {
        split: [Shard(path, path.with_suffix(".idx")) for path in paths]
        for split, paths in shards.items()
    }
    return listed(folder, found, cache) / "listing"


def write_digits(folder: Path, size: int) -> None:
    """Write both splits below `folder`, with images of `size` x `size` pixels (8: not resized).

    folder/SPLIT/CLASS/NNNN.png is one image; NNNN is the scan's index in scikit-learn's data set.
    tfrecord/SPLIT-*.tfrecord are shards of the same PNGs, with .idx files as their indices.
    arrays/SPLIT-{images,labels}.npy are [n, size, size] uint8 and [n] int64. listing/ has the paths
    of the PNGs in the order of the samples. Sample i is the same scan in all formats.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    scans = np.round(digits.images * (255 / 16)).astype(np.uint8)
    for split, ids in _split(digits.target).items():
        enlarged = (
            Image.fromarray(scans[scan]).resize((size, size), Image.Resampling.BICUBIC)
            for scan in ids
        )
        images = np.stack([np.asarray(image) for image in enlarged])
        labels = digits.target[ids].astype(np.int64)
        names = [f"{split}/{label}/{scan:04d}.png" for scan, label in zip(ids, labels, strict=True)]
        encoded = [encode(image, level=6) for image in images]
        for name, data in zip(names, encoded, strict=True):
            path = folder / "folder" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        Listing.of(names, labels.tolist()).write(folder / "listing", split)
        _write_shards(folder / "tfrecord", split, encoded, labels)
        arrays = folder / "arrays"
        arrays.mkdir(exist_ok=True)
        np.save(arrays / f"{split}-images.npy", images)
        np.save(arrays / f"{split}-labels.npy", labels)


def _split(target: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Indices of the scans in each split. The scans are sorted by class, and every fifth scan is
    held out for validation, so that the split is stratified and not random."""
    by_class = np.argsort(target, kind="stable")
    held_out = np.arange(len(by_class)) % 5 == 0
    return {"train": by_class[~held_out], "val": by_class[held_out]}


def _write_shards(
    folder: Path, split: str, encoded: list[bytes], labels: NDArray[np.int64]
) -> None:
    folder.mkdir(exist_ok=True)
    for shard, ids in enumerate(np.array_split(np.arange(len(encoded)), _SHARDS)):
        path = folder / f"{split}-{shard:05d}-of-{_SHARDS:05d}.tfrecord"
        write_records(path, (encode_example(encoded[i], int(labels[i])) for i in ids))
