"""`raysuite.data.set_check` on MNIST's and CIFAR-10's files."""

from __future__ import annotations

from pathlib import Path

from raysuite.data.set_check import Finding, check, detect
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


def test_a_file_with_a_wrong_header_or_length(tmp_path: Path) -> None:
    small_sets.write("mnist-idx", tmp_path)
    path = tmp_path / IDX_FILES["val"][0]
    content = path.read_bytes()
    for damaged, offset, message in (
        (b"\0\0\x09" + content[3:], 0, "not an IDX file of 3 dimensions"),
        (content[:-1], -1, f"it has {len(content) - 1} bytes"),
    ):
        path.write_bytes(damaged)
        finding = only(check(detect(tmp_path)))
        assert (finding.place, finding.offset) == (str(path), offset)
        assert finding.message.startswith(message)


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
    message = "23 training and 9 validation images; the official cifar10 has 50,000 and 10,000"
    expected = Finding(str(tmp_path), -1, "file", message, note=True)
    assert notes(check(detect(tmp_path))) == [expected]
    assert str(expected) == f"{tmp_path}: {message}"
