"""Bad samples left out, by every loader: counted, reported, and the epoch exact without them."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch

from raysuite.data import Prepared, Slice, make_loader, permutation, prepare, rank_slices
from raysuite.data.formats import open_source
from raysuite.errors import DataError, SpecError
from raysuite.parallel.base import World
from raysuite.parallel.comm import NoComm, Reduction
from raysuite.plan import RunPlan, make_plans
from raysuite.records import EpochFinished, Record, SamplesSkipped
from raysuite.spec import Document
from raysuite.spec.data_set import DataOptions
from raysuite.spec.loaders import (
    DaliOptions,
    LoaderOptions,
    MemoryOptions,
    NativeOptions,
    RayDataOptions,
)
from raysuite.train.run import execute
from raysuite.train.skipped_samples import Skipped, check_samples
from tests import bad_sets, loading
from tests.small_sets import COUNTS, SmallSet

CPU = torch.device("cpu")
Kind = TypeVar("Kind", bound=Record)
ALONE = World(0, 1, 0, CPU)
OPTIONS: dict[str, LoaderOptions] = {
    "native": NativeOptions(),
    "dali": DaliOptions(),
    "memory": MemoryOptions(),
    "ray_data": RayDataOptions(),
}
TRAIN, VAL = COUNTS["train"], COUNTS["val"]


@pytest.fixture(
    params=loading.params(OPTIONS),
)
def options(request: pytest.FixtureRequest) -> LoaderOptions:
    return OPTIONS[loading.ready(request)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, as the gate's verdicts are kept there."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And sets are looked at in several chunks, as large ones are."""
    monkeypatch.setattr("raysuite.train.skipped_samples.CHUNK", 4)
    monkeypatch.setenv("RAYSUITE_CACHE", str(cache))


def plan_of(data: DataOptions) -> RunPlan:
    given = {
        "name": "skip",
        "model": "tests.tiny_model:Tiny",
        "data": data.model_dump(exclude_defaults=True),
        "training": {"epochs": 2, "global_batch": 6},
        "resources": {"device": "cpu"},
    }
    return make_plans(Document(given, "test"), gpus=0)[0]


def run(plan: RunPlan) -> list[Record]:
    threads = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=[]):
            return list(execute(plan, ALONE))
    finally:
        torch.set_num_threads(threads)


def looked(small: SmallSet, split: str = "train") -> tuple[Prepared, Skipped]:
    plan = plan_of(small.data)
    prepared = prepare(plan.spec.data, plan.dataset)
    return prepared, check_samples(prepared, split, "run", ALONE, NoComm(), threads=2)


@pytest.mark.parametrize("form", ["folder", "tfrecord"])
def test_each_good_sample_comes_once_an_epoch(
    tmp_path: Path, options: LoaderOptions, form: str
) -> None:
    if form == "folder":
        small = bad_sets.photographs(tmp_path / "set", bad_samples="skip", augment="none")
        places = [bad_sets.spoil_file(small, how, at)[0] for at, how in ((3, "empty"), (4, "text"))]
    else:
        small = bad_sets.shards(tmp_path / "set", bad_samples="skip", augment="none")
        places = [
            bad_sets.spoil_record(small, how, at)[0] for at, how in ((3, "data"), (4, "length"))
        ]
    prepared, skipped = looked(small)
    assert np.flatnonzero(skipped.mask).tolist() == [3, 4]
    assert [each.partition(": ")[0] for each in skipped.record.places] == places
    loader = make_loader(prepared, "train", options, CPU)
    good = np.flatnonzero(~skipped.mask)
    (whole,) = loader.batches([Slice(good, len(good), len(good))])
    assert whole.labels.tolist() == [small.labels["train"][sample] for sample in good]
    expected = Counter(key(whole.images[row], whole.labels[row]) for row in range(len(good)))
    assert max(expected.values()) == 1, "pictures differ, so that each is known again"
    for ranks, epoch in itertools.product((1, 3), (0, 1)):
        seen: Counter[tuple[bytes, int]] = Counter()
        for rank in range(ranks):
            order = permutation(TRAIN, 1, epoch)
            steps = rank_slices(order, 4, ranks, rank, skipped=skipped.mask)
            for batch in loader.batches([part for step in steps for part in step]):
                seen += Counter(
                    key(batch.images[row], batch.labels[row]) for row in range(batch.real)
                )
        assert seen == expected
    loader.close()


class ThreadComm(NoComm):
    """The collectives of two ranks that are threads of this process."""

    size = 2

    def __init__(self, rank: int, given: list[torch.Tensor], barrier: threading.Barrier) -> None:
        self.rank, self.given, self.barrier = rank, given, barrier

    def all_gather(self, value: torch.Tensor) -> torch.Tensor:
        self.given[self.rank] = value
        self.barrier.wait()
        found = torch.stack(self.given)
        self.barrier.wait()
        return found

    def all_reduce(self, value: torch.Tensor, reduction: Reduction) -> torch.Tensor:
        found = self.all_gather(value)
        return found.sum(0) if reduction == "sum" else found.amax(0)


def test_bad_samples_of_all_ranks_count_for_the_limit(tmp_path: Path) -> None:
    small = bad_sets.photographs(tmp_path / "set", bad_samples="skip")
    for at in (4, 5, 6):  # of rank 1's first chunk
        bad_sets.spoil_file(small, "empty", at)
    plan = plan_of(small.data)
    prepared = prepare(plan.spec.data, plan.dataset)
    given, barrier = [torch.empty(0)] * 2, threading.Barrier(2, timeout=60)

    def checked(rank: int) -> str:
        comm = ThreadComm(rank, given, barrier)
        with pytest.raises(DataError) as error:
            check_samples(prepared, "train", "run", World(rank, 2, rank, CPU), comm, threads=1)
        return str(error.value)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(checked, range(2))
    assert first == second
    assert first.count("\n") == 3


def key(image: torch.Tensor, label: torch.Tensor) -> tuple[bytes, int]:
    return image.numpy().tobytes(), int(label)


def of_kind(records: Iterable[Record], kind: type[Kind]) -> list[Kind]:
    return [record for record in records if isinstance(record, kind)]


def test_the_validation_counts_its_good_samples_alone(tmp_path: Path) -> None:
    """Ten copies of each validation image and one that cannot be read: the same mean."""
    small = bad_sets.photographs(tmp_path / "set", bad_samples="skip")
    root = Path(small.data.path or "")
    for file in sorted(root.glob("val/*/*")):
        for number in range(9):
            (file.parent / f"{file.stem}-{number}.jpg").write_bytes(file.read_bytes())
    *_, expected = of_kind(run(plan_of(small.data)), EpochFinished)
    for number in range(10):
        (root / "val" / "0" / f"bad-{number}.jpg").write_text("no image")
    told = list(run(plan_of(small.data)))
    *_, val = of_kind(told, SamplesSkipped)
    *_, found = of_kind(told, EpochFinished)
    assert (val.samples, val.skipped) == (10 * VAL + 10, 10)
    assert found.val_loss == pytest.approx(expected.val_loss, rel=1e-6)
    assert found.val_accuracy == pytest.approx(expected.val_accuracy)


def test_more_than_a_tenth_is_too_much(tmp_path: Path) -> None:
    small = bad_sets.photographs(tmp_path / "set", bad_samples="skip")
    places = [bad_sets.spoil_file(small, "text", sample)[0] for sample in (0, 1)]
    assert looked(small)[1].record.skipped == 2
    places.append(bad_sets.spoil_file(small, "text", 2)[0])
    with pytest.raises(DataError, match=r"more than 10% of the 23 samples of train") as caught:
        run(plan_of(small.data))
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()[1:]] == places


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_an_empty_class_folder(tmp_path: Path, policy: str) -> None:
    small = bad_sets.photographs(tmp_path / "set", bad_samples=policy)
    for split in ("train", "val"):
        (tmp_path / "set" / split / "nothing").mkdir()
    if policy == "error":
        with pytest.raises(
            SpecError, match=r"nothing: the class has no images.*set data\.bad_samples to skip"
        ):
            plan_of(small.data)
        return
    plan = plan_of(small.data)
    assert plan.dataset.classes == small.facts.classes + 1
    _, skipped = looked(small)
    assert skipped.record.skipped == 0
    assert skipped.record.lacking == ("class nothing: no training image",)
    assert skipped.record.words == "train lacks class nothing: no training image"


class TestShards:
    """Cut in the middle, or without their index."""

    @pytest.mark.parametrize("policy", ["error", "skip"])
    def test_a_missing_index(self, tmp_path: Path, policy: str) -> None:
        small = bad_sets.shards(tmp_path / "set", bad_samples=policy)
        index = tmp_path / "set" / "learn1.idx"
        index.unlink()
        if policy == "error":
            with pytest.raises(SpecError, match=r"no index of .*learn1\.rec; .*--write-index"):
                plan_of(small.data)
            return
        assert plan_of(small.data).dataset == small.facts
        prepared, skipped = looked(small)
        assert (skipped.record.skipped, skipped.record.lacking) == (0, ())
        with closing(open_source(prepared, "train")) as source:
            labels = [source.read(sample)[1] for sample in range(TRAIN)]
        assert labels == small.labels["train"]

    def test_a_shard_that_is_cut_lacks_what_its_index_tells(self, tmp_path: Path) -> None:
        small = bad_sets.shards(tmp_path / "set", bad_samples="skip")
        shard, offset, _ = bad_sets.record(small, TRAIN - 2)
        shard.write_bytes(shard.read_bytes()[: offset + 100])
        _, skipped = looked(small)
        assert np.flatnonzero(skipped.mask).tolist() == [TRAIN - 2, TRAIN - 1]
        assert skipped.record.samples == TRAIN
        assert skipped.record.places[0].startswith(f"{shard} at byte {offset}: record cut short")

    def test_without_an_index_the_records_before_the_cut_count(self, tmp_path: Path) -> None:
        small = bad_sets.shards(tmp_path / "set", bad_samples="skip")
        shard, offset, size = bad_sets.record(small, TRAIN - 2)
        shard.write_bytes(shard.read_bytes()[: offset + 100])
        shard.with_suffix(".idx").unlink()
        _, skipped = looked(small)
        assert (skipped.record.samples, skipped.record.skipped) == (TRAIN - 2, 0)
        said = f"{shard} at byte {offset}: record cut short, 100 of {size} bytes"
        assert skipped.record.lacking == (said,)
