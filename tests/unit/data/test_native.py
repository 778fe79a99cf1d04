"""The native loader's manners: how it uses threads, processes, memory and random numbers."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from contextlib import closing

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from raysuite.data import Slice, make_loader
from raysuite.data.loaders.native import InThreads, _transport
from raysuite.data.normalise import Buffers
from raysuite.data.prepared import Prepared
from raysuite.data.rendering import Rendering
from raysuite.errors import RunError
from raysuite.spec.loaders import DaliOptions, MemoryOptions, NativeOptions
from tests.require import require

CPU = torch.device("cpu")
SLICES = [Slice(ids, len(ids), len(ids)) for ids in np.arange(40).reshape(10, 4)]


@pytest.fixture
def loader(digits):
    loader = make_loader(digits, "train", NativeOptions(processes=1), CPU)
    yield loader
    loader.close()


@pytest.mark.integration
def test_processes_outlive_an_epoch_and_end_with_the_loader(loader):
    before = set(multiprocessing.active_children())
    list(loader.batches(SLICES))
    (first,) = set(multiprocessing.active_children()) - before
    list(loader.batches(SLICES))
    assert set(multiprocessing.active_children()) - before == {first}
    loader.close()
    assert not set(multiprocessing.active_children()) - before


@pytest.mark.integration
def test_a_process_that_dies_is_an_error_and_no_hang(loader):
    before = set(multiprocessing.active_children())
    batches = loader.batches(SLICES * 100)
    next(batches)
    (worker,) = set(multiprocessing.active_children()) - before
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(RunError, match="native loader died"):
        list(batches)


OWN = [NativeOptions(), NativeOptions(threads=2), NativeOptions(processes=1)]


@pytest.mark.parametrize("options", [*OWN, DaliOptions(), MemoryOptions()], ids=str)
def test_a_loader_leaves_no_thread_no_open_file_and_the_models_random_numbers(digits, options):
    if options.name == "dali":
        require("dali")
    here = not getattr(options, "processes", 0)
    before, threads = open_files(digits), set(threading.enumerate())
    loader = make_loader(digits, "val", options, CPU)
    state = torch.get_rng_state()
    list(loader.batches(SLICES))
    assert torch.equal(torch.get_rng_state(), state)
    assert (open_files(digits) != before) == here
    assert len(set(threading.enumerate()) - threads) >= getattr(options, "threads", 0) * here
    loader.close()
    assert open_files(digits) == before
    assert set(threading.enumerate()) <= threads or not here


def open_files(prepared: Prepared) -> list[str]:
    """The files of a set that this process has open."""
    paths = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    return sorted(path for path in paths if path.startswith(str(prepared.files)))


WAYS = [
    NativeOptions(threads=threads, transport=transport, prefetch=prefetch)
    for threads, prefetch in [(0, 1), (1, 1), (3, 2)]
    for transport in ("uint8", "float32")
]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_neither_threads_nor_transport_change_a_value(digits, options):
    slices = [Slice(ids, len(ids), len(ids)) for ids in np.array_split(np.arange(300), 7)]
    plain, other = (make_loader(digits, "train", each, CPU) for each in (NativeOptions(), options))
    for left, right in zip(plain.batches(slices), other.batches(slices), strict=True):
        assert torch.equal(left.images, right.images)
        assert torch.equal(left.labels, right.labels)
        assert right.images.is_contiguous()
    plain.close()
    other.close()


@pytest.mark.parametrize(
    ("transport", "threads", "on_gpu", "dtype"),
    [
        ("auto", 2, False, torch.float32),
        ("auto", 2, True, torch.uint8),
        ("auto", 0, False, torch.uint8),
        ("uint8", 2, False, torch.uint8),
        ("float32", 0, True, torch.float32),
    ],
)
def test_images_are_loaded_ahead_in_the_type_that_is_asked_for(transport, threads, on_gpu, dtype):
    assert _transport(NativeOptions(transport=transport, threads=threads), on_gpu) == dtype


@pytest.mark.parametrize(("size", "begun"), [(4, 1 + 2 + 3), (16, 6), (17, 5), (40, 4)])
def test_threads_load_the_asked_batches_ahead_and_one_task_for_each_thread(digits, size, begun):
    """A task has up to 16 images: of batches of 40, which are three tasks, one more is begun."""
    slices = [Slice(np.arange(size), size, size)] * 20
    room: list[int] = []

    def taken(count: int) -> torch.Tensor:
        room.append(count)
        return torch.empty(count, 8, 8, 1, dtype=torch.uint8)

    rendering, options = Rendering(digits, "exact"), NativeOptions(threads=3, prefetch=2)
    with closing(InThreads(rendering, "train", options, taken)) as ahead:
        batches = ahead.load(slices)
        next(batches)
        assert room == [size] * begun
        next(batches)
        assert room == [size] * (begun + 1)


def test_memory_is_used_again_once_no_view_of_it_is_left():
    buffers = Buffers(np.float32)
    first = buffers.take((4, 3))
    address = first.ctypes.data
    tensor = torch.from_numpy(first)
    del first
    view = tensor[1:].t()
    del tensor
    assert buffers.take((2, 3)).ctypes.data != address  # `view` is left
    view.fill_(1)
    del view
    gc.collect()
    assert buffers.take((3, 4)).ctypes.data == address


def test_kept_batches_are_not_written_to_again():
    buffers = Buffers(np.uint8)
    kept = [buffers.take((5,)) for _ in range(40)]
    for number, array in enumerate(kept):
        array[:] = number
    assert [int(array[0]) for array in kept] == list(range(40))
    larger = buffers.take((50,))
    larger[:] = 99
    assert [int(array[-1]) for array in kept] == list(range(40))


def test_threads_and_processes_are_not_for_the_same_loader():
    with pytest.raises(ValidationError, match="threads is 2"):
        NativeOptions(threads=2, processes=1)
