"""Tokens: every one is predicted once, whatever the files, and none beyond the vocabulary."""

from __future__ import annotations

import itertools
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest

from raysuite.data.formats import count, open_source, prepare
from raysuite.data.formats.base import TensorSource
from raysuite.data.set_check import check, target_of
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import IGNORED_TOKEN, DatasetFacts


def opened(split: str, **options: Any) -> TensorSource:
    data = DataOptions(**options)
    found = count(data)
    facts = DatasetFacts(
        found.train, found.val, found.vocabulary, 0, 0, sequence=data.sequence or 0
    )
    source = open_source(prepare(data, facts), split)  # type: ignore[arg-type]
    assert isinstance(source, TensorSource)
    return source


def pairs_of(source: TensorSource) -> list[tuple[int, int]]:
    """Every token with the one that follows it."""
    weights = source.weights()
    assert weights is not None
    found = []
    for number in range(len(weights)):
        inputs, targets = source.sample(number)
        kept = targets != IGNORED_TOKEN
        assert kept.sum() == weights[number] > 0
        found += list(zip(inputs[kept].tolist(), targets[kept].tolist(), strict=True))
    return found


@pytest.mark.parametrize("length", [2, 16, 17, 18, 33, 100])
def test_each_token_of_text_is_predicted_once(length: int, tmp_path: Path) -> None:
    content = bytes(np.random.default_rng(length).integers(32, 127, length).tolist())
    (tmp_path / "train.txt").write_bytes(content)
    (tmp_path / "val.txt").write_bytes(b"ab")
    source = opened("train", name="text", path=str(tmp_path), sequence=16)
    assert pairs_of(source) == list(itertools.pairwise(content))


@pytest.mark.parametrize(
    ("vocabulary", "dtype"), [(50257, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (100_000, "<u4")]
)
def test_sequences_cross_the_files_of_tokens(vocabulary: int, dtype: str, tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, vocabulary, 101)
    tokens[7] = vocabulary - 1
    for split in ("train", "val"):
        (tmp_path / split / "b").mkdir(parents=True)
        tokens[:30].astype(dtype).tofile(tmp_path / split / "a.bin")
        tokens[30:].astype(dtype).tofile(tmp_path / split / "b" / "c.bin")
    data = {"name": "tokens", "path": str(tmp_path), "sequence": 9, "classes": vocabulary}
    source = opened("val", **data)
    assert pairs_of(source) == list(itertools.pairwise(tokens))
    a, c = tmp_path / "val" / "a.bin", tmp_path / "val" / "b" / "c.bin"
    assert [source.file(sample) for sample in range(12)] == 4 * [str(a)] + 8 * [str(c)]
    assert [source.place(3), source.place(4)] == [f"{a} at token 27", f"{c} at token 6"]


def test_files_are_found_behind_links_and_in_upper_case_and_hidden_ones_are_not(
    tmp_path: Path,
) -> None:
    written = {
        "train/a.txt": "ab",
        "train/B.TXT": "cd",
        "train/._a.txt": "no",
        "train/.ipynb_checkpoints/a.txt": "no",
        "elsewhere/c.txt": "ef",
        "val/a.txt": "gh",
    }
    for name, content in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "train" / "z.txt").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "again").symlink_to(tmp_path / "train")
    source = opened("train", name="text", path=str(tmp_path), sequence=16)
    assert bytes(source.sample(0)[0][:6].tolist()) == b"cdabef"


# Files with an index, as Megatron-LM writes them: the layout is written out here once more.
KINDS = {1: "u1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


def write_index(
    file: Path,
    kind: int,
    lengths: list[int],
    pointers: list[int],
    documents: list[int],
    version: int = 1,
) -> None:
    with file.open("wb") as written:
        written.write(b"MMIDIDX\x00\x00" + version.to_bytes(8, "little") + bytes([kind]))
        written.write(len(lengths).to_bytes(8, "little") + len(documents).to_bytes(8, "little"))
        written.writelines(each.to_bytes(4, "little", signed=True) for each in lengths)
        numbers = (*pointers, *documents)
        written.writelines(each.to_bytes(8, "little", signed=True) for each in numbers)


def sentences(vocabulary: int) -> list[list[int]]:
    draws = np.random.default_rng(5)
    lengths = (7, 1, 0, 12, 3, 20, 1, 9)
    return [draws.integers(0, vocabulary, length).tolist() for length in lengths]


@pytest.mark.parametrize("order", ["as written", "others between them"])
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_those_of_the_index(kind: int, order: str, tmp_path: Path) -> None:
    """Two files with an index and a plain one are one stream; in one order the index lists the
    sequences backwards, with tokens between them that belong to none."""
    vocabulary, width = 120, np.dtype(KINDS[kind]).itemsize
    expected: list[int] = []
    for name in ("a", "c"):
        found, content, pointers = sentences(vocabulary), b"", []
        for each in found:
            content += b"" if order == "as written" else bytes(3 * width)
            pointers.append(len(content))
            content += b"".join(token.to_bytes(width, "little") for token in each)
        if order != "as written":
            found.reverse()
            pointers.reverse()
        for split in ("train", "val"):
            (tmp_path / split).mkdir(exist_ok=True)
            file = tmp_path / split / f"{name}.bin"
            file.write_bytes(content)
            lengths = [len(each) for each in found]
            write_index(file.with_suffix(".idx"), kind, lengths, pointers, [0, 4, len(found)])
        expected += [token for each in found for token in each]
        if name == "a":
            plain = np.arange(10, dtype="<u2")
            for split in ("train", "val"):
                plain.tofile(tmp_path / split / "b.bin")
            expected += plain.tolist()
    data = {"name": "tokens", "path": str(tmp_path), "sequence": 9, "classes": vocabulary}
    assert pairs_of(opened("train", **data)) == list(itertools.pairwise(expected))


@pytest.mark.parametrize("token", [10, -1])
def test_a_token_beyond_the_vocabulary_is_named_by_its_place(token: int, tmp_path: Path) -> None:
    """Of two files in each split; the second sequence of the second one begins at token 5."""
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        np.arange(4, dtype="<u2").tofile(tmp_path / split / "a.bin")
        np.array([9, 1, 2, 9, 9, 3, token, 4], "<i4").tofile(tmp_path / split / "b.bin")
        write_index(tmp_path / split / "b.idx", 4, [2, 3], [4, 20], [0, 2])
    source = opened("train", name="tokens", path=str(tmp_path), sequence=4, classes=10)
    with pytest.raises(DataError, match=rf"{tmp_path}/train/b.bin at token 6: token {token} is"):
        source.sample(1)


def test_the_first_token_of_a_file_is_named_by_this_file(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        np.arange(4, dtype="<u2").tofile(tmp_path / split / "a.bin")
        np.array([30, 1, 2, 3, 4], "<u2").tofile(tmp_path / split / "b.bin")
    source = opened("train", name="tokens", path=str(tmp_path), sequence=4, classes=10)
    place = f"{tmp_path}/train/b.bin at token 0"
    with pytest.raises(DataError, match=f"{place}: token 30 is not in the"):
        source.sample(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"kind": 7}, "dtype code 7"),
        ({"version": 2}, "version 2 and dtype code 8"),
        ({"pointers": [-2, 6]}, "sequence 0 does not fit"),
        ({"lengths": [3, -1]}, "sequence 1 does not fit"),
        ({"lengths": [2, 3], "pointers": [0, 4]}, None),
        ({"pointers": [0, 8]}, r"sequence 1 does not fit the 10 bytes of .*train\.bin"),
        ({"pointers": [0, 5]}, "sequence 1 does not fit"),
        ({"cut": 40}, "too short for its 2 sequences"),
        ({"cut": -1}, "too short for its 2 sequences"),
        ({"cut": 8}, "not a Megatron-LM index"),
    ],
)
def test_an_index_that_is_not_of_its_file_is_refused(
    change: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    for split in ("train", "val"):
        np.arange(5, dtype="<u2").tofile(tmp_path / f"{split}.bin")
        index = tmp_path / f"{split}.idx"
        lengths, pointers = change.get("lengths", [3, 2]), change.get("pointers", [0, 6])
        write_index(
            index, change.get("kind", 8), lengths, pointers, [0, 2], change.get("version", 1)
        )
        index.write_bytes(index.read_bytes()[: change.get("cut")])
    data = DataOptions(name="tokens", path=str(tmp_path), sequence=2, classes=9)
    if message is None:
        assert count(data).train == 2
        return
    with pytest.raises(DataError, match=message):
        count(data)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"abc", "not a multiple of the 2 bytes"), (b"", "train has 0"), (None, r"train\.bin")],
)
def test_files_that_are_no_tokens_are_named(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "train.bin").write_bytes(content)
    (tmp_path / "val.bin").write_bytes(b"abcd")
    data = DataOptions(name="tokens", path=str(tmp_path), sequence=2, classes=9)
    with pytest.raises(DataError, match=message):
        count(data)


def test_every_tenth_topic_of_python_is_held_out() -> None:
    texts = [text.encode() for _, text in sorted(topics.items())]
    held_out = texts[9::10]
    for split, own in (("train", [t for t in texts if t not in held_out]), ("val", held_out)):
        source = opened(split, name="python_topics", sequence=64)
        assert pairs_of(source) == list(itertools.pairwise(b"\n\n".join(own)))


def test_one_file_of_a_split_is_taken_before_the_folder_and_text_has_no_index(
    tmp_path: Path,
) -> None:
    for name, content in {"train.txt": "ab", "train/a.txt": "no", "val/a.txt": "cd"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "train.idx").write_text("of another program")
    source = opened("train", name="text", path=str(tmp_path), sequence=1)
    assert pairs_of(source) == [(97, 98)]
    assert source.file(0) == str(tmp_path / "train.txt")
    data = DataOptions(name="text", path=str(tmp_path), sequence=1)
    with pytest.raises(DataError, match="cannot check text or tokens"):
        check(target_of(data))
    (tmp_path / "val" / "a.txt").write_text("c")
    with pytest.raises(DataError, match="val has 1 tokens"):
        count(data)
