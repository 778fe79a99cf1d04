"""Data as it should not be, through every loader: the error names the file and, in a TFRecord, the
offset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from raysuite.data import Batch, Loader, Slice, make_loader, prepare
from raysuite.errors import DataError
from raysuite.spec.loaders import (
    DaliOptions,
    LoaderOptions,
    MemoryOptions,
    NativeOptions,
    RayDataOptions,
)
from tests import bad_sets, loading
from tests.bad_sets import BAD
from tests.small_sets import COUNTS

CPU = torch.device("cpu")
OPTIONS: dict[str, LoaderOptions] = {
    "native": NativeOptions(),
    "native-processes": NativeOptions(processes=1),
    "dali": DaliOptions(),
    "memory": MemoryOptions(),
    "ray_data": RayDataOptions(),
}


@pytest.fixture(
    scope="module",
    params=loading.params(OPTIONS),
)
def options(request: pytest.FixtureRequest) -> LoaderOptions:
    return OPTIONS[loading.ready(request)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path / "cache"))


def error_of(loader: Loader) -> str:
    """What the loader says of the bad sample in the middle of an epoch; good ones still load."""
    starts = range(0, COUNTS["train"], 4)
    ids = [np.arange(start, min(start + 4, COUNTS["train"])) for start in starts]
    seen: list[Batch] = []
    with pytest.raises(DataError) as caught:
        seen.extend(loader.batches([Slice(each, len(each), len(each), (0, 0)) for each in ids]))
    assert len(seen) <= BAD // 4
    good = [Slice(np.array(ids), 2, 2, (0, 0)) for ids in ([BAD - 2, BAD - 1], [BAD + 1, BAD + 2])]
    assert len(list(loader.batches(good))) == 2
    loader.close()
    return str(caught.value)


@pytest.mark.parametrize("how", bad_sets.FILES)
def test_a_bad_file_is_named(tmp_path: Path, options: LoaderOptions, how: str) -> None:
    small = bad_sets.photographs(tmp_path / "set")
    place, reason = bad_sets.spoil_file(small, how)
    said = error_of(make_loader(prepare(small.data, small.facts), "train", options, CPU))
    assert said.startswith(f"{place}: not a readable image (")
    assert reason in said
    assert "set data.bad_samples to skip" in said


def test_a_file_that_is_gone_is_named(tmp_path: Path, options: LoaderOptions) -> None:
    small = bad_sets.photographs(tmp_path / "set")
    prepared, gone = prepare(small.data, small.facts), bad_sets.image(small)
    gone.unlink()
    said = error_of(make_loader(prepared, "train", options, CPU))
    assert said.startswith(f"{gone}: cannot be read")


@pytest.mark.parametrize("how", bad_sets.RECORDS)
def test_a_bad_record_is_named_with_its_offset(
    tmp_path: Path, options: LoaderOptions, how: str
) -> None:
    small = bad_sets.shards(tmp_path / "set")
    place, reason = bad_sets.spoil_record(small, how)
    said = error_of(make_loader(prepare(small.data, small.facts), "train", options, CPU))
    assert said.startswith(f"{place}: {reason}")


def test_a_record_that_is_cut_is_named_with_its_offset(
    tmp_path: Path, options: LoaderOptions
) -> None:
    small = bad_sets.shards(tmp_path / "set")
    sample = COUNTS["train"] - 1
    shard, offset, size = bad_sets.record(small, sample)
    shard.write_bytes(shard.read_bytes()[: offset + 100])
    loader = make_loader(prepare(small.data, small.facts), "train", options, CPU)
    with pytest.raises(DataError) as caught:
        list(loader.batches([Slice(np.array([1, sample]), 2, 2)]))
    loader.close()
    assert str(caught.value).startswith(
        f"{shard} at byte {offset}: record cut short, 100 of {size} bytes"
    )


def test_a_label_beyond_the_classes_is_named(tmp_path: Path, options: LoaderOptions) -> None:
    small = bad_sets.shards(tmp_path / "set")
    place = bad_sets.relabel(small, 104)
    said = error_of(make_loader(prepare(small.data, small.facts), "train", options, CPU))
    assert said.startswith(f"{place}: ")
    assert "number 99, counted from 0" in said
