"""CIFAR-10's files ("batches"), binary or pickled: https://www.cs.toronto.edu/~kriz/cifar.html"""

from __future__ import annotations

import io
import pickle
import pickletools
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysuite.data.cache import converted
from raysuite.data.findings import Listed, Part, Target, reason
from raysuite.data.formats import base
from raysuite.data.formats.base import Counts, OpenFile, files_of, files_to_check
from raysuite.data.prepared import Prepared, Split, prepared_of
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import CIFAR_FILES, CIFAR_FOLDERS, SPLITS, DatasetFacts, Format

SIDE = 32
PLANES = 3 * SIDE * SIDE
"""Bytes of an image: its red, green and blue planes, each row by row."""
RECORD = 1 + PLANES
"""Bytes of a binary record: the label, then the planes."""
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)
"""Class names by label, as in batches.meta.txt of the archives."""


def find(data: DataOptions) -> dict[str, list[Path]]:
    """The batches of each split. Raises DataError, which names missing batches."""
    assert data.form is not None
    wanted = CIFAR_FILES[data.form]
    names = [name for split in wanted.values() for name in split]
    found = files_of(data, (".", CIFAR_FOLDERS[data.form]), names)
    return {split: [found[name] for name in wanted[split]] for split in wanted}


def count(data: DataOptions) -> Counts:
    """The number of images in each split. Raises DataError, which names missing or bad batches."""
    one = records if data.form == "binary" else lambda path: len(read_batch(path).labels)
    counts = {split: sum(map(one, paths)) for split, paths in find(data).items()}
    return Counts(counts["train"], counts["val"], CLASSES)


def records(path: Path) -> int:
    """The number of images in a binary batch. Raises DataError if its last record is cut short."""
    size = path.stat().st_size
    if not size or size % RECORD:
        raise DataError(
            f"{path} at byte {size - size % RECORD}: record cut short, {size % RECORD} of "
            f"{RECORD} bytes; copy the file again"
        )
    return size // RECORD


@dataclass(frozen=True)
class Batch:
    """labels: one byte for each image, counted from 0; planes: PLANES bytes for each image."""

    labels: bytes
    planes: bytes


def read_batch(path: Path) -> Batch:
    """Read a pickled batch without running code in the pickle.

    Raises DataError if the file is not a pickle of plain data, or not a batch of CIFAR-10.
    """
    try:
        content = load(path.read_bytes())
    except (ValueError, OSError) as error:
        raise DataError(
            f"{path}: cannot be read safely as a batch of CIFAR-10: {error}; copy the file again "
            "from the official archive"
        ) from error
    found = content if isinstance(content, dict) else {}
    labels, planes = (found.get(key, found.get(key.encode())) for key in ("labels", "data"))
    if (
        not isinstance(planes, Array)
        or not isinstance(labels, list)
        or planes.kind != "u1"
        or planes.shape not in ((len(labels), PLANES), (len(labels), 3, SIDE, SIDE))
        or len(planes.data) != len(labels) * PLANES
        or not labels
        or not all(isinstance(label, int) and 0 <= label < len(CLASSES) for label in labels)
    ):
        raise DataError(
            f"{path}: not a batch of CIFAR-10; expected a dictionary with `labels`, a list of "
            f"numbers from 0 to 9, and `data`, an array with a row of {PLANES} bytes per label; "
            "copy the file again from the official archive"
        )
    return Batch(bytes(labels), planes.data)


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """Use binary batches in place; convert pickled batches to binary once, below `cache`."""
    files = find(data)
    if data.form == "pickle":
        folder = _converted(files, cache)
    else:
        folder = files["train"][0].parent.resolve()
    names = CIFAR_FILES["binary"]
    found = {split: sum(records(folder / name) for name in names[split]) for split in SPLITS}
    exact = facts.image_size == SIDE
    return prepared_of(
        data, facts, found, classes=CLASSES, form="binary", files=folder, exact=exact
    )


def _converted(files: dict[str, list[Path]], cache: Path) -> Path:
    def write(folder: Path) -> None:
        for split, names in CIFAR_FILES["binary"].items():
            for path, name in zip(files[split], names, strict=True):
                batch = read_batch(path)
                labels = np.frombuffer(batch.labels, np.uint8)[:, None]
                planes = np.frombuffer(batch.planes, np.uint8).reshape(len(labels), PLANES)
                rows = np.concatenate([labels, planes], axis=1)
                (folder / name).write_bytes(rows.tobytes())

    sources = (path for split in SPLITS for path in files[split])
    return converted(cache, "cifar", sources, write)


class Source(base.Source):
    """Batches of records: a label, then the red, green and blue planes."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        paths = [prepared.files / name for name in CIFAR_FILES["binary"][split]]
        counts = [records(path) for path in paths]
        self._starts = list(accumulate(counts, initial=0))
        self._files = [OpenFile(path) for path in paths]

    def read(self, sample: int) -> tuple[NDArray[np.uint8], int]:
        file, offset = self._where(sample)
        record = np.frombuffer(file.read(offset, RECORD), np.uint8)
        planes = record[1:].reshape(3, SIDE, SIDE)
        return np.ascontiguousarray(planes.transpose(1, 2, 0)), int(record[0])

    def label(self, sample: int) -> int:
        file, offset = self._where(sample)
        return file.read(offset, 1)[0]

    def place(self, sample: int) -> str:
        file, offset = self._where(sample)
        return f"{file.path} at byte {offset}"

    def file(self, sample: int) -> str:
        return str(self._where(sample)[0].path)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _where(self, sample: int) -> tuple[OpenFile, int]:
        batch = bisect_right(self._starts, sample) - 1
        return self._files[batch], (sample - self._starts[batch]) * RECORD


def to_check(target: Target, decode: bool, write_index: bool) -> Listed:
    def each() -> Iterator[tuple[str, tuple[Path]]]:
        for split, paths in find(target.data).items():
            yield from ((split, (path,)) for path in paths)

    check = _check_binary if target.data.form == "binary" else _check_pickle
    return files_to_check(target, each, check, CLASSES)


def _check_binary(part: Part, path: Path) -> None:
    try:
        records(path)
    except DataError as error:
        whole = path.stat().st_size // RECORD * RECORD
        place = f"{path} at byte {whole}"
        part.wrong("record", str(path), reason(error, place), whole)
        if path.stat().st_size > whole:  # also count the image that is cut short
            part.images += 1
            part.unreadable += 1
    values = np.fromfile(path, np.uint8)[::RECORD][: path.stat().st_size // RECORD]
    _count_pictures(part, path, len(values))
    part.label_bytes(path, values.tolist(), len(CLASSES), 0, RECORD)


def _check_pickle(part: Part, path: Path) -> None:
    try:
        batch = read_batch(path)
    except DataError as error:
        part.broken(path, error)
        return
    _count_pictures(part, path, len(batch.labels))
    part.labels.update(batch.labels)


def _count_pictures(part: Part, path: Path, many: int) -> None:
    part.images += many
    if many:
        part.sizes[SIDE, SIDE] += many


def detect(path: Path, names: set[str]) -> Format | None:
    forms: tuple[Format, ...] = ("binary", "pickle")
    for form in forms:
        if names & {*CIFAR_FILES[form]["train"], *CIFAR_FILES[form]["val"]}:
            return form
    return None


class _Maker:
    """Called in place of a function of NumPy or Python that a pickle names; only makes values."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> None:
        raise ValueError("it would change a function")


@dataclass
class _Kind:
    """Replaces numpy.dtype."""

    code: str

    def __setstate__(self, state: object) -> None:
        """Ignore the byte order and the fields: arrays of single bytes have neither."""


@dataclass
class Array:
    """Replaces numpy.ndarray; `kind` is a type code such as u1 or i8."""

    kind: str = ""
    shape: tuple[int, ...] = ()
    data: bytes = b""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        if fortran:
            raise ValueError("it has an array in Fortran's memory order")
        self.shape, self.kind, self.data = shape, kind.code, _raw(data)


def _raw(data: Any) -> bytes:
    # Python 2 pickled bytes as str, which the unpickler decodes as Latin-1 text
    return data.encode("latin-1") if isinstance(data, str) else bytes(data)


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"it has bytes in the encoding {encoding!r}")
    return text.encode("latin-1")


def _from_buffer(data: bytes, kind: _Kind, shape: tuple[int, ...], order: str) -> Array:
    if order != "C":
        raise ValueError(f"it has an array in the memory order {order!r}")
    return Array(kind.code, shape, bytes(data))


_ALLOWED = {
    "numpy.core.multiarray._reconstruct": _Maker(lambda *_: Array()),
    "numpy.core.numeric._frombuffer": _Maker(_from_buffer),
    "numpy.dtype": _Maker(lambda code, *_: _Kind(str(code))),
    "numpy.ndarray": _Maker(lambda *_: Array()),
    "_codecs.encode": _Maker(_encode),
    "__builtin__.bytes": _Maker(lambda *_: b""),
    "builtins.bytes": _Maker(lambda *_: b""),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> _Maker:
        full = f"{module}.{name}".replace("numpy._core.", "numpy.core.")
        if full not in _ALLOWED:
            raise ValueError(f"it would call {full}, but may contain only arrays and plain data")
        return _ALLOWED[full]


def load(data: bytes) -> Any:
    """The value of a pickle of plain data and NumPy arrays; code in the pickle is not run.

    Raises ValueError, with the reason, for anything else.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # for odd escapes in damaged text
            # The standard unpickler allocates as many bytes as a damaged length states; so check it
            # first.
            for operation, argument, position in pickletools.genops(io.BytesIO(data)):
                if operation.name.endswith("PUT") and (argument or 0) > len(data):
                    raise ValueError(f"it has a damaged memo index at byte {position}")
            return _Unpickler(io.BytesIO(data), encoding="latin-1").load()
    except ValueError:
        raise
    except Exception as error:  # a damaged pickle can raise any error
        raise ValueError(f"it is a damaged pickle ({type(error).__name__})") from error
