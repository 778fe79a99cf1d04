"""Pipeline schedules: those of torch where it has them, and possible to execute."""

from __future__ import annotations

from itertools import pairwise

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from raysuite.spec.schedules import Operation, ScheduleName, bubble, operations, timeline


@pytest.mark.parametrize(("ours", "theirs"), [("gpipe", "GPipe"), ("1f1b", "1F1B")])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (2, 5), (3, 4), (4, 4), (4, 8)])
def test_as_torch(ours: ScheduleName, theirs: str, stages: int, micro_batches: int) -> None:
    expected = []
    for stage in get_schedule_ops(theirs, stages, micro_batches):
        names = [str(each).lstrip("0123456789") for each in stage if each is not None]
        expected.append([(n[0], int(n[1:])) for n in names if n[1:].isdigit()])
    found = [
        [(each.kind[0].upper(), each.micro_batch) for each in stage]
        for stage in operations(ours, stages, micro_batches)
    ]
    assert found[:-1] == expected[:-1]
    # torch 2.15's table has the last stage of 1F1B pass micro-batches 1 to m instead of 0 to m - 1
    # forward; what it executes is this
    in_turn = [(kind, index) for index in range(micro_batches) for kind in "FB"]
    assert found[-1] == (in_turn if ours == "1f1b" else expected[-1])


@pytest.mark.parametrize("schedule", ["model_parallel", "gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("micro_batches", [1, 2, 7])
@pytest.mark.parametrize("backward", [1.0, 2.0])
def test_bubble(schedule: ScheduleName, stages: int, micro_batches: int, backward: float) -> None:
    slots = timeline(operations(schedule, stages, micro_batches), 1.0, backward)
    expected = (stages - 1) / (stages - 1 + micro_batches)
    if schedule == "model_parallel":
        expected = 1 - 1 / stages
    assert bubble(slots) == pytest.approx(expected, abs=1e-12)
    for own in slots:
        assert all(one.end <= other.begin for one, other in pairwise(own))


def test_a_schedule_that_cannot_be_executed() -> None:
    first, second = operations("gpipe", 2, 2)
    with pytest.raises(ValueError, match="waits"):
        timeline([first[::-1], second])


@pytest.mark.parametrize("schedule", ["model_parallel", "gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("micro_batches", [1, 2, 7])
def test_can_be_executed(schedule: ScheduleName, stages: int, micro_batches: int) -> None:
    left = [list(each) for each in operations(schedule, stages, micro_batches)]
    done: set[tuple[int, Operation]] = set()
    held = [0] * stages
    most = [0] * stages
    while any(left):
        before = len(done)
        for stage, rest in enumerate(left):
            if not rest:
                continue
            neighbour = stage - 1 if rest[0].kind == "forward" else stage + 1
            if 0 <= neighbour < stages and (neighbour, rest[0]) not in done:
                continue
            held[stage] += 1 if rest[0].kind == "forward" else -1
            most[stage] = max(most[stage], held[stage])
            done.add((stage, rest.pop(0)))
        assert len(done) > before, "every stage waits for another"
    assert len(done) == 2 * stages * micro_batches
    if schedule == "1f1b":
        assert most == [min(stages - stage, micro_batches) for stage in range(stages)]
