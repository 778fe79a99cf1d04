"""Every set in every form: the pixels and labels that were written are those that are read."""

from __future__ import annotations

import gzip
import os
import pickle
import re
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raysuite.data import Prepared, formats, prepare
from raysuite.data.formats import open_source
from raysuite.data.formats.idx import unpack
from raysuite.data.pixels import decode
from raysuite.data.reading import check_label, label_of
from raysuite.errors import DataError
from raysuite.spec.datasets import DatasetFacts
from tests import small_sets
from tests.small_sets import SmallSet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "set"


def prepared(small: SmallSet, folder: Path, **changes: object) -> Prepared:
    """As a run prepares it, with the counts that are on disk now."""
    data = small.data.model_copy(update=changes)
    counts = formats.count(data)
    facts = DatasetFacts(
        counts.train,
        counts.val,
        len(counts.classes),
        data.channels or small.facts.channels,
        data.image_size or small.facts.image_size,
        class_names=counts.classes,
    )
    return prepare(data, facts, folder.parent / "cache")


def assert_equal(found: Prepared, small: SmallSet) -> None:
    for split in ("train", "val"):
        source = open_source(found, split)
        for sample, pixels in enumerate(small.images[split]):
            image, label = source.read(sample)
            assert label == small.labels[split][sample]
            assert np.array_equal(decode(image, small.facts.channels, ""), pixels)
        source.close()


@pytest.mark.parametrize("kind", small_sets.KINDS)
def test_what_is_written_is_read(kind, folder):
    small = small_sets.write(kind, folder)
    found = prepared(small, folder)
    assert found.facts == small.facts
    assert found.classes == small.facts.class_names
    assert_equal(found, small)
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert len(pickle.dumps(found)) < 3000
    # a folder that has changed in the last seconds has a list by another name
    assert replace(prepared(small, folder), listing=found.listing) == found


@pytest.mark.parametrize(
    ("kind", "augment", "fit", "exact"),
    [
        ("mnist-idx", "none", "stretch", True),
        ("mnist-folder", "none", "stretch", False),
        ("cifar10-pickle", "pad_crop_flip", "stretch", True),
        ("imagenet-tfrecord", "resized_crop_flip", "center", False),
        ("highres-folder", "none", "stretch", False),
        ("own-own", "none", "stretch", False),
    ],
)
def test_what_becomes_of_the_pixels(kind, augment, fit, exact, folder):
    found = prepared(small_sets.write(kind, folder), folder)
    assert (found.augment, found.fit, found.exact) == (augment, fit, exact)


@pytest.mark.parametrize(
    ("kind", "augment", "fit"),
    [
        ("mnist-idx", "resized_crop_flip", "center"),
        ("mnist-folder", "resized_crop_flip", "center"),
        ("own-own", "resized_crop_flip", "center"),
        ("highres-folder", "pad_crop_flip", "stretch"),
        ("cifar10-binary", "none", "stretch"),
        ("imagenet-tfrecord", "none", "center"),
    ],
)
def test_a_given_augmentation_replaces_that_of_the_set(kind, augment, fit, folder):
    found = prepared(small_sets.write(kind, folder), folder, augment=augment)
    assert (found.augment, found.fit) == (augment, fit)


def test_another_size_or_number_of_channels_is_no_longer_exact(folder):
    small = small_sets.write("mnist-idx", folder)
    assert not prepared(small, folder, image_size=32).exact
    found = prepared(small, folder, channels=3)
    assert found.exact
    assert found.mean == (0.1307,) * 3


def test_class_names(folder):
    cifar = prepared(small_sets.write("cifar10-binary", folder / "a"), folder)
    assert cifar.classes[3] == "cat"
    records = prepared(small_sets.write("imagenet-tfrecord", folder / "b"), folder)
    assert records.classes == small_sets.SYNSETS
    own = prepared(small_sets.write("own-own", folder), folder)
    assert own.classes == small_sets.OwnSet.classes


@pytest.mark.parametrize(("label", "known"), [(-1, False), (0, True), (9, True), (10, False)])
def test_labels_count_from_0_to_the_last_class(label, known):
    with nullcontext() if known else pytest.raises(DataError, match="the set has 10 classes"):
        check_label(label, 10, "a.png")


def test_a_label_alone_is_checked_too(folder):
    small = small_sets.write("mnist-idx", folder)
    last = max(small.labels["val"])
    sample = small.labels["val"].index(last)
    with closing(open_source(prepared(small, folder), "val")) as source:
        assert label_of(source, sample, last + 1) == last
        with pytest.raises(DataError, match=f"is number {last}, .* has {last} classes"):
            label_of(source, sample, last)


# ImageNet's layouts


def test_tensorflows_list_of_synsets(folder):
    small = small_sets.write("imagenet-folder-devkit", folder)
    truth = folder / small_sets.DEVKIT / "ILSVRC2012_validation_ground_truth.txt"
    synsets = {n: s for n, s in zip(small_sets.DEVKIT_IDS, small_sets.SYNSETS, strict=True)}
    lines = [synsets[int(line)] for line in truth.read_text().split()]
    truth.unlink()
    with pytest.raises(DataError, match="their classes"):
        prepared(small, folder)
    listed = folder / "imagenet_2012_validation_synset_labels.txt"
    listed.write_text("\n".join(lines))
    assert_equal(prepared(small, folder), small)


@pytest.mark.parametrize(
    ("kind", "file", "change", "said"),
    [
        ("devkit", "ILSVRC2012_validation_ground_truth.txt", b"3\n1\n", "classes of 2 images"),
        ("devkit", "ILSVRC2012_validation_ground_truth.txt", b"3\n1\n9\n", "KeyError"),
        ("devkit", "meta.mat", b"no such format", "meta.mat"),
        ("kaggle", "LOC_val_solution.csv", b"ImageId,PredictionString\n", "cannot be read"),
        ("kaggle", "LOC_val_solution.csv", b"a,b\n1,2\n", "KeyError"),
    ],
)
def test_a_damaged_list_of_classes_is_named(kind, file, change, said, folder):
    small = small_sets.write(f"imagenet-folder-{kind}", folder)
    (path,) = folder.rglob(file)
    path.write_bytes(change)
    with pytest.raises(DataError, match=said):
        prepared(small, folder)


@pytest.mark.parametrize(
    ("kind", "file", "first", "second"),
    [
        ("kaggle", "LOC_val_solution.csv", b"n01440764", b"n02084071"),
        ("devkit", "ILSVRC2012_validation_ground_truth.txt", b"2", b"3"),
        ("devkit", "meta.mat", b"n01440764", b"n02084071"),
    ],
)
def test_corrected_classes_of_validation_images_replace_the_kept_ones(
    kind, file, first, second, folder
):
    small = small_sets.write(f"imagenet-folder-{kind}", folder)
    (path,) = folder.rglob(file)

    def labels(time: int) -> dict[str, int]:
        """By image; the set is older than what may still change within its time stamp."""
        for each in [*folder.rglob("*"), folder]:
            os.utime(each, (10**9, 10**9))
        os.utime(path, (time, time))
        source = open_source(prepared(small, folder), "val")
        return {source.place(n): source.label(n) for n in range(small_sets.COUNTS["val"])}

    before = labels(10**9)
    swap = {first: second, second: first}
    content = path.read_bytes()
    path.write_bytes(re.sub(b"|".join(swap), lambda found: swap[found[0]], content))
    assert labels(10**9 + 1) == {image: (1, 0, 2)[label] for image, label in before.items()}


def test_validation_images_of_a_class_without_folder_are_told(folder):
    small = small_sets.write("imagenet-folder-kaggle", folder)
    path = folder / "LOC_val_solution.csv"
    path.write_text(path.read_text().replace(small_sets.SYNSETS[0], "n99999999"))
    with pytest.raises(DataError, match=r"1 classes that have no folder in .*train: n99999999"):
        prepared(small, folder)


# MNIST


def test_plain_and_packed_files_may_stand_together(folder):
    small = small_sets.write("mnist-idx", folder)
    path = folder / "train-images-idx3-ubyte"
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert_equal(prepared(small, folder), small)
    for path in folder.glob("t10k-*-ubyte"):  # a plain file is taken before a packed one
        path.with_name(f"{path.name}.gz").write_bytes(b"damaged")
    assert_equal(prepared(small, folder), small)
    (folder / "raw").mkdir()
    (folder / "raw" / "t10k-labels-idx1-ubyte").write_bytes(b"of fewer files")
    assert_equal(prepared(small, folder), small)


@pytest.mark.parametrize("packed", [False, True])
def test_idx_images_need_not_be_square(packed, folder):
    small = small_sets.write("mnist-idx", folder)
    flat = {split: [pixels[5:] for pixels in each] for split, each in small.images.items()}
    small = replace(small, images=flat)
    small_sets.write_idx(folder / "raw" if packed else folder, small, gz=packed)
    if packed:
        for path in folder.glob("*-ubyte"):
            path.unlink()
    found = prepared(small, folder)
    assert not found.exact
    assert_equal(found, small)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "begins with nothing"),
        (b"\0\0\x08\x01\0\0\0\x01\0", "IDX file of 3"),
        (b"\0\0\x08\x03\0\0\0\x01\0", "IDX file of 3"),
        (b"\0\0\x0d\x03" + b"\0\0\0\x01" * 3 + b"\0\0\0\0", "not an IDX file"),
        (b"\0\0\x08\x03" + b"\xff" * 12 + b"\0", "requires 79228162458924105385300197391"),
        (b"\0\0\x08\x03" + b"\0\0\0\x01" * 3 + b"ab", "18 bytes, but"),
        (b"\0\0\x08\x03" + b"\0\0\0\x01" * 3 + b"a", "has 23 labels"),
    ],
)
def test_a_damaged_idx_file_is_named(content, said, packed, folder):
    small = small_sets.write("mnist-idx", folder)
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(content)
    if packed:
        path.unlink()
        path = folder / f"{path.name}.gz"
        path.write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=said) as raised:
        prepared(small, folder)
    assert str(path) in str(raised.value)


def test_of_a_gz_no_more_is_unpacked_than_its_header_states(tmp_path):
    path, target = tmp_path / "labels.gz", tmp_path / "labels"
    head = b"\0\0\x08\x01\0\0\0\x02"
    path.write_bytes(gzip.compress(head + b"ab"))
    unpack(path, 1, target)
    assert target.read_bytes() == head + b"ab"
    ends = (10).to_bytes(4, "little")  # a lie: gzip's last four bytes are the unpacked size
    path.write_bytes(gzip.compress(head + bytes(3 << 20))[:-4] + ends)
    with pytest.raises(DataError, match="its unpacked size"):
        unpack(path, 1, target)
    assert target.stat().st_size <= 10


def test_a_damaged_gz_is_named(folder):
    small = small_sets.write("mnist-idx-gz", folder)
    (path,) = folder.rglob("train-images-idx3-ubyte.gz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz: (cannot be|it does not)"):
        prepared(small, folder)


@pytest.mark.parametrize("kind", ["mnist-idx", "cifar10-binary"])
def test_a_file_that_is_cut_while_it_is_read_is_named(kind, folder):
    small = small_sets.write(kind, folder)
    source = open_source(prepared(small, folder), "val")
    os.truncate(source.file(0), 20)
    with pytest.raises(DataError, match=r"at byte .*: the file was cut short"):
        source.read(8)
    source.close()


# CIFAR-10


def test_a_cut_batch_is_named_with_its_offset(folder):
    small = small_sets.write("cifar10-binary", folder)
    (path,) = folder.rglob("data_batch_2.bin")
    os.truncate(path, 2 * 3073 + 5)
    with pytest.raises(DataError, match=f"{path} at byte 6146: record cut short, 5 of 3073"):
        prepared(small, folder)


def test_batches_may_lie_in_the_folder_itself(folder):
    small = small_sets.write("cifar10-pickle", folder)
    for path in (folder / "cifar-10-batches-py").iterdir():
        path.rename(folder / path.name)
    assert_equal(prepared(small, folder), small)


# TFRecords


def test_shards_may_lie_one_folder_below(folder):
    small = small_sets.write("imagenet-tfrecord", folder)
    for split in ("train", "validation"):
        (folder / split).mkdir()
        for path in folder.glob(f"{split}-*"):
            path.rename(folder / split / path.name)
    assert_equal(prepared(small, folder), small)


def test_without_index_the_records_are_found_where_samples_may_be_skipped(folder):
    small = small_sets.write("cifar10-tfrecord", folder)
    for path in folder.glob("*.idx"):
        path.unlink()
    with pytest.raises(DataError, match=r"no index of .*train-00000-of-00003.tfrecord, .*00001"):
        prepare(small.data, small.facts, folder.parent / "cache")
    assert_equal(prepared(small, folder, bad_samples="skip"), small)
    shard = folder / "train-00002-of-00003.tfrecord"
    os.truncate(shard, shard.stat().st_size - 1)
    found = prepared(small, folder, bad_samples="skip")
    assert found.facts.train_samples == small.facts.train_samples - 1


def test_features_of_other_names_are_told(folder):
    small = small_sets.write("tfrecord-tfrecord", folder)
    features = small.data.features.model_copy(update={"label": "class"})
    source = open_source(prepared(small, folder, features=features), "val")
    with pytest.raises(DataError, match=r"check.rec at byte 0: .* it has jpg, target; set data"):
        source.read(0)
    source.close()


def test_a_changed_shard_is_read_anew(folder):
    small = small_sets.write("mnist-tfrecord", folder)
    first = prepared(small, folder)
    path, index = folder / "train-00002-of-00003.tfrecord", folder / "train-00002-of-00003.idx"
    lines = index.read_text().splitlines()
    os.truncate(path, int(lines[-1].split()[0]))
    index.write_text("".join(f"{line}\n" for line in lines[:-1]))
    second = prepared(small, folder)
    assert second.facts.train_samples == first.facts.train_samples - 1
    with pytest.raises(DataError, match="the plan has 23 training"):
        prepare(small.data, small.facts, folder.parent / "cache")
