"""Text and tokens: sequences of equal length, cut from one stream of tokens for each split.

In a text, each byte is a token. Files of tokens contain 16-bit integers, little-endian, or 32-bit
integers if the vocabulary has more than 65,536 tokens. X.bin may have an X.idx, the index of
Megatron-LM's `preprocess_data.py` (megatron/core/datasets/indexed_dataset.py), which gives the
dtype and the position of each sequence. The stream consists of these sequences in order. As in
Megatron-LM, a sample may contain tokens of several documents.

With T tokens in a sequence, sample i has the inputs tokens[i T : (i + 1) T]. The target of each
input is the next token. In an epoch, every token but the first is therefore predicted once. The
last sample can have fewer than T tokens: it is padded with inputs of 0 and targets of
IGNORED_TOKEN.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysuite.data.findings import Listed, Target
from raysuite.data.formats.base import Counts, TensorSource, absent
from raysuite.data.prepared import Prepared, Split, check_as_planned, unchanged_images
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions, root_of
from raysuite.spec.datasets import BYTES, IGNORED_TOKEN, SPLITS, DatasetFacts

_SUFFIX = {"text": ".txt", "tokens": ".bin"}
_SHORT = 2**16
"""The largest vocabulary whose tokens take 16 bits."""


class _Stream:
    """The tokens of several stretches (parts of arrays), one stretch after the other."""

    def __init__(self, stretches: Sequence[_Stretch]) -> None:
        self._stretches = stretches
        self._ends = np.cumsum([each.length for each in stretches], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def part(self, start: int, stop: int) -> NDArray[np.int64]:
        """The tokens [start, stop); fewer if the stream ends earlier."""
        found = [np.empty(0, np.int64)]
        for number in range(self._number(start), len(self._stretches)):
            each, end = self._stretches[number], int(self._ends[number])
            begin = end - each.length
            if begin >= stop:
                break
            first, last = each.first - begin, min(stop, end)
            found.append(each.array[first + max(start, begin) : first + last].astype(np.int64))
        return np.concatenate(found)

    def file(self, token: int) -> str:
        """The file that contains a token."""
        return self._stretches[self._number(token)].place

    def place(self, token: int) -> str:
        """A token's file, and the token's index in this file."""
        number = self._number(token)
        each = self._stretches[number]
        begin = int(self._ends[number]) - each.length
        return f"{each.place} at token {each.first + token - begin}"

    def _number(self, token: int) -> int:
        """The index of the stretch that contains a token."""
        return int(np.searchsorted(self._ends, token, side="right"))


@dataclass(frozen=True)
class _Stretch:
    """The tokens array[first : first + length]."""

    array: NDArray[np.integer[Any]]
    place: str
    first: int
    length: int


def _files(data: DataOptions, split: str) -> list[Path]:
    """SPLIT.txt or SPLIT.bin, or else the sorted .txt or .bin files below the folder SPLIT. Links
    are followed, suffixes may be in upper case, and hidden files and folders are ignored."""
    root, suffix = root_of(data), _SUFFIX[data.form or ""]
    one = root / f"{split}{suffix}"
    found = [one] if one.is_file() else sorted(_below(root / split, suffix, ()))
    if not found:
        raise absent(data, [f"{split}{suffix} or {split}/*{suffix}"])
    return found


def _below(folder: Path, suffix: str, parents: tuple[Path, ...]) -> Iterator[Path]:
    real = folder.resolve()
    if not folder.is_dir() or real in parents:  # `folder` is a link to a folder that contains it
        return
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _below(path, suffix, (*parents, real))
        elif path.suffix.lower() == suffix:
            yield path


def _topics(split: str) -> NDArray[np.uint8]:
    """The texts of Python's `help()` topics; every tenth is held out for validation."""
    from pydoc_data.topics import topics

    texts = [topics[name] for name in sorted(topics)]
    chosen = [text for i, text in enumerate(texts) if (i % 10 == 9) == (split == "val")]
    return np.frombuffer("\n\n".join(chosen).encode(), np.uint8)


def _stream(data: DataOptions, split: str) -> _Stream:
    if data.name == "python_topics":
        topics = _topics(split)
        return _Stream([_Stretch(topics, f"pydoc_data.topics ({split})", 0, len(topics))])
    dtype = np.dtype(np.uint8)
    if data.form == "tokens":
        dtype = np.dtype("<u2" if (data.classes or 0) <= _SHORT else "<u4")
    stretches: list[_Stretch] = []
    for file in _files(data, split):
        index = file.with_suffix(".idx")
        if data.form == "tokens" and index.is_file():
            stretches += _indexed(file, index)
            continue
        size = file.stat().st_size
        if size % dtype.itemsize:
            raise DataError(
                f"{file}: its size, {size} bytes, is not a multiple of the {dtype.itemsize} bytes "
                f"of a token (2 bytes if data.classes is at most {_SHORT:,}, else 4); set "
                "data.classes to the size of the vocabulary, or write the file again"
            )
        stretches.append(_Stretch(_mapped(file, dtype), str(file), 0, size // dtype.itemsize))
    return _Stream(stretches)


def _mapped(file: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    size = file.stat().st_size // dtype.itemsize
    return np.memmap(file, dtype, "r", shape=(size,)) if size else np.empty(0, dtype)


_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
"""The fields of the index's header: magic bytes, version, dtype code, number of sequences, and
length of the list of documents."""
_KINDS = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Megatron-LM's dtype code -> NumPy dtype, for the codes of integers."""


def _indexed(file: Path, index: Path) -> Iterator[_Stretch]:
    """The sequences of a token file with an index; adjacent sequences form one stretch.

    Raises DataError if the index is damaged, is not Megatron-LM's, or does not match the file.
    """
    content = index.read_bytes()
    remedy = "write both files again, or remove the index to read the tokens without it"
    if len(content) < _HEADER.size or not content.startswith(_MAGIC):
        raise DataError(f"{index} is not a Megatron-LM index; {remedy}")
    _, version, kind, sequences, documents = _HEADER.unpack_from(content)
    if version != 1 or kind not in _KINDS:
        raise DataError(
            f"{index}: version {version} and dtype code {kind}; valid: version 1 and the dtype "
            f"codes of integers ({', '.join(map(str, _KINDS))}); {remedy}"
        )
    if len(content) < _HEADER.size + 12 * sequences + 8 * documents:
        raise DataError(f"{index}: too short for its {sequences} sequences; {remedy}")
    lengths = np.frombuffer(content, "<i4", sequences, _HEADER.size).astype(np.int64)
    pointers = np.frombuffer(content, "<i8", sequences, _HEADER.size + 4 * sequences)
    tokens = _mapped(file, np.dtype(_KINDS[kind]))
    firsts, odd = np.divmod(pointers, tokens.itemsize)
    beyond = (lengths < 0) | (firsts < 0) | (firsts + lengths > len(tokens)) | (odd != 0)
    if beyond.any():
        raise DataError(
            f"{index}: the position or length of sequence {int(beyond.argmax())} does not fit the "
            f"{file.stat().st_size} bytes of {file}; {remedy}"
        )
    apart = np.flatnonzero(firsts[1:] != (firsts + lengths)[:-1]) + 1
    for numbers in np.split(np.arange(sequences), apart):
        if len(numbers):
            first, length = int(firsts[numbers[0]]), int(lengths[numbers].sum())
            yield _Stretch(tokens, str(file), first, length)


def _samples(tokens: int, sequence: int) -> int:
    return math.ceil((tokens - 1) / sequence)


def count(data: DataOptions) -> Counts:
    """Count the sequences in each split. Raises DataError if files are missing or too short."""
    assert data.sequence is not None
    tokens = {split: len(_stream(data, split)) for split in SPLITS}
    short = [f"{split} has {n}" for split, n in tokens.items() if n < 2]
    if short:
        raise DataError(f"{data.name}: {' and '.join(short)} tokens; each split needs two or more")
    train, val = (_samples(tokens[split], data.sequence) for split in SPLITS)
    return Counts(train, val, classes=(), vocabulary=data.classes or BYTES)


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """Count the tokens. They are read in place; nothing is kept in `cache`."""
    found = count(data)
    files = Path(data.name) if data.path is None else root_of(data)
    check_as_planned(facts, {"train": found.train, "val": found.val}, (), files)
    return Prepared(data, facts, (), "tokens", files, None, **unchanged_images())


class Source(TensorSource):
    """Reads samples (inputs [T], targets [T]), int64; T is the number of tokens in a sequence."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        self._tokens = _stream(prepared.data, split)
        self._sequence, self._vocabulary = prepared.facts.sequence, prepared.facts.classes

    def sample(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        start, length = number * self._sequence, self._sequence
        tokens = self._tokens.part(start, start + length + 1)
        beyond = (tokens < 0) | (tokens >= self._vocabulary)
        if beyond.any():
            wrong = int(beyond.argmax())
            raise DataError(
                f"{self._tokens.place(start + wrong)}: token {tokens[wrong]} is not in the "
                f"vocabulary of {self._vocabulary} tokens; set data.classes to the size of the "
                "vocabulary"
            )
        inputs, targets = np.zeros(length, np.int64), np.full(length, IGNORED_TOKEN)
        inputs[: min(length, len(tokens))] = tokens[:length]
        targets[: len(tokens) - 1] = tokens[1:]
        return inputs, targets

    def weights(self) -> NDArray[np.float64]:
        tokens = len(self._tokens) - 1
        found = np.full(_samples(tokens + 1, self._sequence), float(self._sequence))
        found[-1] = tokens - (len(found) - 1) * self._sequence
        return found

    def place(self, sample: int) -> str:
        return self._tokens.place(sample * self._sequence)

    def file(self, sample: int) -> str:
        return self._tokens.file(sample * self._sequence)


def to_check(target: Target, decode: bool, write_index: bool) -> Listed:
    """Raises DataError: tokens are not checked before a run."""
    raise DataError(f"{target.data.name}: `raysuite data check` cannot check text or tokens")
