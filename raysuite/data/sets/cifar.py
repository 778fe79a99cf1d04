"""CIFAR-10 as its binary or its pickled batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raysuite.data.cache import converted
from raysuite.data.prepared import Prepared, counted
from raysuite.data.sets import treatment
from raysuite.layouts import cifar
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import CIFAR_FILES, SPLITS, DatasetFacts


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """Read binary batches where they lie; pickled ones become binary once, below `cache`."""
    files = cifar.find(data)
    if data.form == "pickle":
        folder = _converted(files, cache)
    else:
        folder = files["train"][0].parent.resolve()
    names = CIFAR_FILES["binary"]
    prepared = Prepared(
        data=data,
        facts=facts,
        classes=cifar.CLASSES,
        form="binary",
        files=folder,
        listing=None,
        exact=facts.image_size == cifar.SIDE,
        **treatment(data, facts.channels),
    )
    found = {split: sum(cifar.records(folder / name) for name in names[split]) for split in SPLITS}
    return counted(prepared, found)


def _converted(files: dict[str, list[Path]], cache: Path) -> Path:
    """The folder of the binary batches, made of the pickles."""

    def write(folder: Path) -> None:
        for split, names in CIFAR_FILES["binary"].items():
            for path, name in zip(files[split], names, strict=True):
                batch = cifar.read_batch(path)
                labels = np.frombuffer(batch.labels, np.uint8)[:, None]
                planes = np.frombuffer(batch.planes, np.uint8).reshape(len(labels), cifar.PLANES)
                rows = np.concatenate([labels, planes], axis=1)
                (folder / name).write_bytes(rows.tobytes())

    sources = (path for split in SPLITS for path in files[split])
    return converted(cache, "cifar", sources, write)
