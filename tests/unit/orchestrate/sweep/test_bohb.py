"""BOHB decides trials where its packages are installed, and says which they are where they lack."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest

from raysuite.errors import MissingPartError
from raysuite.orchestrate.sweep.searchers import decider_of
from raysuite.records.sweep import TrialFigures
from raysuite.spec.search import SearchOptions
from tests.unit.orchestrate.sweep.test_optuna import SPACE, accuracy, trial

BOHB = SearchOptions.model_validate({"trials": 40, "space": SPACE, "searcher": "bohb"})


def test_packages_that_lack_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "hpbandster", None)
    with pytest.raises(MissingPartError, match="pip install hpbandster ConfigSpace"):
        decider_of(BOHB)


def test_trials_that_go_on_are_not_told_and_those_that_missed_a_target_rank(monkeypatch):
    model = MagicMock()
    model.BOHB.return_value.get_config.return_value = ({}, {})
    monkeypatch.setitem(sys.modules, "ConfigSpace", MagicMock())
    monkeypatch.setitem(sys.modules, "hpbandster.optimizers.config_generators.bohb", model)
    decider = decider_of(BOHB.model_copy(update={"goal": "time_to_accuracy"}))
    missed = replace(trial(2, {}, accuracy=0.5), curve=((0, 8.0, 0.5),))
    met = trial(4, {}, accuracy=0.9, time_to_accuracy=5.0)
    trials = [trial(0, {}, "missing"), trial(1, {}, "stopped"), missed, trial(3, {}, "failed"), met]
    decider.next(trials, [])
    jobs = [call.args[0] for call in model.BOHB.return_value.new_result.call_args_list]
    assert [job.result["loss"] for job in jobs] == [12.0, math.inf, 5.0]


@pytest.mark.filterwarnings("ignore")
def test_it_learns_and_goes_on_as_it_would_have():
    pytest.importorskip("hpbandster")
    decider = decider_of(BOHB)
    trials: list[TrialFigures] = []
    for number in range(40):
        values: dict[str, Any] | None = decider.next(trials, [])
        assert values is not None
        assert ("strategy.zero_stage" in values) == (values["strategy"] != "ddp")
        assert values["training.global_batch"] in range(8, 64)
        reached = accuracy(values)
        made = trial(number, values, accuracy=reached)
        trials.append(TrialFigures(**{**made.__dict__, "curve": ((0, 1.0, reached),)}))
    assert decider.next(trials, []) is None
    assert decider_of(BOHB).next(trials[:30], []) == trials[30].values
    distance = [abs(math.log10(each.values["optimizer.lr"]) + 1) for each in trials]
    assert sorted(distance[20:])[10] < sorted(distance[:8])[4]
