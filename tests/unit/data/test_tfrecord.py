"""TFRecords: what is written comes back, and any damage is named."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysuite.data import Prepared, prepare
from raysuite.data.findings import Target
from raysuite.data.formats import count, open_source
from raysuite.data.formats.tfrecord import (
    IMAGE,
    LABEL,
    _Example,
    class_names,
    decode_example,
    detect,
    encode_example,
    first_label,
    index_of,
    label_findings,
    matching,
    read_index,
    read_record,
    walk,
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


@pytest.mark.parametrize(("offset", "size"), [(-1, 17), (0, 15), (0, 0)])
def test_a_place_that_no_record_has_is_named(path, offset, size):
    with path.open("rb") as file, pytest.raises(DataError, match=f"size {size}, which"):
        read_record(file.fileno(), offset, size, "here")


def test_records_are_found_up_to_the_first_damage(path):
    places = read_index(path.with_suffix(".idx")).tolist()
    assert places == [[0, 16], [16, 17], [33, 8016]]
    assert [list(place) for place in walk(path)] == places
    for length, said in ((33 + 8015, "8015 of 8016"), (33 + 11, "11 of 16"), (16 + 12, "12 of 17")):
        os.truncate(path, length)
        found = walk(path)
        with pytest.raises(DataError, match=f"cut short, {said} bytes"):
            assert [next(found), next(found), next(found)] == []
    os.truncate(path, 16)
    assert list(walk(path)) == [(0, 16)]


def test_an_index_that_disagrees_is_found(path):
    index = path.with_suffix(".idx")
    index.write_text(index.read_text().replace("16 17", "16 18"))
    with pytest.raises(DataError, match="differs from its size in the index"):
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
    two = _Example.FromString(encode_example(b"image", 3))
    two.features.feature[IMAGE].bytes_list.value.append(b"other")
    labels = _Example.FromString(encode_example(b"image", 3))
    labels.features.feature[LABEL].int64_list.value.append(4)
    bare = _Example.FromString(encode_example(b"image", 3))
    del bare.features.feature[LABEL]
    for data in (b"", *(each.SerializeToString() for each in (two, labels, bare))):
        with pytest.raises(DataError, match=r"\(one image\) or image/class/label"):
            decode_example(data, "here")
    named = encode_example(b"image", 3, "jpg", "class", {LABEL: 7, IMAGE: b"x"})
    assert decode_example(named, "", "jpg", "class") == (b"image", 3)
    assert decode_example(named, "") == (b"x", 7)


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


def touched(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_shards_are_those_of_the_folder_or_else_of_those_below(tmp_path):
    root = touched(tmp_path, "sub/train-b-of-2", "a/train-c-of-2", "train-0.idx", ".train-x-of-1")
    (root / "train-folder-of-1").mkdir()
    assert matching(root, "train*-of-*") == [root / "a/train-c-of-2", root / "sub/train-b-of-2"]
    touched(root, "train-b-of-2", "train-a-of-2", "train-a-of-2.idx")
    assert matching(root, "train*-of-*") == [root / "train-a-of-2", root / "train-b-of-2"]
    assert matching(root, "val*") == []


def test_the_index_next_to_a_shard_is_taken_before_that_of_another_folder(tmp_path):
    shard = tmp_path / "train" / "a.rec"
    places = ["idx_files/a.idx", "idx_files/a.rec.idx", "train/idx_files/a.idx",
              "train/idx_files/a.rec.idx", "train/a.idx", "train/a.rec.idx"]  # fmt: skip
    assert index_of(shard) is None
    for place in places:
        touched(tmp_path, place)
        assert index_of(shard) == tmp_path / place


def test_a_shard_whose_first_length_looks_like_a_packed_file_is_read(tmp_path):
    for split in ("train", "val"):
        write_records(tmp_path / f"{split}-0-of-1", [b"x" * 0x8B1F])  # as GZIP begins
    data = DataOptions(name="tfrecord", path=str(tmp_path), image_size=4, classes=2)
    assert (count(data).train, count(data).val, count(data).classes) == (1, 1, ("0", "1"))


def test_counts_of_splits_are_not_exchanged_and_an_empty_one_is_named(tmp_path):
    data = DataOptions(name="tfrecord", path=str(tmp_path), image_size=4, classes=2)
    write_records(tmp_path / "train-00000-of-00002", [b"a", b"b"])
    write_records(tmp_path / "train-00001-of-00002", [b"c"])
    val = tmp_path / "validation-00000-of-00001"
    write_records(val, [b"d", b"e"])
    assert (count(data).train, count(data).val) == (3, 2)
    os.truncate(val, val.stat().st_size - 1)  # is an error when that record is read
    assert count(data).val == 2
    write_records(val, [])
    with pytest.raises(DataError, match="no records in val of"):
        count(data)
    (tmp_path / "classes.txt").write_text("cat\ncat\n")
    with pytest.raises(DataError, match="two classes are called 'cat'"):
        class_names(data)


def test_class_numbers_stand_for_names_that_no_file_has(tmp_path):
    named = DataOptions(name="mnist", format="tfrecord", path=str(tmp_path))
    assert class_names(named) == tuple("0123456789")
    (tmp_path / "classes.txt").write_text("zero\none\n")
    assert class_names(named) == ("zero", "one")
    (tmp_path / "classes.txt").write_text("")
    with pytest.raises(DataError, match="names 0 classes"):
        class_names(named)
    (tmp_path / "classes.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(DataError, match="is not UTF-8 text"):
        class_names(named)


def test_a_folder_of_shards_is_recognised_by_shards_alone(tmp_path):
    for names, form in (
        ({"train-0-of-1"}, "tfrecord"),
        ({"x", "validation-0-of-1.tfrecord"}, "tfrecord"),
        ({"train-0-of-1.idx", ".train-0-of-1", "test-0-of-1"}, None),
    ):
        assert detect(tmp_path, names) == form


@pytest.mark.parametrize(
    ("labels", "first"),
    [
        ({0, 1, 2}, 0),
        ({0, 2}, 0),
        ({1, 2}, 1),
        ({2, 3}, 1),
        ({1, 2, 3}, 1),
        ({0, 3}, None),
        ({1, 4}, None),
        ({-1, 0}, None),
        (set(), ()),
    ],
)
def test_labels_of_records_count_from_0_or_1(labels, first):
    data = DataOptions(name="tfrecord", path="x", image_size=4, classes=3)
    found, findings = label_findings(Target(data, ("a", "b", "c")), labels)
    assert (found, len(findings)) == ((None, 0) if first == () else (first, first is None))
    assert label_findings(Target(data), labels) == (None, [])
