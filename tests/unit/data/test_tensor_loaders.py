"""Loaders of samples that are no images: each delivers the batches that `native` makes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raysuite.data import Slice, make_loader, prepare
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
        }
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
