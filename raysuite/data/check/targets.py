"""What is to be checked: a spec's data set, or a folder whose form shows in its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from raysuite.errors import DataError
from raysuite.layouts import records, root_of
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import (
    CIFAR_FILES,
    CLASSES_FILE,
    IDX_FILES,
    NAMED,
    RECORD_PATTERNS,
    Format,
)

_UNKNOWN = 1
"""Stands for a size or a count that checking does not need and a spec would tell."""


@dataclass(frozen=True)
class Target:
    """A data set on disk, and what is known of its labels."""

    data: DataOptions
    names: tuple[str, ...] = ()
    """Of the classes, by label from 0; empty where they are not known."""
    first_label: int | None = None
    """The number of the first class in TFRecords; None where it is not known."""

    @property
    def root(self) -> Path:
        """The folder."""
        return root_of(self.data)

    @staticmethod
    def of(data: DataOptions) -> Target:
        """The data set of a spec. Raises DataError where it is not one that lies on disk."""
        if data.form is None or data.name == "digits":
            raise DataError(
                f"{data.name} has no files of its own to check; valid are "
                f"{', '.join(NAMED)}, image_folder, tfrecord, or a folder"
            )
        names: tuple[str, ...] = ()
        if data.form == "tfrecord":
            names = _names(root_of(data)) or tuple(map(str, range(_class_count(data))))
        return Target(data, names, records.first_label(data))


def detect(path: Path) -> Target:
    """The data set that lies in a folder, by its files. Raises DataError where there is none."""
    path = path.expanduser()
    if not path.is_dir():
        what = "is a file" if path.exists() else "is not there"
        raise DataError(
            f"{path} {what}; give a folder of a data set, the YAML file of a spec, or one of "
            f"{', '.join(NAMED)}"
        )
    form = _form(path)
    if form is None:
        raise DataError(
            f"{path} holds no data set that can be told by its files; valid are train/CLASS/* and "
            "val/CLASS/*, TFRecord shards (train-00000-of-00016), MNIST's IDX files and "
            "CIFAR-10's batches; name another one with --name and --format, or give a spec"
        )
    data = stated(path, {"idx": "mnist", "binary": "cifar10", "pickle": "cifar10"}.get(form), form)
    if form != "tfrecord":
        return Target(data)
    return Target(data, _names(path), _first_label(path))


def stated(path: Path | None, name: str | None, form: Format | None, **more: Any) -> DataOptions:
    """The options of a set on disk, with what checking does not need filled in."""
    if name is None:
        name = "tfrecord" if form == "tfrecord" else "image_folder"
    if name in ("image_folder", "tfrecord"):
        more.setdefault("image_size", _UNKNOWN)
    if name == "tfrecord":
        more.setdefault("classes", _UNKNOWN)
    return DataOptions(name=name, format=form, path=None if path is None else str(path), **more)


def _form(path: Path) -> Format | None:
    if any((path / top / "train").is_dir() for top in (".", "ILSVRC/Data/CLS-LOC")):
        return "folder"
    found = {each.name for where in ("*", "*/*", "*/*/*") for each in path.glob(where)}
    idx = {name for pair in IDX_FILES.values() for name in pair}
    if found & (idx | {f"{name}.gz" for name in idx}):
        return "idx"
    batches: tuple[Format, ...] = ("binary", "pickle")
    for form in batches:
        if any(name in found for names in CIFAR_FILES[form].values() for name in names):
            return form
    shards = [name for name in found if not name.endswith(".idx") and not name.startswith(".")]
    if any(fnmatch(name, each) for name in shards for each in RECORD_PATTERNS.values()):
        return "tfrecord"
    return None


def _class_count(data: DataOptions) -> int:
    known = NAMED[data.name].facts.classes if data.name in NAMED else data.classes
    return known or 0


def _names(root: Path) -> tuple[str, ...]:
    """What classes.txt tells; nothing where there is none."""
    try:
        return tuple((root / CLASSES_FILE).read_text("utf-8", "replace").splitlines())
    except OSError:
        return ()


def manifest_of(root: Path) -> dict[str, Any]:
    """The manifest of a conversion; empty where there is none. Raises DataError if damaged."""
    path = root / "manifest.json"
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    return found if isinstance(found, dict) else {}


def _first_label(root: Path) -> int | None:
    try:
        first = manifest_of(root).get("first_label")
    except DataError:
        return None  # told when the shards are looked at
    return first if isinstance(first, int) else None
