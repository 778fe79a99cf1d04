"""What a plan must know of a data set, from the table or from a look into the folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from raysuite.errors import Mistake
from raysuite.spec import ExperimentSpec
from raysuite.spec.datasets import DIGITS, IMAGE_SUFFIXES, SPLITS, DatasetFacts

LAYOUT = "expected is PATH/train/CLASS/*.png and PATH/val/CLASS/*.png (or .jpg)"


@dataclass(frozen=True)
class Folder:
    """A folder of images as it lies on disk: images of each class, for each split that exists."""

    root: Path
    splits: dict[str, dict[str, int]]


class Folders:
    """Image folders, each looked into once: a large one takes seconds to list."""

    def __init__(self) -> None:
        self._seen: dict[str, Folder] = {}

    def look(self, path: str) -> Folder:
        """The listing of the folder at `path`."""
        if path not in self._seen:
            root = Path(path).expanduser()
            present = [split for split in SPLITS if (root / split).is_dir()]
            self._seen[path] = Folder(root, {split: _classes(root / split) for split in present})
        return self._seen[path]


def _classes(split: Path) -> dict[str, int]:
    """Class -> images in its folder, counted as `raysuite.data.formats.folder` lists them."""
    return {
        entry.name: sum(
            file.name.lower().endswith(IMAGE_SUFFIXES) and file.is_file()
            for file in os.scandir(entry.path)
        )
        for entry in os.scandir(split)
        if entry.is_dir()
    }


def dataset_facts(spec: ExperimentSpec, folders: Folders) -> DatasetFacts:
    """Counts and shapes of the spec's data set."""
    data = spec.data
    base = DIGITS
    if data.path is not None:
        train, val = (folders.look(data.path).splits[split] for split in SPLITS)
        base = DatasetFacts(sum(train.values()), sum(val.values()), len(train), 3, 0)
    return DatasetFacts(
        train_samples=base.train_samples,
        val_samples=base.val_samples,
        classes=base.classes,
        channels=data.channels or base.channels,
        image_size=data.image_size or base.image_size,
    )


def dataset_mistakes(spec: ExperimentSpec, folders: Folders) -> list[Mistake]:
    """Why the spec's data set cannot be read, as far as a listing tells."""
    if spec.data.path is None:
        return []
    folder = folders.look(spec.data.path)
    missing = [str(folder.root / split) for split in SPLITS if split not in folder.splits]
    if len(missing) == len(SPLITS) and not folder.root.is_dir():
        missing = [str(folder.root)]
    if missing:
        text = f"no folder {' and no folder '.join(missing)}; {LAYOUT}"
        return [Mistake(text, key="data.path")]
    empty = [split for split in SPLITS if not any(folder.splits[split].values())]
    if empty:
        text = f"no images in {' and '.join(empty)} of {folder.root}; {LAYOUT}"
        return [Mistake(text, key="data.path")]
    train, val = (folder.splits[split] for split in SPLITS)
    bare = sorted((set(train) ^ set(val)) | {name for name, images in train.items() if not images})
    if bare:
        text = (
            f"each class needs a folder in train and in val, and images in train; in {folder.root} "
            f"that fails for {', '.join(bare[:5])}"
        )
        return [Mistake(text, key="data.path")]
    return []
