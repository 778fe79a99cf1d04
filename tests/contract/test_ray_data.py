"""Ray Data delivers what the native loader does, and what it alone can get wrong: a full cluster,
Ray's own errors, threads that stay."""

from __future__ import annotations

import itertools
import os
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from raysuite.data import Slice, make_loader, permutation, prepare, rank_slices
from raysuite.data.loaders import ray_data
from raysuite.data.prepared import Prepared
from raysuite.errors import DataError
from raysuite.nested import leaves
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DIGITS
from raysuite.spec.loaders import NativeOptions, RayDataOptions
from tests.unit.tasks.conftest import plan_of

pytestmark = pytest.mark.integration
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def digits(cache: Path) -> Prepared:
    return prepare(DataOptions(name="digits"), DIGITS, cache)


def slices(count: int, size: int = 6) -> list[Slice]:
    return [Slice(np.arange(size) + number, size, size) for number in range(count)]


@pytest.mark.parametrize(
    ("form", "options"),
    [
        pytest.param("folder", RayDataOptions(images_per_task=1, prefetch=1), id="shallow"),
        pytest.param(
            "tfrecord", RayDataOptions(tasks=3, images_per_task=12, prefetch=5), id="deep"
        ),
        pytest.param("folder", RayDataOptions(images_per_task=10_000), id="one-task"),
    ],
)
def test_batches_are_those_of_native_in_their_order(running_ray, cache, form, options):
    data = DataOptions(name="digits", format=form, augment="pad_crop_flip")
    prepared = prepare(data, DIGITS, cache)
    order = permutation(150, seed=1, epoch=0)
    # the second of two ranks: batches of 3, 2 and, padded, of 1 real sample
    asked = list(itertools.chain(*rank_slices(order, 11, 2, 1, accumulate=2, draw=(1, 0))))
    with (
        closing(make_loader(prepared, "train", NativeOptions(), CPU)) as native,
        closing(make_loader(prepared, "train", options, CPU)) as loader,
    ):
        for expected, batch in zip(native.batches(asked), loader.batches(asked), strict=True):
            assert torch.equal(batch.images, expected.images)
            assert torch.equal(batch.labels, expected.labels)
            assert (batch.real, batch.of_global) == (expected.real, expected.of_global)


@pytest.mark.parametrize("case", ["language_model", "own"])
def test_samples_that_are_no_images_come_as_they_do_from_native(
    running_ray, case, tmp_path, monkeypatch
):
    monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path))
    plan = plan_of(case, tmp_path)
    prepared = prepare(plan.spec.data, plan.dataset)
    ids = ([3, 0, 5], [1, 2], [8])
    asked = [Slice(np.array(each), len(each), len(each)) for each in ids]
    found = []
    for options in (RayDataOptions(images_per_task=4), NativeOptions()):
        with closing(make_loader(prepared, "train", options, CPU)) as loader:
            found.append([(batch.images, batch.labels) for batch in loader.batches(asked)])
    streamed, expected = (list(leaves(tuple(each))) for each in found)
    assert len(streamed) == len(expected) >= 6
    assert all(map(torch.equal, streamed, expected))


def test_a_process_keeps_the_files_of_its_newest_loaders_open(digits, monkeypatch):
    monkeypatch.setattr(ray_data, "_open", {})
    counts = []
    for loader in map(str, range(20)):
        assert ray_data._source(loader, digits, "train") is ray_data._open[loader]
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[0] < counts[7] == counts[8] == counts[19]
    for source in ray_data._open.values():
        source.close()


@pytest.mark.thorough
def test_it_needs_no_cpu_of_the_cluster(running_ray, digits):
    """Training's thread waits for Ray Data while its worker, an actor, keeps the only CPU: only of
    one that waits in its main thread does Ray lend out the CPU."""
    import ray

    @ray.remote(num_cpus=1)
    class Worker:
        def work(self) -> int:
            counts: list[int] = []
            thread = threading.Thread(target=lambda: counts.append(self.train()), daemon=True)
            thread.start()
            while thread.is_alive():
                time.sleep(0.01)
            return counts[0]

        def train(self) -> int:
            loader = make_loader(digits, "train", RayDataOptions(images_per_task=6), CPU)
            count = sum(batch.real for batch in loader.batches(slices(5)))
            loader.close()
            return count

    worker = Worker.remote()
    assert ray.get(worker.work.remote(), timeout=200) == 30
    ray.kill(worker)


def test_an_abandoned_epoch_leaves_no_task_and_no_thread_at_work(running_ray, digits):
    loader = make_loader(digits, "train", RayDataOptions(images_per_task=6), CPU)
    next(loader.batches(slices(200)))
    names = [thread.name for thread in threading.enumerate()]
    assert any(name.startswith("StreamingExecutor") for name in names)
    loader.close()
    names = [thread.name for thread in threading.enumerate() if thread.is_alive()]
    assert not any(name.startswith("StreamingExecutor") for name in names)


def test_a_bad_image_deep_in_the_epoch_is_named_once_what_was_before_it_came(
    running_ray, tmp_path: Path
):
    prepared = prepare(DataOptions(name="digits"), DIGITS, tmp_path)
    loader = make_loader(prepared, "train", RayDataOptions(images_per_task=12), CPU)
    bad = sorted((prepared.files / "train" / "0").iterdir())[20]
    bad.write_text("no image")
    got: list[int] = []
    asked = [Slice(np.arange(2) + 2 * number, 2, 2) for number in range(40)]
    with pytest.raises(DataError, match=rf"^{bad}: not a readable image"):
        got.extend(batch.real for batch in loader.batches(asked))
    assert len(got) == 10
    assert len(list(loader.batches(slices(2)))) == 2
    loader.close()
