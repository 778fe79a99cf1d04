"""What bounds rows whose parts are known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from raysuite.perf.calibration import Calibration
from raysuite.perf.explanation import Explained, explain
from raysuite.records import (
    Record,
    RunFigures,
    RunStarted,
    ScriptMeasured,
    TimeShares,
    make_rows,
    run_figures,
)
from raysuite.records.names import Plan
from tests.fake_calibration import TRUTH, calibration_of, plans, records, seconds


def explained(
    plan: Plan, *more: Record, calibration: Calibration | None = None, **epoch: Any
) -> Explained:
    own = [
        each.model_copy(update=epoch) if each.kind == "epoch_finished" else each
        for each in records(plan, 0.0)
    ]
    run: RunFigures = run_figures(plan, [own[0], *more, *own[1:]])
    return explain(make_rows([run]), calibration)[0]


def of(strategy: str, workers: int) -> Plan:
    return next(
        plan
        for plan in plans("[[64, 1]]")
        if plan["spec"]["strategy"]["name"] == strategy and plan["workers"] == workers
    )


def shares(
    computation: list[float], communication: list[float], data: list[float] | None = None
) -> TimeShares:
    loads = data or [0.0] * len(computation)
    return TimeShares(
        run_id="",
        steps=10,
        warmup_steps=2,
        window_seconds=[1.0] * len(computation),
        computation_seconds=computation,
        communication_seconds=communication,
        communication_exposed_seconds=communication,
        data_seconds=loads,
        data_exposed_seconds=loads,
        seconds=1.0,
    )


def test_one_process_without_waits_computes() -> None:
    found = explained(of("single", 1))
    assert found.binding == "computation"
    assert found.shares == {"computation": 1.0}
    assert found.limit("computation") is None


def test_waits_for_the_loader() -> None:
    plan = of("single", 1)
    took = records(plan, 0.0)[2].seconds  # type: ignore[union-attr]
    found = explained(plan, data_wait_seconds=[0.7 * took])
    assert found.binding == "loader"
    assert found.shares["loader"] == pytest.approx(0.7)
    assert found.limit("loader") == pytest.approx(found.throughput / 0.3)


def test_the_term_that_binds_is_the_first_also_where_computation_is_barely_larger() -> None:
    plan = of("single", 1)
    took = records(plan, 0.0)[2].seconds  # type: ignore[union-attr]
    found = explained(plan, data_wait_seconds=[0.499 * took])
    assert (found.binding, *found.shares) == ("loader", "loader", "computation")


def test_a_rank_for_which_the_other_waits() -> None:
    found = explained(of("ddp", 2), shares([0.3, 0.95], [0.68, 0.03]))
    assert found.binding == "straggler"
    assert found.first.startswith("the slowest worker's node: ")
    assert found.shares["straggler"] == pytest.approx(0.65)
    assert found.shares["exposed communication"] == pytest.approx(0.03)


def test_communication_for_which_both_wait() -> None:
    found = explained(of("ddp", 2), shares([0.3, 0.35], [0.68, 0.63]))
    assert found.binding == "exposed communication"
    assert found.shares["straggler"] == pytest.approx(0.05)


@pytest.mark.parametrize("hosts", [["a", "a"], ["a", "b"]])
def test_what_a_script_can_change(hosts: list[str]) -> None:
    script = ScriptMeasured(
        run_id="",
        steps=9,
        left_out=0,
        samples_per_step=8,
        steps_per_second=1,
        parameters=1,
        hosts=hosts,
        start_seconds={},
    )
    plan = of("ddp", 2)
    tied = explained(plan, script).first
    assert tied == "--profile, which separates computation from communication"
    computes = explained(plan, script, shares([0.9, 0.9], [0.1, 0.1])).first
    assert computes == "more workers, or a smaller network: nothing takes longer than computation"
    sends = explained(plan, script, shares([0.3, 0.3], [0.7, 0.7])).first
    assert sends.startswith("a larger batch per worker, gradients in 16 bits")
    assert ("fewer nodes (--placement pack)" in sends) == (len({*hosts}) > 1)
    waits = explained(plan, script, shares([0.3, 0.95], [0.68, 0.03]))
    assert waits.first.startswith(f"rank 1 on {hosts[1]}, for which others wait: ")
    nodes = ", 2 nodes" if len({*hosts}) > 1 else ""
    named = ", rank 1 waits least for the others"
    assert waits.evidence == f"waits for the loader, profile{named}{nodes}, other rows"
    for apart, said in ((0.045, ""), (0.055, named)):
        nearly = explained(plan, script, shares([0.9, 0.9], [0.1, 0.1 - apart]))
        assert nearly.evidence == f"waits for the loader, profile{said}{nodes}, other rows"


def test_smaller_buckets_are_advised_where_one_holds_all_gradients_of_gpus() -> None:
    plan = of("ddp", 2)
    own = [records(plan, 0.0)[0], shares([0.3, 0.3], [0.7, 0.7]), *records(plan, 0.0)[1:]]
    for device, bucket_mb, known, words in (
        ("gpu", 25, True, "smaller buckets (strategy.bucket_mb)"),
        ("gpu", 1, True, "a larger batch per worker, 16-bit gradients"),  # of 1.03 MiB
        ("gpu", 25, False, "a larger batch per worker, 16-bit gradients"),
        ("cpu", 25, True, "a larger batch per worker, 16-bit gradients"),
    ):
        strategy = {**plan["spec"]["strategy"], "bucket_mb": bucket_mb}
        spec = {**plan["spec"], "strategy": strategy}
        run = run_figures({**plan, "device": device, "spec": spec}, own)
        run = run if known else replace(run, costs=None)
        assert explain(make_rows([run]))[0].first.startswith(words)


def test_communication_that_nothing_tells_apart_is_not_called_computation() -> None:
    found = explained(of("ddp", 2))
    assert found.shares == {"computation or communication": 1.0}
    assert found.first.startswith("measure the same variant on one worker, or measure.profile")
    rows = make_rows(
        [run_figures(plan, records(plan, 0.0)) for plan in (of("ddp", 1), of("ddp", 2))]
    )
    one, two = sorted(explain(rows), key=lambda each: each.name)
    assert one.shares == {"computation": 1.0}
    lost = 1 - seconds(of("ddp", 1)) / seconds(of("ddp", 2)) / 2  # the efficiency of two
    assert two.shares == pytest.approx({"computation": 1 - lost, "exposed communication": lost})


def test_a_calibration_tells_apart_what_a_profile_does_not() -> None:
    """Of an epoch of 23 steps by two workers, with costs that are known."""
    plan = of("ddp", 2)
    costs = {**TRUTH, "load/native": 0.0}
    known, whole = calibration_of(costs), seconds(plan)
    overhead = 23 * (4e-3 + 1e-3 + 5e-4) / whole  # of passes, updates and steps
    sent = 23 * 1_080_000 * 1e-9 / whole  # each worker sends as many bytes as gradients have
    expected = {"overhead of a step": overhead, "exposed communication": sent}
    found = explained(plan, calibration=known)
    assert found.shares == pytest.approx({**expected, "computation": 1 - overhead - sent})
    assert found.evidence.endswith("calibration")
    # what a profile measured stays, and the overhead has at most what that leaves
    for exposed in (0.1, 0.9):
        profiled = explained(plan, shares([0.0] * 2, [exposed] * 2), calibration=known)
        left = min(overhead, 1 - exposed)
        assert profiled.shares["exposed communication"] == pytest.approx(exposed)
        assert profiled.shares["overhead of a step"] == pytest.approx(left)


def test_the_loader_of_the_slowest_rank_counts_where_its_waits_were_shorter() -> None:
    """Rank 1 waits least for the others."""
    plan = of("ddp", 2)
    profile = shares([0.1, 0.3], [0.6, 0.2], [0.1, 0.4])
    wait = 0.25 * seconds(plan)
    found = explained(plan, profile, data_wait_seconds=[wait, wait])
    assert found.shares == pytest.approx(
        {"loader": 0.4, "straggler": 0.4, "exposed communication": 0.2, "computation": 0}
    )
    assert explained(plan, profile, data_wait_seconds=[2 * wait] * 2).shares["loader"] == (
        pytest.approx(0.5 / 1.1)  # of 1.1 in all
    )


def test_the_overhead_of_a_step_is_without_its_communication() -> None:
    several = [plan for plan in plans("[[64, 1], [256, 1]]") if "ddp" in str(plan["spec"])]
    rows = make_rows([run_figures(plan, records(plan, 0.0)) for plan in several])
    found = next(each for each in explain(rows) if "2 workers · global_batch=64" in each.name)
    took = {(p["workers"], p["global_batch"]): seconds(p) for p in several}
    sent = 1 - took[1, 64] / took[2, 64] / 2
    steps = {images: took[2, 2 * images] * 2 * images / 1437 for images in (32, 128)}
    fixed = 1 - (steps[128] - steps[32]) / 96 * 32 / steps[32]
    assert found.shares["exposed communication"] == pytest.approx(sent)
    assert found.shares["overhead of a step"] == pytest.approx(fixed - sent)


def test_other_programs_take_the_processors() -> None:
    started = RunStarted(run_id="", plan={}, environment={"cpu": {"logical_cores": 2}})
    found = explained(of("ddp", 2), started, other_cores=[1.5, 1.5])
    assert found.binding == "other programs"
    assert found.shares["other programs"] == pytest.approx(0.75)
    idle = explained(of("single", 1), started, other_cores=[0.9])
    assert idle.binding == "computation"
    assert idle.first == "1 of 2 processors is idle: try resources.workers=2 with strategy=ddp"


def test_workers_that_are_another_row_are_no_advice() -> None:
    several = [plan for plan in plans("[[64, 1]]") if plan["spec"]["strategy"]["name"] == "ddp"]
    assert {plan["workers"] for plan in several} == {1, 2}
    started = RunStarted(run_id="", plan={}, environment={"cpu": {"logical_cores": 2}})

    def figures(plan: Plan) -> RunFigures:
        begun, *others = records(plan, 0.0)
        return run_figures(plan, [begun, started, *others])

    [one, two] = sorted(several, key=lambda plan: int(plan["workers"]))
    [alone] = explain(make_rows([figures(one)]))
    assert alone.first == "1 of 2 processors is idle: try resources.workers=2"
    first, second = explain(make_rows([figures(one), figures(two)]))
    assert (first.binding, first.first) == ("computation", "")
    assert second.first


def test_a_tiny_batch_by_rows_that_differ_in_it() -> None:
    several = [plan for plan in plans("[[2, 1], [256, 1]]") if plan["workers"] == 1]
    for plan in several:  # what may follow from a batch makes no other series of them
        batch = plan["global_batch"]
        optimizer = {**plan["spec"]["optimizer"], "lr": 0.001 * batch}
        plan["spec"] |= {"optimizer": optimizer, "seed": batch}
    rows = make_rows([run_figures(plan, records(plan, 0.0)) for plan in several])
    found = {row.name: row for row in explain(rows)}
    tiny, large = (
        next(row for name, row in found.items() if f" · global_batch={batch} · " in name)
        for batch in (2, 256)
    )
    assert tiny.binding == "overhead of a step"
    assert tiny.shares["overhead of a step"] == pytest.approx(5e-3 / 6e-3, rel=0.05)
    assert large.binding == "computation"


def test_four_ranks_and_other_programs_by_hand() -> None:
    """Rank 1 waits least; others wait for it by the median of what they wait for more. Of four
    processors 40 % are wanted by the ranks, and 3.2 by others, which is 0.8 of four too many."""
    cpus = RunStarted(run_id="", plan={}, environment={"cpu": {"logical_cores": 4}})
    profile = shares([0.1] * 4, [0.9, 0.2, 0.4, 0.5], [0.3, 0.1, 0.0, 0.0])
    found = explained({**of("ddp", 2), "workers": 4}, cpus, profile, other_cores=[0.5, 3.2])
    expected = {"straggler": 0.3, "exposed communication": 0.2, "loader": 0.1}
    expected |= {"other programs": 0.2, "computation": 0.2}
    assert found.shares == pytest.approx(expected)
    assert next(iter(found.shares)) == found.binding == "straggler"
    assert found.evidence == "waits for the loader, profile, other rows"


def test_of_two_equal_shares_the_one_that_can_be_changed_binds() -> None:
    plan = of("single", 1)
    found = explained(plan, data_wait_seconds=[0.5 * seconds(plan)])
    assert (found.binding, found.shares) == (
        "loader",
        pytest.approx({"loader": 0.5, "computation": 0.5}),
    )
    assert found.unit == "images"
    whole = explained(plan, data_wait_seconds=[seconds(plan)])
    assert (whole.limit("loader"), whole.limit("computation")) == (math.inf, None)


def test_what_a_pipeline_loses_is_taken_from_its_simulation() -> None:
    plan = of("ddp", 2)
    strategy = {"name": "pipeline", "schedule": "gpipe", "micro_batches": 4, "stages": 2}
    counts = {"accumulate": 4, "micro_batch": 16}
    plan = {**plan, **counts, "spec": {**plan["spec"], "strategy": strategy}, "label": {}}
    rows = make_rows([run_figures(plan, records(plan, 0.0))])
    [found] = explain(rows, idle={plan["run_id"]: (0.3, 0.2)})
    lost = {"bubble": 0.3, "imbalance": 0.2, "computation": 0.5}
    assert found.shares == pytest.approx(lost)
    [other] = explain(rows, idle={"another": (0.3, 0.2)})
    assert other.shares["bubble"] == pytest.approx((2 - 1) / (4 + 2 - 1))


def test_a_pipeline_with_one_micro_batch_idles() -> None:
    plan = of("ddp", 2)
    strategy = {"name": "pipeline", "schedule": "gpipe", "micro_batches": 1, "stages": 2}
    spec = {**plan["spec"], "strategy": strategy}
    found = explained({**plan, "spec": spec, "label": {}})
    assert found.binding == "bubble"
    assert found.shares["bubble"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("cores", "each", "changes", "advice"),
    [
        (1, 1, {}, "more than these 1 processors, or a smaller network"),
        (3, 1, {}, "2 of 3 processors are idle: try resources.workers=3 with strategy=ddp"),
        (3, 2, {}, "1 of 3 processors is idle: try resources.cpus_per_worker=3"),
        (4, 1, {"device": "gpu"}, "training.precision=bf16"),
        (4, 1, {"device": "gpu", "precision": "bf16"}, "more workers with strategy=ddp, or a "),
        (None, 1, {}, "more workers with strategy=ddp, or a smaller network: nothing takes "),
    ],
)
def test_what_can_be_changed_where_computation_takes_all_the_time(
    cores: int | None, each: int, changes: dict[str, str], advice: str
) -> None:
    plan = of("single", 1)
    spec = {
        **plan["spec"],
        "resources": {**plan["spec"]["resources"], "cpus_per_worker": each},
        "training": {**plan["spec"]["training"], "precision": changes.get("precision", "fp32")},
    }
    environment = {"cpu": {"logical_cores": cores}} if cores else {}
    started = RunStarted(run_id="", plan={}, environment=environment)
    device = changes.get("device", plan["device"])
    found = explained({**plan, "spec": spec, "device": device}, started)
    assert (found.binding, found.shares) == ("computation", {"computation": 1.0})
    assert found.first.startswith(advice)


def test_a_full_pipeline_has_no_bubble() -> None:
    plan = of("ddp", 2)
    strategy = {"name": "pipeline", "schedule": "pipedream", "micro_batches": 1, "stages": 2}
    found = explained({**plan, "spec": {**plan["spec"], "strategy": strategy}, "label": {}})
    assert found.shares == {"computation": 1.0}
    assert found.evidence == "waits for the loader, schedule"
