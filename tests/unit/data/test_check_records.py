"""`raysuite.data.set_check` on TFRecord: checksums, indices, labels, and what a conversion told."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from raysuite.data import prepare
from raysuite.data.convert import convert, plan_conversion
from raysuite.data.formats.tfrecord import encode_example, read_index, write_records
from raysuite.data.set_check import check, detect, stated, target_of
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions, FeatureMap
from tests import small_sets
from tests.unit.data.findings import errors, flip, notes, only, picture


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """One of three training shards with 8 records, its index beside."""
    small_sets.write("mnist-tfrecord", tmp_path)
    return tmp_path / "train-00000-of-00003.tfrecord"


def places(shard: Path) -> list[tuple[int, int]]:
    return [tuple(place) for place in read_index(shard.with_suffix(".idx")).tolist()]


def test_a_flipped_bit_of_the_data(shard: Path) -> None:
    offset, size = places(shard)[3]
    flip(shard, offset + size // 2)
    report = check(detect(shard.parent))
    finding = only(report)
    assert (finding.place, finding.offset, finding.kind) == (str(shard), offset, "record")
    assert "record's data differs" in finding.message
    assert (report.splits["train"].images, report.splits["train"].unreadable) == (23, 1)


@pytest.mark.parametrize("record", [0, 3, 7])
def test_a_flipped_bit_of_a_length_costs_one_record_if_there_is_an_index(
    record: int, shard: Path
) -> None:
    offset, _ = places(shard)[record]
    flip(shard, offset)
    report = check(detect(shard.parent))
    finding = only(report)
    assert finding.offset == offset
    assert "record's length differs" in finding.message
    assert (report.splits["train"].images, report.splits["train"].unreadable) == (23, 1)

    shard.with_suffix(".idx").unlink()
    report = check(detect(shard.parent), write_index=True)
    assert {each.kind for each in errors(report)} == {"record", "index"}
    (record,) = (each for each in errors(report) if each.kind == "record")
    left = shard.stat().st_size - offset
    assert record.message.endswith(f"no record in the last {left} bytes can be read")
    assert not Path(f"{shard}.idx").exists()  # none is written of a shard that is not whole


def test_a_shard_cut_short(shard: Path) -> None:
    offset, size = places(shard)[6]
    os.truncate(shard, offset + size - 5)
    report = check(detect(shard.parent))
    told = {finding.offset: finding.message for finding in errors(report)}
    assert told[offset].startswith(f"record cut short, {size - 5} of {size} bytes")
    assert "short, 0 of" in told[places(shard)[7][0]]
    assert (report.splits["train"].images, report.splits["train"].unreadable) == (23, 2)


@pytest.mark.parametrize("listed", [False, True])
def test_a_class_with_two_labels(tmp_path: Path, listed: bool) -> None:
    """Splits that number their classes differently, and shards beside another classes.txt."""

    def write(split: str, *names: str) -> None:
        records = [
            encode_example(picture("JPEG"), label, more={"image/class/text": name.encode()})
            for label, name in enumerate(names)
        ]
        write_records(tmp_path / f"{split}-00000-of-00001", records)

    write("train", "cat", "dog")
    write("val", "cat", "dog")
    assert check(detect(tmp_path)).ok
    if listed:
        (tmp_path / "classes.txt").write_text("dog\ncat\n")
    else:
        write("val", "dog", "cat")
    found = errors(check(detect(tmp_path)))
    assert [each.kind for each in found] == ["label", "label"]
    assert all("labels 0, 1" in each.message for each in found)


def test_classes_are_told_apart_by_their_synsets(tmp_path: Path) -> None:
    """ImageNet has two classes called crane, a bird and a machine; records name both ways."""

    def write(split: str, *synsets: str) -> None:
        records = [
            encode_example(
                picture("JPEG"),
                label,
                more={"image/class/text": b"crane", "image/class/synset": synset.encode()},
            )
            for label, synset in enumerate(synsets)
        ]
        write_records(tmp_path / f"{split}-00000-of-00001", records)

    write("train", "n02012849", "n03126707")
    write("val", "n02012849", "n03126707")
    assert errors(check(detect(tmp_path))) == []
    write("val", "n03126707", "n02012849")
    found = errors(check(detect(tmp_path)))
    assert [each.kind for each in found] == ["label", "label"]
    assert {name for each in found for name in ("n02012849", "n03126707") if name in each.message}


def test_bytes_behind_the_last_record(shard: Path) -> None:
    end = shard.stat().st_size
    with shard.open("ab") as file:
        file.write(b"more")
    report = check(detect(shard.parent))
    assert (only(report).offset, only(report).kind) == (end, "record")
    assert (report.splits["train"].images, report.splits["train"].unreadable) == (23, 0)


@pytest.mark.parametrize("write", [False, True])
def test_a_missing_index(shard: Path, write: bool) -> None:
    index = shard.with_suffix(".idx")
    told = index.read_text()
    index.unlink()
    report = check(detect(shard.parent), write_index=write)
    assert report.ok == write
    assert [note.place for note in notes(report)] == [f"{shard}.idx"] * write
    if write:
        assert Path(f"{shard}.idx").read_text() == told
        assert check(detect(shard.parent)).ok
    else:
        assert only(report).kind == "index"
        assert "--write-index" in only(report).message


WRONG = {
    "a line less": lambda text: text.split("\n", 1)[1],
    "an end less": lambda text: text[: text.rindex("\n", 0, -1) + 1],
    "another size": lambda text: text.replace("\n", "0\n", 1),
    "a line more": lambda text: text + "99999999 20\n",
    "words": lambda text: "no index\n",
    "an odd number": lambda text: text + "7",
    "bytes": lambda text: "\x00\ud800",
}


@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_index(shard: Path, change: str) -> None:
    index = shard.with_suffix(".idx")
    good = index.read_text()
    index.write_bytes(WRONG[change](good).encode("utf-8", "surrogatepass"))
    report = check(detect(shard.parent))
    assert (only(report).place, only(report).kind) == (str(index), "index")
    assert report.splits["train"].unreadable == 0
    written = check(detect(shard.parent), write_index=True)
    assert written.ok
    assert [note.place for note in notes(written)] == [str(index)]
    assert index.read_text() == good


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
@pytest.mark.parametrize("index", ["whole", "empty", "missing"])
def test_a_shard_compressed_as_a_whole(pack: Any, index: str, shard: Path, tmp_path: Path) -> None:
    small = small_sets.write("mnist-tfrecord", tmp_path / "again")
    shard = tmp_path / "again" / shard.name
    shard.write_bytes(pack(shard.read_bytes()))
    if index == "empty":
        shard.with_suffix(".idx").write_text("")
    if index == "missing":
        shard.with_suffix(".idx").unlink()
    report = check(detect(shard.parent))
    assert "GZIP" in only(report).message
    assert report.splits["train"].images == 15
    for bad in ("error", "skip"):
        data = DataOptions(**small.data.model_dump() | {"bad_samples": bad})
        with pytest.raises(DataError, match=f"{shard}: compressed as a whole by GZIP"):
            prepare(data, small.facts, tmp_path / "cache")


def test_a_missing_shard(shard: Path) -> None:
    shard.unlink()
    report = check(detect(shard.parent))
    assert f"{shard.name} missing in {shard.parent}" in only(report).message
    assert report.splits["train"].images == 15


def test_labels_out_of_range(tmp_path: Path) -> None:
    image = picture("PNG")
    for split in ("train", "val"):
        labels = [1, 3, 0, 4] if split == "train" else [1, 2]
        path = tmp_path / f"{split}-00000-of-00001"
        write_records(path, (encode_example(image, label) for label in labels))
    data = stated(tmp_path, "tfrecord", None, classes=3, features=FeatureMap(first_label=1))
    report = check(target_of(data))
    offsets = [each[0] for each in read_index(tmp_path / "train-00000-of-00001.idx").tolist()]
    assert [(each.offset, each.message.partition(";")[0]) for each in errors(report)] == [
        (offsets[2], "label 0"),
        (offsets[3], "label 4"),
    ]
    assert report.splits["train"].classes == {"label 0": 1, "0": 1, "2": 1, "label 4": 1}
    # where nothing tells how many classes there are, no label is too large
    assert check(detect(tmp_path)).ok
    write_records(path, [encode_example(image, -1), encode_example(image, 0)])
    assert only(check(detect(tmp_path))).message == "label -1; valid: 0 and above"
    write_records(path, (encode_example(image, label) for label in labels))
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    assert "classes.txt names 3" in only(check(detect(tmp_path))).message


def test_records_that_hold_something_else(tmp_path: Path) -> None:
    write_records(
        tmp_path / "train-00000-of-00001",
        [b"\xff\xff", encode_example(picture("PNG"), 0, "other"), encode_example(b"text", 0)],
    )
    write_records(tmp_path / "val-00000-of-00001", [encode_example(picture("PNG"), 0)])
    report = check(detect(tmp_path))
    kinds = [(each.kind, each.message[:27]) for each in errors(report)]
    assert kinds == [
        ("record", "not a tf.train.Example (Err"),
        ("record", "the Example lacks image/enc"),
        ("image", "not a readable image (none "),
    ]
    assert report.splits["train"].unreadable == 3


def test_a_conversion_is_held_against_its_manifest(tmp_path: Path) -> None:
    small_sets.write("imagenet-folder", tmp_path / "source")
    target = tmp_path / "target"
    convert(plan_conversion(tmp_path / "source", target, shards=2), workers=1)
    report = check(detect(target))
    assert report.ok
    assert list(report.splits["train"].classes) == list(small_sets.SYNSETS)
    # a whole record less, and the index agrees: only the manifest knows
    shard = target / "train-00001-of-00002"
    rows = shard.with_suffix(".idx").read_text().splitlines(keepends=True)
    os.truncate(shard, int(rows[-1].split()[0]))
    shard.with_suffix(".idx").write_text("".join(rows[:-1]))
    finding = only(check(detect(target)))
    assert (finding.place, finding.kind) == (str(shard), "file")
    assert "not the converted shard" in finding.message
    (target / "manifest.json").write_text("{")
    assert only(check(detect(target))).place == str(target / "manifest.json")
    damaged = {"files": {shard.name: {"sha256": 1}}, "first_label": 1}
    (target / "manifest.json").write_text(json.dumps(damaged))
    assert check(detect(target)).ok  # without a checksum there is nothing to compare
    (target / "manifest.json").write_text(json.dumps({"files": [1], "first_label": "x"}))
    assert only(check(detect(target))).place == str(target / "manifest.json")
