"""`raysuite.data.set_check` finds what is wrong with a data set, at the right place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raysuite.data.findings import Part
from raysuite.data.formats import idx, image_folder
from raysuite.data.formats.base import _check
from raysuite.data.set_check import _by_number, check, detect, target_of
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions
from tests import small_sets
from tests.unit.data.findings import errors, flip, notes, only, picture


@pytest.fixture(autouse=True)
def _several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sets are read in several parts, as large ones are."""
    for module in (idx, image_folder):
        monkeypatch.setattr(module, "_CHUNK", 5)


ON_DISK = [kind for kind in small_sets.KINDS if kind != "own-own"]


@pytest.mark.parametrize("kind", ON_DISK)
def test_sound_sets_of_every_form(kind: str, tmp_path: Path) -> None:
    small = small_sets.write(kind, tmp_path)
    report = check(target_of(small.data))
    assert errors(report) == []
    assert report.ok
    for split, count in small_sets.COUNTS.items():
        found = report.splits[split]
        assert (found.images, found.unreadable) == (count, 0)
        assert sum(found.classes.values()) == count
        labels = small.labels[split]
        names = small.facts.class_names
        assert found.classes == {names[label]: labels.count(label) for label in set(labels)}
        sizes = [(image.shape[1], image.shape[0]) for image in small.images[split]]
        assert found.sizes == {size: sizes.count(size) for size in sizes}


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
    with pytest.raises(DataError, match="contains no data set"):
        detect(tmp_path)
    with pytest.raises(DataError, match="is not there"):
        detect(tmp_path / "x")
    (tmp_path / "x").touch()
    with pytest.raises(DataError, match="is a file"):
        detect(tmp_path / "x")


@pytest.mark.integration
def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    small_sets.write("imagenet-tfrecord", tmp_path)
    path = next(tmp_path.glob("train-*"))
    flip(path, 60)
    reports = [check(detect(tmp_path), workers=workers) for workers in (1, 2)]
    assert reports[0] == reports[1]
    assert not reports[0].ok


@pytest.mark.parametrize("named", ["other", None])
def test_a_file_whose_reading_fails_is_named(named: str | None, tmp_path: Path) -> None:
    """Opening a file names it; reading an open one does not."""
    file, counted = tmp_path / "file", list[int]()
    file.write_bytes(b"12345")

    def fails(part: Part, path: Path) -> None:
        part.images += 1
        raise OSError(5, "Input/output error", named)

    part = _check(fails, "val", (file,), counted.append)
    assert (part.split, part.images, counted) == ("val", 1, [5])
    [found] = part.findings
    assert (found.place, found.kind) == (named or str(file), "file")


PROGRESS = [("imagenet-tfrecord", "bytes"), ("cifar10-binary", "bytes")]
PROGRESS += [("imagenet-folder", "images"), ("own-own", "images"), ("none", "images")]


@pytest.mark.parametrize(("kind", "unit"), PROGRESS)
def test_progress_adds_up(kind: str, unit: str, tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    done: list[int] = []

    def begin(total: int, unit: str) -> Callable[[int], None]:
        told.append((total, unit))
        return done.append

    if kind == "none":
        data = DataOptions(name="tests.odd_sets:Nowhere", image_size=1)
    else:
        data = small_sets.write(kind, tmp_path).data
    check(target_of(data), begin=begin)
    assert told == [(sum(done), unit)]
    assert (sum(done) == 0) == (kind == "none")


# Folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small_sets.write("image_folder-folder", tmp_path)
    return tmp_path


def first_image(folder: Path) -> Path:
    return sorted(folder.glob("train/*/*.jpg"))[0]


def test_unreadable_images_are_named(folder: Path) -> None:
    paths = sorted(folder.glob("train/*/*.jpg"))[:5]
    paths[0].write_text("not a picture")
    paths[1].write_bytes(paths[1].read_bytes()[:-30])
    paths[2].write_bytes(b"")
    whole = picture("PNG")
    paths[3].write_bytes(whole[:90] + bytes([whole[90] ^ 1]) + whole[91:])
    paths[4].unlink()
    paths[4].symlink_to("gone")
    report = check(detect(folder))
    assert {finding.place for finding in errors(report)} == set(map(str, paths))
    assert (report.splits["train"].images, report.splits["train"].unreadable) == (23, 5)
    assert {finding.kind for finding in errors(report)} == {"image"}
    assert sum(report.splits["train"].classes.values()) == 23
    assert len(errors(check(detect(folder), decode=False))) == 5


def test_classes_without_images_and_on_one_side_only(folder: Path) -> None:
    for path in (folder / "train" / "1").iterdir():
        path.unlink()
    (folder / "train" / "new").mkdir()
    (folder / "train" / "new" / "a.jpg").write_bytes(picture("JPEG"))
    report = check(detect(folder))
    told = {(finding.place, finding.message) for finding in errors(report)}
    assert told == {
        (str(folder / "train" / "1"), "the class has no images"),
        (str(folder / "val" / "new"), "no folder of this class, although train has one"),
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
    assert only(report).kind == "class"
    assert "nset_labels.txt" in only(report).message
    assert (report.splits["val"].images, report.splits["val"].classes) == (9, {})
    assert sum(report.splits["train"].classes.values()) == 23


def test_findings_are_sorted_by_the_numbers_in_their_places() -> None:
    places = ["a[10]", "a[9]", "a[9]b", "b[1]", "a"]
    assert sorted(places, key=_by_number) == ["a", "a[9]", "a[9]b", "a[10]", "b[1]"]


def test_files_that_are_passed_over_are_noted(folder: Path) -> None:
    (folder / "train" / "1" / "a.heic").touch()
    report = check(detect(folder))
    assert report.ok
    (note,) = notes(report)
    assert note.message.startswith("1 entries")
    assert "a.heic" in note.message
    for number in range(3):
        (folder / "train" / "1" / f"{number}.txt").touch()
    (folder / "train" / "1" / "nested" / "deep").mkdir(parents=True)
    for number in range(2):
        (folder / "train" / "1" / "nested" / "deep" / f"{number}.png").touch()
    (note,) = notes(check(detect(folder)))
    nested = folder / "train" / "1" / "nested"
    assert note.message.partition(".tiff): ")[2].startswith(f"{nested} (a folder with 2 images), ")
