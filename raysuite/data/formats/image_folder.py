"""Folders of image files: PATH/train/CLASS/* and PATH/val/CLASS/*, and ImageNet's own layouts.

ImageNet's archives have all validation images in one flat folder. The classes of these images are
in a file from the devkit, Kaggle or TensorFlow (`LABEL_FILES`). Kaggle's archive has both splits
below ILSVRC/Data/CLS-LOC.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from raysuite.data.cache import SETTLED_S, listed_once, publish, verify
from raysuite.data.findings import Finding, Listed, Part, Target, check_image
from raysuite.data.formats import base
from raysuite.data.formats.base import SHOWN, Counts, Listing, absent
from raysuite.data.prepared import Prepared, Split, prepared_of
from raysuite.data.processes import Count
from raysuite.errors import DataError, some
from raysuite.files import printable
from raysuite.spec.data_set import DataOptions, root_of
from raysuite.spec.datasets import IMAGE_SUFFIXES, NAMED, SPLITS, DatasetFacts, Format

LAYOUT = "expected PATH/train/CLASS/*.png and PATH/val/CLASS/*.png (or .jpg)"
_TOPS = ("", "ILSVRC/Data/CLS-LOC/")
"""Folders below the set's folder in which train and val may be."""
LABEL_FILES = (
    "imagenet_2012_validation_synset_labels.txt",
    "LOC_val_solution.csv",
    "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt",
    "data/ILSVRC2012_validation_ground_truth.txt",
    "ILSVRC2012_validation_ground_truth.txt",
)
"""Files with the classes of validation images that are in one flat folder."""
_META = "meta.mat"
"""The devkit's file that maps class numbers to synsets; it is next to the file of labels."""
_THREADS = 8
"""Number of folders listed in parallel, because network file systems have a high latency."""


@dataclass(frozen=True)
class Images:
    """The images of a set, in order of class and file name, with paths below the set's folder."""

    root: Path
    classes: tuple[str, ...]
    splits: dict[str, dict[str, list[str]]]
    """Split -> class -> paths of the images."""
    unlabelled: list[str]
    """Paths of validation images without a known class, from one flat folder."""
    others: dict[str, list[str]]
    """Split -> paths of the ignored entries, without hidden ones."""
    wrong: list[Finding]
    """Errors that were found in the folders."""

    @property
    def passed_over(self) -> int:
        return sum(map(len, self.others.values()))


def find(data: DataOptions) -> Images:
    """The images of a set. Raises DataError that names the missing or inconsistent parts."""
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


def folder_state(data: DataOptions) -> tuple[float, str]:
    """The latest modification time of the set's folders and label files, in seconds since 1970, and
    a digest of all their paths and modification times. The digest changes if files are added or
    removed, because that changes the modification time of their folder.

    The images in the class folders are not listed, because that would take a thousand times as
    long. Raises OSError if a folder is missing.
    """
    root = root_of(data).resolve()
    top = _top(root)
    splits = [root / f"{top}{split}" for split in SPLITS]
    paths = [*splits, *(split / name for split in splits for name in class_names(split))]
    labels = _label_places(root, top)
    labels += [path.with_name(_META) for path in labels]
    paths += [path for path in labels if path.is_file()]
    with ThreadPoolExecutor(_THREADS) as threads:
        found = list(threads.map(os.stat, paths))
    told = hashlib.sha256(repr((_CLASSES, data.name, data.bad_samples)).encode())
    for path, each in zip(paths, found, strict=True):
        told.update(os.fsencode(path) + f"\0{each.st_ino} {each.st_mtime_ns}\0".encode())
    return max(each.st_mtime for each in found), told.hexdigest()


def count(data: DataOptions) -> Counts:
    """The number of images in each split. Raises the errors of `find`."""
    images = find(data)
    train, val = (sum(map(len, images.splits[split].values())) for split in SPLITS)
    return Counts(train, val, tuple(map(printable, images.classes)), images.passed_over)


def listed(root: Path, val_may_lack: bool = False, skip: bool = False) -> Images:
    """The images below `root`. Raises DataError for any error that `look` finds."""
    if not root.is_dir():
        raise DataError(f"no folder {root}; {LAYOUT}")
    images = look(root, val_may_lack, skip)
    if images.wrong:
        told = some([f"{each.place}: {each.message}" for each in images.wrong], SHOWN)
        raise DataError(
            f"{told}; {LAYOUT}; valid: files that end in {', '.join(IMAGE_SUFFIXES)}; to allow "
            "classes without images, set data.bad_samples to skip"
        )
    return images


def look(root: Path, val_may_lack: bool = False, skip: bool = False) -> Images:
    """The images below `root`; the field `wrong` of the result has the errors in its folders.

    Each class needs a training folder with an image; with `skip`, the folder may be empty. Each
    class also needs a validation folder, unless `val_may_lack` or `skip` is True, or all validation
    images are in one flat folder.
    """
    top = _top(root)
    folders = {split: root / f"{top}{split}" for split in SPLITS}
    names = {s: class_names(folder) if folder.is_dir() else [] for s, folder in folders.items()}
    classes = sorted({*names["train"], *names["val"]})
    found = Images(root, tuple(classes), {}, [], {}, [])
    flat: list[str] = []

    def tell(folder: Path, message: str) -> None:
        found.wrong.append(Finding(str(folder), -1, "class", message))

    for split, folder in folders.items():
        found.splits[split], found.others[split] = {}, []
        if not folder.is_dir():
            tell(folder, f"no folder of {split} images")
            continue
        found.splits[split], others = _images(root, f"{top}{split}", names[split])
        images, beside = _entries(folder)
        beside = [name for name in beside if name not in found.splits[split]]
        if names[split]:  # images next to class folders have no class
            beside += images
        elif split == "val":
            flat = images
        found.others[split] = [*(str(folder / name) for name in beside), *others]
        if not names[split] and not flat:
            tell(folder, "no class folders")
        elif names[split] and not any(found.splits[split].values()):
            tell(folder, "no images")
        elif names[split]:
            for name, message in _class_mistakes(found, split, val_may_lack or skip, skip):
                tell(folder / name, message)
    if flat:
        paths = [f"{top}val/{file}" for file in flat]
        try:
            synsets = _synsets_of(flat, root, top, classes)
        except DataError as error:
            tell(folders["val"], str(error))
            found.unlabelled.extend(paths)
        else:
            for synset, path in zip(synsets, paths, strict=True):
                found.splits["val"].setdefault(synset, []).append(path)
    return found


def _class_mistakes(
    found: Images, split: str, val_may_lack: bool, train_may_lack: bool
) -> Iterator[tuple[str, str]]:
    """(class, message) for each class without a folder in `split`, and, if `split` is train, for
    each class without images."""
    other = "val" if split == "train" else "train"
    for name in found.classes:
        images = found.splits[split].get(name)
        if images is None and (split == "train" or not val_may_lack):
            yield name, f"no folder of this class, although {other} has one"
        elif split == "train" and images == [] and not train_may_lack:
            yield name, "the class has no images"


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    """The names of a folder's images, and of its other entries, without hidden entries. Broken
    links count as images, so that they are reported as bad samples."""
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
    """The class folders of a split, sorted, without hidden folders such as .ipynb_checkpoints."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")
        )


def _images(
    root: Path, split: str, classes: Sequence[str]
) -> tuple[dict[str, list[str]], list[str]]:
    """The images of each class, relative to `root`, and the other entries of the class folders."""
    with ThreadPoolExecutor(_THREADS) as threads:
        lists = list(threads.map(lambda name: _entries(root / split / name), classes))
    found = list(zip(classes, lists, strict=True))
    others = [str(root / split / name / each) for name, (_, others) in found for each in others]
    return {
        name: [f"{split}/{name}/{image}" for image in images] for name, (images, _) in found
    }, others


def _label_places(root: Path, top: str) -> list[Path]:
    return [root / folder / name for name in LABEL_FILES for folder in ("", top, f"{top}val")]


def listings(images: Images) -> tuple[tuple[str, ...], dict[str, Listing]]:
    """The class names and the listing of each split, in order of class and file name."""
    pairs = {split: _pairs(images, split) for split in SPLITS}
    return images.classes, {
        split: Listing.of([path for path, _ in each], [label for _, label in each])
        for split, each in pairs.items()
    }


def _pairs(images: Images, split: str) -> list[tuple[str, int]]:
    """The path of each image and its label."""
    return [
        (path, label)
        for label, name in enumerate(images.classes)
        for path in images.splits[split].get(name, ())
    ]


def _synsets_of(images: Sequence[str], root: Path, top: str, classes: Sequence[str]) -> list[str]:
    """The synset of each image of a flat folder, from the first file of LABEL_FILES that exists.

    The files of the devkit and of TensorFlow have one line per image, in order of file name;
    Kaggle's file has the image names. Raises DataError if there is no such file, if it has
    another number of images than the folder, or if it has a class without a training folder.
    """
    file = next((path for path in _label_places(root, top) if path.is_file()), None)
    if file is None:
        raise DataError(
            "the images are in one folder, and there is no file with their classes; put "
            f"{LABEL_FILES[2]} (with meta.mat next to it, both from "
            f"ILSVRC2012_devkit_t12.tar.gz), {LABEL_FILES[1]} or {LABEL_FILES[0]} into {root}, or "
            "move the images into val/CLASS"
        )
    try:
        by_name = file.suffix == ".csv"
        lines = _kaggle(images, file) if by_name else file.read_text("utf-8-sig").split()
        if lines and lines[0].isdigit():
            names = _devkit_names(file.with_name(_META))
            lines = [names[int(line)] for line in lines]
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise DataError(
            f"{file}: the classes of the validation images cannot be read ({error!r}); copy the "
            "file again, or move the images into val/CLASS"
        ) from error
    if len(lines) != len(images):
        raise DataError(
            f"{file} has the classes of {len(lines)} images, but there are {len(images)} images; "
            "copy the incomplete file or folder again, or move the images into val/CLASS"
        )
    unknown = sorted({*lines} - {*classes})
    if unknown:
        raise DataError(
            f"{file} names {len(unknown)} classes that have no folder in {root / top}train: "
            f"{', '.join(unknown[:5])}; add the folders, or remove the validation images of these "
            "classes and their lines in the file"
        )
    return lines


def _kaggle(images: Sequence[str], file: Path) -> list[str]:
    """The synset of each image: the first word of `PredictionString` in the image's row."""
    with file.open(encoding="utf-8-sig", newline="") as rows:
        told = {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(rows)}
    return [told[Path(image).stem] for image in images]


def _devkit_names(meta: Path) -> dict[int, str]:
    """ILSVRC2012_ID -> synset. These class numbers do not follow the synsets' order. Inner nodes of
    the hierarchy are left out, as in torchvision.datasets.imagenet."""
    import scipy.io

    try:
        rows = scipy.io.loadmat(meta, squeeze_me=True)["synsets"]
        names = ((int(row["ILSVRC2012_ID"]), str(row["WNID"]), row["num_children"]) for row in rows)
        return {number: name for number, name, children in names if not children}
    except Exception as error:  # SciPy's reader raises many kinds of errors
        raise ValueError(f"{meta}: {error}") from error


_CLASSES = "classes.json"


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """List the images without copying them; the listing is kept below `cache`.

    One process of a node checks whether the set has changed, and the other processes wait. An
    unchanged set is not listed again.
    """
    listing = listed_once(data, cache, partial(_kept, data, cache)) / "listing"
    return prepared_of(
        data,
        facts,
        {split: len(Listing.read(listing, split).labels) for split in SPLITS},
        classes=tuple(map(printable, json.loads((listing / _CLASSES).read_text()))),
        form="folder",
        files=root_of(data).resolve(),
        listing=listing,
    )


def _kept(data: DataOptions, cache: Path) -> Path:
    """Write the listing of the set, unless the cache has it, and return its folder."""
    try:
        changed, state = folder_state(data)
    except OSError:  # `find` reports what is missing
        changed, state = math.inf, ""
    if changed < time.time() - SETTLED_S:
        folder = cache / "data" / f"image-folder-{state[:16]}"
        publish(folder, lambda target: _write(*listings(find(data)), target))
    else:
        classes, found = listings(find(data))
        content = hashlib.sha256(repr(classes).encode())
        for listing in found.values():
            content.update(listing.paths.tobytes() + listing.labels.tobytes())
        folder = cache / "data" / f"image-folder-{content.hexdigest()[:16]}"
        publish(folder, lambda target: _write(classes, found, target))
    verify(folder, ("listing",))
    return folder


def _write(classes: Sequence[str], found: dict[str, Listing], target: Path) -> None:
    for split, listing in found.items():
        listing.write(target / "listing", split)
    (target / "listing" / _CLASSES).write_text(json.dumps(classes))


class Source(base.Source):
    """One file per image; labels come from the listing."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        assert prepared.listing is not None
        self._root = os.fsencode(prepared.files)
        self._listing = Listing.read(prepared.listing, split)

    def read(self, sample: int) -> tuple[bytes, int]:
        try:
            # a buffered file would take three times as long
            with open(self._path(sample), "rb", buffering=0) as file:
                return file.read(), int(self._listing.labels[sample])
        except OSError as error:
            raise DataError(
                f"{self.place(sample)}: cannot be read ({error.strerror}); it was there when "
                "the data set was prepared"
            ) from error

    def label(self, sample: int) -> int:
        return int(self._listing.labels[sample])

    def place(self, sample: int) -> str:
        return os.fsdecode(self._path(sample))

    def file(self, sample: int) -> str:
        return self.place(sample)

    def _path(self, sample: int) -> bytes:
        return os.path.join(self._root, bytes(self._listing.paths[sample]))


_CHUNK = 128
"""Images per task."""

_Images = list[tuple[bytes, int]]
"""(path relative to the set's folder, label) of each image; label -1: unknown."""


def to_check(target: Target, decode: bool, write_index: bool) -> Listed:
    """Tasks that check the images of both splits, even if some folders are missing."""
    root = target.root
    images = look(root, val_may_lack=target.data.name in NAMED)
    findings = list(images.wrong)
    pairs = {
        split: [(os.fsencode(path), label) for path, label in _pairs(images, split)]
        for split in SPLITS
    }
    pairs["val"] += [(os.fsencode(path), -1) for path in images.unlabelled]
    for split, others in images.others.items():
        if others:
            told = sorted(map(_told, others), key=lambda entry: -entry[0])
            message = (
                f"{len(others)} entries are ignored (valid: in class folders, files that end "
                f"in {', '.join(IMAGE_SUFFIXES)}): {some([text for _, text in told], 3)}"
            )
            findings.append(Finding(str(root / split), -1, "file", message, note=True))
    tasks = tuple(
        partial(check_files, split, root, each[start : start + _CHUNK], decode)
        for split, each in pairs.items()
        for start in range(0, len(each), _CHUNK)
    )
    total = sum(map(len, pairs.values()))
    return Listed(tasks, total, "images", dict(enumerate(images.classes)), tuple(findings))


def _told(entry: str) -> tuple[int, str]:
    """For an ignored entry: the number of images in and below it, and its description."""
    inside = sum(
        name.lower().endswith(IMAGE_SUFFIXES) for _, _, names in os.walk(entry) for name in names
    )
    return inside, f"{entry} (a folder with {inside} images)" if inside else entry


def check_files(split: str, root: Path, images: _Images, decode: bool, count: Count) -> Part:
    part = Part(split)
    for path, label in images:
        whole = os.path.join(os.fsencode(root), path)
        place = whole.decode("utf-8", "backslashreplace")
        if label >= 0:
            part.labels[label] += 1
        try:
            with open(whole, "rb") as file:
                data = file.read()
        except OSError as error:
            part.images += 1
            part.unreadable += 1
            part.wrong("image", place, f"cannot be read ({error.strerror})")
        else:
            check_image(part, data, place, decode)
        count(1)
    return part


def detect(path: Path, names: set[str]) -> Format | None:
    return "folder" if any((path / top / "train").is_dir() for top in _TOPS) else None
