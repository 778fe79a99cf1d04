"""Stand-ins on disk: each form as others read it; complete or not there; gone on with."""

from __future__ import annotations

import io
import json
import pickle
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets.mnist import read_image_file, read_label_file

from raysuite.data import formats, prepare
from raysuite.data.formats import open_source
from raysuite.data.formats.tfrecord import decode_example, read_index
from raysuite.data.pixels import encode
from raysuite.data.synthesis import SyntheticSet, make, making, plan_synthetic_set
from raysuite.data.synthesis.making import locked
from raysuite.data.synthesis.pictures import Painter
from raysuite.errors import DataError, UserError
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import NAMED

SMALL: dict[str, Any] = {"images": 20, "size": (32, 24)}


def expected(synthetic: SyntheticSet, split: Any) -> list[tuple[np.ndarray[Any, Any], int]]:
    painter = Painter(synthetic)
    return [painter.picture(split, sample) for sample in range(getattr(synthetic, split))]


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_idx_files_as_torchvision_reads_them(tmp_path: Path) -> None:
    synthetic = plan_synthetic_set("mnist", images=20)
    make(synthetic, tmp_path / "set", 1)
    for split, prefix in (("train", "train"), ("val", "t10k")):
        images = read_image_file(str(tmp_path / "set" / f"{prefix}-images-idx3-ubyte")).numpy()
        labels = read_label_file(str(tmp_path / "set" / f"{prefix}-labels-idx1-ubyte")).tolist()
        pairs = expected(synthetic, split)
        np.testing.assert_array_equal(images, np.stack([pixels[..., 0] for pixels, _ in pairs]))
        assert labels == [label for _, label in pairs]


@pytest.mark.parametrize("form", ["binary", "pickle"])
def test_cifar_batches_as_their_page_describes_them(tmp_path: Path, form: str) -> None:
    synthetic = plan_synthetic_set("cifar10", form, images=23)
    make(synthetic, tmp_path / "set", 1)
    suffix = ".bin" if form == "binary" else ""
    names = {"train": [f"data_batch_{i}{suffix}" for i in range(1, 6)]}
    names["val"] = [f"test_batch{suffix}"]
    for split, files in names.items():
        planes, labels = [], []
        for name in files:
            content = (tmp_path / "set" / name).read_bytes()
            if form == "binary":
                rows = np.frombuffer(content, np.uint8).reshape(-1, 3073)
                labels += rows[:, 0].tolist()
                planes.append(rows[:, 1:])
            else:
                assert content[:2] == b"\x80\x02"  # of the official files, for Python 2 as well
                batch = pickle.loads(content)
                assert len(batch[b"filenames"]) == len(batch[b"labels"])
                labels += batch[b"labels"]
                planes.append(batch[b"data"])
        images = np.concatenate(planes).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        pairs = expected(synthetic, split)
        np.testing.assert_array_equal(images, np.stack([pixels for pixels, _ in pairs]))
        assert labels == [label for _, label in pairs]


def test_imagenets_folders_are_named_as_ilsvrcs(tmp_path: Path) -> None:
    synthetic = plan_synthetic_set("imagenet", **SMALL)
    make(synthetic, tmp_path / "set", 1)
    root = tmp_path / "set"
    found = {str(path.relative_to(root)) for path in root.rglob("*.JPEG")}
    names = [f"n{label:08d}" for label in range(1, synthetic.classes + 1)]
    wanted = {}
    for split in ("train", "val"):
        for sample, (pixels, label) in enumerate(expected(synthetic, split)):
            name = names[label]
            file = f"{name}_{sample}" if split == "train" else f"ILSVRC2012_val_{sample + 1:08d}"
            wanted[f"{split}/{name}/{file}.JPEG"] = encode(pixels, synthetic.quality)
    assert found == set(wanted)
    assert all((root / path).read_bytes() == content for path, content in wanted.items())


@pytest.mark.parametrize(("name", "first"), [("imagenet", 1), ("highres", 0)])
def test_records_count_labels_as_tensorflow_does(tmp_path: Path, name: str, first: int) -> None:
    synthetic = replace(plan_synthetic_set(name, "tfrecord", **SMALL), shards=(3, 1))
    make(synthetic, tmp_path / "set", 1)
    shards = {"train": [f"train-{i:05d}-of-00003" for i in range(3)]}
    shards["val"] = ["validation-00000-of-00001"]
    for split, files in shards.items():
        found = []
        for file in files:
            content = (tmp_path / "set" / file).read_bytes()
            for offset, size in read_index(tmp_path / "set" / f"{file}.idx").tolist():
                record = content[offset + 12 : offset + size - 4]
                found.append(decode_example(record, file))
        pairs = expected(synthetic, split)
        assert [label for _, label in found] == [label + first for _, label in pairs]
        assert found[0][0] == encode(pairs[0][0], synthetic.quality)
        with Image.open(io.BytesIO(found[-1][0])) as image:
            assert (image.format, image.size) == ("JPEG", (32, 24))
    names = (tmp_path / "set" / "classes.txt").read_text().splitlines()
    assert tuple(names) == synthetic.class_names


def test_a_manifest_tells_what_lies_there(tmp_path: Path) -> None:
    synthetic = plan_synthetic_set("mnist", images=20, seed=7)
    made = make(synthetic, tmp_path / "set", 1)
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_text())
    assert manifest["synthetic"] == {"version": 1, **synthetic.parameters}
    assert manifest["images"] == {"train": 20, "val": 10}
    files = [p for p in (tmp_path / "set").iterdir() if p.name != "manifest.json"]
    assert manifest["bytes"] == made.bytes == sum(path.stat().st_size for path in files)
    assert len(manifest["chunks"]) == made.chunks == made.written == 2
    assert hidden(tmp_path) == []


def test_a_complete_one_is_left_as_it_is(tmp_path: Path) -> None:
    synthetic = plan_synthetic_set("mnist", images=20)
    first = make(synthetic, tmp_path / "set", 1)
    told: list[int] = []
    again = make(synthetic, tmp_path / "set", 1, count=told.append)
    assert (again.written, again.drawn, again.digest) == (0, 0, first.digest)
    assert sum(told) == 30


def test_a_folder_without_the_parameters_of_a_set_is_none(tmp_path: Path) -> None:
    synthetic, folder = plan_synthetic_set("mnist", images=20), tmp_path / "set"
    make(synthetic, folder, 1)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["synthetic"]
    for content in (manifest, [], None):
        (folder / "manifest.json").write_text("{" if content is None else json.dumps(content))
        with pytest.raises(UserError, match="will not replace"):
            make(synthetic, folder, 1, force=True)


def test_a_mount_point_is_no_place_for_a_set() -> None:
    with pytest.raises(UserError, match="is a mount point"):
        making.check_place(Path("/proc"))


def test_names_of_classes_lie_beside_the_formats_that_have_none(tmp_path: Path) -> None:
    def names(form: str) -> dict[str, str]:
        make(plan_synthetic_set("cifar10", form, images=10), tmp_path / form, 1)
        return {path.name: path.read_text() for path in (tmp_path / form).glob("*.txt")}

    listed = "airplane automobile bird cat deer dog frog horse ship truck ".replace(" ", "\n")
    assert names("binary") == {"batches.meta.txt": listed}
    assert names("tfrecord") == {"classes.txt": listed}
    assert names("pickle") == names("folder") == {}


def test_the_size_of_a_set_is_that_of_its_pixels_or_of_its_first_pictures() -> None:
    mnist, cifar = (plan_synthetic_set(name, images=20) for name in ("mnist", "cifar10"))
    assert making.expected_bytes(mnist, 10) == 10 * (28 * 28 + 1)
    assert making.expected_bytes(cifar, 3) == 3 * (32 * 32 * 3 + 1)
    photos = plan_synthetic_set("imagenet", images=20, size=(32, 24))
    sizes = [len(encode(pixels, photos.quality)) for pixels, _ in expected(photos, "train")]
    assert making.expected_bytes(photos, 20) == round(sum(sizes[:8]) / 8 * 20)
    assert making.expected_bytes(photos, 3) == sum(sizes[:3])
    assert making.expected_bytes(photos, 0) == 0


def test_another_one_is_not_replaced_unasked(tmp_path: Path) -> None:
    make(plan_synthetic_set("mnist", images=20), tmp_path / "set", 1)
    other = plan_synthetic_set("mnist", images=30, seed=1)
    with pytest.raises(
        UserError, match=r"train 20 instead of 30, .*seed 0 instead of 1\); give --force"
    ):
        make(other, tmp_path / "set", 1)
    assert make(other, tmp_path / "set", 1, force=True).images == 40


@pytest.mark.parametrize("force", [False, True])
def test_what_others_wrote_is_left_alone(tmp_path: Path, force: bool) -> None:
    """A real data set may lie at the default path."""
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train").write_text("precious")
    with pytest.raises(UserError, match="will not replace"):
        make(plan_synthetic_set("mnist", images=20), folder, 1, force)
    assert (folder / "train").read_text() == "precious"
    with pytest.raises(UserError, match="is a file"):
        make(plan_synthetic_set("mnist", images=20), folder / "train", 1, force)


class StopError(Exception):
    pass


def break_off(synthetic: SyntheticSet, folder: Path, images: int) -> None:
    """Begin to make a set, and stop at the count of more than `images`; -1: at the first count."""
    done = 0

    def stop(counted: int) -> None:
        nonlocal done
        done += counted
        if done > images:
            raise StopError

    with pytest.raises(StopError):
        make(synthetic, folder, 1, count=stop)


@pytest.mark.parametrize(("form", "shards"), [("folder", (0, 0)), ("tfrecord", (4, 1))])
def test_one_that_was_broken_off_is_gone_on_with(
    tmp_path: Path, form: str, shards: tuple[int, int]
) -> None:
    planned = plan_synthetic_set("imagenet", form, images=600, size=(32, 24))
    synthetic = replace(planned, shards=shards)
    break_off(synthetic, tmp_path / "set", 400)
    assert not (tmp_path / "set").exists()
    assert hidden(tmp_path) == [".set.making"]
    work = tmp_path / ".set.making"
    journal = work / "chunks.jsonl"
    whole = len(journal.read_text().splitlines())
    assert whole >= 1
    # a kill may cut the journal's last line short, and a power cut a file
    with journal.open("a") as file:
        file.write('{"split": "tra')
    told: list[int] = []
    resumed = make(synthetic, tmp_path / "set", 1, count=told.append)
    undisturbed = make(synthetic, tmp_path / "other", 1)
    assert resumed.digest == undisturbed.digest
    assert resumed.written == resumed.chunks - whole
    assert sum(told) == resumed.images
    assert hidden(tmp_path) == []
    ours, theirs = (
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (tmp_path / "set", tmp_path / "other")
    )
    assert ours == theirs


@pytest.mark.parametrize("file", ["train-00000-of-00003", "train-00000-of-00003.idx"])
@pytest.mark.parametrize("cut", [True, False])
def test_a_chunk_that_was_cut_is_written_again(tmp_path: Path, cut: bool, file: str) -> None:
    planned = plan_synthetic_set("imagenet", "tfrecord", images=30, size=(32, 24))
    synthetic = replace(planned, shards=(3, 1))
    break_off(synthetic, tmp_path / "set", 25)
    work = tmp_path / ".set.making"
    assert len((work / "chunks.jsonl").read_text().splitlines()) == 2  # of ten images each
    (work / file).write_bytes((work / file).read_bytes()[:-1])
    if not cut:
        (work / file).unlink()
    made, other = (make(synthetic, tmp_path / name, 1) for name in ("set", "b"))
    assert (made.written, made.drawn, other.written, other.drawn) == (3, 33 - 10, 4, 33)
    assert made.digest == other.digest


def test_another_one_that_was_begun_is_told(tmp_path: Path) -> None:
    break_off(plan_synthetic_set("mnist", images=20), tmp_path / "set", -1)
    other = plan_synthetic_set("mnist", images=30)
    with pytest.raises(UserError, match="begun in"):
        make(other, tmp_path / "set", 1)
    plan = tmp_path / ".set.making" / "plan.json"
    plan.write_text("{")
    with pytest.raises(UserError, match=r"begun in .*train None instead of 30"):
        make(other, tmp_path / "set", 1)
    plan.unlink()  # without it, nothing tells of what the files are
    (plan.parent / "left").touch()
    made = make(other, tmp_path / "set", 1)
    assert (made.images, made.written) == (40, 2)
    assert not (tmp_path / "set" / "left").exists()
    assert make(other, tmp_path / "set", 1, force=True).written == 2


def test_one_that_was_begun_is_begun_anew_by_force(tmp_path: Path) -> None:
    synthetic = plan_synthetic_set("mnist", images=20)
    break_off(synthetic, tmp_path / "set", 25)
    assert make(synthetic, tmp_path / "set", 1, force=True).written == 2


def test_a_disk_that_is_too_small_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"needed and .* free"):
        make(plan_synthetic_set("mnist", images=10**12), tmp_path / "set", 1)


def test_a_set_that_was_begun_needs_space_only_for_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic = replace(plan_synthetic_set("imagenet", "tfrecord", **SMALL), shards=(2, 1))
    break_off(synthetic, tmp_path / "set", 10)
    whole = synthetic.train + synthetic.val
    enough = making.expected_bytes(synthetic, whole - 10)
    assert enough < making.expected_bytes(synthetic, whole)
    for free, room in ((enough - 1, False), (enough, True)):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(making.shutil, "disk_usage", lambda _, _usage=usage: _usage)
        with nullcontext() if room else pytest.raises(DataError, match="are needed"):
            assert make(synthetic, tmp_path / "set", 1).images == whole


def test_a_second_writer_waits_for_the_first(tmp_path: Path) -> None:
    synthetic = plan_synthetic_set("mnist", images=20)
    waits, ends = threading.Event(), threading.Event()
    second: list[int] = []

    def write() -> None:
        second.append(make(synthetic, tmp_path / "set", 1, waiting=waits.set).written)
        ends.set()

    with locked(tmp_path / "set", lambda: None):
        thread = threading.Thread(target=write)
        thread.start()
        assert waits.wait(60)
        assert not ends.is_set()
    thread.join(60)
    assert second == [2]
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(("name", "form"), [(n, form) for n in NAMED for form in NAMED[n].formats])
def test_raysuite_reads_what_it_made(tmp_path: Path, name: str, form: Any) -> None:
    size = None if name in ("mnist", "cifar10") else (32, 24)
    synthetic = plan_synthetic_set(name, form, images=20, size=size)
    make(synthetic, tmp_path / "set", 1)
    data = DataOptions(name=name, format=form, path=str(tmp_path / "set"))
    counts = formats.count(data)
    assert not isinstance(counts, str)
    assert (counts.train, counts.val) == (synthetic.train, synthetic.val)
    facts = NAMED[name].facts
    facts = replace(
        facts, train_samples=counts.train, val_samples=counts.val, classes=len(counts.classes)
    )
    prepared = prepare(data, facts, tmp_path / "cache")
    for split in ("train", "val"):
        source = open_source(prepared, split)
        found = [source.read(sample) for sample in range(getattr(synthetic, split))]
        source.close()
        written = expected(synthetic, split)
        if prepared.encoded:
            kept = [(encode(pixels, synthetic.quality), label) for pixels, label in written]
        else:
            kept = [(pixels.tobytes(), label) for pixels, label in written]
        # a folder's samples are numbered by class and name
        assert sorted((bytes(sample), label) for sample, label in found) == sorted(kept)
