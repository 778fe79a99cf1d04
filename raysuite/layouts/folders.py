"""Folders of image files: PATH/train/CLASS/* and PATH/val/CLASS/*, and ImageNet's own layouts.

ImageNet's archives unpack its validation images into one flat folder. Their classes then stand in
a file: the devkit's, Kaggle's, or TensorFlow's (`LABEL_FILES`). Kaggle's archive keeps both splits
below ILSVRC/Data/CLS-LOC.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from raysuite.errors import DataError
from raysuite.layouts.base import Counts, absent, named, root_of
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import IMAGE_SUFFIXES, NAMED, SPLITS

LAYOUT = "expected is PATH/train/CLASS/*.png and PATH/val/CLASS/*.png (or .jpg)"
_TOPS = ("", "ILSVRC/Data/CLS-LOC/")
"""Where train and val may lie below the set's folder."""
LABEL_FILES = (
    "imagenet_2012_validation_synset_labels.txt",
    "LOC_val_solution.csv",
    "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt",
    "data/ILSVRC2012_validation_ground_truth.txt",
    "ILSVRC2012_validation_ground_truth.txt",
)
"""What tells the classes of validation images that lie in one folder."""
_THREADS = 8
"""Folders that are listed at once: a network file system answers slowly, and many at a time."""


@dataclass(frozen=True)
class Images:
    """The images of a set, in order of class and file name."""

    root: Path
    top: str
    """The folder of train and val, relative to `root`, empty or with a slash at its end."""
    classes: tuple[str, ...]
    splits: dict[str, dict[str, list[str]]]
    """Per split the file names of each class; `flat` has none of val."""
    flat: list[str]
    """Validation images that lie in one folder, sorted."""
    labels: Path | None
    """The file that tells the classes of `flat`."""
    passed_over: int
    """Entries that are neither images nor hidden: other files, and folders in class folders."""


def find(data: DataOptions) -> Images:
    """The images of a set. Raises DataError that says what is missing and what does not fit."""
    root = root_of(data)
    official = data.name in NAMED
    if official:
        if not root.is_dir():
            raise absent(data, ())
        top = _top(root)
        missing = [f"{top}{split}" for split in SPLITS if not (root / f"{top}{split}").is_dir()]
        if missing:
            raise absent(data, missing)
    return listed(root, val_may_lack=official, skip=data.bad_samples == "skip")


def state(data: DataOptions) -> tuple[float, str]:
    """When a folder of the set was changed last, in s since 1970, and a digest of what `find`
    depends on: an entry that comes or goes changes the time of its folder.

    It asks for each folder alone: thousands of times less than to list what lies in them. Raises
    OSError where a folder is missing.
    """
    root = root_of(data).resolve()
    top = _top(root)
    splits = [root / f"{top}{split}" for split in SPLITS]
    paths = [*splits, *(split / name for split in splits for name in class_names(split))]
    paths += [path for path in _label_places(root, top) if path.is_file()]
    with ThreadPoolExecutor(_THREADS) as threads:
        found = list(threads.map(os.stat, paths))
    told = hashlib.sha256(repr((data.name, data.bad_samples)).encode())
    for path, each in zip(paths, found, strict=True):
        told.update(os.fsencode(path) + f"\0{each.st_ino} {each.st_mtime_ns}\0".encode())
    return max(each.st_mtime for each in found), told.hexdigest()


def classes_of(data: DataOptions) -> tuple[str, ...]:
    """The names of the classes, in the order of their labels."""
    root = root_of(data)
    return tuple(class_names(root / f"{_top(root)}train"))


def count(data: DataOptions) -> Counts:
    """Images of both splits. Raises DataError as `find`."""
    images = find(data)
    train, val = (sum(map(len, images.splits[split].values())) for split in SPLITS)
    return Counts(train, val + len(images.flat), images.classes, images.passed_over)


def listed(root: Path, val_may_lack: bool = False, skip: bool = False) -> Images:
    """List the images below `root`.

    Both splits have the same class folders; `val_may_lack` some. With `skip`, either may, and a
    class needs no training image. Raises DataError where anything is otherwise.
    """
    top = _top(root)
    folders = {split: root / f"{top}{split}" for split in SPLITS}
    missing = [str(folder) for folder in folders.values() if not folder.is_dir()]
    if missing:
        missing = missing if root.is_dir() else [str(root)]
        raise DataError(f"no folder {' and no folder '.join(missing)}; {LAYOUT}")
    names = {split: class_names(folder) for split, folder in folders.items()}
    if not names["train"]:
        raise DataError(f"no class folders in {folders['train']}; {LAYOUT}")
    flat: list[str] = []
    labels: Path | None = None
    beside = sum(len(others_in(folder, nested=True)) for folder in folders.values())
    if not names["val"]:
        flat = images_in(folders["val"])
        labels = _labels_file(root, top) if flat else None
    else:
        _same_classes(root, names, lacking=val_may_lack or skip)
    classes = names["train"]
    splits: dict[str, dict[str, list[str]]] = {}
    for split in SPLITS:
        splits[split], others = _images(folders[split], names[split])
        beside += others
    empty = [
        split
        for split in SPLITS
        if not any(splits[split].values()) and not (split == "val" and flat)
    ]
    if empty:
        raise DataError(f"no images in {' and '.join(empty)} of {root}; {LAYOUT}")
    bare = [name for name in classes if not splits["train"][name]]
    if bare and not skip:
        raise DataError(
            f"{folders['train']}: no image of {named(bare)}; valid are files that end in "
            f"{', '.join(IMAGE_SUFFIXES)}; add images, remove the class from train and val, or "
            "set data.bad_samples to skip"
        )
    if names["val"]:  # images beside the class folders have no class
        beside += sum(len(images_in(folder)) for folder in folders.values())
    return Images(root, top, tuple(classes), splits, flat, labels, beside)


def images_in(folder: Path) -> list[str]:
    """The names of the image files in a folder, sorted, links that lead nowhere among them: an
    image that cannot be read is a bad sample, not one that was never there."""
    return _entries(folder)[0]


def others_in(folder: Path, nested: bool = False) -> list[str]:
    """The names of what is neither an image nor hidden, sorted; no folders if `nested`."""
    return [name for name in _entries(folder)[1] if not (nested and (folder / name).is_dir())]


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    images: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            is_image = entry.name.lower().endswith(IMAGE_SUFFIXES) and not entry.is_dir()
            (images if is_image else others).append(entry.name)
    return sorted(images), sorted(others)


def _top(root: Path) -> str:
    return next((top for top in _TOPS if (root / f"{top}train").is_dir()), "")


def class_names(folder: Path) -> list[str]:
    """The class folders of a split, sorted: .ipynb_checkpoints is none."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
        )


def _images(folder: Path, classes: Sequence[str]) -> tuple[dict[str, list[str]], int]:
    """The images of each class, and how many other entries their folders have."""
    with ThreadPoolExecutor(_THREADS) as threads:
        lists = list(threads.map(lambda name: _entries(folder / name), classes))
    images = {name: found for name, (found, _) in zip(classes, lists, strict=True)}
    return images, sum(len(others) for _, others in lists)


def _same_classes(root: Path, names: dict[str, list[str]], lacking: bool) -> None:
    odd = {"train": set() if lacking else set(names["train"]) - set(names["val"])}
    odd["val"] = set(names["val"]) - set(names["train"])
    apart = sorted(f"{split}/{name}" for split in SPLITS for name in odd[split])
    if apart:
        raise DataError(
            f"{root}: train and val must have the same class folders, and {len(apart)} stand on "
            f"one side only: {named(apart)}; add or remove the missing ones"
        )


def _label_places(root: Path, top: str) -> list[Path]:
    return [root / folder / name for name in LABEL_FILES for folder in ("", top, f"{top}val")]


def _labels_file(root: Path, top: str) -> Path:
    """The file of the flat folder's classes. Raises DataError where there is none."""
    for path in _label_places(root, top):
        if path.is_file():
            return path
    raise DataError(
        f"{root / top / 'val'}: the images lie in one folder, and nothing tells their classes; put "
        f"{LABEL_FILES[2]} (with meta.mat beside it, both from ILSVRC2012_devkit_t12.tar.gz), "
        f"{LABEL_FILES[1]} or {LABEL_FILES[0]} into {root}, or move the images into val/CLASS"
    )
