"""Image folders become TFRecord shards: bytes, labels, sizes, and what is bad."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raysuite.data import Split, prepare
from raysuite.data import convert as converting
from raysuite.data.convert import Bad, Summary, _listed, plan_conversion
from raysuite.data.formats import open_source
from raysuite.data.formats.tfrecord import IMAGE, LABEL, read_index
from raysuite.data.order import permutation
from raysuite.data.pixels import decode
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions
from tests import small_sets
from tests.unit.data.photos import SYNSETS, image, records, run, shards, write_folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "source")


def test_every_image_comes_once_with_its_bytes_and_its_label(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "not there" / "target"
    summary = run(source, target)
    assert [path.name for path in shards(target, "train")] == [
        f"train-{shard:05d}-of-00004" for shard in range(4)
    ]
    sizes = [path.stat().st_size for split in ("train", "val") for path in shards(target, split)]
    assert summary == Summary(27, 9, 3, 1, 6, sum(sizes), 6, ())
    assert run(source, target) == Summary(27, 9, 3, 1, 6, sum(sizes), 0, ())
    for split in ("train", "val"):
        found = [record for path in shards(target, split) for record in records(path)]
        expected = {
            path.name.encode(): path.read_bytes() for path in source.glob(f"{split}/*/*.JPEG")
        }
        assert Counter(record["image/filename"] for record in found) == Counter(list(expected))
        for record in found:
            assert record[IMAGE] == expected[record["image/filename"]]  # type: ignore[index]
            synset = record["image/class/synset"]
            assert isinstance(synset, bytes)
            # TensorFlow's ImageNet counts from 1
            assert record[LABEL] == SYNSETS.index(synset.decode()) + 1
            assert (record["image/height"], record["image/width"]) == (12, 20)
            assert (record["image/format"], record["image/channels"]) == (b"JPEG", 3)
    assert (target / "classes.txt").read_text().split() == list(SYNSETS)


def test_the_manifest_holds_the_checksums(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    manifest = json.loads((tmp_path / "target" / "manifest.json").read_text())
    assert len(manifest["files"]) == 6
    for name, told in manifest["files"].items():
        content = (tmp_path / "target" / name).read_bytes()
        assert told["sha256"] == hashlib.sha256(content).hexdigest()
        assert told["bytes"] == len(content)
        assert told["records"] == len(read_index(tmp_path / "target" / f"{name}.idx"))
    assert not list((tmp_path / "target").glob(".*"))


def test_no_manifest_is_left_of_images_that_have_changed_since(
    source: Path, tmp_path: Path
) -> None:
    run(source, tmp_path / "target")
    files = sorted(source.glob("train/*/*.JPEG"))
    files[0].write_bytes(image(9))
    files[-1].write_bytes(b"text")
    with pytest.raises(DataError, match="1 image cannot be read"):
        run(source, tmp_path / "target")
    assert not (tmp_path / "target" / "manifest.json").exists()


def test_ones_own_classes_count_from_0(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", ("ant", "bee"))
    run(source, tmp_path / "target", shards=2)
    found = [each for path in shards(tmp_path / "target", "train") for each in records(path)]
    told = Counter((each[LABEL], each["image/class/text"]) for each in found)
    assert told == {(0, b"ant"): 9, (1, b"bee"): 9}


def test_each_shard_holds_all_classes(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target", shards=3)
    for path in shards(tmp_path / "target", "train"):
        assert {each["image/class/synset"] for each in records(path)} == set(
            map(str.encode, SYNSETS)
        )


def test_shards_by_size(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converting, "SHARD_BYTES", 7 * len(image(0)))
    conversion = plan_conversion(source, tmp_path / "x")
    counts = conversion.document["shards"]
    assert counts["train"] in (4, 5)  # 27 images, 7 a shard, each of about that size
    assert not (tmp_path / "x").exists()
    for path in source.glob("*/*/*.JPEG"):
        path.write_bytes(b"x" * 10)
    for limit, train, val in ((70, 4, 2), (270, 1, 1), (269, 2, 1), (1, 27, 9)):
        monkeypatch.setattr(converting, "SHARD_BYTES", limit)
        conversion = plan_conversion(source, tmp_path / "x")
        assert conversion.document["shards"] == {"train": train, "val": val}
        assert (conversion.images("train"), conversion.images("val")) == (27, 9)
        assert conversion.bytes == 360


def test_more_shards_than_images_are_not_made(source: Path, tmp_path: Path) -> None:
    conversion = plan_conversion(source, tmp_path / "x", shards=1000)
    assert conversion.document["shards"] == {"train": 27, "val": 9}


def test_the_shorter_side_is_shrunk_and_never_enlarged(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", ("ant", "bee"))
    (source / "train" / "ant" / "large.jpg").write_bytes(image(1, 90, 64))
    (source / "train" / "ant" / "tall.png").write_bytes(image(2, 16, 48, "PNG"))
    Image.new("RGBA", (16, 48)).save(source / "train" / "ant" / "clear.png")
    Image.new("L", (30, 48), 77).save(source / "train" / "ant" / "grey.jpg")
    run(source, tmp_path / "target", shards=1, shorter_side=12)
    found = {
        bytes(each["image/filename"]): each  # type: ignore[arg-type]
        for each in records(shards(tmp_path / "target", "train")[0])
    }
    assert found[b"clear.png"]["image/channels"] == 3
    grey = found[b"grey.jpg"]
    assert [grey[f"image/{key}"] for key in ("channels", "width", "height")] == [1, 12, 19]
    assert Image.open(io.BytesIO(grey[IMAGE])).mode == "L"  # type: ignore[arg-type]
    for name, size, kind in ((b"large.jpg", (17, 12), "JPEG"), (b"tall.png", (12, 36), "PNG")):
        shown = Image.open(io.BytesIO(found[name][IMAGE]))  # type: ignore[arg-type]
        assert (shown.size, shown.format) == (size, kind)
        assert (found[name]["image/width"], found[name]["image/height"]) == size
    same = source / "train" / "ant" / "ant_0.JPEG"  # 12 pixels high already
    assert found[b"ant_0.JPEG"][IMAGE] == same.read_bytes()


def test_other_formats_become_png_and_broken_links_are_bad(source: Path, tmp_path: Path) -> None:
    ant = source / "train" / SYNSETS[0]
    pixels = np.random.default_rng(0).integers(0, 256, (12, 20, 3), np.uint8)
    for suffix in ("bmp", "tiff", "webp"):
        Image.fromarray(pixels).save(ant / f"x.{suffix}", lossless=True)
    (ant / "gone.png").symlink_to(tmp_path / "nowhere")
    summary = run(source, tmp_path / "target", shards=1, bad="skip")
    assert summary.train == 30
    assert [Path(each.path).name for each in summary.skipped] == ["gone.png"]
    found = [
        each
        for each in records(shards(tmp_path / "target", "train")[0])
        if bytes(each["image/filename"]).startswith(b"x.")  # type: ignore[arg-type]
    ]
    assert len(found) == 3
    for each in found:
        assert each["image/format"] == b"PNG"
        shown = Image.open(io.BytesIO(each[IMAGE]), formats=["PNG"])  # type: ignore[arg-type]
        assert (np.asarray(shown) == pixels).all()


def test_bad_images_are_all_listed(source: Path, tmp_path: Path) -> None:
    for number, content in enumerate((b"text", b"", image(3)[:-40])):
        (source / "train" / SYNSETS[0] / f"{SYNSETS[0]}_{number}.JPEG").write_bytes(content)
    with pytest.raises(DataError) as raised:
        run(source, tmp_path / "target", shards=9)
    told = str(raised.value)
    assert told.startswith("3 images cannot be read (shards without unreadable images are kept):")
    for number in range(3):
        assert f"{source}/train/{SYNSETS[0]}/{SYNSETS[0]}_{number}.JPEG: " in told
    assert "none of JPEG, PNG" in told
    assert "--bad skip" in told
    left = len(shards(tmp_path / "target", "train"))
    assert 6 <= left <= 8
    assert not (tmp_path / "target" / "manifest.json").exists()

    summary = run(source, tmp_path / "target", shards=9, bad="skip")
    assert (summary.train, summary.written) == (24, 9 - left)
    assert {os.path.basename(each.path) for each in summary.skipped} == {
        f"{SYNSETS[0]}_{number}.JPEG" for number in range(3)
    }
    assert len(json.loads((tmp_path / "target" / "manifest.json").read_text())["skipped"]) == 3

    (source / "train" / SYNSETS[0] / f"{SYNSETS[0]}_1.JPEG").write_bytes(image(9))
    again = run(source, tmp_path / "target", shards=9, bad="skip")
    assert (again.train, len(again.skipped)) == (25, 2)
    with pytest.raises(DataError, match="2 images cannot be read"):
        run(source, tmp_path / "target", shards=9)
    assert run(source, tmp_path / "target", shards=9, bad="skip").skipped == again.skipped
    (tmp_path / "target" / "manifest.json").unlink()  # as if killed after the last shard
    assert run(source, tmp_path / "target", shards=9, bad="skip").skipped == again.skipped


@pytest.mark.parametrize(("bad", "lines", "more"), [(1, 3, 0), (20, 22, 0), (22, 23, 2)])
def test_of_many_bad_images_20_are_listed_and_the_others_counted(bad: int, lines: int, more: int):
    listed = _listed([Bad(f"{number}.jpg", "damaged") for number in range(bad)]).splitlines()
    assert len(listed) == lines
    assert listed[0].startswith(f"{bad} image")
    assert listed[1] == "  0.jpg: damaged"
    assert (listed[-2] == f"  and {more} more") == bool(more)


def test_foreign_folders_are_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match="no conversion"):
        plan_conversion(source, tmp_path / "target")
    with pytest.raises(DataError, match="is a file"):
        plan_conversion(source, tmp_path / "target" / "thesis.txt")
    with pytest.raises(DataError, match="no conversion"):
        plan_conversion(source, source)
    for text in ("{", "[]"):
        (tmp_path / "target" / "convert.json").write_text(text)
        with pytest.raises(DataError, match=r"convert\.json cannot be read"):
            plan_conversion(source, tmp_path / "target")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".left").touch()  # by a conversion that was killed at its start
    assert plan_conversion(source, tmp_path / "hidden").images("val") == 9
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="into their source folder"):
        plan_conversion(tmp_path / "empty", tmp_path / "empty")


def test_names_of_any_bytes_are_converted(source: Path, tmp_path: Path) -> None:
    name = b"\xff\xfe \xe2\x82\xac.jpg"
    folder = os.fsencode(source / "train" / SYNSETS[0])
    with open(os.path.join(folder, name), "wb") as file:
        file.write(image(4))
    run(source, tmp_path / "target")
    found = [each for path in shards(tmp_path / "target", "train") for each in records(path)]
    assert [each["image/filename"] for each in found].count(name) == 1


@pytest.mark.parametrize("layout", ["", "-devkit", "-kaggle"])
def test_imagenets_layouts_and_back_through_the_readers(layout: str, tmp_path: Path) -> None:
    small = small_sets.write(f"imagenet-folder{layout}", tmp_path / "source")
    target = tmp_path / "target"
    run(tmp_path / "source", target, shards=3)
    data = DataOptions(name="imagenet", format="tfrecord", path=str(target))
    prepared = prepare(data, small.facts, tmp_path / "cache")
    assert prepared.classes == small_sets.SYNSETS
    splits: tuple[Split, ...] = ("train", "val")
    for place, split in enumerate(splits):
        source = open_source(prepared, split)
        for number, sample in enumerate(permutation(len(small.labels[split]), 0, place)):
            data_read, label_read = source.read(number)
            assert label_read == small.labels[split][sample]
            np.testing.assert_array_equal(decode(data_read, 3, ""), small.images[split][sample])
        source.close()
