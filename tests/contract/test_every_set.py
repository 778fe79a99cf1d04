"""Every data set in every form through every loader: each sample once an epoch, as it should look.

What a sample should look like is computed from the pixels that the set was written from, or that
Pillow decodes from its files, with no part of a loader.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from raysuite.data import Loader, Prepared, Slice, make_loader, permutation, prepare, rank_slices
from raysuite.data.pixels import cut_out, fit
from raysuite.data.views import views
from raysuite.spec.datasets import SPLITS
from raysuite.spec.loaders import (
    DaliOptions,
    LoaderOptions,
    MemoryOptions,
    NativeOptions,
    RayDataOptions,
    SyntheticOptions,
)
from tests import loading, small_sets

CPU = torch.device("cpu")
RANKS = (1, 3)
EPOCHS = 2
BATCH = 7
"""A global batch that divides neither 23 nor 9 samples, nor is divided by 3 ranks."""
SIDES = {"imagenet": 48, "highres": 64}
"""Of the network's images: smaller than usual, to be fast."""
SEED = 5
ROUNDING = 1e-3
"""Levels of 255 that are lost and won where pixels are normalised and back."""
DALI_LEVELS = 0.25
"""Largest mean difference of resized images to the reference, in levels of 255
(docs/reference/data.md)."""
AS_NATIVE = ("memory", "ray_data")
"""Loaders whose batches are native's to the last bit."""
OPTIONS: dict[str, LoaderOptions] = {
    "native": NativeOptions(),
    "dali": DaliOptions(),
    "memory": MemoryOptions(),
    "ray_data": RayDataOptions(images_per_task=64),
}


@dataclass(frozen=True)
class Case:
    """A small set, prepared, and its normalised reference images."""

    small: small_sets.SmallSet
    prepared: Prepared

    def by_native(self, split: str, ids: np.ndarray, draw: tuple[int, int] | None) -> Tensor:
        """[b, C, size, size] fp32, from the loader that is held against `by_pillow`."""
        loader = make_loader(self.prepared, split, NativeOptions(), CPU)
        (batch,) = loader.batches([Slice(ids, len(ids), len(ids), draw)])
        loader.close()
        return batch.images

    def by_pillow(self, split: str, ids: np.ndarray, draw: tuple[int, int] | None) -> Tensor:
        """[b, C, size, size] fp32, from the pixels that lie on the disk."""
        prepared, pixels = self.prepared, [self.small.images[split][i] for i in ids.tolist()]
        sizes = np.array([image.shape[1::-1] for image in pixels])
        seen = views(prepared, ids, sizes, draw)
        size = prepared.facts.image_size
        shown = np.stack(
            [
                fit(*cut_out(image, box), size)[:, :: -1 if flip else 1]
                for image, box, flip in zip(pixels, seen.boxes, seen.flips.tolist(), strict=True)
            ]
        )
        mean, std = (255 * torch.tensor(each) for each in (prepared.mean, prepared.std))
        floats = torch.from_numpy(np.ascontiguousarray(shown)).float()
        return ((floats - mean) * std.reciprocal()).permute(0, 3, 1, 2)


@pytest.fixture(scope="module", params=small_sets.KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    kind: str = request.param
    folder = tmp_path_factory.mktemp(kind)
    small = small_sets.write(kind, folder / "set", SIDES.get(kind.partition("-")[0]))
    return Case(small, prepare(small.data, small.facts, folder / "cache"))


@pytest.fixture(
    scope="module",
    params=loading.params(OPTIONS),
)
def name(request: pytest.FixtureRequest) -> str:
    return loading.ready(request)


@pytest.fixture(scope="module", params=SPLITS)
def split(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def loaders(case: Case, split: str, name: str) -> Iterator[list[Loader]]:
    """A loader per rank."""
    loaders = [make_loader(case.prepared, split, OPTIONS[name], CPU) for _ in range(max(RANKS))]
    yield loaders
    for loader in loaders:
        loader.close()


def slices_of(split: str, ranks: int, rank: int, epoch: int) -> list[Slice]:
    """One rank's slices of an epoch, as training and validation ask for them."""
    count = small_sets.COUNTS[split]
    draw = (SEED, epoch) if split == "train" else None
    order = permutation(count, SEED, epoch) if split == "train" else np.arange(count)
    return list(itertools.chain(*rank_slices(order, BATCH, ranks, rank, draw=draw)))


def test_every_sample_once_an_epoch_and_as_it_should_look(case, split, name, loaders):
    ids = np.arange(small_sets.COUNTS[split])
    draws = [(SEED, epoch) if split == "train" else None for epoch in range(EPOCHS)]
    expected = case.by_native if name in AS_NATIVE else case.by_pillow
    images = [expected(split, ids, draw) for draw in draws]
    assert all(len(torch.unique(each, dim=0)) == len(ids) for each in images)  # can be told apart
    labels = torch.tensor(case.small.labels[split])
    seen: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for rank, loader in enumerate(loaders):
        shares = [(n, epoch) for n in RANKS if rank < n for epoch in range(EPOCHS)]
        asked = {share: slices_of(split, share[0], rank, share[1]) for share in shares}
        if name == "ray_data":  # starting a stream takes longer than these few images
            got = loader.batches(list(itertools.chain(*asked.values())))
        else:
            got = itertools.chain.from_iterable(map(loader.batches, asked.values()))
        for share, slices in asked.items():
            for slice_ in slices:
                batch = next(got)
                assert (batch.real, batch.of_global) == (slice_.real, slice_.of_global)
                assert batch.images.dtype == torch.float32
                assert batch.images.is_contiguous()
                assert torch.equal(batch.labels, labels[slice_.ids])
                wanted = images[share[1]][slice_.ids]
                assert batch.images.shape == wanted.shape
                assert close(case.prepared, batch.images, wanted, name)
                seen[share].update(slice_.ids[: slice_.real].tolist())
        assert next(got, None) is None
    whole = Counter(ids.tolist())
    assert seen == {(n, epoch): whole for n in RANKS for epoch in range(EPOCHS)}


def close(prepared: Prepared, images: Tensor, expected: Tensor, name: str) -> bool:
    """Whether images are what they should be, within what docs/reference/data.md says."""
    if name in AS_NATIVE:
        return torch.equal(images, expected)
    levels = (images - expected).abs() * 255 * torch.tensor(prepared.std).view(-1, 1, 1)
    if not prepared.resizes:
        return bool(levels.max() <= ROUNDING)
    if name == "dali":
        return bool(levels.mean() < DALI_LEVELS)
    return bool(levels.max() <= 1 + ROUNDING)


def test_synthetic_batches_have_the_counts_and_shapes_of_the_set(case, split):
    loader = make_loader(case.prepared, split, SyntheticOptions(), CPU)
    facts = case.prepared.facts
    shape = (facts.channels, facts.image_size, facts.image_size)
    for ranks, epoch in itertools.product(RANKS, range(EPOCHS)):
        total = 0
        for rank in range(ranks):
            slices = slices_of(split, ranks, rank, epoch)
            for slice_, batch in zip(slices, loader.batches(slices), strict=True):
                assert batch.images.shape == (len(slice_.ids), *shape)
                assert batch.labels.shape == (len(slice_.ids),)
                assert 0 <= batch.labels.min() <= batch.labels.max() < facts.classes
                assert (batch.real, batch.of_global) == (slice_.real, slice_.of_global)
                total += batch.real
        assert total == small_sets.COUNTS[split]
    loader.close()


def test_synthetic_images_of_validation_are_not_those_that_training_learnt_by_heart(case):
    slice_ = Slice(np.arange(4), 4, 4)
    train, val = (
        next(iter(make_loader(case.prepared, split, SyntheticOptions(), CPU).batches([slice_])))
        for split in SPLITS
    )
    assert not torch.equal(train.images, val.images)
