"""`raysuite.data.check` finds what is wrong with a data set, at the right place."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raysuite.data.check import Finding, Report, Target, check, detect, stated
from raysuite.data.convert import Options, convert, plan_conversion
from raysuite.data.formats.example import encode_example
from raysuite.data.formats.tfrecord import read_index, write_records
from raysuite.errors import DataError
from raysuite.spec.data import FeatureMap
from raysuite.spec.datasets import IDX_FILES
from tests import small_sets

ON_DISK = [kind for kind in small_sets.KINDS if kind != "own-own"]


def errors(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if not finding.note]


def notes(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.note]


def only(report: Report) -> Finding:
    (finding,) = errors(report)
    assert report.errors == 1
    return finding


@pytest.mark.parametrize("kind", ON_DISK)
def test_sound_sets_of_every_form(kind: str, tmp_path: Path) -> None:
    small = small_sets.write(kind, tmp_path)
    report = check(Target.of(small.data))
    assert errors(report) == []
    assert report.ok
    for split, count in small_sets.COUNTS.items():
        found = report.splits[split]
        assert (found.images, found.unreadable) == (count, 0)
        assert sum(found.classes.values()) == count
        labels = small.labels[split]
        assert sorted(found.classes.values()) == sorted(
            labels.count(label) for label in set(labels)
        )
        sizes = [(image.shape[1], image.shape[0]) for image in small.images[split]]
        assert found.sizes == {size: sizes.count(size) for size in sizes}
        assert sum(found.looks.values()) == count


TOLD = [kind for kind in ON_DISK if kind.split("-")[0] in ("imagenet", "image_folder")]
TOLD += ["mnist-idx", "mnist-idx-gz", "cifar10-binary", "cifar10-pickle", "mnist-tfrecord"]
"""A feature map has to be stated; and 9 validation images in folders lack one of ten classes."""


@pytest.mark.parametrize("kind", TOLD)
def test_the_form_is_told_by_the_files(kind: str, tmp_path: Path) -> None:
    small = small_sets.write(kind, tmp_path)
    target = detect(tmp_path)
    assert target.data.form == small.data.form
    report = check(target)
    assert report.ok
    assert [report.splits[split].images for split in ("train", "val")] == [23, 9]


def test_folders_that_hold_no_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no data set that can be told"):
        detect(tmp_path)
    with pytest.raises(DataError, match="is not there"):
        detect(tmp_path / "x")
    (tmp_path / "x").touch()
    with pytest.raises(DataError, match="is a file"):
        detect(tmp_path / "x")
    with pytest.raises(DataError, match="digits has no files of its own"):
        Target.of(small_sets.DataOptions(name="digits"))


@pytest.mark.integration
def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    small_sets.write("imagenet-tfrecord", tmp_path)
    path = next(tmp_path.glob("train-*"))
    flip(path, 60)
    reports = [check(detect(tmp_path), workers=workers) for workers in (1, 2)]
    assert reports[0] == reports[1]
    assert not reports[0].ok


def test_progress_adds_up(tmp_path: Path) -> None:
    for kind, unit in (("imagenet-tfrecord", "bytes"), ("cifar10-binary", "bytes"),
                       ("imagenet-folder", "images")):  # fmt: skip
        small = small_sets.write(kind, tmp_path / kind)
        told: list[tuple[int, str]] = []
        done: list[int] = []

        def begin(
            total: int,
            unit: str,
            told: list[tuple[int, str]] = told,
            done: list[int] = done,
        ) -> Callable[[int], None]:
            told.append((total, unit))
            return done.append

        check(Target.of(small.data), begin=begin)
        assert told == [(sum(done), unit)]
        assert sum(done) > 0


# Folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small_sets.write("image_folder-folder", tmp_path)
    return tmp_path


def first_image(folder: Path) -> Path:
    return sorted(folder.glob("train/*/*.jpg"))[0]


def picture(kind: str, mode: str = "RGB", size: tuple[int, int] = (24, 24)) -> bytes:
    shape = (size[1], size[0], 3)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    buffer = io.BytesIO()
    if mode == "I;16":
        Image.fromarray(pixels[..., 0].astype(np.uint16) * 200).save(buffer, kind)
    else:
        Image.fromarray(pixels).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def test_unreadable_images_are_named(folder: Path) -> None:
    paths = sorted(folder.glob("train/*/*.jpg"))[:4]
    paths[0].write_text("not a picture")
    paths[1].write_bytes(paths[1].read_bytes()[:-30])
    paths[2].write_bytes(b"")
    whole = picture("PNG")
    paths[3].write_bytes(whole[:90] + bytes([whole[90] ^ 1]) + whole[91:])
    report = check(detect(folder))
    assert {finding.place for finding in errors(report)} == set(map(str, paths))
    assert (report.splits["train"].images, report.splits["train"].unreadable) == (23, 4)
    assert {finding.kind for finding in errors(report)} == {"image"}
    # a flipped bit in the middle shows in pixels alone
    assert len(errors(check(detect(folder), decode=False))) == 3


def test_odd_images_are_notes(folder: Path) -> None:
    paths = sorted(folder.glob("train/*/*.jpg"))
    paths[0].write_bytes(picture("JPEG", "CMYK"))
    paths[1].write_bytes(picture("PNG", "I;16"))
    paths[2].write_bytes(picture("JPEG", "L"))
    paths[3].write_bytes(picture("PNG", "RGBA"))
    report = check(detect(folder))
    assert report.ok
    told = [finding.message for finding in notes(report)]
    for path, look in zip(
        paths,
        ("1 JPEG CMYK,", "1 PNG of 16 bits,", "1 JPEG grey among colour ones,",
         "1 PNG with a palette or transparency,"),
        strict=False,
    ):  # fmt: skip
        assert [text for text in told if text.startswith(look) and str(path) in text]


def test_all_grey_is_not_odd(folder: Path) -> None:
    for path in folder.glob("*/*/*.jpg"):
        path.write_bytes(picture("JPEG", "L"))
    assert notes(check(detect(folder))) == []


def test_classes_without_images_and_on_one_side_only(folder: Path) -> None:
    for path in (folder / "train" / "1").iterdir():
        path.unlink()
    (folder / "train" / "new").mkdir()
    (folder / "train" / "new" / "a.jpg").write_bytes(picture("JPEG"))
    report = check(detect(folder))
    told = {(finding.place, finding.message) for finding in errors(report)}
    assert told == {
        (str(folder / "train" / "1"), "the class has no images"),
        (str(folder / "val" / "new"), "no folder of this class, which train has"),
    }
    assert report.splits["val"].images == 9


def test_a_split_that_lacks(folder: Path) -> None:
    (folder / "val").rename(folder / "validation")
    assert only(check(detect(folder))).place == str(folder / "val")


def test_flat_validation_images_without_their_classes(folder: Path) -> None:
    for path in list((folder / "val").glob("*/*.jpg")):
        path.rename(folder / "val" / f"{path.parent.name}-{path.name}")
    for path in (folder / "val").iterdir():
        if path.is_dir():
            path.rmdir()
    report = check(detect(folder))
    assert "nothing tells their classes" in only(report).message
    assert report.splits["val"].images == 9


def test_files_that_are_passed_over_are_noted(folder: Path) -> None:
    (folder / "train" / "1" / "a.webp").touch()
    report = check(detect(folder))
    assert report.ok
    (note,) = notes(report)
    assert "1 entries are no .png, .jpg, .jpeg" in note.message
    assert "a.webp" in note.message


# TFRecords


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


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
    assert "checksum of the record's data differs" in finding.message
    assert (report.splits["train"].images, report.splits["train"].unreadable) == (23, 1)


def test_a_flipped_bit_of_a_length_costs_one_record_if_there_is_an_index(shard: Path) -> None:
    offset, _ = places(shard)[3]
    flip(shard, offset)
    report = check(detect(shard.parent))
    finding = only(report)
    assert (finding.offset, finding.message) == (
        offset,
        "the checksum of the record's length differs; copy it again",
    )
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
    assert told[places(shard)[7][0]].startswith("record cut short, 0 of")
    assert (report.splits["train"].images, report.splits["train"].unreadable) == (23, 2)


@pytest.mark.parametrize("write", [False, True])
def test_a_missing_index(shard: Path, write: bool) -> None:
    index = shard.with_suffix(".idx")
    told = index.read_text()
    index.unlink()
    report = check(detect(shard.parent), write_index=write)
    assert report.ok == write
    if write:
        assert Path(f"{shard}.idx").read_text() == told
        assert check(detect(shard.parent)).ok
    else:
        assert only(report).kind == "index"
        assert "there is no index; write it with --write-index" in only(report).message


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
    assert check(detect(shard.parent), write_index=True).ok
    assert index.read_text() == good


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
    report = check(Target.of(data))
    offsets = [each[0] for each in read_index(tmp_path / "train-00000-of-00001.idx").tolist()]
    assert [(each.offset, each.message) for each in errors(report)] == [
        (offsets[2], "label 0; valid are 1 to 3"),
        (offsets[3], "label 4; valid are 1 to 3"),
    ]
    # where nothing tells how many classes there are, no label is too large
    assert check(detect(tmp_path)).ok
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    assert "labels from 0 to 4, and classes.txt names 3" in only(check(detect(tmp_path))).message


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
        ("image", "not a readable image (neith"),
    ]
    assert report.splits["train"].unreadable == 3


def test_a_conversion_is_held_against_its_manifest(tmp_path: Path) -> None:
    small_sets.write("imagenet-folder", tmp_path / "source")
    target = tmp_path / "target"
    convert(plan_conversion(tmp_path / "source", target, Options(shards=2)), workers=1)
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
    assert "not what was converted" in finding.message
    (target / "manifest.json").write_text("{")
    assert only(check(detect(target))).place == str(target / "manifest.json")
    (target / "manifest.json").write_text(json.dumps({"files": [1], "first_label": "x"}))
    assert only(check(detect(target))).place == str(target / "manifest.json")


# IDX and CIFAR


def test_idx_labels_out_of_range(tmp_path: Path) -> None:
    small_sets.write("mnist-idx", tmp_path)
    path = tmp_path / IDX_FILES["val"][1]
    content = bytearray(path.read_bytes())
    content[8 + 5] = 77
    path.write_bytes(content)
    finding = only(check(detect(tmp_path)))
    assert (finding.place, finding.offset) == (str(path), 13)
    assert finding.message == "label 77; valid are 0 to 9"


IDX_DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-1],
    "longer": lambda content: content + b"x",
    "empty": lambda content: b"",
    "magic": lambda content: b"\0\0\x0d" + content[3:],
    "huge": lambda content: content[:4] + struct.pack(">I", 0xFFFFFFFF) + content[8:],
}


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("file", [0, 1])
@pytest.mark.parametrize("damage", IDX_DAMAGE)
def test_damaged_idx_files(tmp_path: Path, damage: str, file: int, gz: bool) -> None:
    small_sets.write("mnist-idx-gz" if gz else "mnist-idx", tmp_path)
    folder = tmp_path / "MNIST" / "raw" if gz else tmp_path
    path = folder / (IDX_FILES["train"][file] + (".gz" if gz else ""))
    content = gzip.decompress(path.read_bytes()) if gz else path.read_bytes()
    changed = IDX_DAMAGE[damage](content)
    path.write_bytes(gzip.compress(changed) if gz else changed)
    report = check(detect(tmp_path))
    assert only(report).place == str(path)
    assert report.splits["val"].images == 9


def test_a_packed_file_that_is_damaged(tmp_path: Path) -> None:
    small_sets.write("mnist-idx-gz", tmp_path)
    path = tmp_path / "MNIST" / "raw" / f"{IDX_FILES['train'][0]}.gz"
    flip(path, path.stat().st_size - 6)  # the checksum at its end
    assert only(check(detect(tmp_path))).place == str(path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    small_sets.write("cifar10-binary", tmp_path)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    finding = only(check(detect(tmp_path)))
    assert "data_batch_3.bin missing" in finding.message


def test_damaged_cifar_batches(tmp_path: Path) -> None:
    small_sets.write("cifar10-binary", tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin"
    content = bytearray(path.read_bytes())
    content[2 * 3073] = 10
    path.write_bytes(content[:-3])
    report = check(detect(tmp_path))
    told = {(each.kind, each.place, each.offset) for each in errors(report)}
    assert told == {("label", str(path), 2 * 3073), ("record", str(path), 4 * 3073)}
    assert (report.splits["train"].images, report.splits["train"].unreadable) == (23, 1)


def test_damaged_pickles(tmp_path: Path) -> None:
    small_sets.write("cifar10-pickle", tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    report = check(detect(tmp_path))
    assert only(report).place == str(path)
    assert report.splits["train"].images == 23


def test_official_counts_are_noted(tmp_path: Path) -> None:
    small_sets.write("cifar10-binary", tmp_path)
    (note,) = notes(check(detect(tmp_path)))
    assert note.message.endswith("the official cifar10 has 50,000 and 10,000")
