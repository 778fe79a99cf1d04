"""Candidates with figures that are given, in order, within limits, and tied or not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from raysuite.perf import recommendation
from raysuite.perf.recommendation import Choice, choices, rank
from raysuite.records.names import Plan
from raysuite.records.predicted import Interval, RunPredicted


def about(value: float, part: float = 0.1) -> Interval:
    return Interval(value, value * (1 - part), value * (1 + part))


def candidate(
    name: str,
    epoch_s: float,
    workers: int = 1,
    batch: int = 64,
    gib: float | None = 1.0,
    joules: float | None = None,
    outside: tuple[str, ...] = (),
) -> tuple[Plan, RunPredicted]:
    """A run of ten epochs."""
    predicted = RunPredicted(
        run_id=name,
        calibration="c.yaml",
        epoch_seconds=about(epoch_s),
        run_seconds=about(10 * epoch_s),
        memory_bytes=None if gib is None else about(gib * 2**30),
        joules=None if joules is None else about(joules),
        outside=outside,
    )
    return {"workers": workers, "global_batch": batch}, predicted


ALL = [
    candidate("slow alone", 120.0),
    candidate("alone", 100.0, joules=50.0),
    candidate("two", 60.0, workers=2, gib=3.0, joules=45.0),
    candidate("four", 54.0, workers=4, gib=None, joules=200.0),
    candidate("other batch", 56.0, workers=2, batch=128),
    candidate("unknown range", 1.0, workers=2, batch=128, outside=("workers",)),
]
NONE = ({"workers": 1, "global_batch": 64}, RunPredicted(run_id="none", calibration="c.yaml"))


def names(found: list[Choice]) -> list[str]:
    return [choice.predicted.run_id for choice in found]


def ranked(**limits: float) -> list[str]:
    plans, predicted = zip(*ALL, NONE, strict=True)
    return names(rank(plans, predicted, **limits))  # type: ignore[arg-type]


def test_the_shortest_epoch_is_first_and_what_is_out_of_range_last() -> None:
    order = ["four", "other batch", "two", "alone", "slow alone", "unknown range"]
    assert ranked() == order
    plans, predicted = zip(*ALL, strict=True)
    best = rank(plans, predicted)[0]
    assert (best.plan, best.predicted) == ALL[3]
    with pytest.raises(ValueError, match="shorter"):
        rank(plans, predicted[:-1])


def test_one_in_the_interval_of_the_best_is_tied() -> None:
    plans, predicted = zip(*ALL, strict=True)
    tied = {c.predicted.run_id: c.tied for c in rank(plans, predicted)}
    # up to 1.1 * 54 = 59.4 seconds
    assert [name for name, each in tied.items() if each] == ["four", "other batch", "unknown range"]
    for value, expected in ((54.0 * 1.1, True), (59.5, False)):
        (best, own), (plan, other) = ALL[3], candidate("edge", value)
        assert [choice.tied for choice in rank([best, plan], [own, other])] == [True, expected]


def test_those_that_cannot_be_told_apart_have_one_rank() -> None:
    seconds = [54.0, 59.0, 60.0, 65.9, 66.1, 80.0]
    plans, predicted = zip(*(candidate(str(each), each) for each in seconds), strict=True)
    # in the intervals up to 59.4 and, from 60 on, up to 66.0; each of the others is alone
    assert [choice.rank for choice in rank(plans, predicted)] == [1, 1, 3, 3, 5, 6]


def test_an_order_is_held_against_the_pairs_that_their_measurements_tell_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(recommendation.__file__).parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    from prediction import told_apart

    # means with 95 % intervals of 0.025: the first two are within one another's
    paces = [[mean - 0.01, mean, mean + 0.01] for mean in (1.0, 1.02, 2.0, 3.0)]
    for guessed, tau in (((1, 2, 3, 4), 1), ((2, 1, 3, 4), 1), ((1, 2, 4, 3), 0.6)):
        assert told_apart(guessed, paces) == (pytest.approx(tau), pytest.approx(5 / 6))
    assert told_apart((1, 2, 3, 3), paces)[0] == pytest.approx(0.8)  # a tie is half right
    assert told_apart((1, 2), paces[:2]) == (None, 0)


def test_an_efficiency_is_against_the_fastest_one_worker_of_the_same_batch() -> None:
    plans, predicted = zip(*ALL, strict=True)
    found = {c.predicted.run_id: c.efficiency for c in rank(plans, predicted)}
    assert found["other batch"] is None
    expected = {"alone": 1, "slow alone": 1 / 1.2, "two": 1 / 1.2, "four": 100 / 54 / 4}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert ranked(least_efficiency=0.5) == ["two", "alone", "slow alone"]
    assert ranked(least_efficiency=1.0) == ["alone"]


def test_limits_are_kept_by_the_upper_end_of_an_interval() -> None:
    held = 1.1 * 2**30
    assert "four" in ranked()
    assert ranked(most_bytes=held * 1.001)[:2] == ["other batch", "alone"]  # not known: not within
    assert ranked(most_bytes=held * 0.999) == []
    hours = 540.0 * 1.1 / 3600  # of the run with four workers
    assert ranked(most_node_hours=hours, workers_per_node=4) == ["four", "unknown range"]
    assert ranked(most_node_hours=hours * 0.9999, workers_per_node=4) == ["unknown range"]
    two_nodes = ranked(most_node_hours=hours * 2, workers_per_node=3)
    assert ("four" in two_nodes, "four" in ranked(most_node_hours=hours * 2)) == (True, False)
    assert "four" not in ranked(most_node_hours=hours * 1.9999, workers_per_node=3)


def test_the_least_energy_is_first_where_it_is_the_goal() -> None:
    plans, predicted = zip(*ALL, strict=True)
    found = rank(plans, predicted, goal="energy")
    assert names(found) == ["two", "alone", "four"]
    assert [choice.tied for choice in found] == [True, False, False]  # up to 49.5 joules


def test_candidates_are_every_combination_of_what_a_strategy_can_do() -> None:
    found = list(choices([1, 2], [64, 128], [1, 4]))
    keys = [(c["resources.workers"], c["training.accumulate"]) for c in found]
    assert {c["training.global_batch"] for c in found} == {64, 128}
    strategies = Counter(
        (c["strategy"]["name"], c["strategy"].get("schedule"), *key)
        for c, key in zip(found, keys, strict=True)
    )
    assert strategies["single", None, 1, 1] == strategies["single", None, 1, 4] == 2  # batches
    assert not any(name == "single" and workers > 1 for name, _, workers, _ in strategies)
    assert {key[2:] for key in strategies if key[0] == "pipeline"} == {(2, 4)}
    assert strategies["deepspeed", None, 2, 1] == 2 * 4  # stages of ZeRO
    assert {key[2:] for key in strategies} == {(1, 1), (1, 4), (2, 1), (2, 4)}
