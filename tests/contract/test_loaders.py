"""What every loader promises, whatever the form on disk and however many ranks share the set.

Samples are known by their pixels and labels, compared with the arrays form, which no loader
reads.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from raysuite.data import (
    Batch,
    Loader,
    Prepared,
    Slice,
    make_loader,
    permutation,
    prepare,
    rank_slices,
)
from raysuite.data.formats import open_source
from raysuite.data.reading import read, shown
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DIGITS, DatasetFacts
from raysuite.spec.loaders import (
    DaliOptions,
    LoaderOptions,
    MemoryOptions,
    NativeOptions,
    RayDataOptions,
)
from tests import loading
from tests.require import require

CPU = torch.device("cpu")
OPTIONS: dict[str, LoaderOptions] = {
    "native": NativeOptions(),
    "native-threads": NativeOptions(threads=3, prefetch=1),
    "native-processes": NativeOptions(processes=2, prefetch=3),
    "dali": DaliOptions(),
    "dali-deep": DaliOptions(threads=2, prefetch=4),
    "memory": MemoryOptions(threads=0),
    "memory-threads": MemoryOptions(threads=3, prefetch=4),
    "ray_data": RayDataOptions(),
}
RANKS = (1, 3)
BATCHES = (7, 100)
"""Global batches; neither divides 360 samples among three ranks."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", params=["folder", "tfrecord"])
def digits(request: pytest.FixtureRequest, cache: Path) -> Prepared:
    return prepare(DataOptions(name="digits", format=request.param), DIGITS, cache)


@pytest.fixture(
    scope="module",
    params=loading.params(OPTIONS),
)
def options(request: pytest.FixtureRequest) -> LoaderOptions:
    return OPTIONS[loading.ready(request)]


@pytest.fixture(scope="module")
def loaders(digits: Prepared, options: LoaderOptions) -> Iterator[list[Loader]]:
    """A loader per rank over the validation split, used by all tests one after the other."""
    loaders = [make_loader(digits, "val", options, CPU) for _ in range(max(RANKS))]
    yield loaders
    for loader in loaders:
        loader.close()


@pytest.fixture(scope="module")
def truth(digits: Prepared) -> tuple[np.ndarray, np.ndarray]:
    folder = digits.files.parent / "arrays"
    return np.load(folder / "val-images.npy"), np.load(folder / "val-labels.npy")


def pixels(batch: Batch) -> np.ndarray:
    """[b, 8, 8] uint8."""
    assert batch.images.dtype == torch.float32
    assert batch.images.shape[1:] == (1, 8, 8)
    values = (batch.images[:, 0].double() * 0.3761 + 0.3058) * 255
    rounded = values.round()
    assert (values - rounded).abs().max() < 1e-3
    return rounded.to(torch.uint8).numpy()


def slices_of(order: np.ndarray, batch: int, ranks: int, rank: int, accumulate=1) -> list[Slice]:
    return list(itertools.chain(*rank_slices(order, batch, ranks, rank, accumulate)))


def test_labels_alone(digits: Prepared, truth: tuple[np.ndarray, np.ndarray]) -> None:
    order = permutation(len(truth[1]), 0, 0)
    slices = slices_of(order, 7, 2, 1, accumulate=2)
    with closing(make_loader(digits, "val", NativeOptions(), CPU, images=False)) as loader:
        found = list(loader.batches(slices))
    for batch, slice_ in zip(found, slices, strict=True):
        assert batch.images.shape == (len(slice_.ids), 0)
        assert (batch.labels.dtype, batch.labels.tolist()) == (
            torch.int64,
            truth[1][slice_.ids].tolist(),
        )
        assert (batch.real, batch.of_global) == (slice_.real, slice_.of_global)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("batch", BATCHES)
def test_every_sample_once_an_epoch_and_in_our_order(loaders, truth, options, ranks, batch):
    images, labels = truth
    whole = Counter((image.tobytes(), label) for image, label in zip(images, labels, strict=True))
    orders = [permutation(len(labels), seed=1, epoch=epoch) for epoch in range(2)]
    seen: list[Counter[tuple[bytes, int]]] = [Counter() for _ in orders]
    for rank in range(ranks):
        epochs = [slices_of(order, batch, ranks, rank, accumulate=2) for order in orders]
        if options.name == "ray_data":  # to start Ray Data takes longer than these few images
            got = loaders[rank].batches(list(itertools.chain(*epochs)))
        else:
            got = itertools.chain.from_iterable(map(loaders[rank].batches, epochs))
        for slices, counter in zip(epochs, seen, strict=True):
            # kept: buffers must not be used again
            kept = list(itertools.islice(got, len(slices)))
            assert len(kept) == len(slices)
            for slice_, loaded in zip(slices, kept, strict=True):
                assert (loaded.real, loaded.of_global) == (slice_.real, slice_.of_global)
                assert loaded.labels.dtype == torch.int64
                assert np.array_equal(pixels(loaded), images[slice_.ids])
                assert np.array_equal(loaded.labels.numpy(), labels[slice_.ids])
                real = pixels(loaded)[: loaded.real]
                counter.update(
                    (image.tobytes(), int(label))
                    for image, label in zip(real, loaded.labels, strict=False)
                )
        assert next(got, None) is None
    assert seen == [whole] * 2


def test_an_epoch_can_start_in_the_middle(loaders, truth):
    slices = slices_of(permutation(360, 0, 0), 32, 1, 0)
    whole = list(loaders[0].batches(slices))
    rest = list(loaders[0].batches(slices[5:]))
    for left, right in zip(whole[5:], rest, strict=True):
        assert torch.equal(left.images, right.images)
        assert torch.equal(left.labels, right.labels)


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_an_abandoned_epoch_leaves_no_trace(loaders, truth, taken):
    images, labels = truth
    slices = slices_of(permutation(360, 0, 0), 16, 1, 0)
    abandoned = loaders[0].batches(slices)
    for _ in range(taken):
        next(abandoned)
    other = slices_of(permutation(360, 0, 1), 16, 1, 0)
    for slice_, loaded in zip(other, loaders[0].batches(other), strict=True):
        assert np.array_equal(pixels(loaded), images[slice_.ids])
        assert np.array_equal(loaded.labels.numpy(), labels[slice_.ids])


def test_an_epoch_that_another_took_over_does_not_go_on(loaders):
    slices = slices_of(permutation(360, 0, 0), 16, 1, 0)
    first = loaders[0].batches(slices)
    next(first)
    second = loaders[0].batches(slices)
    next(second)
    with pytest.raises(RuntimeError, match="was called again"):
        next(first)
    assert len(list(second)) == len(slices) - 1


def test_epochs_of_any_length(loaders, truth):
    ids = np.arange(360)
    for lengths in ([], [1], [2, 360], [3, 1, 5], [360]):
        slices = [Slice(ids[:length], length, length) for length in lengths]
        got = [len(loaded.labels) for loaded in loaders[0].batches(slices)]
        assert got == lengths


def test_grey_images_become_three_equal_channels(cache, options):
    facts = DatasetFacts(1437, 360, 10, channels=3, image_size=8)
    prepared = prepare(DataOptions(name="digits", channels=3), facts, cache)
    loader = make_loader(prepared, "val", options, CPU)
    (batch,) = loader.batches([Slice(np.arange(5), 5, 5)])
    assert batch.images.shape == (5, 3, 8, 8)
    assert torch.equal(batch.images[:, 0], batch.images[:, 1])
    assert torch.equal(batch.images[:, 0], batch.images[:, 2])
    loader.close()


def test_every_format_shows_the_same_pixels(tmp_path, options):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    for split in ("train", "val"):
        folder = tmp_path / "set" / split / "only"
        folder.mkdir(parents=True)
        for suffix in ("png", "bmp", "tif", "webp"):
            Image.fromarray(pixels).save(folder / f"a.{suffix}", lossless=True)
        few = Image.fromarray(pixels // 128 * 255)  # 8 colours: a palette holds them
        few.save(folder / "b.png")
        few.save(folder / "c.gif")
    data = DataOptions(name="image_folder", path=str(tmp_path / "set"), image_size=16)
    prepared = prepare(data, DatasetFacts(6, 6, 1, channels=3, image_size=16), tmp_path / "cache")
    loader = make_loader(prepared, "val", options, CPU)
    (batch,) = loader.batches([Slice(np.arange(6), 6, 6)])
    images = batch.images.clone()
    loader.close()
    for other in (0, 2, 3):  # a.bmp, a.png, a.tif, a.webp, b.png, c.gif
        assert torch.equal(images[other], images[1])
    assert torch.equal(images[5], images[4])


def test_dali_on_a_gpu_needs_a_gpu(digits):
    require("dali")
    with pytest.raises(DataError, match=r"set loader\.device to cpu"):
        make_loader(digits, "val", DaliOptions(device="gpu"), CPU)


def test_ones_own_transform_is_the_same_in_every_loader(digits: Prepared, options: LoaderOptions):
    """As the reference shows it: by seed, epoch and sample, whatever is asked for beside it."""
    data = digits.data.model_copy(update={"transform": "tests.odd_sets:speckled"})
    own = replace(digits, data=data)
    if not options.transforms:
        with pytest.raises(DataError, match="transform"):
            make_loader(own, "val", options, CPU)
        return
    ids = np.array([5, 300, 7, 5], np.int64)
    slices = [
        Slice(ids, 4, 4, draw=(1, 2)),
        Slice(ids[:2], 2, 2, draw=(1, 3)),
        Slice(ids[::2].copy(), 2, 2),
    ]
    with closing(open_source(own, "val")) as source:
        expected = [shown(source, own, each, read(source, own, each))[..., 0] for each in slices]
    with closing(make_loader(own, "val", options, CPU)) as loader:
        found = [pixels(batch).copy() for batch in loader.batches(slices)]
    for got, wanted in zip(found, expected, strict=True):
        assert (got == wanted).all()
    assert (found[0][0] == found[0][3]).all(), "a sample that comes twice"
    assert (found[0][0] != found[1][0]).any(), "another epoch"
    with closing(open_source(digits, "val")) as source:
        plain = shown(source, digits, slices[2], read(source, digits, slices[2]))[..., 0]
    assert (found[2] == 255 - plain).all(), "in validation nothing is drawn"
