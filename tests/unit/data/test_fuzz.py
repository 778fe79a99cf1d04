"""Damaged files through the readers and `data check`: told, or harmless; never a crash, a hang, a
wrong count or memory for what is not there. The first quarter of them each time, and all of them in
thorough runs."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from raysuite.data import Slice, prepare
from raysuite.data.formats import cifar, idx, open_source
from raysuite.data.formats.idx import unpack
from raysuite.data.formats.tfrecord import decode_example, read_index, read_record, walk
from raysuite.data.reading import read
from raysuite.data.set_check import Target, check, target_of
from raysuite.errors import DataError
from tests import small_sets

FILES = {"tfrecord": 2000, "idx": 1500, "binary": 1500}
CHECKED = 4
"""Every so many files are looked through by `data check` too, which takes longest."""
WEIGHED = 20
"""Of every so many files the memory is measured, which slows Python down."""
LARGEST = 32 << 20
"""Bytes that reading files of some kilobytes may take at once."""


def flip(content: bytearray, draw: Random) -> None:
    for _ in range(draw.randint(1, 8)):
        content[draw.randrange(len(content))] = draw.randrange(256)


def cut(content: bytearray, draw: Random) -> None:
    del content[draw.randrange(len(content)) :]


def remove(content: bytearray, draw: Random) -> None:
    at = draw.randrange(len(content))
    del content[at : at + draw.randint(1, 40)]


def insert(content: bytearray, draw: Random) -> None:
    at = draw.randrange(len(content) + 1)
    content[at:at] = draw.randbytes(draw.randint(1, 40))


def repeat(content: bytearray, draw: Random) -> None:
    at = draw.randrange(len(content))
    content[at:at] = content[at : at + draw.randint(1, len(content))]


def large(content: bytearray, draw: Random) -> None:
    """A length where one may stand: at the beginning more often than elsewhere."""
    at = draw.choice([0, 4, 8, 12, draw.randrange(len(content))])
    number = draw.choice([2**63 - 1, 2**64 - 1, 2**40, 2**31, 2**32 - 1, 0, 1])
    content[at : at + 8] = struct.pack(draw.choice("<>") + "Q", number)


def zero(content: bytearray, draw: Random) -> None:
    at = draw.randrange(len(content))
    content[at : at + 64] = bytes(len(content[at : at + 64]))


MUTATIONS: list[Callable[[bytearray, Random], None]] = [
    flip, flip, flip, cut, remove, insert, repeat, large, zero
]  # fmt: skip


def mutated(content: bytes, files: int) -> Iterator[tuple[int, bytes]]:
    """`files` damaged copies, always the same ones."""
    for number in range(files):
        draw = Random(number)
        copy = bytearray(content)
        for _ in range(draw.choice([1, 1, 2])):
            if copy:
                draw.choice(MUTATIONS)(copy, draw)
        with contextlib.nullcontext() if number % WEIGHED else bounded():
            yield number, bytes(copy)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """What is done meanwhile takes little memory."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
        assert peak < LARGEST
    finally:
        tracemalloc.stop()


@pytest.fixture(params=[4, pytest.param(1, marks=pytest.mark.thorough)], ids=["few", "all"])
def part(request: pytest.FixtureRequest) -> int:
    """One of so many files is tried: the first ones."""
    return int(request.param)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of a handful of images: most of the bytes are then headers."""
    monkeypatch.setattr(small_sets, "COUNTS", {"train": 6, "val": 2})


def written(kind: str, folder: Path) -> small_sets.SmallSet:
    return small_sets.write(kind, folder / "set")


def names(error: DataError, place: str) -> None:
    assert place in str(error)


def assert_checked(number: int, target: Target, path: Path, sound: bool) -> None:
    """`data check` says what is wrong with the file, and nothing where it is sound."""
    if number % CHECKED:
        return
    report = check(target)
    assert report.ok or not sound, report.findings
    assert sound or any(path.name in f"{each.place} {each.message}" for each in report.findings)


@pytest.mark.slow
def test_tfrecords(few, part, tmp_path):
    small = written("mnist-tfrecord", tmp_path)
    target = target_of(small.data)
    path = tmp_path / "set" / "train-00000-of-00003.tfrecord"
    index_path = path.with_suffix(".idx")
    content, index_text = path.read_bytes(), index_path.read_bytes()
    index = read_index(index_path).tolist()
    originals = {content[offset : offset + size] for offset, size in index}
    for number, damaged in mutated(content, FILES["tfrecord"] * 3 // 4 // part):
        path.write_bytes(damaged)
        intact = [damaged[at : at + size] == content[at : at + size] for at, size in index]
        assert [_record(path, *place) is not None for place in index] == intact
        found = _walked(path)
        whole = [damaged[at : at + size] for at, size in found if _record(path, at, size)]
        assert set(whole) <= originals
        assert sum(size for _, size in found) <= len(damaged)
        prefix = next((n for n, whole in enumerate(intact) if not whole), len(index))
        assert found[:prefix] == [tuple(place) for place in index[:prefix]]
        assert_checked(number, target, path, sound=damaged == content)
    path.write_bytes(content)
    for number, damaged in mutated(index_text, FILES["tfrecord"] // 4 // part):
        index_path.write_bytes(damaged)
        try:
            places = read_index(index_path).tolist()
        except DataError:
            places = []
        for place in places[:100]:
            assert _record(path, *place) is not None or place not in index
        same = places == index
        assert_checked(number, target, path if same else index_path, sound=same)


def _record(path: Path, offset: int, size: int) -> tuple[bytes, int] | None:
    """Image and label, or None where an error was told."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return decode_example(read_record(descriptor, offset, size, str(path)), str(path))
    except DataError as error:
        names(error, str(path))
        return None
    finally:
        os.close(descriptor)


def _walked(path: Path) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    try:
        for place in walk(path):
            found.append(place)
    except DataError as error:
        names(error, f"{path} at byte {sum(found[-1]) if found else 0}: ")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_idx_files(few, part, packed, tmp_path):
    small = written("mnist-idx", tmp_path)
    target = target_of(small.data)
    folder = tmp_path / "set"
    for share, name, dimensions in ((3, "train-images", 3), (6, "train-labels", 1)):
        path = folder / f"{name}-idx{dimensions}-ubyte"
        content = path.read_bytes()
        original = gzip.compress(content) if packed else content
        if packed:
            path.unlink()
            path = folder / f"{path.name}.gz"
        for number, damaged in mutated(original, FILES["idx"] // share // part):
            path.write_bytes(damaged)
            plain = _plain(path, dimensions, tmp_path / "plain")
            if plain is None or packed:
                assert plain in (None, content)  # a .gz has a checksum of all its bytes
                assert_checked(number, target, path, sound=plain is not None)
                continue
            sizes = struct.unpack_from(f">{dimensions}I", plain, 4)
            assert len(plain) == 4 + 4 * dimensions + np.prod(sizes)
            bad = sum(label > 9 for label in plain[8:]) if dimensions == 1 else 0
            assert_read_or_told(small, counts=sizes[0], bad=bad)
        path.unlink()
        (folder / f"{name}-idx{dimensions}-ubyte").write_bytes(content)


def _plain(path: Path, dimensions: int, target: Path) -> bytes | None:
    """The bytes of a file that its header fits, or None where an error was told."""
    try:
        idx.shape(path, dimensions)
        unpack(path, dimensions, target)
        return target.read_bytes()
    except DataError as error:
        names(error, str(path))
        return None


@pytest.mark.slow
def test_cifar_batches(few, part, tmp_path):
    small = written("cifar10-binary", tmp_path)
    target = target_of(small.data)
    (path,) = tmp_path.rglob("data_batch_1.bin")
    content = path.read_bytes()
    for number, damaged in mutated(content, FILES["binary"] // part):
        path.write_bytes(damaged)
        try:
            found = cifar.records(path)
        except DataError as error:
            names(error, f"{path} at byte ")
            assert not damaged or len(damaged) % cifar.RECORD
            assert_checked(number, target, path, sound=False)
            continue
        assert found * cifar.RECORD == len(damaged)
        bad = sum(label > 9 for label in damaged[:: cifar.RECORD])
        assert_read_or_told(small, counts=4 + found, bad=bad)
        if found == 2:
            assert_checked(number, target, path, sound=not bad)


def assert_read_or_told(small: small_sets.SmallSet, counts: int, bad: int) -> None:
    """Another count than the plan's is told; else every sample is read, or its label is told."""
    try:
        found = prepare(small.data, small.facts, Path("/nonexistent"))
    except DataError:
        assert counts != small.facts.train_samples
        return
    assert counts == small.facts.train_samples
    found = dataclasses.replace(found, exact=False)
    source = open_source(found, "train")
    failed = 0
    for sample in range(counts):
        try:
            read(source, found, Slice(np.array([sample]), 1, 1))
        except DataError as error:
            names(error, source.place(sample))
            failed += 1
    source.close()
    assert failed == bad
