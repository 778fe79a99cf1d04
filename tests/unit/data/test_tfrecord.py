"""TFRecords: what is written comes back, and any damage is named."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysuite.data import Prepared, prepare
from raysuite.data.formats import count, open_source
from raysuite.data.formats.tfrecord import (
    IMAGE,
    LABEL,
    decode_example,
    encode_example,
    first_label,
    read_index,
    read_record,
    write_records,
)
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions, FeatureMap
from tests import small_sets
from tests.require import require

RECORDS = [b"", b"a", b"raysuite" * 1000]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x.tfrecord"
    write_records(path, RECORDS)
    return path


def read(path: Path, number: int) -> bytes:
    offset, size = read_index(path.with_suffix(".idx"))[number].tolist()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_record(descriptor, offset, size, f"{path} at byte {offset}")
    finally:
        os.close(descriptor)


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_records_come_back_in_any_order(path):
    assert [read(path, number) for number in (2, 0, 1)] == [RECORDS[2], RECORDS[0], RECORDS[1]]


def test_bytes_on_disk_are_in_tensorflows_layout(tmp_path):
    # The layout that TensorFlow documents: length, its masked CRC, data, their masked CRC.
    path = tmp_path / "foo.tfrecord"
    write_records(path, [b"foo"])
    length, length_crc, data, data_crc = struct.unpack("<QI3sI", path.read_bytes())
    assert (length, data) == (3, b"foo")
    assert length_crc == masked(crc32c(struct.pack("<Q", 3)))
    assert data_crc == masked(crc32c(b"foo"))
    assert path.with_suffix(".idx").read_text() == "0 19\n"


def crc32c(data: bytes) -> int:
    """Bit by bit from RFC 3720, so as not to check a library by itself."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_crc_of_this_test_is_the_standards():
    assert crc32c(b"123456789") == 0xE3069283


FLIPS = [(16, "length"), (24, "length"), (28, "data"), (32, "data")]


@pytest.mark.parametrize(("at", "said"), FLIPS)
def test_a_flipped_bit_is_found(path, at, said):
    # Record 1 stands at byte 16: length 16..23, CRC 24..27, data 28, CRC 29..32.
    damage(path, at)
    with pytest.raises(DataError, match=f"{path} at byte 16: the checksum of.*{said} differs"):
        read(path, 1)


def test_a_record_cut_short_is_found(path):
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DataError, match=r"8015 of 8016 bytes"):
        read(path, 2)


def test_an_index_that_disagrees_is_found(path):
    index = path.with_suffix(".idx")
    index.write_text(index.read_text().replace("16 17", "16 18"))
    with pytest.raises(DataError, match="index disagree"):
        read(path, 1)


@pytest.mark.parametrize("text", ["0", "a b", "0 16\n16"])
def test_a_damaged_index_is_named(tmp_path, text):
    path = tmp_path / "x.idx"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"{path}: not an index .* --write-index`"):
        read_index(path)


@given(st.binary(), st.integers(0, 2**62))
def test_examples_come_back(image, label):
    assert decode_example(encode_example(image, label), "") == (image, label)


def test_examples_of_another_kind_are_refused():
    with pytest.raises(DataError, match=r"here: not a tf\.train\.Example"):
        decode_example(b"\xff\xff", "here")
    with pytest.raises(DataError, match=r"\(one image\) or image/class/label"):
        decode_example(b"", "here")


def test_dalis_own_reader_reads_our_records_and_index(digits: Prepared):
    require("dali")
    from nvidia.dali import fn, tfrecord, types
    from nvidia.dali.pipeline import Pipeline

    shards = sorted(digits.files.glob("val-*.tfrecord"))
    pipeline = Pipeline(batch_size=360, num_threads=1, device_id=None)
    with pipeline:
        features = fn.readers.tfrecord(
            path=[str(path) for path in shards],
            index_path=[str(path.with_suffix(".idx")) for path in shards],
            features={
                IMAGE: tfrecord.FixedLenFeature((), tfrecord.string, ""),
                LABEL: tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
            },
        )
        pipeline.set_outputs(features[IMAGE], features[LABEL])
    images, labels = pipeline.run()
    source = open_source(digits, "val")
    ours = [source.read(sample) for sample in range(360)]
    source.close()
    assert [bytes(images.at(i)) for i in range(360)] == [data for data, _ in ours]
    assert [int(labels.at(i)[0]) for i in range(360)] == [label for _, label in ours]
    assert labels.dtype == types.DALIDataType.INT64


def test_a_listing_is_of_these_shards_and_indices_with_their_sizes_and_times(tmp_path):
    small = small_sets.write("tfrecord-tfrecord", tmp_path / "set")

    def listing() -> Path | None:
        return prepare(small.data, small.facts, tmp_path / "cache").listing

    found = [listing()]
    assert found[0] == listing()
    source = open_source(prepare(small.data, small.facts, tmp_path / "cache"), "train")
    shard = Path(str(source.file(0)))
    source.close()
    for file in (shard, *shard.parent.glob(f"{shard.stem}*.idx")):
        when = file.stat()
        os.utime(file, ns=(when.st_atime_ns, when.st_mtime_ns + 1))
        found.append(listing())
    when = shard.stat()
    os.truncate(shard, when.st_size - 1)
    os.utime(shard, ns=(when.st_atime_ns, when.st_mtime_ns))
    found.append(listing())
    assert len({*found}) == 4


@pytest.mark.parametrize("kept", [[0, 1], [1, 2], [0, 2], [0, 1, 1, 2], []])
def test_an_index_that_lacks_or_repeats_a_record_is_refused(kept, tmp_path):
    for split in ("train", "val"):
        write_records(tmp_path / f"{split}-00000-of-00001", [b"a", b"bc", b"d"])
    index = tmp_path / "train-00000-of-00001.idx"
    data = DataOptions(name="tfrecord", path=str(tmp_path), image_size=4, classes=2)
    assert count(data).train == 3
    (tmp_path / "classes.txt").write_bytes("\ufeffcat\r\ndog\r\n".encode())  # as Windows does
    assert count(data).classes == ("cat", "dog")
    lines = index.read_text().splitlines()
    index.write_text("\n".join(lines[place] for place in kept))
    with pytest.raises(DataError, match=r"lacks or repeats a record .* --write-index"):
        count(data)


@pytest.mark.parametrize(
    ("name", "given", "first"),
    [
        ("imagenet", None, 1),
        ("imagenet", 0, 0),
        ("imagenet", 3, 3),
        ("mnist", None, 0),
        ("mnist", 1, 1),
        ("tfrecord", None, 0),
        ("tfrecord", 1, 1),
    ],
)
def test_the_number_of_the_first_class_is_the_given_one_or_the_sets_own(
    name: str, given: int | None, first: int
) -> None:
    features = FeatureMap() if given is None else FeatureMap(first_label=given)
    own = {} if name != "tfrecord" else {"path": "x", "image_size": 8, "classes": 3}
    data = DataOptions(name=name, format="tfrecord", features=features, **own)
    assert first_label(data) == first
