"""Pipeline schedules: those of torch where it has them, and possible to execute."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from raysuite.spec.schedules import (
    Operation,
    Schedule,
    ScheduleName,
    bubble,
    in_flight,
    timeline,
    versions_held,
)

SYNCHRONOUS: list[tuple[ScheduleName, int]] = [
    ("model_parallel", 1),
    ("gpipe", 1),
    ("1f1b", 1),
    ("interleaved_1f1b", 2),
    ("interleaved_1f1b", 3),
]


def passes(own: tuple[Operation, ...]) -> list[tuple[int, str, int]]:
    return [(o.stage, o.kind[0].upper(), o.micro_batch) for o in own if o.kind != "update"]


@pytest.mark.parametrize(
    ("ours", "theirs", "chunks"),
    [("gpipe", "GPipe", 1), ("1f1b", "1F1B", 1), ("interleaved_1f1b", "Interleaved1F1B", 2)],
)
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (2, 6), (3, 3), (4, 4), (4, 8)])
def test_as_torch(
    ours: ScheduleName, theirs: str, chunks: int, stages: int, micro_batches: int
) -> None:
    table = get_schedule_ops(
        theirs, stages, micro_batches, num_stages_per_rank=chunks if chunks > 1 else None
    )
    expected = [
        [
            (each.stage_index, each.computation_type.value, each.microbatch_index)
            for each in stage
            if each is not None and each.microbatch_index is not None
        ]
        for stage in table
    ]
    found = [
        passes(own) for own in Schedule(ours, micro_batches, (1,) * stages, chunks).operations()
    ]
    if ours == "1f1b":  # torch 2.15's table has its last stage pass 1 to m instead of 0 to m - 1
        in_turn = [(stages - 1, kind, index) for index in range(micro_batches) for kind in "FB"]
        assert found.pop() == in_turn
        expected.pop()
    assert found == expected


@pytest.mark.parametrize(("name", "chunks"), SYNCHRONOUS)
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [4, 8])
@pytest.mark.parametrize("backward", [1.0, 2.0])
def test_bubble(
    name: ScheduleName, chunks: int, workers: int, micro_batches: int, backward: float
) -> None:
    times = {"forward": 1.0, "backward": backward, "update": 0.0}
    schedule = Schedule(name, micro_batches, (1,) * workers, chunks)
    slots = timeline(schedule.operations(), lambda operation: times[operation.kind])
    expected = (workers - 1) / (workers - 1 + chunks * micro_batches)
    if name == "model_parallel":
        expected = 1 - 1 / workers
    assert bubble(slots) == pytest.approx(expected, abs=1e-12)
    for own in slots:
        assert all(one.end <= other.begin for one, other in itertools.pairwise(own))


def test_copies_of_a_stage_are_updated_when_the_last_of_them_is_ready() -> None:
    update, own = Operation("update", 1), [[Operation("forward", n)] for n in (0, 1)]
    slots = timeline(
        [[*each, update] for each in own],
        lambda operation: {"forward": 1.0 + operation.micro_batch, "update": 0.5}[operation.kind],
    )
    assert [(each[-1].begin, each[-1].end) for each in slots] == [(2.0, 2.5)] * 2


def test_a_schedule_that_cannot_be_executed() -> None:
    first, second = Schedule("gpipe", 2, (1, 1)).operations()
    with pytest.raises(ValueError, match="waits"):
        timeline([first[::-1], second])


ASYNCHRONOUS: list[dict[str, Any]] = [
    {"name": "pipedream", "micro_batches": 1, "replicas": (1, 1)},
    {"name": "pipedream", "micro_batches": 1, "replicas": (1,) * 4},
    {"name": "pipedream", "micro_batches": 3, "replicas": (1,) * 4},
    {"name": "pipedream", "micro_batches": 3, "replicas": (3, 1)},
    {"name": "pipedream", "micro_batches": 3, "replicas": (1, 3)},
    {"name": "pipedream", "micro_batches": 6, "replicas": (2, 3, 1)},
    {"name": "pipedream", "micro_batches": 15, "replicas": (15, 1)},
    {"name": "pipedream_2bw", "micro_batches": 4, "replicas": (1,) * 4},
    {"name": "pipedream_2bw", "micro_batches": 4, "replicas": (2, 1, 1)},
]


@pytest.mark.parametrize(
    "schedule",
    [
        *(Schedule(n, m, (1,) * w, c) for n, c in SYNCHRONOUS for w in (1, 2, 4) for m in (4, 8)),
        *(Schedule(**each) for each in ASYNCHRONOUS),
    ],
    ids=str,
)
def test_every_pass_once_with_weights_that_are_there(schedule: Schedule) -> None:
    steps = 6
    operations = schedule.operations(steps)
    done = [passes(own) for own in operations]
    assert sorted(itertools.chain(*done)) == sorted(
        itertools.product(range(schedule.stages), "BF", range(steps * schedule.micro_batches))
    )
    timeline(operations)  # no worker waits for ever
    for worker, own in enumerate(operations):
        made = dict.fromkeys(range(schedule.stages), 0)
        used: dict[tuple[int, int], int] = {}
        for each in own:
            assert each.version <= made[each.stage]
            if each.kind == "update":
                assert each.version == made[each.stage]
                made[each.stage] += 1
            else:
                assert schedule.worker(each.stage, each.micro_batch) == worker
                assert used.setdefault((each.stage, each.micro_batch), each.version) == each.version
                if not schedule.asynchronous:  # no pass finds older weights
                    assert each.version == made[each.stage]
        assert {made[each.stage] for each in own} == {steps}


def test_weights_of_pipedream() -> None:
    """Stage s of W keeps W - s versions (PipeDream, section 3.3), 2BW two."""
    four = (1,) * 4
    plain = Schedule("pipedream", 1, four)
    assert [versions_held(own) for own in plain.operations(12)] == [4, 3, 2, 1]
    assert [in_flight(own) for own in plain.operations(12)] == [4, 3, 2, 1]
    # w(t+1) = w(t) - lr * gradient at (w1(t-n+1), w2(t-n+2), ..., wn(t)), section 3.3
    assert [plain.version(stage, 10) for stage in range(4)] == [7, 8, 9, 10]
    double = Schedule("pipedream_2bw", 4, four)
    assert [versions_held(own) for own in double.operations(12)] == [2, 2, 2, 2]
    assert [double.version(0, micro_batch) for micro_batch in (0, 4, 8, 11, 12)] == [0, 0, 1, 1, 2]
    assert [versions_held(own) for own in Schedule("1f1b", 8, four).operations(3)] == [1, 1, 1, 1]
    assert [in_flight(own) for own in Schedule("1f1b", 8, four).operations(3)] == [4, 3, 2, 1]
    assert [in_flight(own) for own in Schedule("gpipe", 8, four).operations(3)] == [8, 8, 8, 8]


@pytest.mark.parametrize(
    ("name", "micro_batches", "replicas", "steps"),
    [
        ("1f1b", 4, (1, 1, 1, 1), 0),
        ("pipedream", 1, (1, 1, 1, 1), 3),
        ("pipedream_2bw", 2, (1, 1, 1, 1), 2),  # three passes ahead, two a step
        ("pipedream_2bw", 3, (1, 1, 1, 1), 1),
        ("pipedream_2bw", 8, (1, 1, 1, 1), 1),
    ],
)
def test_steps_until_a_pipeline_is_full(
    name: ScheduleName, micro_batches: int, replicas: tuple[int, ...], steps: int
) -> None:
    """The first worker is as many forward passes ahead as stages follow it."""
    assert Schedule(name, micro_batches, replicas).steps_to_fill == steps
