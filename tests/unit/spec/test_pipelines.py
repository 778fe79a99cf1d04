"""Options of pipelines that cannot be executed are refused, with what would do."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from raysuite.spec.schedules import Schedule
from raysuite.spec.strategies import PipelineOptions


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"stages": 3, "partition": [1, 2]}, "3 numbers"),
        ({"stages": 2, "partition": [3, 0]}, "of at least 1"),
        ({"schedule": "interleaved_1f1b", "stages": 2, "chunks": 2}, "whole numbers of 2 or more"),
        ({"schedule": "pipedream", "replicas": [2, 0]}, "2 numbers"),
        ({"schedule": "pipedream", "replicas": []}, "2 numbers"),
        ({"schedule": "interleaved_1f1b", "stages": 4}, "whole numbers of 2 or more"),
        ({"schedule": "interleaved_1f1b", "stages": 5, "chunks": 2}, "whole numbers of 2 or more"),
        ({"schedule": "interleaved_1f1b", "stages": 6, "chunks": 2}, "give 3"),
        ({"chunks": 2}, "1f1b has one"),
        ({"replicas": [2, 1]}, "the schedule is 1f1b"),
        ({"schedule": "pipedream", "replicas": [2, 1, 1]}, "2 numbers"),
        ({"schedule": "pipedream", "replicas": [3, 2], "micro_batches": 4}, "multiple of 6"),
        ({"schedule": "pipedream", "recompute": True}, "set recompute to false"),
        ({"schedule": "pipedream_2bw", "stages": 5}, "the 5 stages"),
    ],
)
def test_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        PipelineOptions.model_validate(given)


def test_micro_batches_of_pipedream_follow_the_replicas() -> None:
    def micro_batches(**given: Any) -> int:
        return PipelineOptions.model_validate(given).micro_batches

    assert micro_batches() == 4
    assert micro_batches(schedule="pipedream") == 1
    assert micro_batches(schedule="pipedream", replicas=[3, 2]) == 6
    assert micro_batches(schedule="pipedream", micro_batches=2) == 2
    options = PipelineOptions.model_validate({"schedule": "pipedream", "replicas": [3, 1]})
    assert options.model_workers == 4
    assert PipelineOptions.model_validate(options.model_dump()) == options
    # what was written by an earlier version, and keeps the ids of its runs
    plain = {"name": "pipeline", "schedule": "1f1b", "stages": 2, "micro_batches": 4}
    assert PipelineOptions().model_dump() == {**plain, "partition": "auto"}


def test_micro_batches_that_are_found_by_trial() -> None:
    def options(**given: Any) -> PipelineOptions:
        return PipelineOptions.model_validate({"micro_batches": "auto", **given})

    found = options()
    assert found.auto is not None
    assert found.auto.auto == "fastest"
    assert options(micro_batches={"auto": "largest"}).auto.auto == "largest"  # type: ignore[union-attr]
    assert PipelineOptions.model_validate(found.model_dump()) == found
    assert PipelineOptions().auto is None
    # until then, the fewest of which a step can consist
    assert found.own_accumulation == 1
    assert options(schedule="interleaved_1f1b", stages=6, chunks=2).own_accumulation == 3
    assert options(schedule="pipedream", stages=2, replicas=[3, 2]).own_accumulation == 6
    double = options(schedule="pipedream_2bw", stages=3, replicas=[2, 1, 1])
    assert double.own_accumulation == 4
    assert [n for n in range(1, 9) if double.accumulates(n)] == [4, 6, 8]


def test_the_schedule_of_one_copy() -> None:
    def schedule(count: int | None, **given: Any) -> Schedule:
        return PipelineOptions.model_validate(given).pipeline(count)

    assert schedule(None) == Schedule("1f1b", 4, (1, 1))
    assert schedule(8, schedule="gpipe", stages=3) == Schedule("gpipe", 8, (1, 1, 1))
    several = {"schedule": "interleaved_1f1b", "stages": 4, "chunks": 2}
    assert schedule(None, **several) == Schedule("interleaved_1f1b", 4, (1, 1), 2)
    turns = {"schedule": "pipedream", "replicas": [3, 1]}
    assert schedule(6, **turns) == Schedule("pipedream", 6, (3, 1))
    assert PipelineOptions(schedule="pipedream_2bw", stages=4).own_accumulation == 4
    assert PipelineOptions(partition=(1, 1)).partition == (1, 1)
