"""Ranks' files -> Records: which steps count, how long they took, what is said of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from raysuite.records import EpochFinished, RunCosts, RunFinished, ScriptMeasured
from raysuite.records.power import once
from raysuite.records.script_records import (
    RankLog,
    script_records,
    steps_of,
    time_shares,
    too_few,
    verdict,
)


def rank(
    seconds: list[float], samples: int | None = 8, start: float = 10.0, **rows: dict[int, Any]
) -> RankLog:
    """A rank whose steps took `seconds`; `rows`: column -> place -> value."""
    ends = [start + math.fsum(seconds[: place + 1]) for place in range(len(seconds))]
    log = RankLog(begin={"host": "a", "memory": 1}, model={"parameters": 10, "optimizer": "SGD"})
    log.rows = [[end, None, 0.1, samples, None, False, 0.0] for end in ends]
    for name, values in rows.items():
        for place, value in values.items():
            log.rows[place][{"evaluates": 5, "idle": 6, "samples": 3}[name]] = value
    log.end = {
        "marks": {"launcher": 0.0, "process": 2.0, "first_batch": 9.0, "first_step": ends[0]},
        "memory": 5,
    }
    return log


def measured(logs: list[RankLog], warmup: int = 2, given: int | None = None) -> Any:
    steps = steps_of(logs, warmup)
    found = script_records("id", logs, steps, given)
    return {type(record): record for record in found}


def test_throughput_is_over_all_ranks_in_the_time_of_the_slowest() -> None:
    found = measured([rank([1.0, 1.0, 0.5, 0.5]), rank([1.0, 1.0, 0.75, 0.25])])
    epoch = found[EpochFinished]
    assert epoch.step_seconds == pytest.approx([0.75, 0.5])
    assert epoch.steady_images == 32
    assert epoch.steady_seconds == pytest.approx(1.0)  # both ranks took two steps in a second
    assert found[ScriptMeasured].samples_per_step == 16
    assert epoch.data_wait_seconds == pytest.approx([0.2, 0.2])


def test_all_figures_of_a_script_by_hand() -> None:
    """Of five steps the first two are the warm-up, and the third follows an evaluation."""
    logs = [rank([1.0] * 5, evaluates={2: True}), rank([1.0] * 4 + [1.125], start=10.5)]
    for log, host, loss in zip(logs, "ab", (1.0, 2.0), strict=True):
        log.begin["host"] = host
        log.model |= {"pass_samples": 35, "rates": [0.1]}
        log.checks = [{"loss": loss, "samples": 10 * loss}]
        log.rows = [[*row[:4], 40, *row[5:]] for row in log.rows]
    logs[0].end["device_memory"] = 7
    logs[1].end["marks"]["ended"] = 16.625
    unknown = {"train_loss", "val_loss", "val_accuracy"}
    found = script_records("id", logs, steps_of(logs, 2), None, ["said"])
    assert [
        each.model_dump(exclude={"time", "run_id", *unknown}, exclude_defaults=True)
        for each in found
    ] == [
        {
            "steps": 5,
            "left_out": 1,
            "samples_per_step": 16,
            "samples_source": "loader",
            "tokens_per_step": 80,
            "pass_samples": 70,
            "steps_per_second": 2 / 2.125,
            "parameters": 10,
            "optimizer": "SGD",
            "hosts": ["a", "b"],
            "start_seconds": {
                "launcher": [2, 2],
                "imports": [7, 7],
                "process group": [0, 0],
                "model and first batch": [0, 0],
                "first step": [2, 2.5],
            },
            "first_samples": [30],
            "first_rates": [0.1],
            "first_losses": [1.5],
            "notes": ["said"],
        },
        {
            "epoch": 0,
            "first_step": 0,
            "losses": [],
            "learning_rates": [],
            "images": 32,
            "seconds": 2.125,
            "steady_images": 32,
            "steady_seconds": 2.125,
            "step_seconds": [1, 1.125],
            "data_wait_seconds": [0.2, 0.2],
            "validation_seconds": 0,
            "elapsed_seconds": 15.625,
        },
        {"parameters": 10, "forward_flops": None, "gradient_bytes": 40},
        {
            "peak_process_bytes": [5, 5],
            "start_process_bytes": [1, 1],
            "peak_device_bytes": [7, 0],
            "time_to_accuracy": None,
            "seconds": 16.625,
            "first_step_seconds": 11.5,
            "parts_seconds": {
                "launcher": 2,
                "imports": 7,
                "process group": 0,
                "model and first batch": 0,
                "first step": 2,
                "steps": 4.125,
                "the end": 1,
            },
        },
    ]


def test_time_shares_of_a_script_by_hand() -> None:
    parts = ("window", "computation", "communication", "communication_exposed", "data")
    logs = [rank([1.0]), rank([1.0])]
    for place, log in enumerate(logs):
        log.model["device"] = "gpu"
        log.profile = {name: n + place for n, name in enumerate((*parts, "data_exposed"))}
        log.profile |= {"kernels": {"copy": 1.0}, "sources": [str(place)], "seconds": 8.0 + place}
    logs[0].profile["kernels"] = {"attention": 0.5}
    assert time_shares("id", logs, 10, 2, "trace").model_dump(exclude={"time", "kind"}) == {
        "run_id": "id",
        "steps": 10,
        "warmup_steps": 2,
        "window_seconds": [0, 1],
        "computation_seconds": [1, 2],
        "communication_seconds": [2, 3],
        "communication_exposed_seconds": [3, 4],
        "data_seconds": [4, 5],
        "data_exposed_seconds": [5, 6],
        "kernel_seconds": {"attention": [0.5, 0.0]},
        "sources": ["0"],
        "trace": "trace",
        "seconds": 9,
        "message": "",
    }
    logs[1].profile["kernels"] = {}
    logs[1].model["device"] = "cpu"
    assert time_shares("id", logs, 10, 2, "trace").message == ""
    logs[1].model["device"] = "gpu"
    unseen = time_shares("id", logs, 10, 2, "trace")
    assert (unseen.window_seconds, unseen.kernel_seconds, unseen.trace) == ([], {}, "")
    assert "no kernel on a GPU" in unseen.message
    logs[1].profile = {}
    unended = time_shares("id", logs, 10, 2, "trace")
    assert (unended.window_seconds, unended.sources, unended.seconds) == ([], [], 8)
    assert "takes 12 steps" in unended.message


@pytest.mark.parametrize(("warmup", "count"), [(0, 3), (1, 3), (2, 2), (4, 0)])
def test_the_first_step_never_counts_as_its_beginning_is_unknown(warmup: int, count: int) -> None:
    log = rank([5.0, 1.0, 1.0, 1.0])
    steps = steps_of([log], warmup)
    assert (len(steps.counted), steps.left_out, steps.total_s) == (count, 0, count)
    if count:
        found = measured([log], warmup)
        epoch = found[EpochFinished]
        assert epoch.step_seconds == [1.0] * count
        assert (epoch.steady_images, epoch.steady_seconds) == (8 * count, count)
        assert found[ScriptMeasured].steps_per_second == 1.0


def test_evaluations_and_pauses_are_left_out() -> None:
    seconds = [1.0] * 10
    seconds[4], seconds[6], seconds[8] = 3.0, 9.0, 9.0
    log = rank(seconds, evaluates={4: True}, idle={3: 1.5, 6: 8.0, 8: 2.0})
    steps = steps_of([log], 2)
    # a long step without a pause of more than two steps before it, as of a slow batch, is a step
    assert steps.counted == [2, 3, 5, 7, 8, 9]
    assert steps.left_out == 2
    assert steps.total_s == pytest.approx(14.0)


def test_the_devices_clock_counts_where_there_is_one() -> None:
    log = rank([1.0] * 4)
    for row in log.rows:
        row[1] = 0.25
    assert steps_of([log], 1).total_s == pytest.approx(0.75)
    log.rows[2][6] = 0.75
    assert steps_of([log], 1).left_out == 0, "its clock stood still in the pause"


def test_given_samples_have_priority_and_unknown_ones_leave_steps_per_second() -> None:
    logs = [rank([1.0] * 6, samples=None)]
    found = measured(logs)
    assert found[ScriptMeasured].samples_per_step is found[ScriptMeasured].tokens_per_step is None
    assert found[ScriptMeasured].samples_source == ""
    assert found[ScriptMeasured].steps_per_second == pytest.approx(1.0)
    assert (found[EpochFinished].images, found[EpochFinished].steady_images) == (0, 0)
    none = rank([1.0] * 6, samples=0)
    none.rows = [[*row[:4], 0, *row[5:]] for row in none.rows]
    empty = measured([none])[ScriptMeasured]
    assert (empty.samples_per_step, empty.tokens_per_step, empty.samples_source) == (None, None, "")
    found = measured(logs, given=64)
    assert found[ScriptMeasured].samples_per_step == 64
    assert found[ScriptMeasured].samples_source == "given"
    assert found[EpochFinished].steady_images == 256


def test_a_script_with_marks_has_their_samples_and_may_have_no_parameters() -> None:
    log = rank([1.0] * 6)
    log.model = {"optimizer": ""}
    found = measured([log])
    assert (found[ScriptMeasured].samples_source, found[ScriptMeasured].parameters) == (
        "mark",
        None,
    )
    assert found[RunCosts].gradient_bytes is None
    assert found[RunCosts].message


def test_phases_of_the_start_add_up_also_without_a_process_group() -> None:
    found = measured([rank([1.0] * 6), rank([2.0] * 6)])
    starts = found[ScriptMeasured].start_seconds
    assert [values[1] for values in starts.values()] == [2.0, 7.0, 0.0, 0.0, 3.0]
    assert found[RunFinished].first_step_seconds == 12.0
    assert "rank 1 is the slowest" in found[ScriptMeasured].notes[0]
    late = rank([1.0] * 6)
    late.marks.update(group_begins=5.0, group_formed=99.0)
    starts = measured([late])[ScriptMeasured].start_seconds
    assert [value for (value,) in starts.values()] == [2.0, 3.0, 4.0, 0.0, 2.0], "never negative"
    near, far = rank([1.0] * 6), rank([1.0, *[1.125] * 5])
    far.begin["host"] = "b"
    (note,) = measured([near, far])[ScriptMeasured].notes
    assert note.startswith("rank 1 on b is the slowest: its steps take 1.12 times as long")
    assert measured([near, rank([1.0, *[1.0625] * 5])])[ScriptMeasured].notes == []


def test_the_start_of_a_host_is_that_of_its_slowest_rank() -> None:
    found = measured([rank([1.0] * 6)])[ScriptMeasured].model_copy(
        update={"hosts": ["a", "b", "a"], "start_seconds": {"x": [1.0, 9.0, 3.0], "y": [4.0] * 3}}
    )
    assert found.starts_by_host == {"a": {"x": 3.0, "y": 4.0}, "b": {"x": 9.0, "y": 4.0}}


def test_ranks_with_unequal_numbers_of_steps_are_named() -> None:
    found = measured([rank([1.0] * 6), rank([1.0] * 5)])[ScriptMeasured]
    assert found.steps == 5
    assert "6, 5" in found.notes[0]


@pytest.mark.parametrize(("count", "words"), [(0, "no step"), (2, "2 steps")])
def test_too_few_steps_have_no_throughput(count: int, words: str) -> None:
    steps = steps_of([rank([1.0] * count)] if count else [RankLog()], 10)
    assert words in too_few(steps, 10, 0)
    assert too_few(steps_of([rank([1.0] * 4)], 2), 2, 0) == ""


def test_a_cut_line_of_a_rank_that_was_killed_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rank"
    file.write_text('{"kind": "steps", "rows": [[1, null, 0, 8, null, false, 0]]}\n{"kind": "st')
    assert len(RankLog.read(file).rows) == 1
    assert RankLog.read(tmp_path / "none") == RankLog(), "of a rank that never began"


@pytest.mark.parametrize(
    ("read", "trained"),
    [
        # two passes of five batches, four a step but the last: one is read ahead
        ([20, 16, 16, 16, 9, 20, 16, 16, 16, 9], [16, 16, 16, 16, 13] * 2),
        ([8, 4, 4, 0, 8, 4, 4, 0], [4] * 8),
        ([20, 16, 16, 16], [16] * 4),  # ended inside a pass
        ([16, 16, 16, 9, 16, 16, 16, 9], [16, 16, 16, 9] * 2),
        ([8, 8, 16, 16, 16], [8, 8, 16, 16, 16]),  # the batch grows
        ([8, 4, 8, 0, 4], [4, 4, 8, 4, 4]),  # one large batch is a batch
        ([8, 4, 4, 0, 4, 8, 4, 0], [4] * 8),
        ([8, 4, 0, 0, 4, 4], [4, 4, 4, 0, 4, 4]),  # an empty one is too
        ([8, None, 8], [8, None, 8]),
    ],
)
def test_samples_count_in_the_step_that_trains_them(
    read: list[int | None], trained: list[int | None]
) -> None:
    rows = [[n, None, 0, samples, None, False, 0] for n, samples in enumerate(read)]
    log = RankLog.parsed(json.dumps({"kind": "steps", "rows": rows}) + "\n")
    assert [row[3] for row in log.rows] == trained
    of_tokens = [[n, None, 0, None, tokens, False, 0] for n, tokens in enumerate(read)]
    log = RankLog.parsed(json.dumps({"kind": "steps", "rows": of_tokens}) + "\n")
    assert [row[4] for row in log.rows] == trained


def test_marked_steps_replace_those_of_the_optimiser() -> None:
    lines: list[dict[str, Any]] = [
        {"kind": "steps", "rows": [[1, None, 0, 8, None, False, 0]]},
        {"kind": "check", "step": 1},
        {"kind": "marked"},
        {"kind": "steps", "rows": [[2, None, 0, 9, None, False, 0]]},
        {"kind": "steps", "rows": [[3, None, 0, 9, None, False, 0]]},
        {"kind": "check", "step": 2},
    ]
    log = RankLog.parsed("".join(json.dumps(line) + "\n" for line in lines))
    assert ([row[0] for row in log.rows], log.checks) == ([2, 3], [{"step": 2}])


def test_moments_of_hosts_with_other_clocks_are_since_the_launch() -> None:
    def text(clock: float) -> str:
        lines = [
            {"kind": "begin", "host": "a", "launched": clock},
            {"kind": "steps", "rows": [[clock + 5, None, 0, 8, None, False, 0]]},
            {"kind": "power", "at": clock + 6, "host_joules": 1.0},
            {"kind": "end", "marks": {"launcher": clock, "process": clock + 1}},
        ]
        return "".join(json.dumps(line) + "\n" for line in lines)

    logs = [RankLog.parsed(text(clock)) for clock in (100.0, 90_000.0)]
    for log in logs:
        assert (log.rows[0][0], log.power["at"]) == (5.0, 6.0)
        assert log.marks == {"launcher": 0.0, "process": 1.0}


def metered(log: RankLog, host: int, joules: float | None, **model: Any) -> RankLog:
    """A rank with counters; the reading is 2 s after the first step."""
    log.model["counters"] = {"device": 0, "host": host, "missing": [], **model}
    if joules is not None:
        log.power = {"at": log.rows[0][0] + 2.0, "host_joules": joules}
    return log


def test_energy_is_the_mean_power_for_as_long_as_the_steps_that_count_took() -> None:
    # two ranks of one host, and one of another
    logs = [metered(rank([1.0] * 6), host, joules) for host, joules in ((1, 20), (1, 18), (2, 10))]
    found = measured(logs)
    power = found[EpochFinished].power
    assert power.host_joules == pytest.approx([40.0, 36.0, 20.0])
    assert len(set(power.hosts)) == 2
    assert once(power.hosts, power.host_joules) == pytest.approx(60.0)
    assert found[ScriptMeasured].without_energy == ""


def test_devices_have_an_energy_and_a_share_in_which_they_are_busy() -> None:
    log = metered(rank([1.0] * 6), 1, 9.0, device=10)
    log.power |= {"device_joules": 3.0, "device_busy": 0.5}
    power = measured([log])[EpochFinished].power
    assert (power.devices, power.hosts) == (["00000000000a"], ["000000000001"])
    assert (power.device_joules, power.device_busy) == ([6.0], [0.5])
    assert power.host_joules == [18.0]
    assert measured([metered(log, 0, 9.0, device=10)])[EpochFinished].power.hosts == [""]
    log.power["at"] = log.rows[0][0]
    assert measured([log])[EpochFinished].power.host_joules == [None], "read at the first step"


def test_why_there_is_no_energy_names_the_hosts() -> None:
    first, second = rank([1.0] * 6), rank([1.0] * 6)
    second.begin["host"] = "b"
    logs = [metered(first, 1, 9.0), metered(second, 0, None, missing=["no counter"])]
    found = measured(logs)
    assert found[ScriptMeasured].without_energy == "no counter (b)"
    third = metered(rank([1.0] * 6), 0, None, missing=["no counter"])
    several = measured([logs[1], third, logs[1]])[ScriptMeasured]
    assert several.without_energy == "no counter (a, b)"
    power = found[EpochFinished].power
    assert once(power.hosts, power.host_joules) is None
    assert measured([metered(rank([1.0] * 6), 0, None)])[EpochFinished].power is None
    unread = measured([metered(rank([0.1] * 6), 1, None)])[ScriptMeasured]
    assert "within a second" in unread.without_energy
    assert measured([rank([1.0] * 6)])[ScriptMeasured].without_energy == ""
    apart = [metered(rank([1.0] * 6), 1, 9.0), rank([1.0] * 6)]
    assert measured(apart)[EpochFinished].power is None, "one rank reads no counters"


# The check of the first steps.


def checked(*ranks: dict[str, Any]) -> list[RankLog]:
    logs = []
    for place, changes in enumerate(ranks):
        log = rank([1.0] * 4)
        log.model |= {"names": ["a.weight", "a.bias"], "layers": [], "rates": [0.1]}
        log.model |= {key: changes.pop(key) for key in MODEL & changes.keys()}
        log.checks = [
            {
                "step": step,
                "parameters": [f"w{step}", f"b{step}"],
                "sharded": False,
                "random": str(place),
                "samples": 10 * step + place,
                "loss": 1.0 / step,
                **{name: of(step) if callable(of) else of for name, of in changes.items()},
            }
            for step in (1, 2)
        ]
        logs.append(log)
    return logs


MODEL = {"layers", "rates", "pass_samples"}


def alone(**changes: Any) -> ScriptMeasured:
    found = measured([rank([1.0] * 4)])[ScriptMeasured]
    own = {
        "samples_per_step": 16,
        "first_losses": [1.0, 0.5],
        "first_samples": [21, 41],
        "first_rates": [0.1],
    }
    return found.model_copy(update=own | changes)


def judged(logs: list[RankLog], *references: ScriptMeasured, given: int | None = None) -> Any:
    return verdict("id", logs, steps_of(logs, 1), given, references)


def of_rank_0(step: int) -> int:
    return 10 * step


EQUAL = "all ranks' parameters are bitwise equal"
SAME_LOSSES = "losses equal those of one worker on the same global batch"


def test_equal_ranks_with_the_losses_of_one_worker_pass() -> None:
    logs = checked({}, {})
    found, notes = judged(logs, alone(), alone())
    assert (found.passed, found.ranks_equal, found.error, notes) == (True, True, 0.0, [])
    assert (found.workers, found.steps) == (2, 2)
    assert found.rule == f"after each of the first steps: {EQUAL} and {SAME_LOSSES}"
    logs[1].checks.pop()
    assert judged(logs, alone(first_samples=[21]))[0].steps == 1
    unknown, _ = judged(checked({}, {}))
    assert unknown.rule == f"after each of the first steps: {EQUAL}"
    for log in logs:
        log.checks = []
    assert judged(logs, alone())[0] is None


def test_a_rank_with_fewer_parameters_is_refused() -> None:
    for second in (["w1"], ["w1", "b1", "x1"]):
        found, _ = judged(checked({}, {"parameters": second}), alone())
        assert (found.passed, found.ranks_equal) == (False, False)
        assert "rank 1 from rank 0 after step 1" in found.message


def test_shards_with_the_losses_of_one_worker_pass() -> None:
    found, notes = judged(checked({"sharded": True}, {"sharded": True}), alone())
    assert (found.passed, found.error) == (True, 0.0)
    assert found.rule == f"after each of the first steps: {SAME_LOSSES}"
    assert [note.partition(",")[0] for note in notes] == ["equality of parameters is not decidable"]
    wrong, _ = judged(checked({"sharded": True, "loss": 9.0}, {"sharded": True}), alone())
    assert (wrong.passed, wrong.ranks_equal) == (False, True)


@pytest.mark.parametrize(
    ("second", "references", "words"),
    [
        ({"parameters": ["w1", "x"]}, [], "rank 1 from rank 0 after step 1, in a.bias"),
        ({"samples": of_rank_0}, [], "ranks 0, 1 train on the same samples in the first 2 steps"),
        ({"loss": 0.9}, [alone()], "losses differ"),
    ],
)
def test_seeded_defects_are_refused(second: Any, references: Any, words: str) -> None:
    found, _ = judged(checked({}, second), *references)
    assert not found.passed
    assert words in found.message


@pytest.mark.parametrize(
    ("second", "of_one", "error"),
    [
        (0.9, [1.0, 0.5], 0.4),  # means of two ranks of 0.95 and 0.7
        (0.1, [1.0, 0.5], 0.45),  # 0.55 and 0.3
        (-3.0, [-2.0, -1.0], 0.5),  # -1 and -1.25
    ],
)
def test_an_error_is_the_largest_relative_difference_of_a_mean_loss(
    second: float, of_one: list[float], error: float
) -> None:
    references = (alone(first_losses=[]), alone(first_losses=of_one))
    found, _ = judged(checked({}, {"loss": second}), *references)
    assert found.error == pytest.approx(error)


@pytest.mark.parametrize(
    ("both", "references", "words"),
    [
        ({"loss": None}, [alone()], "does not call backward"),
        ({}, [], "no run with one worker"),
        ({"layers": ["BatchNorm2d"]}, [alone()], "BatchNorm2d"),
        ({}, [alone(samples_per_step=8)], "another global batch"),
        ({"rates": [0.2]}, [alone()], "another learning rate"),
        ({}, [alone(), alone(first_losses=[1.0, 0.4])], "between repeats"),
        ({"loss": 0.9}, [alone(first_samples=[21, 40])], "not known whether the run"),
        ({"loss": 0.9, "samples": 0}, [alone(first_samples=[0, 0])], "not known whether the run"),
    ],
)
def test_losses_that_cannot_be_compared_are_not_decidable(
    both: Any, references: Any, words: str
) -> None:
    found, notes = judged(checked(dict(both), dict(both)), *references)
    assert found.passed
    assert words in notes[-1]
    assert math.isnan(found.error)


def test_losses_on_an_unknown_number_of_samples_are_not_decidable() -> None:
    logs = checked({}, {})
    for row in logs[0].rows:
        row[3] = None
    found, notes = judged(logs, alone())
    assert found.passed
    assert "another global batch" in notes[-1]


def test_shards_without_losses_are_not_decidable_at_all() -> None:
    shards = {"sharded": True, "loss": None}
    assert judged(checked(dict(shards), dict(shards)))[0] is None
    same = shards | {"samples": of_rank_0}
    assert not judged(checked(dict(same), dict(same)))[0].passed


def test_the_same_random_numbers_in_dropout_are_allowed_and_named() -> None:
    same = {"random": "0", "layers": ["Dropout"]}
    found, notes = judged(checked(dict(same), dict(same)))
    assert found.passed
    assert "same random numbers" in notes[-1]
    for others in ({"layers": ["Dropout"]}, {"random": "0", "layers": ["BatchNorm2d"]}):
        _, notes = judged(checked(dict(others), dict(others)))
        assert not any("same random numbers" in note for note in notes)


@pytest.mark.parametrize(("given", "passes"), [(None, False), (16, False), (8, True)])
def test_ranks_may_share_samples_that_the_user_counts_once(given: int | None, passes: bool) -> None:
    logs = checked({}, {"samples": of_rank_0})
    found, _ = judged(logs, given=given)
    assert found.passed == passes
    assert "ranks 0, 1 train on the same samples" in found.message


def test_two_of_four_ranks_with_the_same_samples_are_refused() -> None:
    found, _ = judged(checked({}, {}, {}, {"samples": lambda step: 10 * step + 1}))
    assert not found.passed
    assert "ranks 1, 3 train on the same samples" in found.message


def test_ranks_that_read_no_samples_are_not_compared() -> None:
    unread = {"samples": 0}
    _, notes = judged(checked(dict(unread), dict(unread)))
    assert notes[0].startswith("samples are not compared")
    found, notes = judged(checked({}, dict(unread), dict(unread)))
    assert found.passed
    assert not any("samples are not compared" in note for note in notes)


def test_samples_of_ranks_that_repeat_them_are_not_decidable() -> None:
    found, notes = judged(checked({"samples": 7}, {"samples": 7}))
    assert found.passed
    assert "not decidable" in notes[0]


@pytest.mark.parametrize(("each", "named"), [(1000, True), (504, False), (None, False)])
def test_ranks_that_pass_over_the_whole_data_set_are_named(each: int | None, named: bool) -> None:
    own = {"pass_samples": each}
    references = alone(pass_samples=None), alone(pass_samples=1000)
    found, notes = judged(checked(dict(own), dict(own)), *references)
    assert found.passed
    assert any("whether samples are divided" in note for note in notes) == named
    for logs, one in (
        (checked(dict(own), dict(own)), None),
        (checked(own | {"samples": of_rank_0}, own | {"samples": of_rank_0}), 1000),  # wrong anyway
    ):
        _, notes = judged(logs, alone(pass_samples=one))
        assert not any("whether samples are divided" in note for note in notes)


@pytest.mark.parametrize(("warmup", "advice"), [(0, False), (1, False), (2, True)])
def test_fewer_steps_of_warm_up_are_advised_where_there_can_be_fewer(
    warmup: int, advice: bool
) -> None:
    told = too_few(steps_of([rank([1.0])], warmup), warmup, 0)
    assert f"of which the first {max(1, warmup)} are the warm-up" in told
    assert ("or give fewer --warmup-steps" in told) == advice
