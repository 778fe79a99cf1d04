"""What counts as bad, and what is remembered of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from raysuite.data import Prepared, prepare
from raysuite.data.formats import count, open_source
from raysuite.data.skipping import Faults, _key, lacking, look
from tests.small_sets import COUNTS, SmallSet, write


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def small(tmp_path: Path) -> SmallSet:
    return write("image_folder-folder", tmp_path / "set")


@pytest.fixture
def prepared(small: SmallSet, tmp_path: Path) -> Prepared:
    return prepare(small.data, small.facts, tmp_path / "cache")


def looked(
    prepared: Prepared, threads: Executor, cache: Path, first: int = 0
) -> tuple[Faults, bool]:
    with closing(open_source(prepared, "train")) as source:
        return look(prepared, source, range(first, COUNTS["train"]), threads, cache)


def files(small: SmallSet) -> list[Path]:
    """In the order of samples."""
    return sorted(Path(small.data.path or "").glob("train/*/*"))


def test_each_bad_sample_is_named_with_its_reason(small, prepared, threads, tmp_path):
    whole = files(small)
    whole[3].write_bytes(whole[3].read_bytes()[:-500])
    whole[7].write_text("no image")
    whole[8].write_bytes(b"")
    whole[9].unlink()
    faults, known = looked(prepared, threads, tmp_path)
    assert not known
    assert list(faults) == [3, 7, 8, 9]
    for sample, reason in zip(
        faults,
        ["cut short: it has no end", "none of JPEG", "none of", "cannot be read"],
        strict=True,
    ):
        assert faults[sample].startswith(f"{whole[sample]}: ")
        assert reason in faults[sample]


def test_what_was_found_is_known_until_a_file_changes(small, prepared, threads, tmp_path):
    whole = files(small)
    content = whole[3].read_bytes()
    assert looked(prepared, threads, tmp_path) == ({}, False)
    assert looked(prepared, threads, tmp_path) == ({}, True)
    whole[3].write_bytes(b"x" * len(content))  # the same size
    faults, known = looked(prepared, threads, tmp_path)
    assert (list(faults), known) == ([3], False)
    assert looked(prepared, threads, tmp_path) == (faults, True)
    whole[3].write_bytes(content)
    assert looked(prepared, threads, tmp_path)[0] == {}
    when = whole[3].stat()
    whole[3].write_bytes(content[:-500])
    os.utime(whole[3], ns=(when.st_atime_ns, when.st_mtime_ns))  # another size alone
    faults, known = looked(prepared, threads, tmp_path)
    assert (list(faults), known) == ([3], False)
    whole[3].write_bytes(content)
    whole[4].rename(whole[4].with_suffix(".away"))
    assert list(looked(prepared, threads, tmp_path)[0]) == [4]
    whole[4].with_suffix(".away").rename(whole[4])
    assert looked(prepared, threads, tmp_path)[0] == {}


def test_faults_of_a_later_chunk_are_numbered_within_the_set(small, prepared, threads, tmp_path):
    whole = files(small)
    for number in (2, 8):
        whole[number].write_text("no image")
    for known in (False, True):
        faults, was_known = looked(prepared, threads, tmp_path, first=5)
        assert (list(faults), was_known) == ([8], known)
        assert faults[8].startswith(f"{whole[8]}: ")


def test_what_was_found_is_of_the_plan_and_of_the_samples(small, prepared):
    facts, data = prepared.facts, prepared.data
    features = data.features.model_copy(update={"label": "x"})
    others = [
        replace(prepared, facts=replace(facts, classes=5)),
        replace(prepared, facts=replace(facts, channels=1)),
        replace(prepared, facts=replace(facts, image_size=9)),
        replace(prepared, exact=True),
        replace(prepared, form="tfrecord"),
        replace(prepared, data=data.model_copy(update={"features": features})),
    ]
    with closing(open_source(prepared, "train")) as source:
        keys = [_key(each, source, range(3)) for each in (prepared, *others)]
        keys += [_key(prepared, source, range(4)), _key(prepared, source, range(1, 4))]
        assert None not in keys
        assert len({*keys}) == len(keys)
        plain = replace(prepared, augment="resized_crop_flip", mean=(0.1,) * 3)
        assert _key(plain, source, range(3)) == keys[0]


def test_classes_and_records_that_are_lacking_are_told(small, tmp_path):
    first = Path(small.data.path or "") / "train" / "1"
    for path in first.iterdir():
        path.unlink()
    data = small.data.model_copy(update={"bad_samples": "skip"})
    counts = count(data)
    facts = replace(small.facts, train_samples=counts.train)
    prepared = prepare(data, facts, tmp_path / "cache")
    assert lacking(prepared, "train") == ["class 1: no training image"]
    assert lacking(prepared, "val") == []
    records = write("cifar10-tfrecord", tmp_path / "records")
    shards = sorted((tmp_path / "records").glob("train-*.tfrecord"))
    for shard in shards[:2]:
        os.truncate(shard, shard.stat().st_size - 1)
    shards[1].with_suffix(".idx").unlink()
    prepared = replace(prepared, data=records.data, form="tfrecord")
    [told] = lacking(prepared, "train")
    assert told.startswith(f"{shards[1]} at byte ")
    assert "record cut short" in told
    assert ";" not in told
    assert lacking(prepared, "val") == []


def test_the_same_images_elsewhere_are_looked_at_anew(small, prepared, threads, tmp_path):
    looked(prepared, threads, tmp_path)
    other = tmp_path / "other"
    shutil.copytree(small.data.path, other)
    data = small.data.model_copy(update={"path": str(other)})
    assert not looked(prepare(data, small.facts, tmp_path / "cache"), threads, tmp_path)[1]


def test_a_damaged_note_and_a_cache_that_cannot_be_written_do_no_harm(
    small, prepared, threads, tmp_path
):
    files(small)[3].write_text("no image")
    found = looked(prepared, threads, tmp_path)
    [note] = (tmp_path / "looks").rglob("*.json")
    for damaged in ("", "[]", "{", '{"a": 1}'):
        note.write_text(damaged)
        assert looked(prepared, threads, tmp_path) == found
    blocked = tmp_path / "a-file"
    blocked.touch()
    for _ in range(2):
        assert looked(prepared, threads, blocked) == found
    assert not list(tmp_path.rglob(".*.part"))


@pytest.mark.parametrize("kind", ["tfrecord-tfrecord", "imagenet-tfrecord"])
def test_records_are_looked_at_with_their_checksums(kind, tmp_path, threads):
    small = write(kind, tmp_path / "set")
    prepared = prepare(small.data, small.facts, tmp_path / "cache")
    assert looked(prepared, threads, tmp_path) == ({}, False)
    assert looked(prepared, threads, tmp_path) == ({}, True)
    with closing(open_source(prepared, "train")) as source:
        shard, _, offset = source.place(4).rpartition(" at byte ")
    content = bytearray(Path(shard).read_bytes())
    content[int(offset) + 40] ^= 1
    Path(shard).write_bytes(content)
    faults, known = looked(prepared, threads, tmp_path)
    assert not known
    assert list(faults) == [4]
    assert "record's data differs" in faults[4]


def test_what_no_file_holds_is_looked_at_each_time(tmp_path, threads):
    small = write("own-own", tmp_path)
    prepared = prepare(small.data, small.facts, tmp_path / "cache")
    assert [looked(prepared, threads, tmp_path) for _ in range(2)] == [({}, False)] * 2


def test_a_chunk_that_is_written_at_once_by_two_is_whole(small, prepared, tmp_path):
    """Two ranks of one node may look at the same samples where the world size changed."""
    files(small)[3].write_text("no image")
    with ThreadPoolExecutor(4) as two:
        found = list(two.map(lambda _: looked(prepared, two, tmp_path)[0], range(2)))
    assert found[0] == found[1]
    assert looked(prepared, two, tmp_path) == (found[0], True)
    assert len(os.listdir(tmp_path / "looks")) == 1
