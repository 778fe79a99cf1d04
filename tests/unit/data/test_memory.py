"""The loader `memory`: which threads and processes do what."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from raysuite.data import Slice, make_loader, prepare
from raysuite.data.formats import open_source
from raysuite.data.formats.image_folder import Source
from raysuite.data.loaders.memory import key_of
from raysuite.data.normalise import Normalise
from raysuite.data.prepared import Prepared
from raysuite.errors import DataError
from raysuite.spec.loaders import MemoryOptions, NativeOptions
from tests import small_sets


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysuite.data.node_share.memory_root", lambda: tmp_path / "memory")


def seen_by(kind: type, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads in which a method of a class is called from now on."""
    threads: list[str] = []
    real: Callable[..., object] = getattr(kind, name)

    def method(*arguments: object) -> object:
        threads.append(threading.current_thread().name)
        return real(*arguments)

    monkeypatch.setattr(kind, name, method)
    return threads


def test_what_the_device_takes_is_written_by_the_loading_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = small_sets.write("cifar10-binary", tmp_path / "set")
    prepared = prepare(small.data, small.facts, tmp_path / "cache")
    written = [seen_by(Normalise, name, monkeypatch) for name in ("room", "pinned")]
    taken: list[Tensor] = []
    real = Normalise.images
    monkeypatch.setattr(
        Normalise, "images", lambda self, pixels: (taken.append(pixels), real(self, pixels))[1]
    )
    loader = make_loader(prepared, "train", MemoryOptions(), torch.device("cpu"))
    slices = [Slice(np.arange(start, start + 5), 5, 5, (0, start)) for start in (0, 5)]
    batches = list(loader.batches(slices))
    loader.close()
    assert [len(threads) for threads in written] == [2, 2]
    assert all(name.startswith("raysuite-memory") for threads in written for name in threads)
    assert [pixels.dtype for pixels in taken] == [torch.uint8] * len(batches)


def test_a_worker_that_is_told_looks_at_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = small_sets.write("imagenet-folder", tmp_path / "set")
    prepared = prepare(small.data, small.facts, tmp_path / "cache")
    looked = seen_by(Source, "file", monkeypatch)
    names: list[str] = []

    def found(name: str, find: Callable[[], str]) -> str:
        names.append(name)
        return "found" if len(names) > 1 else find()

    monkeypatch.setattr("raysuite.data.loaders.memory.found_once", found)
    for _ in range(2):
        make_loader(prepared, "train", MemoryOptions(), torch.device("cpu")).close()
    assert len(set(names)) == 1
    assert len(looked) == prepared.samples("train")


def test_pixels_in_memory_are_of_these_files_sizes_times_and_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raysuite.data.loaders.memory.found_once", lambda name, find: find())
    small = small_sets.write("imagenet-folder", tmp_path / "set")
    prepared = prepare(small.data, small.facts, tmp_path / "cache")
    source = open_source(prepared, "train")
    file = Path(str(source.file(0)))
    found = file.stat()

    def key(prepared: Prepared = prepared) -> str:
        return key_of(source, prepared, "train")

    first = key()
    os.utime(file, ns=(found.st_atime_ns + 1, found.st_mtime_ns))
    assert key() == first, "when it was read does not count"
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns + 1))
    later = key()
    file.write_bytes(file.read_bytes() + b" ")
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    keys = [first, later, key(), key_of(open_source(prepared, "val"), prepared, "val")]
    keys += [
        key(replace(prepared, data=prepared.data.model_copy(update={"image_size": 48}))),
        key(replace(prepared, facts=replace(prepared.facts, channels=1))),
    ]
    file.unlink()
    keys.append(key())
    assert len(set(keys)) == 7
    source.close()


@pytest.mark.parametrize(
    ("kind", "threads", "prefetch"),
    [("imagenet-folder", 0, 2), ("cifar10-folder", 3, 2), ("cifar10-folder", 1, 3)],
)
def test_images_are_read_from_memory_alone(
    kind: str, threads: int, prefetch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three threads work on three batches beside the one that is needed."""
    small = small_sets.write(kind, tmp_path / "set")
    prepared = prepare(small.data, small.facts, tmp_path / "cache")
    slices = [Slice(np.array([sample, 5, 22]), 3, 3) for sample in range(6)]
    with closing(make_loader(prepared, "train", NativeOptions(), torch.device("cpu"))) as loader:
        expected = list(loader.batches(slices))
    options = MemoryOptions(threads=threads, prefetch=prefetch)
    with closing(make_loader(prepared, "train", options, torch.device("cpu"))) as loader:
        for path in (tmp_path / "set").rglob("*.*"):
            path.unlink()
        begun = seen_by(ThreadPoolExecutor, "submit", monkeypatch)
        batches = loader.batches(slices)
        first = next(batches)
        assert len(begun) == (1 + 3 if threads else 0)
        for found, wanted in zip([first, *batches], expected, strict=True):
            assert torch.equal(found.images, wanted.images)
            assert torch.equal(found.labels, wanted.labels)
            assert (found.real, found.of_global) == (3, 3)


def test_a_damaged_image_leaves_all_others_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})  # parts of two images or more
    small = small_sets.write("imagenet-folder", tmp_path / "set")
    prepared = prepare(small.data, small.facts, tmp_path / "cache")
    files = [str(open_source(prepared, "train").file(sample)) for sample in (0, 1)]
    Path(files[0]).write_bytes(b"no image")
    with closing(make_loader(prepared, "train", MemoryOptions(), torch.device("cpu"))) as loader:
        Path(files[1]).unlink()
        [batch] = loader.batches([Slice(np.array([1, 2]), 2, 2)])
        assert len(batch.images) == 2
        with pytest.raises(DataError, match=files[0]):
            list(loader.batches([Slice(np.array([0]), 1, 1)]))
