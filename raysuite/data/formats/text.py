"""Text and tokens: sequences of equal length, cut from one stream of tokens for each split.

A token of text is a byte. Files of tokens hold whole numbers of 16 bits, little-endian, or of 32
bits where the vocabulary has more than 65,536 tokens.

Sample i has the inputs tokens[i T : (i + 1) T] and as targets the tokens that follow each of them,
so that an epoch predicts every token but the first once. The last sample has fewer: the rest of its
targets are IGNORED_TOKEN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from raysuite.data.findings import Listed, Target
from raysuite.data.formats.base import Counts, TensorSource, absent
from raysuite.data.prepared import Prepared, Split, check_as_planned, unchanged_images
from raysuite.errors import DataError
from raysuite.spec.data import DataOptions, root_of
from raysuite.spec.datasets import BYTES, IGNORED_TOKEN, SPLITS, DatasetFacts

_SUFFIX = {"text": ".txt", "tokens": ".bin"}
_SHORT = 2**16
"""Vocabulary up to which a token takes 16 bits."""


class _Stream:
    """The tokens of some arrays, one after the other."""

    def __init__(
        self, arrays: Sequence[NDArray[np.unsignedinteger]], places: Sequence[str]
    ) -> None:
        self._arrays, self._places = arrays, places
        self._ends = list(accumulate(map(len, arrays)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def part(self, start: int, stop: int) -> NDArray[np.int64]:
        """The tokens [start, stop), as far as there are any."""
        begin, found = 0, [np.empty(0, np.int64)]
        for array, end in zip(self._arrays, self._ends, strict=True):
            if start < end and stop > begin:
                found.append(array[max(0, start - begin) : stop - begin].astype(np.int64))
            begin = end
        return np.concatenate(found)

    def file(self, token: int) -> str:
        """The file in which a token lies."""
        return self._places[self._number(token)]

    def place(self, token: int) -> str:
        """Where a token lies."""
        number = self._number(token)
        begin = self._ends[number] - len(self._arrays[number])
        return f"{self._places[number]} at token {token - begin}"

    def _number(self, token: int) -> int:
        return next(i for i, end in enumerate(self._ends) if token < end)


def _files(data: DataOptions, split: str) -> list[Path]:
    """SPLIT.txt or SPLIT.bin, or all such files in and below the folder SPLIT, by their paths."""
    root, suffix = root_of(data), _SUFFIX[data.form or ""]
    one = root / f"{split}{suffix}"
    found = [one] if one.is_file() else sorted((root / split).rglob(f"*{suffix}"))
    if not found:
        raise absent(data, [f"{split}{suffix} or {split}/*{suffix}"])
    return found


def _topics(split: str) -> NDArray[np.uint8]:
    """The texts of Python's `help()` topics; every tenth is held out for validation."""
    from pydoc_data.topics import topics

    texts = [topics[name] for name in sorted(topics)]
    chosen = [text for i, text in enumerate(texts) if (i % 10 == 9) == (split == "val")]
    return np.frombuffer("\n\n".join(chosen).encode(), np.uint8)


def _stream(data: DataOptions, split: str) -> _Stream:
    if data.name == "python_topics":
        return _Stream([_topics(split)], [f"pydoc_data.topics ({split})"])
    files = _files(data, split)
    dtype = np.dtype(np.uint8)
    if data.form == "tokens":
        dtype = np.dtype("<u2" if (data.classes or 0) <= _SHORT else "<u4")
    arrays = []
    for file in files:
        size = file.stat().st_size
        if size % dtype.itemsize:
            raise DataError(
                f"{file}: its {size} bytes are no whole number of tokens of {dtype.itemsize} "
                f"bytes; tokens of a vocabulary of up to {_SHORT:,} have 2, of larger ones 4"
            )
        arrays.append(np.memmap(file, dtype, "r") if size else np.empty(0, dtype))
    return _Stream(arrays, list(map(str, files)))


def _samples(tokens: int, sequence: int) -> int:
    return math.ceil((tokens - 1) / sequence)


def count(data: DataOptions) -> Counts:
    """Sequences of both splits. Raises DataError where files are missing or too short."""
    assert data.sequence is not None
    tokens = {split: len(_stream(data, split)) for split in SPLITS}
    short = [f"{split} has {n}" for split, n in tokens.items() if n < 2]
    if short:
        raise DataError(f"{data.name}: {' and '.join(short)} tokens; both splits need two or more")
    train, val = (_samples(tokens[split], data.sequence) for split in SPLITS)
    return Counts(train, val, classes=(), vocabulary=data.classes or BYTES)


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """Count the tokens; they are read in place, and nothing is kept in `cache`."""
    found = count(data)
    files = Path(data.name) if data.path is None else root_of(data)
    check_as_planned(facts, {"train": found.train, "val": found.val}, (), files)
    return Prepared(data, facts, (), "tokens", files, None, **unchanged_images())


class Source(TensorSource):
    """(inputs [T], targets [T]) int64."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        self._tokens = _stream(prepared.data, split)
        self._sequence, self._vocabulary = prepared.facts.sequence, prepared.facts.classes

    def sample(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        start, length = number * self._sequence, self._sequence
        tokens = self._tokens.part(start, start + length + 1)
        if len(tokens) and tokens.max() >= self._vocabulary:
            wrong = int(np.argmax(tokens >= self._vocabulary))
            raise DataError(
                f"{self._tokens.place(start + wrong)}: token {tokens[wrong]}; the vocabulary has "
                f"{self._vocabulary}; set data.classes to its size"
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


def to_check(target: Target, decode: bool, write_index: bool = False) -> Listed:
    """Raises DataError: no check of tokens is made before a run."""
    raise DataError(f"{target.data.name}: `raysuite data check` looks at images alone")
