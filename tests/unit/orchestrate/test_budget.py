"""Which repeats a time budget lets begin, from journals."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from raysuite.errors import UserError
from raysuite.orchestrate import budget
from raysuite.plan import RunPlan
from raysuite.records import Results, Stat, summarize
from raysuite.records.names import variant_name
from tests.fake_results import write_results

SPEC = """\
name: made-up
model: resnet20
data: digits
training: {epochs: 6, global_batch: 64}
resources: {device: cpu}
repeats: 5
matrix: {strategy: [single, ddp]}
"""


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Three repeats of two variants, whose throughput differs by some percent, and two to come."""
    return write_results(tmp_path, SPEC, missing=range(6, 10))


def plan(results: Results, index: int) -> RunPlan:
    return RunPlan.model_validate(results.plans()[index])


def test_without_a_budget_all_runs_begin(results: Results) -> None:
    """Also after an earlier command whose budget is over."""
    budget.begin(results, time.time() - 1)
    assert not any(budget.allows(results, plan(results, index)) for index in range(10))
    budget.begin(results, None)
    assert all(budget.allows(results, plan(results, index)) for index in range(10))
    assert budget.declined(results) == set()


def test_no_run_begins_that_would_end_too_late(results: Results) -> None:
    took = max(end.seconds for end in budget._ends(results, results.plans(), None))
    budget.begin(results, time.time() + took / 2)
    assert not budget.allows(results, plan(results, 6))
    assert budget.declined(results) == {plan(results, 6).run_id}
    budget.begin(results, time.time() + 10 * took)
    assert budget.declined(results) == set()


@pytest.mark.parametrize(("spare", "begins"), [(0.01, True), (-0.01, False)])
@pytest.mark.parametrize(
    ("index", "longest"), [(6, 50.0), (7, 30.0)], ids=["of its variant", "of its variant too"]
)
def test_time_is_left_for_the_longest_run_of_the_same_variant(
    results: Results,
    monkeypatch: pytest.MonkeyPatch,
    index: int,
    longest: float,
    spare: float,
    begins: bool,
) -> None:
    """And 15 % more. The first runs took 10, 50, 20 s of one variant and 5, 30, 25 s of another."""
    plans = results.plans()
    own = plans[index]["spec"]["strategy"]["name"]
    took = {plans[6]["spec"]["strategy"]["name"]: iter((10.0, 50.0, 20.0))}
    took[plans[7]["spec"]["strategy"]["name"]] = iter((5.0, 30.0, 25.0))
    assert own in took
    for each in plans[:6]:
        file = results.journal_file(each["run_id"])
        *lines, last = file.read_text().splitlines()
        end = {**json.loads(last), "seconds": next(took[each["spec"]["strategy"]["name"]])}
        assert end["kind"] == "run_finished"
        file.write_text("\n".join([*lines, json.dumps(end)]) + "\n")
    monkeypatch.setattr(budget, "WIDTH", 1e-6)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    budget.begin(results, 1000.0 + 1.15 * longest + spare)
    assert budget.allows(results, plan(results, index)) == begins


def test_a_variant_that_has_not_run_is_expected_to_take_as_long_as_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = write_results(tmp_path, SPEC, missing=range(10))
    [own] = {index for index in (0, 1) if results.plans()[index]["label"]["strategy"] == "ddp"}
    ran = [each["index"] for each in results.plans() if each["label"]["strategy"] != "ddp"]
    write_results(tmp_path, SPEC, missing=set(range(10)) - set(ran[:3]))
    longest = max(end.seconds for end in budget._ends(results, results.plans(), None))
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    for spare, begins in ((0.01, True), (-0.01, False)):
        budget.begin(results, 1000.0 + 1.15 * longest + spare)
        assert budget.allows(results, plan(results, own)) == begins


def test_the_first_run_of_a_variant_begins_whatever_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any run, and where its repeats suffice, as after its own failure."""
    results = write_results(tmp_path / "none", SPEC, missing=range(10))
    budget.begin(results, time.time() + 1)
    assert budget.allows(results, plan(results, 9))
    monkeypatch.setattr(budget, "WIDTH", 10.0)
    results = write_results(tmp_path / "repeats", SPEC, missing={0, 8})
    budget.begin(results, time.time() + 1e6)
    assert [budget.allows(results, plan(results, index)) for index in (0, 8)] == [True, False]


@pytest.mark.parametrize(
    ("values", "said"),
    [([95.0, 100.0, 105.0], "±12.4% (n = 3)"), ([95.0], "n = 1"), ([100.0] * 3, "")],
)
def test_the_summary_has_the_width_of_each_interval_that_is_too_wide(
    results: Results, monkeypatch: pytest.MonkeyPatch, values: list[float], said: str
) -> None:
    """The half width of three values is 4.303 times 5 / sqrt(3) = 12.42, of a mean of 100."""
    monkeypatch.setattr(budget, "throughput", lambda *_: summarize(values))
    names = [variant_name(each) for each in results.plans()[:2]]
    assert budget.settle(results) == [
        f"budget: {0 if said else 2} of 2 variants have throughput intervals of at most ±5%",
        *(f"too few repeats of {name}: {said}" for name in names if said),
    ]


def test_repeats_end_where_intervals_suffice(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget.begin(results, time.time() + 1e6)
    monkeypatch.setattr(budget, "WIDTH", 1e-6)
    assert budget.allows(results, plan(results, 6))
    monkeypatch.setattr(budget, "WIDTH", 10.0)
    assert not budget.allows(results, plan(results, 7))
    lines = budget.settle(results)
    assert len(results.plans()) == 9
    assert "2 of 2" in lines[0]
    monkeypatch.setattr(budget, "WIDTH", 1e-6)
    assert len(budget.settle(results)) == 3


def test_times_of_a_budget() -> None:
    from raysuite.cli.run_options import budget_seconds

    assert [budget_seconds(text) for text in ("90s", "5m", "1.5h")] == [90, 300, 5400]
    for text in ("5", "m", "0s", "-1m", "5 days"):
        with pytest.raises(UserError, match="--budget"):
            budget_seconds(text)


def test_a_variant_that_never_ran_stays_in_the_plan(tmp_path: Path) -> None:
    """And only repeats that were declined leave it."""
    results = write_results(tmp_path, SPEC, missing=range(10))
    plans = results.plans()
    ran = {each["index"] for each in plans if each["spec"]["strategy"]["name"] == "ddp"}
    ran = {index for index in ran if plans[index]["repeat"] < 4}
    write_results(tmp_path, SPEC, missing=set(range(10)) - ran)
    budget.begin(results, time.time() - 1)
    late = [
        each
        for each in plans
        if each["index"] not in ran and each["repeat"] != 3  # not asked for
    ]
    assert not any(budget.allows(results, plan(results, each["index"])) for each in late)
    assert budget.declined(results) == {each["run_id"] for each in late}
    never = next(each for each in late if each["repeat"] == 0)
    assert f"too few repeats of {variant_name(never)}: n = 0" in budget.settle(results)
    left = {each["index"] for each in results.plans()}
    assert left == ran | {
        each["index"]
        for each in plans
        if each["spec"]["strategy"]["name"] == "single" and each["repeat"] in (0, 3)
    }


@pytest.mark.parametrize(
    ("values", "enough"),
    [([100.0] * 2, False), ([100.0] * 3, True), ([100.0, 97.0, 104.0], False)],
)
def test_three_repeats_with_an_interval_of_five_percent_are_enough(
    values: list[float], enough: bool
) -> None:
    assert budget.suffices(summarize(values)) == enough
    assert not budget.suffices(None)


@pytest.mark.parametrize(("half_width", "enough"), [(None, False), (10.0, True), (10.01, False)])
def test_an_interval_of_five_percent_of_its_mean_is_narrow_enough(
    half_width: float | None, enough: bool
) -> None:
    assert budget.suffices(Stat((200.0,) * 3, 200.0, half_width)) == enough
