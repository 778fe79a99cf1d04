"""MNIST as its IDX files."""

from __future__ import annotations

from pathlib import Path

from raysuite.data.cache import converted
from raysuite.data.formats.idx import unpack
from raysuite.data.prepared import Prepared, counted
from raysuite.data.sets import treatment
from raysuite.layouts import idx
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import IDX_FILES, SPLITS, DatasetFacts


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """Read plain files where they lie; .gz are unpacked once below `cache`."""
    files = idx.find(data)
    shapes = {split: idx.shape_of(*files[split]) for split in SPLITS}
    packed = any(path.suffix == ".gz" for pair in files.values() for path in pair)
    folder = _unpacked(files, cache) if packed else files["train"][0].parent.resolve()
    sides = {side for _, *sides in shapes.values() for side in sides}
    prepared = Prepared(
        data=data,
        facts=facts,
        classes=idx.CLASSES,
        form="idx",
        files=folder,
        listing=None,
        exact=sides == {facts.image_size},
        **treatment(data, facts.channels),
    )
    return counted(prepared, {split: shapes[split][0] for split in SPLITS})


def _unpacked(files: idx.Files, cache: Path) -> Path:
    """The folder of the plain files, made of the packed ones."""

    def write(folder: Path) -> None:
        for split, names in IDX_FILES.items():
            for path, name, dimensions in zip(files[split], names, (3, 1), strict=True):
                unpack(path, dimensions, folder / name)

    sources = (path for split in SPLITS for path in files[split])
    return converted(cache, "idx", sources, write)
