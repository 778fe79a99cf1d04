"""The classes of ImageNet's validation images, where these lie in one folder."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from raysuite.errors import DataError


def synsets_of(images: Sequence[str], file: Path) -> list[str]:
    """The synset of each image, by `file`: the devkit's, Kaggle's or TensorFlow's.

    Devkit and TensorFlow have a line per image, in the order of the file names; Kaggle names them.
    Raises DataError where it tells of more images or of fewer.
    """
    try:
        if file.suffix == ".csv":
            return _kaggle(images, file)
        lines = file.read_text("utf-8").split()
        if lines and lines[0].isdigit():
            names = _devkit_names(file.parent / "meta.mat")
            lines = [names[int(line)] for line in lines]
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise DataError(
            f"{file}: the classes of the validation images cannot be read ({error!r}); copy it "
            "again, or move the images into val/CLASS"
        ) from error
    if len(lines) != len(images):
        raise DataError(
            f"{file} tells the classes of {len(lines)} images, and {len(images)} are there; make "
            "them equal, or move the images into val/CLASS"
        )
    return lines


def _kaggle(images: Sequence[str], file: Path) -> list[str]:
    """Rows `ImageId,PredictionString`, the second beginning with the synset."""
    with file.open(newline="") as rows:
        told = {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(rows)}
    return [told[Path(image).stem] for image in images]


def _devkit_names(meta: Path) -> dict[int, str]:
    """ILSVRC2012_ID -> synset: the devkit has an order of its own, and inner nodes beside the
    classes. As torchvision.datasets.imagenet reads it."""
    import scipy.io

    try:
        rows = scipy.io.loadmat(meta, squeeze_me=True)["synsets"]
        names = ((int(row["ILSVRC2012_ID"]), str(row["WNID"]), row["num_children"]) for row in rows)
        return {number: name for number, name, children in names if not children}
    except Exception as error:  # SciPy's reader raises whatever it meets
        raise ValueError(f"{meta}: {error}") from error
