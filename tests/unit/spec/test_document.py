"""YAML text -> Document: lines, overrides, and what cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from raysuite.errors import SpecError
from raysuite.spec import parse_document, read_document
from raysuite.spec.document import COMMAND_LINE, set_dotted

TEXT = """\
name: a
strategy: ddp
training:
  epochs: 3
  global_batch: 64
matrix:
  resources.workers: [1, 2]
  loader:
    - native
    - {name: dali, threads: 2}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(TEXT, "utf-8")
    return path


def test_every_key_and_item_knows_its_line() -> None:
    document = parse_document(TEXT, "x.yaml")
    assert document.place(("name",)) == ("x.yaml", 1)
    assert document.place(("training", "global_batch")) == ("x.yaml", 5)
    assert document.place(("matrix", "loader", 1, "threads")) == ("x.yaml", 10)


def test_a_key_that_is_not_there_has_the_line_of_the_block_above() -> None:
    document = parse_document(TEXT, "x.yaml")
    assert document.place(("training", "precision")) == ("x.yaml", 3)
    assert document.place(("model",)) == ("x.yaml", None)


def test_overrides_are_yaml_and_stand_on_the_command_line(file: Path) -> None:
    document = read_document(file, ["training.epochs=5", "optimizer.lr=1e-3", "seed=7"])
    assert document.data["training"] == {"epochs": 5, "global_batch": 64}
    assert document.data["optimizer"] == {"lr": 0.001}
    assert document.place(("training", "epochs")) == (COMMAND_LINE, None)
    assert document.place(("optimizer",)) == (COMMAND_LINE, None)
    assert document.place(("training", "global_batch")) == (str(file), 5)
    document = read_document(file, ["matrix.loader=[none]", "matrix.seed=[1]"])
    assert document.place(("matrix", "loader", 1, "threads")) == (COMMAND_LINE, None)
    assert document.place(("matrix", "seed", 0)) == (COMMAND_LINE, None)
    assert document.place(("matrix", "resources.workers", 1)) == (str(file), 7)


def test_an_override_ends_the_sweep_of_its_key(file: Path) -> None:
    document = read_document(file, ["resources.workers=4"])
    assert list(document.data["matrix"]) == ["loader"]
    assert document.data["resources"] == {"workers": 4}


def test_sweeps_that_the_command_line_ended_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("name: a\nmatrix:\n  seed, loader: [[1, a], [2, a], [3, b]]\n  scale: 3\n")
    document = read_document(path, ["loader=b", "seed=1", "scale=4", "epochs=2"])
    assert document.ended == [("loader", 3), ("seed", 3)]
    assert (document.data["matrix"], document.data["seed"]) == ({}, 1)
    assert document.overrides == {"loader": "b", "seed": 1, "scale": 4, "epochs": 2}


def test_rows_that_are_equal_without_an_ended_key_are_one(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    rows = "[[1, a, x], [2, a, y], [3, b, y], [1, c, x], [4, a, x]]"
    path.write_text(f"name: a\nmatrix:\n  'seed, loader, model': {rows}\n")
    document = read_document(path, ["loader=b", "matrix.model=[z]"])
    assert document.data["matrix"] == {"seed": [1, 2, 3, 4], "model": ["z"]}
    document = read_document(path, ["seed=1"])
    pairs = [["a", "x"], ["a", "y"], ["b", "y"], ["c", "x"]]
    assert document.data["matrix"] == {"loader, model": pairs}


def test_an_override_can_set_a_sweep(file: Path) -> None:
    document = read_document(file, ["matrix.resources.workers=[1, 4]", "matrix.seed=[0, 1]"])
    assert document.data["matrix"]["resources.workers"] == [1, 4]
    assert document.data["matrix"]["seed"] == [0, 1]


@pytest.mark.parametrize("matrix", ["", "[]", "3"])
def test_an_override_beside_a_broken_matrix_does_not_crash(tmp_path: Path, matrix: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(f"name: a\nmatrix: {matrix}\n", "utf-8")
    assert read_document(path, ["seed=1"]).data["seed"] == 1


@pytest.mark.parametrize("search", ["[seed]", "3", "{space: 3}"])
def test_an_override_beside_a_broken_search_does_not_crash(tmp_path: Path, search: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(f"name: a\nsearch: {search}\n", "utf-8")
    found = read_document(path, ["seed=1"])
    assert found.data == {"name": "a", "search": yaml.safe_load(search), "seed": 1}
    found = read_document(path, ["search.space.seed={choice: [1]}"])
    assert found.data["search"] == {"space": {"seed": {"choice": [1]}}}


def test_an_override_of_a_key_in_a_block_written_short(file: Path) -> None:
    document = read_document(file, ["strategy.bucket_mb=5"])
    assert document.data["strategy"] == {"name": "ddp", "bucket_mb": 5}


@pytest.mark.parametrize("override", ["epochs", "=3", "seed=[1", "seed=2001-99-99"])
def test_an_override_that_is_none(file: Path, override: str) -> None:
    with pytest.raises(SpecError, match="command line"):
        read_document(file, [override])


def test_all_bad_overrides_at_once(file: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read_document(file, ["epochs", "seed=[1", "name=b"])
    assert len(caught.value.mistakes) == 2


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("a: [1,\nb: 2", "is not valid YAML", 2),
        ("a: b: c", "is not valid YAML", 1),
        ("a: 2001-99-99", "YAML: month", None),
        ("a: &x [*x]", "contains itself", None),
        ("", "got nothing", None),
        ("- 1", "got list", None),
        ("name: a\nseed: 1\nname: b", "first in line 1", 3),
        ("a:\n- {b: 1}\n- b: 2\n  b: 3", r"a\.1\.b: is given twice, first in line 3", 4),
    ],
)
def test_what_is_no_spec(text: str, words: str, line: int | None) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        parse_document(text, "x.yaml")
    assert caught.value.mistakes[0].line == line


def test_a_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="directory"):
        read_document(tmp_path)
    (tmp_path / "x").write_bytes(b"name: \xff")
    with pytest.raises(SpecError, match="not UTF-8"):
        read_document(tmp_path / "x")


@pytest.mark.parametrize("number", ["1e-4", "1E3", "-2e+5", "1.e3", "1.5e-3"])
def test_scientific_numbers_are_numbers(number: str) -> None:
    assert parse_document(f"a: {number}", "x").data["a"] == float(number)


@pytest.mark.parametrize("word", ["e4", "1e", "1e4x", "'1e4'", "resnet20"])
def test_other_words_stay_words(word: str) -> None:
    assert isinstance(parse_document(f"a: {word}", "x").data["a"], str)


names = st.text("abc", min_size=1, max_size=2)
trees = st.recursive(
    st.integers() | names,
    lambda below: st.dictionaries(names, below, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(names, trees, max_size=3),
    st.lists(names, min_size=1, max_size=3),
    st.integers(),
)
def test_set_dotted_sets_exactly_one_key(data: dict[str, Any], path: list[str], value: int) -> None:
    before = {key: item for key, item in data.items() if key != path[0]}
    set_dotted(data, ".".join(path), value)
    found: Any = data
    for key in path:
        found = found[key]
    assert found == value
    assert {key: item for key, item in data.items() if key != path[0]} == before
