"""Scales set keys as the command line does; keys that go together are swept together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysuite.errors import SpecError
from raysuite.plan import expand, make_plans
from raysuite.spec import Document, parse_document, read_document

TEXT = """\
name: a
model: resnet20
data: digits
training: {epochs: 9, global_batch: 8}
schedule: {name: cosine, warmup_epochs: 5}
matrix:
  resources.workers, training.accumulate:
    - [1, 1]
    - [2, 1]
    - [2, 2]
  schedule: [cosine, {name: step, milestones: [3]}]
scales:
  laptop:
    training.epochs: 2
    schedule.warmup_epochs: 0.5
    matrix.schedule: [step, cosine]
  one:
    description: alone
    matrix: {seed: [1, 2]}
    name: lonely
  swept:
    matrix: {schedule: [step, cosine]}
    schedule: constant
  wrong:
    training.epochs: 0
    matrix:
      schedule: [step]
      loader: [none]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text(TEXT, "utf-8")
    return path


def labels(document: Document) -> list[dict[str, Any]]:
    return [label for label, _ in expand(document)]


def test_a_key_in_a_swept_block_is_the_command_lines_before_the_scales(file: Path) -> None:
    for overrides, epochs in (([], 0.5), (["schedule.warmup_epochs=1"], 1)):
        found = expand(read_document(file, overrides, "laptop"))
        assert {spec.schedule.warmup_epochs for _, spec in found} == {epochs}
        assert {spec.schedule.name for _, spec in found} == {"step", "cosine"}


def mistakes(file: Path, overrides: tuple[str, ...] = (), scale: str | None = None) -> list[str]:
    with pytest.raises(SpecError) as raised:
        make_plans(read_document(file, overrides, scale), 0)
    return [str(mistake).removeprefix(f"{file}:") for mistake in raised.value.mistakes]


def test_without_a_scale_it_is_the_full_form(file: Path) -> None:
    specs = [spec for _, spec in expand(read_document(file))]
    assert {(spec.name, spec.scale, spec.training.epochs) for spec in specs} == {("a", "", 9)}
    assert {len(spec.scales) for spec in specs} == {0}


def test_a_scale_sets_its_keys_and_is_recorded(file: Path) -> None:
    variants = expand(read_document(file, scale="laptop"))
    assert [label["schedule"] for label, _ in variants[:2]] == ["step", "cosine"]
    assert len(variants) == 6
    found = {(s.name, s.scale, s.training.epochs, s.schedule.warmup_epochs) for _, s in variants}
    assert found == {("a-laptop", "laptop", 2, 0.5)}


def test_a_scale_may_have_a_matrix_and_a_name_of_its_own(file: Path) -> None:
    variants = expand(read_document(file, scale="one"))
    assert [label for label, _ in variants] == [{"seed": 1}, {"seed": 2}]
    assert {(spec.name, spec.description) for _, spec in variants} == {("lonely", "alone")}


def test_the_matrix_of_a_scale_replaces_its_single_keys_in_any_order(file: Path) -> None:
    assert labels(read_document(file, scale="swept")) == [
        {"schedule": "step"},
        {"schedule": "cosine"},
    ]


def test_the_command_line_comes_after_the_scale(file: Path) -> None:
    document = read_document(file, ["training.epochs=4", "schedule=constant"], "laptop")
    found = {
        (s.schedule.name, s.schedule.warmup_epochs, s.training.epochs) for _, s in expand(document)
    }
    assert found == {("constant", 0.0, 4)}


def test_a_key_set_later_leaves_the_settings_of_the_scale_as_they_are(file: Path) -> None:
    document = read_document(file, ["matrix.seed=[3]"], "one")
    matrix = {"seed": [1, 2]}
    assert document.scaled == {"description": "alone", "matrix": matrix, "name": "lonely"}
    assert (document.data["scales"]["one"]["matrix"], document.data["matrix"]) == (
        matrix,
        {"seed": [3]},
    )
    assert document.settings == document.scaled | {"matrix.seed": [3]}


def test_lines_of_the_full_form_are_dropped_where_a_scale_sets_the_key(file: Path) -> None:
    document = read_document(file, scale="one")
    assert document.place(("matrix", "seed", 1)) == (str(file), 19)
    assert document.place(("matrix", "schedule")) == (str(file), 19)
    assert document.place(("training", "epochs")) == (str(file), 4)


def test_a_scale_that_is_not_there(file: Path) -> None:
    (found,) = mistakes(file, scale="huge")
    assert found.startswith("12: scales: ")
    assert "valid: laptop, one, swept, wrong" in found


@pytest.mark.parametrize("scale", [None, "odd", "laptop"])
def test_a_scale_is_a_mapping(file: Path, scale: str | None) -> None:
    file.write_text(TEXT.replace("scales:", "scales:\n  odd: 3"), "utf-8")
    (found,) = mistakes(file, scale=scale)
    assert found.startswith("13: scales")
    assert "got 3" in found


def test_a_spec_without_scales(file: Path) -> None:
    file.write_text(TEXT.partition("scales:")[0], "utf-8")
    (found,) = mistakes(file, scale="laptop")
    assert "has none" in found


def test_mistakes_in_a_scale_are_told_with_its_lines(file: Path) -> None:
    found = mistakes(file, scale="wrong")
    assert [line.partition(":")[0] for line in found] == ["25", "28"]
    assert "training.epochs: got 0" in found[0]


def test_keys_of_three_parts_have_the_lines_of_the_scale(tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(
        "search:\n  scheduler: {grace: 3}\nscales:\n  s:\n    search.scheduler.grace: 1\n"
    )
    document = read_document(path, scale="s")
    assert document.data["search"] == {"scheduler": {"grace": 1}}
    assert document.place(("search", "scheduler", "grace")) == (str(path), 5)


def test_keys_that_go_together(file: Path) -> None:
    found = labels(read_document(file, ["schedule=step"]))
    assert found == [
        {"resources.workers": 1, "training.accumulate": 1},
        {"resources.workers": 2, "training.accumulate": 1},
        {"resources.workers": 2, "training.accumulate": 2},
    ]


def test_one_of_them_set_leaves_the_others(file: Path) -> None:
    document = read_document(file, ["schedule=step", "training.accumulate=4"])
    assert labels(document) == [{"resources.workers": 1}, {"resources.workers": 2}]
    swept = read_document(file, ["schedule=step", "matrix.resources.workers=[4]"])
    assert labels(swept) == [
        {"training.accumulate": 1, "resources.workers": 4},
        {"training.accumulate": 2, "resources.workers": 4},
    ]


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        ("'seed, x.y': [[1, 2]]", "7: matrix.seed, x.y: unknown key"),
        (
            "'seed, loader': [[1]]",
            "7: matrix.seed, loader: got [1]",
        ),
        ("'seed, loader': [1]", "7: matrix.seed, loader: got 1"),
        (
            "'seed, loader': [[1, native]]\n  seed: [1]",
            "by 'seed, loader'",
        ),
        ("'seed, loader': [[1, none]]", "7: loader: "),
    ],
)
def test_mistakes_in_such_a_line(matrix: str, words: str) -> None:
    head = TEXT.partition("matrix:")[0]
    with pytest.raises(SpecError) as raised:
        expand(parse_document(f"{head}matrix:\n  {matrix}\n", "x"))
    assert any(words in str(mistake) for mistake in raised.value.mistakes)


def test_what_is_infeasible_is_told_with_the_line_of_the_matrix(file: Path) -> None:
    head = TEXT.partition("matrix:")[0]
    rows = "[[ddp, 2],\n    [single, 2]]"
    file.write_text(f"{head}matrix:\n  strategy, resources.workers: {rows}\n", "utf-8")
    (found,) = mistakes(file)
    assert found.startswith("8: resources.workers: strategy 'single' is one process")


def test_synthetic_data_are_told_for_the_data_set_of_the_run(file: Path) -> None:
    head = TEXT.partition("matrix:")[0]
    text = f"{head}synthetic_data: {{mnist: {{images: 9}}, imagenet: {{size: 64x48}}}}\n"
    ((_, spec),) = expand(parse_document(text.replace("digits", "mnist"), "x"))
    assert list(spec.synthetic_data) == ["mnist"]
