"""`raysuite.data.set_check` on MNIST's and CIFAR-10's files."""

from __future__ import annotations

from pathlib import Path

from raysuite.data.set_check import check, detect
from raysuite.spec.datasets import IDX_FILES
from tests import small_sets
from tests.unit.data.findings import errors, flip, notes, only


def test_idx_labels_out_of_range(tmp_path: Path) -> None:
    small_sets.write("mnist-idx", tmp_path)
    path = tmp_path / IDX_FILES["val"][1]
    content = bytearray(path.read_bytes())
    content[8 + 5] = 77
    path.write_bytes(content)
    finding = only(check(detect(tmp_path)))
    assert (finding.place, finding.offset) == (str(path), 13)
    assert finding.message == "label 77; valid: 0 to 9"


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
