"""A document with a matrix -> one spec for each combination."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysuite.errors import SpecError
from raysuite.plan import expand, make_plans
from raysuite.spec import Document, parse_document

BASE = """\
name: a
model: resnet20
data: digits
training: {epochs: 1, global_batch: 8}
"""


def document(text: str) -> Document:
    return parse_document(BASE + text, "x.yaml")


def labels(text: str) -> list[dict[str, Any]]:
    return [label for label, _ in expand(document(text))]


@pytest.mark.parametrize("text", ["", "matrix:\n", "matrix: {}\n"])
def test_no_matrix_is_one_run(text: str) -> None:
    assert labels(text) == [{}]


def test_every_combination_the_last_key_fastest() -> None:
    assert labels("matrix: {seed: [0, 1], strategy: [ddp, horovod]}") == [
        {"seed": 0, "strategy": "ddp"},
        {"seed": 0, "strategy": "horovod"},
        {"seed": 1, "strategy": "ddp"},
        {"seed": 1, "strategy": "horovod"},
    ]


def test_keys_of_one_line_change_together() -> None:
    found = expand(document("matrix: {'seed, training.epochs': [[0, 1], [1, 2]]}"))
    expected = [{"seed": 0, "training.epochs": 1}, {"seed": 1, "training.epochs": 2}]
    assert [label for label, _ in found] == expected
    assert [(spec.seed, spec.training.epochs) for _, spec in found] == [(0, 1), (1, 2)]


def test_values_reach_the_specs() -> None:
    text = "strategy: ddp\nmatrix: {strategy.bucket_mb: [1, 25], model.options: [{a: {b: 1}}]}"
    doc = document(text)
    before = deepcopy(doc.data)
    specs = [spec for _, spec in expand(doc)]
    assert doc.data == before
    assert [spec.strategy.bucket_mb for spec in specs] == [1, 25]  # type: ignore[union-attr]
    assert specs[0].model.options == {"a": {"b": 1}}
    assert specs[0].matrix == {}


@pytest.mark.parametrize("order", [0, 1])
def test_a_block_and_a_key_in_it_in_either_order(order: int) -> None:
    sweeps = ["strategy: [ddp, {name: ddp, static_graph: true}]", "strategy.bucket_mb: [1, 2]"]
    text = "matrix: {" + ", ".join(sweeps[::-1] if order else sweeps) + "}"
    specs = [spec.strategy for _, spec in expand(document(text))]
    found = {(s.bucket_mb, s.static_graph) for s in specs}  # type: ignore[union-attr]
    assert found == {(1, False), (2, False), (1, True), (2, True)}


def test_a_run_has_no_scale_and_the_synthetic_version_of_its_own_data_set_alone() -> None:
    text = "scales: {small: {training.epochs: 1}}\nmatrix: {data: [digits, {name: mnist, root: x}]}"
    found = expand(document(f"{text}\nsynthetic_data: {{mnist: {{images: 9}}, cifar10: {{}}}}"))
    assert [sorted(spec.synthetic_data) for _, spec in found] == [[], ["mnist"]]
    assert [spec.scales for _, spec in found] == [{}, {}]


def test_keys_of_your_own_below_options() -> None:
    specs = [spec for _, spec in expand(document("matrix: {model.options.width.deep: [1, 2]}"))]
    assert [spec.model.options for spec in specs] == [
        {"width": {"deep": 1}},
        {"width": {"deep": 2}},
    ]


def test_an_override_inside_a_swept_block_holds_for_each_value() -> None:
    doc = document("matrix: {strategy: [ddp, {name: ddp, static_graph: true}]}")
    doc.overrides["strategy.bucket_mb"] = 3
    assert [s.strategy.bucket_mb for _, s in expand(doc)] == [3, 3]  # type: ignore[union-attr]


def test_a_mistake_in_such_an_override_stands_on_the_command_line() -> None:
    doc = document("matrix: {strategy: [ddp]}")
    doc.overrides["strategy.bucket_mb"] = -1
    with pytest.raises(SpecError, match=r"command line: strategy.bucket_mb: got -1"):
        expand(doc)


WIDE = ("seed", "resources.retries", "training.epochs", "measure.warmup_steps", "optimizer.lr")
TEN_BILLION = str({key: list(range(1, 101)) for key in WIDE}).replace("'", "")


@pytest.mark.parametrize(
    ("matrix", "key", "line", "words"),
    [
        ("[1]", "matrix", 5, "keys to lists"),
        ("3", "matrix", 5, "keys to lists"),
        ("{strategyy: [ddp]}", "matrix.strategyy", 5, "'strategy'"),
        ("{workers: [1]}", "matrix.workers", 5, "did you mean 'resources.workers'?"),
        ("{seed.x: [1]}", "matrix.seed.x", 5, "valid: data, "),
        ("{training.y: [1]}", "matrix.training.y", 5, "valid: training.accumulate, "),
        ("{training.epoch: [1]}", "matrix.training.epoch", 5, "did you mean 'training.epochs'?"),
        (
            "{strategy: [horovod], strategy.bucket_mb: [1]}",
            *("strategy.bucket_mb", 5, "but not of horovod; valid:"),
        ),
        ("{repeats: [1, 2]}", "matrix.repeats", 5, "the whole experiment"),
        ("{7: [1, 2]}", "matrix.7", 5, "unknown key"),
        ("{strategy: ddp}", "matrix.strategy", 5, "at least one"),
        ("{strategy: []}", "matrix.strategy", 5, "at least one"),
        ("{strategy: [ddp, dpp]}", "strategy", 5, "'ddp'"),
        ("\n  seed:\n    - 0\n    - x", "seed", 8, "got 'x'"),
        ("{seed: [3, 3]}", "matrix", 5, "seed=3 occurs twice"),
        (TEN_BILLION, "matrix", 5, "10,000,000,000 runs"),
        (
            "{strategy: [ddp, {name: ddp, bucket_mb: 5}], strategy.bucket_mb: [1]}",
            *("matrix", 5, "is the same run as"),
        ),
        ("{'seed, repeats': [[0, 1]]}", "matrix.seed, repeats", 5, "the whole experiment"),
        (
            "{'seed, training.epochs': [[0, 1]], seed: [2]}",
            *("matrix.seed", 5, "seed is swept twice, also by 'seed, training.epochs'"),
        ),
        (
            "\n  seed, training.epochs:\n    - [0, 1]\n    - [2]",
            *("matrix.seed, training.epochs", 8, "got [2]; it should be a list of 2 values"),
        ),
        (
            "{'seed, training.epochs': [ab]}",
            *("matrix.seed, training.epochs", 5, "got 'ab'; it should be a list of 2 values"),
        ),
        ("\n  seed, training.epochs:\n    - - 0\n      - x", *("training.epochs", 8, "got 'x'")),
        (
            "\n  strategy:\n    - name: ddp\n      bucket_mb: 0",
            *("strategy.bucket_mb", 8, "should be greater than 0"),
        ),
        ("{seed: [0, 1]}\nrepeats: many", "repeats", 6, "got 'many'"),
        ("\nsearch: {trials: 2}", "search", 6, "use `raysuite sweep SPEC`"),
    ],
)
def test_one_mistake(matrix: str, key: str, line: int, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        expand(document(f"matrix: {matrix}"))
    (found,) = caught.value.mistakes
    assert (found.key, found.line) == (key, line)
    assert words in found.message


@pytest.mark.parametrize(
    ("matrix", "line"),
    [
        ("\n  training.global_batch:\n    - 8\n    - 9", 10),
        ("\n  seed, training.global_batch:\n    - [0, 8]\n    - - 1\n      - 9", 11),
        ("{training.global_batch: [8, 9]}", 7),
        ("{seed: [0, 1]}", 4),
    ],
)
def test_an_infeasible_run_names_the_line_of_its_value(matrix: str, line: int) -> None:
    text = f"strategy: ddp\nresources: {{workers: 2}}\nmatrix: {matrix}"
    base = BASE if "global_batch" in matrix else BASE.replace("global_batch: 8", "global_batch: 9")
    with pytest.raises(SpecError) as caught:
        make_plans(parse_document(base + text, "x.yaml"), gpus=0)
    found = {(each.key, each.file, each.line) for each in caught.value.mistakes}
    assert found == {("training.global_batch", "x.yaml", line)}


def test_a_billion_repeats() -> None:
    with pytest.raises(SpecError, match="repeats: the matrix and repeats make 1,000,000,000 runs"):
        expand(document("repeats: 1000000000"))


def test_mistakes_of_the_matrix_and_of_the_rest_at_once_and_once_each() -> None:
    text = """\
trainin: 1
matrix:
  lr: [1]
  training.epochs: [1, x]
  seed: [0, 1, 2]
"""
    with pytest.raises(SpecError) as caught:
        expand(document(text))
    found = [(mistake.key, mistake.line) for mistake in caught.value.mistakes]
    assert found == [("trainin", 5), ("matrix.lr", 7), ("training.epochs", 8)]


def test_a_required_key_may_stand_in_the_matrix_alone() -> None:
    text = BASE.replace("model: resnet20\n", "") + "matrix: {model: [resnet20, resnet32]}"
    specs = [spec for _, spec in expand(parse_document(text, "x"))]
    assert [spec.model.name for spec in specs] == ["resnet20", "resnet32"]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True),
)
def test_as_many_runs_as_combinations(seeds: list[int], epochs: list[int]) -> None:
    found = labels(f"matrix: {{seed: {seeds}, training.epochs: {epochs}}}")
    expected = [{"seed": seed, "training.epochs": count} for seed in seeds for count in epochs]
    assert found == expected
