"""Loaders of samples that are no images: each delivers the batches that `native` makes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raysuite.data import Slice, make_loader, prepare
from raysuite.data.loaders.labels import LabelLoader
from raysuite.data.prepared import Prepared
from raysuite.errors import DataError, UserError
from raysuite.nested import mapped
from raysuite.spec.loaders import LOADER_OPTIONS, LoaderOptions, RayDataOptions
from tests.task_sets import CASES, Samples
from tests.unit.tasks.conftest import plan_of

KINDS = ["language_model", *(case for case in CASES if case != "classification"), "mixed"]
IDS = ([5, 0, 3, 3], [12, 1], [7])


def mixed(split: str) -> Samples:
    """Numbers, arrays and tensors of several types in a dictionary, without a method `collate`."""

    def one(draw: torch.Generator) -> Any:
        values = torch.randn(3, generator=draw)
        inputs = {
            "number": float(values[0]),
            "whole": int(values[1] > 0),
            "array": values.double().numpy(),
            "half": [values.bfloat16(), values[0] > 0],
            "single": np.float32(values[0]),
            "byte": np.uint8(values[1] > 0),
        }
        if values[2] > 0:  # the same keys in another order
            inputs = dict(reversed(inputs.items()))
        return inputs, values.half()

    return Samples(split, one)


def prepared_of(case: str, folder: Path) -> Prepared:
    own = {} if case != "mixed" else {"data": {"name": f"{__name__}:mixed"}}
    plan = plan_of("regression" if own else case, folder, **own)
    return prepare(plan.spec.data, plan.dataset)


def delivered(
    prepared: Prepared, options: LoaderOptions, batches: Sequence[list[int]] = IDS
) -> list[Any]:
    slices = [Slice(np.array(ids), len(ids), len(ids)) for ids in batches]
    with closing(make_loader(prepared, "val", options, torch.device("cpu"))) as loader:
        return [(batch.images, batch.labels) for batch in loader.batches(slices)]


def alike(found: Any, expected: Any) -> bool:
    """Equal values, types and structure."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            alike(found[key], each) for key, each in expected.items()
        )
    if isinstance(expected, tuple):
        return len(found) == len(expected) and all(map(alike, found, expected))
    return found.dtype == expected.dtype and torch.equal(found, expected)


@pytest.mark.parametrize("case", KINDS)
def test_memory_delivers_the_batches_of_native(case: str, tmp_path: Path) -> None:
    prepared = prepared_of(case, tmp_path)
    expected = delivered(prepared, LOADER_OPTIONS["native"]())
    assert alike(tuple(delivered(prepared, LOADER_OPTIONS["memory"]())), tuple(expected))


def test_threads_end_with_their_loader(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    options, slices = LOADER_OPTIONS["native"](threads=2), [Slice(np.array([0]), 1, 1)] * 9
    loader = make_loader(prepared_of("own", tmp_path), "val", options, torch.device("cpu"))
    next(iter(loader.batches(slices)))
    assert len(set(threading.enumerate()) - before) == 2
    loader.close()
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("case", ["own", "mixed"])
def test_synthetic_repeats_the_first_samples(case: str, tmp_path: Path) -> None:
    """As many as the largest batch has, which may be more than the split has."""
    prepared = prepared_of(case, tmp_path)
    count = prepared.samples("val")
    sizes = (4, count + 2, 1)
    [first] = delivered(prepared, LOADER_OPTIONS["native"](), [[*range(count), 0, 1]])
    found = delivered(prepared, LOADER_OPTIONS["synthetic"](), [[0] * size for size in sizes])
    for batch, size in zip(found, sizes, strict=True):
        assert alike(batch, mapped(first, itemgetter(slice(size))))


def test_synthetic_frees_its_batch_when_it_is_closed(digits: Prepared) -> None:
    loader = make_loader(digits, "train", LOADER_OPTIONS["synthetic"](), torch.device("cpu"))
    batch = next(iter(loader.batches([Slice(np.arange(4), 4, 4)])))
    memory = weakref.ref(batch.images._base)
    del batch
    assert memory() is not None
    loader.close()
    assert memory() is None


def test_memory_reads_each_sample_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepared_of("own", tmp_path)
    read: list[int] = []
    taken = Samples.__getitem__
    monkeypatch.setattr(Samples, "__getitem__", lambda self, n: read.append(n) or taken(self, n))
    delivered(prepared, LOADER_OPTIONS["memory"]())
    assert sorted(read) == sorted([0, *range(prepared.samples("val"))])


def uneven(split: str) -> Samples:
    return Samples(
        split, lambda draw: (torch.zeros(int(torch.randint(1, 5, (), generator=draw))), 0)
    )


class Changing(Samples):
    """Sample 3 has another type, or another number of dimensions, than the others."""

    def __getitem__(self, number: int) -> Any:
        inputs, targets = super().__getitem__(number)
        return (self.other if number == 3 else inputs), targets

    other: Any = None


def of_other_type(split: str) -> Changing:
    found = Changing(split, lambda draw: (torch.zeros(2), 0))
    found.other = torch.zeros(2, dtype=torch.int32)
    return found


def of_more_dimensions(split: str) -> Changing:
    found = Changing(split, lambda draw: (torch.zeros(2), 0))
    found.other = torch.zeros(2, 1)
    return found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("of_other_type", r"\[3\] has the dtypes int32, int64, but the first sample has float"),
        ("of_more_dimensions", r"\[0\] and of other samples have different numbers"),
    ],
)
def test_memory_holds_samples_of_one_kind(name: str, words: str, tmp_path: Path) -> None:
    plan = plan_of("regression", tmp_path, data={"name": f"{__name__}:{name}"})
    with pytest.raises(DataError, match=words):
        delivered(prepare(plan.spec.data, plan.dataset), LOADER_OPTIONS["memory"]())


def test_threads_deliver_batches_in_order_and_begin_as_many_as_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepared_of("own", tmp_path)
    batches = [[number] for number in range(12)]
    expected = delivered(prepared, LOADER_OPTIONS["native"](), batches)
    options = LOADER_OPTIONS["native"](threads=3, prefetch=2)
    assert alike(tuple(delivered(prepared, options, batches)), tuple(expected))
    begun: list[int] = []
    real = ThreadPoolExecutor.submit

    def submit(*arguments: Any) -> Any:
        begun.append(1)
        return real(*arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    slices = [Slice(np.array(ids), 1, 1) for ids in batches]
    with closing(make_loader(prepared, "val", options, torch.device("cpu"))) as loader:
        found = loader.batches(slices)
        next(found)
        assert len(begun) == 1 + 3 + 2
        next(found)
        assert len(begun) == 2 + 3 + 2


def test_synthetic_tokens_and_images_are_drawn_once(tmp_path: Path, digits: Prepared) -> None:
    tokens = prepared_of("language_model", tmp_path)
    options = LOADER_OPTIONS["synthetic"]()
    (inputs, targets), (few, _) = delivered(tokens, options, [[0] * 9, [0] * 4])
    classes, length = tokens.facts.classes, tokens.facts.sequence
    assert inputs.shape == targets.shape == (9, length)
    assert inputs.dtype == targets.dtype == torch.int64
    assert 0 <= min(inputs.min(), targets.min()) <= max(inputs.max(), targets.max()) < classes
    assert not torch.equal(inputs, targets)
    assert torch.equal(few, inputs[:4])
    images, labels = delivered(digits, options, [[0] * 200])[0]
    assert (images.shape, labels.shape) == ((200, 1, 8, 8), (200,))
    assert set(labels.tolist()) == set(range(10))
    assert abs(images.mean()) < 0.1 > abs(images.std() - 1)
    with closing(make_loader(digits, "train", options, torch.device("cpu"))) as loader:
        [batch] = loader.batches([Slice(np.arange(200), 150, 400)])
    assert not torch.equal(batch.images, images)
    assert (batch.real, batch.of_global) == (150, 400)


@pytest.mark.parametrize("split", ["train", "val"])
def test_labels_alone_are_those_of_the_split(split: Any, digits: Prepared) -> None:
    slices = [Slice(np.array([7, 0, 3]), 2, 6)]
    cpu = torch.device("cpu")
    with closing(make_loader(digits, split, LOADER_OPTIONS["native"](), cpu)) as loader:
        [expected] = loader.batches(slices)
    with closing(LabelLoader(digits, split, cpu)) as loader:
        [found] = loader.batches(slices)
    assert alike(found.labels, expected.labels)
    assert (found.images.shape, found.real, found.of_global) == ((3, 0), 2, 6)


def test_samples_that_cannot_be_stacked_are_named(tmp_path: Path) -> None:
    plan = plan_of("regression", tmp_path, data={"name": f"{__name__}:uneven"})
    prepared = prepare(plan.spec.data, plan.dataset)
    with pytest.raises(DataError, match=r"uneven\(split='val'\)\[5\] and 3 others"):
        delivered(prepared, LOADER_OPTIONS["memory"]())


def test_dali_names_what_it_takes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="dali loads only images"):
        delivered(prepared_of("regression", tmp_path), LOADER_OPTIONS["dali"]())


def test_ray_data_without_a_running_ray_names_the_verb_that_starts_one(digits: Prepared) -> None:
    with pytest.raises(UserError, match=r"a running Ray.*`raysuite run`"):
        make_loader(digits, "train", RayDataOptions(), torch.device("cpu"))
