"""The native loader's manners: processes that end, and a generator that it leaves alone."""

from __future__ import annotations

import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch

from raysuite.data import Slice, make_loader
from raysuite.errors import RunError
from raysuite.spec.loaders import DaliOptions, NativeOptions
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
    with pytest.raises(RunError, match="a loading process of the native loader died"):
        list(batches)


@pytest.mark.parametrize("name", ["native", "dali"])
def test_the_models_random_numbers_do_not_depend_on_the_loader(digits, name):
    if name == "dali":
        require("dali")
    loader = make_loader(digits, "val", NativeOptions() if name == "native" else DaliOptions(), CPU)
    state = torch.get_rng_state()
    list(loader.batches(SLICES))
    assert torch.equal(torch.get_rng_state(), state)
    loader.close()
