"""What a population may search: every mistake at once, at its key and its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.errors import SpecError
from raysuite.spec import parse_document
from raysuite.spec.population import CHANGED, can_change
from raysuite.spec.search_check import read_search

SPEC = """\
name: a
model: resnet20
data: digits
training: {epochs: 9, global_batch: 8}
search:
  trials: 4
  space:
    optimizer.lr: {loguniform: [0.01, 1.0]}
    seed: {randint: [0, 1000]}
  scheduler: {name: pbt, interval_epochs: 2}
"""


def told(text: str) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        read_search(parse_document(text, "x.yaml"))
    assert all(mistake.line for mistake in caught.value.mistakes)
    return {mistake.key: mistake.message for mistake in caught.value.mistakes}


def test_a_population() -> None:
    scheduler = read_search(parse_document(SPEC, "x.yaml")).scheduler
    assert scheduler.model_dump() == {
        "name": "pbt",
        "interval_epochs": 2,
        "quantile": 0.25,
        "resample": 0.25,
        "factors": (0.8, 1.2),
    }


@pytest.mark.parametrize(
    "key",
    ["optimizer.lr", "schedule", "schedule.warmup_epochs", "training.clip_norm"],
)
def test_what_may_change_in_mid_training(key: str) -> None:
    assert can_change(key)
    read_search(parse_document(SPEC.replace("optimizer.lr: {log", f"{key}: {{log"), "x.yaml"))


@pytest.mark.parametrize(
    "key",
    [
        *("model", "model.options.width", "data.augment", "strategy", "loader", "optimizer"),
        *("optimizer.name", "training.global_batch", "training.epochs", "training.ema_decay"),
        *("training.precision", "resources.workers", "optimizer.decay_bias_and_norm"),
    ],
)
def test_what_may_not(key: str) -> None:
    assert not can_change(key)


def test_each_key_that_may_not_change_is_told_with_those_that_may() -> None:
    text = SPEC.replace(
        "    seed",
        "    resources.workers: {choice: [1, 2]}\n    strategy: {choice: [ddp]}\n    seed",
    )
    found = told(text)
    assert list(found) == ["search.space.resources.workers", "search.space.strategy"]
    for message in found.values():
        assert "pbt moves weights" in message
        assert all(key in message for key in CHANGED)


@pytest.mark.parametrize(
    ("before", "after", "key", "words"),
    [
        ("interval_epochs: 2", "interval_epochs: 9", "search.scheduler", "the 9 of training.ep"),
        ("interval_epochs: 2", "interval_epochs: 0", "search.scheduler.interval_epochs", "1"),
        ("epochs: 2}", "epochs: 2, quantile: 0.6}", "search.scheduler.quantile", "0.5"),
        ("epochs: 2}", "epochs: 2, factors: []}", "search.scheduler.factors", "at least 1"),
        ("epochs: 2}", "epochs: 2, factors: [0, 2]}", "search.scheduler.factors.0", "than 0"),
        ("  trials: 4\n", "  trials: 1\n", "search.trials", "2 trials or more"),
        ("  trials: 4\n", "  trials: 4\n  goal: throughput\n", "search.goal", "given was through"),
        ("  trials: 4\n", "  trials: 4\n  searcher: optuna\n", "search.searcher", "not optuna"),
        ("global_batch: 8", "batch_per_worker: auto", "training.batch_per_worker", "the same st"),
        ("batch: 8", "batch: 8, accumulate: auto", "training.accumulate", "the same steps"),
        ("    optimizer.lr: {loguniform: [0.01, 1.0]}\n", "", "search.space", "nothing to change"),
    ],
)
def test_what_does_not_go_together(before: str, after: str, key: str, words: str) -> None:
    assert before in SPEC
    found = told(SPEC.replace(before, after))
    assert list(found) == [key]
    assert words in found[key]


def test_a_grid_of_one_draw_is_a_population() -> None:
    text = SPEC.replace("trials: 4", "trials: 1").replace("randint: [0, 1000]", "grid: [0, 1]")
    assert read_search(parse_document(text, "x.yaml")).trials == 1


def test_the_example_of_the_guide_is_in_order() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "how-to", "sweeps.md").read_text("utf-8")
    section = page.partition("## Population-based training")[2]
    example = section.partition("```yaml\n")[2].partition("```")[0]
    text = f"name: a\nmodel: resnet20\ndata: digits\n{example}"
    search = read_search(parse_document(text, "x.yaml"))
    assert search.scheduler.name == "pbt"
    told = section.partition("## ")[0]
    assert all(f"`{key.partition('.')[2]}`" in told or f"`{key}`" in told for key in CHANGED)
