"""Calibrations of runs whose costs are known, and what is predicted from them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from raysuite.errors import UserError
from raysuite.perf.calibration import (
    Calibration,
    Errors,
    Model,
    Range,
    Simulated,
    _middle,
    _separable,
    calibrate,
    fit,
    memory_of,
    neighbours,
    observed,
    resident_before,
)
from raysuite.perf.costs import (
    best_checkpoint_interval,
    expected_run_seconds,
    strategy_kind,
    work_name,
)
from raysuite.perf.prediction import predict
from raysuite.perf.recommendation import rank
from raysuite.records import RunFigures, RunFinished
from raysuite.records.names import Plan, run_name
from raysuite.records.predicted import Interval
from raysuite.spec.tasks import CLASSIFICATION
from tests.fake_calibration import (
    HELD_OUT,
    NAME,
    SEEN,
    TRUTH,
    WORK,
    calibration_of,
    measured,
    plans,
    seconds,
)
from tests.fake_results import ENVIRONMENT


@pytest.fixture(scope="module")
def exact() -> Calibration:
    return calibrate([measured(plan) for plan in plans(SEEN)], ["made-up"])


def test_exact_runs_are_predicted_exactly(exact: Calibration) -> None:
    held_out = plans(HELD_OUT)
    assert len(held_out) == 20
    for plan, each in zip(held_out, predict(held_out, exact, "x.yaml"), strict=True):
        assert each.epoch_seconds is not None
        assert each.epoch_seconds.value == pytest.approx(seconds(plan), rel=1e-3)
        assert each.memory_bytes is not None
        held = 5e8 + 1e6 * plan["micro_batch"] + (2e8 if plan["workers"] > 1 else 0)
        assert each.memory_bytes.value == pytest.approx(held, rel=1e-3)
        assert sum(each.shares.values()) == pytest.approx(1)
        assert each.outside == ()


def test_a_calibration_keeps_what_was_measured(exact: Calibration) -> None:
    assert exact.machine == {
        name: ENVIRONMENT[name]
        for name in ("platform", "cpu", "memory_bytes", "gpus", "fingerprint")
    }
    assert (exact.sources, exact.runs, exact.works) == (("made-up",), 20, {NAME: WORK})
    assert (exact.workers_per_node, exact.processors, exact.gpus) == (2, 2, 0)
    one, both = Range(low=1, high=1), Range(low=1, high=2)
    samples = Range(low=16, high=256)
    assert exact.ranges == {
        NAME: {"workers": both, "samples per worker and step": samples, "micro_batch": samples},
        "single": {"workers": one},
        "ddp": {"workers": both},
        "horovod": {"workers": both},
    }
    assert exact.resident == 4e8
    assert exact.start == Interval(1.0, 1.0, 1.0)
    assert exact.repeats is exact.joules is exact.pipelines is None
    assert (exact.blocks, exact.operations, exact.operation) == ({}, {}, 0)


def test_runs_that_tell_no_costs_and_busy_epochs_are_left_out() -> None:
    run = measured(plans(SEEN)[0])
    first, second = run.epochs
    assert run.costs is not None
    assert run.costs.counted is not None
    uncounted = run.costs.counted.model_copy(update={"parameters": None})
    odd = [
        replace(run, status="failed"),
        replace(run, throughput=None),
        replace(run, costs=None),
        replace(run, costs=replace(run.costs, counted=uncounted)),
        replace(run, plan=piped(run.plan)),
        replace(run, epochs=(first.model_copy(update={"steady_images": 0}),)),
    ]
    assert [each.run for each in observed([*odd, run])] == [run]
    slow = {"steady_seconds": 2 * second.steady_seconds, "other_cores": [0.25, 0.5]}
    busy = replace(run, epochs=(first, second.model_copy(update=slow)))
    for most, epochs, factor in ((0.5, busy.epochs, 1.5), (0.4, (first,), 1.0)):
        [found] = observed([busy], most)
        assert (found.quiet, found.work) == (epochs, WORK)
        assert found.seconds == pytest.approx(factor * seconds(run.plan))


def test_runs_of_other_networks_are_no_repeats_even_if_their_names_are_equal() -> None:
    def calibrated(**other: str) -> Calibration:
        known = plans(SEEN) + plans(SEEN, **other)
        return calibrate([measured(plan, 0.01) for plan in known], [])

    assert calibrated(resnet20="resnet32").repeats is None
    assert calibrated(**{"name: made-up": "name: made-up\nseed: 1"}).repeats is not None


def test_a_batch_is_left_out_only_if_other_runs_have_its_costs() -> None:
    one_batch = calibrate([measured(plan) for plan in plans("[[64, 1]]")], ["made-up"]).seconds
    assert one_batch.left_out is None
    assert {each.without_it for each in one_batch.residuals} == {None}
    known = [measured(plan, 0.03) for plan in plans(SEEN)]
    lone = measured(plans("[[64, 1]]", resnet20="resnet32")[0])
    without, found = (calibrate(runs, []).seconds for runs in (known, [*known, lone]))
    assert found.left_out is not None
    assert found.left_out.largest < 0.5
    assert found.sigma == pytest.approx(without.sigma, rel=0.2)
    different = fit([{"a": 1.0}, {"b": 1.0}], [2.0, 3.0], ["x", "y"], ["x", "y"])
    assert (different.sigma, different.left_out) == (1.0, None)


def test_intervals_cover_noisy_runs() -> None:
    found = calibrate([measured(plan, 0.03) for plan in plans(SEEN)], ["made-up"])
    held_out = plans("[[40, 1], [48, 1], [64, 1], [80, 1], [112, 1], [128, 2], [160, 1], [192, 1]]")
    inside = 0
    for plan, each in zip(held_out, predict(held_out, found, "x.yaml"), strict=True):
        assert each.epoch_seconds is not None
        inside += (
            each.epoch_seconds.low <= measured(plan, 0.03).epoch_seconds <= each.epoch_seconds.high
        )
    assert 0.8 <= inside / len(held_out) <= 1


def test_a_calibration_is_read_as_it_was_written(exact: Calibration, tmp_path: Path) -> None:
    exact.write(tmp_path / "c.yaml")
    assert Calibration.read(tmp_path / "c.yaml") == exact
    (tmp_path / "d.yaml").write_text("costs: 1")
    with pytest.raises(UserError, match="raysuite calibrate"):
        Calibration.read(tmp_path / "d.yaml")


def test_a_calibration_of_another_format_is_refused(exact: Calibration, tmp_path: Path) -> None:
    exact.model_copy(update={"format": 1}).write(tmp_path / "c.yaml")
    with pytest.raises(UserError, match=r"format: Input should be 2; make one with `raysuite cal"):
        Calibration.read(tmp_path / "c.yaml")


def test_out_of_range_is_marked_and_the_unseen_is_not_predicted(exact: Calibration) -> None:
    large = predict(plans("[[1024, 1]]"), exact, "x.yaml")
    assert all(each.outside for each in large)
    other = predict(plans("[[64, 1]]", resnet20="resnet32"), exact, "x.yaml")
    assert all(each.throughput is None and "resnet32" in each.message for each in other)
    more = plans("[[64, 1]]", **{"[ddp, 2]": "[ddp, 4]"})
    messages = [each.message for each in predict(more, exact, "x.yaml")]
    assert any("2 workers on one node" in message for message in messages)


def test_sequences_of_an_unknown_length_have_no_throughput(exact: Calibration) -> None:
    known = plans("[[64, 1]]")
    tokens = CLASSIFICATION.model_copy(update={"unit": "tokens"}).model_dump(mode="json")
    for plan, each in zip(known, predict(known, exact, "x.yaml"), strict=True):
        assert each.throughput is not None
        [found] = predict([{**plan, "task": tokens}], exact, "x.yaml")
        assert (found.throughput, found.epoch_seconds) == (None, each.epoch_seconds)


def test_speed_ups_are_against_one_worker(exact: Calibration) -> None:
    found = predict(plans("[[64, 1]]"), exact, "x.yaml")
    pairs = [each for each in found if each.speed_up is not None]
    assert len(pairs) == 2
    for each in pairs:
        base = found[[run_name(plan) for plan in plans("[[64, 1]]")].index(each.baseline)]
        own, other = each.throughput, base.throughput
        assert own is not None
        assert other is not None
        assert each.speed_up is not None
        assert each.speed_up.value == pytest.approx(own.value / other.value)
        assert each.efficiency.value == pytest.approx(own.value / other.value / 2)
        # independent errors add in squares, on the logarithm
        reach = math.hypot(*(math.log(one.high / one.value) for one in (own, other)))
        assert math.log(each.speed_up.high / each.speed_up.value) == pytest.approx(reach)
        assert math.log(each.speed_up.value / each.speed_up.low) == pytest.approx(reach)
    assert all(each.efficiency and each.efficiency.value < 1 for each in pairs)
    assert all("1 worker" in each.baseline for each in pairs)


def test_ranks_and_ties(exact: Calibration) -> None:
    known = plans("[[64, 1], [256, 1]]")
    ranked = rank(known, predict(known, exact, "x.yaml"))
    epochs = [choice.epoch.value for choice in ranked]
    assert epochs == sorted(epochs) == pytest.approx(sorted(map(seconds, known)), rel=1e-3)
    assert strategy_kind(ranked[0].plan) == "ddp"
    assert ranked[0].tied
    assert not ranked[-1].tied
    assert all(
        choice.efficiency is None or choice.efficiency >= 0.9
        for choice in rank(known, predict(known, exact, "x.yaml"), least_efficiency=0.9)
    )


def test_a_machine_is_as_large_as_it_was_described(exact: Calibration) -> None:
    for machine, processors, gpus in (
        ({}, 2, False),
        ({"cpu": {"logical_cores": 8}, "gpus": []}, 8, False),
        ({"cpu": {"logical_cores": None}, "gpus": [{}]}, 2, True),
    ):
        found = exact.model_copy(update={"machine": machine})
        assert (found.processors, found.gpus > 0) == (processors, gpus)


def test_the_rest_of_a_run_is_its_median_and_nearly_its_extremes() -> None:
    # of 21 values, the second and the last but one
    assert _middle([*range(20, -1, -1)]) == Interval(10.0, 1.0, 19.0)
    assert _middle([]) == Interval(0.0, 0.0, 0.0)


def test_memory_is_that_of_the_device_or_else_of_the_process() -> None:
    run = measured(plans(SEEN)[0])
    for device, process, grown, most, before in (
        (7, 5, 2, 7.0, 0.0),
        (None, 5, 2, 5.0, 3.0),
        (None, 5, None, 5.0, 0.0),
        (None, None, None, 0.0, 0.0),
    ):
        found = replace(
            run, peak_device_bytes=device, peak_process_bytes=process, grown_process_bytes=grown
        )
        assert (memory_of(found), resident_before(found)) == (most, before)


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(UserError, match="at least 4"):
        calibrate([measured(plans(SEEN)[0])], [])


def test_the_published_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    from prediction import ddlbench_data_parallel

    # W = 4, one buffer of 8 MB at 1 GB/s: 2 * 3 * (1 ms + 2 ms) beside a quarter of the work
    assert ddlbench_data_parallel(1.0, 4, 8e6, 64e6, 1e-3, 1e9) == pytest.approx(0.25 + 0.018)
    assert ddlbench_data_parallel(1.0, 1, 8e6, 64e6, 1e-3, 1e9) == 1.0
    # of buffers of 4 MB the last one alone is waited for
    assert ddlbench_data_parallel(1.0, 4, 8e6, 4e6, 1e-3, 1e9) == pytest.approx(0.25 + 6 * 2e-3)


def test_failures_cost_most_where_checkpoints_are_rare() -> None:
    day, mtbf = 86400.0, 4 * 3600.0
    best = best_checkpoint_interval(30, mtbf)
    assert best == pytest.approx(929.5, abs=0.1)  # sqrt(2 * 30 s * 4 h)
    # Daly 2006, equation 13: M e^(R/M) (e^((tau + delta)/M) - 1) Ts / tau
    daly = mtbf * math.exp(120 / mtbf) * (math.exp(3630 / mtbf) - 1) * day / 3600
    assert expected_run_seconds(day, 3600, 30, mtbf, 120) == pytest.approx(daly)
    assert expected_run_seconds(day, 3600, 30, 1.0, 0) == math.inf
    times = [
        expected_run_seconds(day, every, 30, mtbf, 120) for every in (best / 8, best, best * 8)
    ]
    assert times[1] == min(times)
    assert expected_run_seconds(day, 3600, 30, math.inf, 120) == pytest.approx(
        day * (1 + 30 / 3600)
    )
    assert expected_run_seconds(day, 3600, 30, 1e9, 120) == pytest.approx(
        day * 3630 / 3600, rel=1e-3
    )


@pytest.mark.parametrize("most", [1.2, 0.9])
def test_pipelines_are_predicted_by_simulated_steps_and_their_errors(
    exact: Calibration, most: float
) -> None:
    made = [piped(plan) for plan in plans(SEEN) if plan["workers"] == 2]
    assert all("pipeline stages" in each.message for each in predict(made, exact, "x.yaml"))
    factors = iter([most / 1.2, most / 1.1, most, most / 1.1] * 2)
    runs = [measured(plan) for plan in made]
    times = {
        run.run_id: run.plan["global_batch"] / run.throughput / next(factors)
        for run in runs
        if run.throughput
    }

    def simulated(plan: Plan, calibration: Calibration) -> float:
        return float(times[plan["run_id"]] * (1 + 10 * calibration.operation))

    found = exact.with_pipelines(runs, simulated)
    assert found.pipelines is not None
    mean = (most**4 / (1.1 * 1.1 * 1.2)) ** 0.25
    assert 1 + 10 * found.operation == pytest.approx(max(1, mean))
    assert found.pipelines.factor == pytest.approx(min(1, mean))
    for each, run in zip(predict(made, found, "x.yaml", simulated), runs, strict=True):
        assert each.throughput is not None
        assert run.throughput is not None
        assert each.throughput.low < run.throughput < each.throughput.high
        assert run.throughput / 1.15 < each.throughput.value < run.throughput * 1.15


def test_an_operation_costs_what_it_does_in_its_schedule(exact: Calibration) -> None:
    runs = [measured(plan) for plan in plans(SEEN) if plan["workers"] == 2][:4]
    took = {run.run_id: run.plan["global_batch"] / run.throughput for run in runs if run.throughput}
    least = min(took.values())
    costs = {"gpipe": 0.1 * least, "pipedream": 0.3 * least}
    made = [replace(run, plan=piped(run.plan, name)) for name in costs for run in runs]
    few = [replace(run, plan=piped(run.plan, "1f1b")) for run in runs[:3]]
    good = made[0]
    busy = tuple(each.model_copy(update={"other_cores": [0.6]}) for each in good.epochs)
    images = {**good.plan, "spec": {**good.plan["spec"], "model": {"name": "vgg11"}}}
    loader = {**good.plan["spec"]["loader"], "threads": 7}
    odd = [
        replace(good, status="failed"),
        replace(good, throughput=None),
        replace(good, plan={**good.plan, "workers": 3}),
        replace(good, plan=images),
        replace(good, plan={**good.plan, "spec": {**good.plan["spec"], "loader": loader}}),
        replace(good, epochs=busy),
        runs[0],
    ]

    def simulated(plan: Plan, calibration: Calibration) -> float:
        name = plan["spec"]["strategy"]["schedule"]
        cost = calibration.operations.get(name, calibration.operation)
        return took[plan["run_id"]] - costs.get(name, 0.2 * least) + cost

    found = exact.with_pipelines([*odd, *made, *few], simulated, most_other_cores=0.5)
    assert found.operations == pytest.approx(costs)
    assert costs["gpipe"] < found.operation < costs["pipedream"]
    assert found.pipelines is not None
    assert found.pipelines.runs == 11
    alone = {term: cost for term, cost in exact.seconds.costs.items() if term[:5] != "byte/"}
    sent = exact.model_copy(update={"seconds": exact.seconds.model_copy(update={"costs": alone})})
    assert sent.with_pipelines([*made, *few], simulated).pipelines is None


def piped(plan: Plan, schedule: str = "gpipe") -> Plan:
    strategy = {"name": "pipeline", "schedule": schedule, "stages": 2, "micro_batches": 4}
    return {**plan, "spec": {**plan["spec"], "strategy": strategy}, "label": {}}


def test_energy_is_that_of_nodes_and_workers() -> None:
    def drawn(plan: Plan) -> float:
        return (50 + 20 * int(plan["workers"])) * seconds(plan)  # watts

    runs = [measured(plan, joules=drawn(plan)) for plan in plans(SEEN)]
    found = calibrate(runs, [])
    known = plans("[[64, 1]]")
    predicted = predict(known, found, "x.yaml")
    for plan, each in zip(known, predicted, strict=True):
        assert each.joules is not None
        assert each.joules.value == pytest.approx(drawn(plan), rel=1e-3)
    by_energy = [choice.plan for choice in rank(known, predicted, goal="energy")]
    assert [drawn(plan) for plan in by_energy] == sorted(map(drawn, known))
    assert (
        rank(known, [each.model_copy(update={"joules": None}) for each in predicted], goal="energy")
        == []
    )


def test_energy_is_as_uncertain_as_its_watts_and_its_seconds() -> None:
    known = calibration_of({**TRUTH, "load/native": 0.0})
    watts = known.seconds.model_copy(
        update={"costs": {"node/all": 50.0, "worker/cpu": 20.0}, "sigma": 0.2}
    )
    plan = plans("[[64, 1]]")[-1]
    [found] = predict([plan], known.model_copy(update={"joules": watts}), "x.yaml")
    assert found.joules is not None
    assert found.epoch_seconds is not None
    # quantile 0.95 of Student's t with 4 degrees of freedom, of 0.1 and of 0.2
    seconds_reach, reach = (math.exp(2.13185 * each) for each in (0.1, math.hypot(0.1, 0.2)))
    took, joules = seconds(plan), (50 + 2 * 20) * seconds(plan)
    assert [*found.epoch_seconds] == pytest.approx(
        [took, took / seconds_reach, took * seconds_reach], rel=1e-5
    )
    assert [*found.joules] == pytest.approx([joules, joules / reach, joules * reach], rel=1e-5)
    assert found.throughput is not None
    assert [*found.throughput] == pytest.approx(
        [1437 / took, 1437 / took / seconds_reach, 1437 / took * seconds_reach], rel=1e-5
    )


def test_a_run_takes_its_epochs_their_validations_and_its_start(exact: Calibration) -> None:
    start = Interval(5.0, 4.0, 8.0)
    found = exact.model_copy(update={"start": start})
    known = plans("[[64, 1]]")
    for plan, each in zip(known, predict(known, found, "x.yaml"), strict=True):
        assert each.epoch_seconds is not None
        assert each.run_seconds is not None
        # a forward pass is a third of an image's training; each worker validates its part of 360
        image = found.seconds.costs[f"image/{work_name(plan)}"]
        validation = image / 3 * 360 / plan["workers"]
        epochs = plan["spec"]["training"]["epochs"]
        assert epochs > 1
        for end in ("value", "low", "high"):
            epoch = getattr(each.epoch_seconds, end)
            expected = epochs * (epoch + validation) + getattr(start, end)
            assert getattr(each.run_seconds, end) == pytest.approx(expected)


def test_each_copy_of_a_pipeline_validates_its_part_by_all_of_its_workers(
    exact: Calibration,
) -> None:
    none = Errors(median=0, p90=0, largest=0)
    pipelines = Simulated(runs=4, factor=1.25, sigma=0.1, errors=none)
    start = Interval(5.0, 5.0, 5.0)
    known = exact.model_copy(update={"start": start, "pipelines": pipelines})
    plan = {**piped(plans("[[64, 1]]")[-1]), "micro_batch": 16, "accumulate": 4}
    [found] = predict([plan], known, "x.yaml", lambda plan, calibration: 0.02)
    # 1,437 images in steps of 64; Student's t with 3 degrees of freedom, for a new run
    epoch, reach = 1437 / 64 * 0.02 * 1.25, math.exp(2.35336 * 0.1 * math.sqrt(1 + 1 / 4))
    assert found.epoch_seconds is not None
    assert found.run_seconds is not None
    assert [*found.epoch_seconds] == pytest.approx([epoch, epoch / reach, epoch * reach])
    validation = exact.seconds.costs[f"image/{NAME}"] / 3 * 360
    assert found.run_seconds.value == pytest.approx(2 * (epoch + validation) + 5)


def test_an_interval_is_of_a_new_run_and_of_uncertain_costs() -> None:
    none = Errors(median=0, p90=0, largest=0)
    spread = {"a": {"a": 0.5, "b": 0.1}, "b": {"a": 0.1, "b": 0.2}}
    model = Model(
        costs={"a": 2.0, "b": 3.0}, spread=spread, sigma=0.1, freedom=4, fit=none, left_out=none
    )
    assert model.value({"a": 2, "b": 2, "c": 9}) == 10
    # amounts a = b = 2 / 10; quantile 0.95 of Student's t with 4 degrees of freedom
    lever = 0.2**2 * (0.5 + 0.1 + 0.1 + 0.2)
    assert model.relative_half_width({"a": 2, "b": 2}) == pytest.approx(
        2.13185 * 0.1 * math.sqrt(1 + lever), rel=1e-5
    )


def test_a_budget_of_node_hours_leaves_out_what_may_take_longer(exact: Calibration) -> None:
    known = plans("[[64, 1]]")
    predicted = [
        each.model_copy(update={"run_seconds": Interval(value, value, 10 * value)})
        for each in predict(known, exact, "x.yaml")
        if each.run_seconds and (value := each.run_seconds.value)
    ]
    all_, limit = (
        rank(known, predicted),
        sorted(each.run_seconds.high for each in predicted if each.run_seconds)[2],
    )
    within = rank(known, predicted, most_node_hours=limit / 3600, workers_per_node=2)
    assert len(all_) == 5
    assert len(within) == 3
    assert len(rank(known, predicted, most_node_hours=limit / 3600)) < 3  # two nodes for two


def test_a_strategy_that_was_never_alone_is_out_of_range_alone() -> None:
    seen = [
        plan
        for plan in plans(SEEN)
        if plan["workers"] == 2 or plan["spec"]["strategy"]["name"] != "horovod"
    ]
    found = calibrate([measured(plan) for plan in seen], [])
    alone = [plan for plan in plans("[[64, 1]]") if plan["workers"] == 1]
    outside = {
        strategy_kind(plan): each.outside
        for plan, each in zip(alone, predict(alone, found, "x.yaml"), strict=True)
    }
    assert outside["single"] == outside["ddp"] == ()
    assert outside["horovod"] == ("workers 1, measured with horovod: 2 to 2",)


def test_resumed_runs_do_not_count_for_the_start() -> None:
    runs = [measured(plan) for plan in plans(SEEN)]
    usual = calibrate(runs, ["x"]).start
    first = runs[0].epochs[0]
    longer = replace(
        runs[0], attempts=2, epochs=(first.model_copy(update={"seconds": 100.0}), first)
    )
    assert calibrate([longer, *runs[1:]], ["x"]).start == usual


def test_the_start_of_a_run_is_a_median_with_percentiles() -> None:
    runs = [measured(plan) for plan in plans(SEEN)]  # which take a second outside their epochs
    assert len(runs) == 20
    later = [
        replace(run, end=run.end.model_copy(update={"seconds": run.end.seconds + number}))
        for number, run in enumerate(runs)
        if isinstance(run.end, RunFinished)
    ]
    # of 1, 2, ..., 20, with linear interpolation
    assert [*calibrate(later, ["x"]).start] == pytest.approx([10.5, 1.95, 19.05])


def test_repeats_are_compared_with_their_mean() -> None:
    runs = [measured(plan) for plan in plans(SEEN)]
    assert calibrate(runs, ["x"]).repeats is None
    slow = [each.model_copy(update={"steady_seconds": 3 * each.seconds}) for each in runs[0].epochs]
    found = calibrate([*runs, replace(runs[0], epochs=tuple(slow))], ["x"])
    assert found.repeats == Errors(median=0.5, p90=0.5, largest=0.5)  # 1 and 3 about 2


def test_a_fit_of_one_cost_by_hand() -> None:
    """Of relative errors c / 2 - 1, c / 2 - 1 and c / 4 - 1: c is the sum of 1 / m over that of
    1 / m ^ 2."""
    found = fit([{"a": 1.0}] * 3, [2.0, 2.0, 4.0], ["x", "x", "y"], ["p", "q", "r"])
    assert found.costs == pytest.approx({"a": 1.25 / 0.5625})
    assert found.spread == {"a": {"a": pytest.approx(1 / 0.5625)}}
    assert found.freedom == 2
    assert found.fit == Errors(median=0.1111, p90=0.3778, largest=0.4444)
    # without each run in turn: 2.4 for both of 2, and 2 for 4
    logs = [math.log(1.2), math.log(1.2), math.log(0.5)]
    assert found.sigma == pytest.approx(math.hypot(*logs) / math.sqrt(3))
    # without each group: 4 for both of 2, and 2 for 4
    assert found.left_out == Errors(median=1.0, p90=1.0, largest=1.0)
    assert [(each.run, each.fitted, each.without_it) for each in found.residuals] == [
        ("p", 2.22222, 4),
        ("q", 2.22222, 4),
        ("r", 2.22222, 2),
    ]


def test_simulated_steps_have_a_factor_and_a_spread_on_the_logarithm() -> None:
    found = Simulated.of([0.5, 1.0, 2.0, 4.0])
    assert found is not None
    assert found.factor == pytest.approx(math.sqrt(2))
    # of -1, 0, 1 and 2 in units of log 2: the squares about 0.5 add up to 5, over 3
    assert found.sigma == pytest.approx(math.log(2) * math.sqrt(5 / 3))
    assert (found.runs, found.errors.median, found.errors.largest) == (4, 0.625, 1)
    assert Simulated.of([0.5, 1.0, 2.0]) is None


def test_pipelines_have_their_own_limits() -> None:
    runs = [measured(plan) for plan in plans(SEEN)]
    plan = next(plan for plan in plans(SEEN) if plan["workers"] == 2)
    quiet = [replace(measured(plan), plan=piped(plan)) for _ in range(4)]
    busy = [
        replace(
            each,
            epochs=tuple(
                epoch.model_copy(
                    update={"other_cores": [2.0], "steady_seconds": 3 * epoch.steady_seconds}
                )
                for epoch in each.epochs
            ),
        )
        for each in quiet
    ]
    four = [replace(each, plan={**each.plan, "workers": 4}) for each in quiet]

    def operation(pipelines: list[RunFigures], most: float = math.inf) -> float:
        found = calibrate([*runs, *pipelines], ["x"], workers_per_node=2)
        return found.with_pipelines(
            pipelines, lambda plan, now: 1e-3 + now.operation, most
        ).operation

    assert operation([*quiet, *busy], 0.5) == pytest.approx(operation(quiet))
    assert operation([*quiet, *busy]) > operation(quiet)
    assert operation([*quiet, *four]) == pytest.approx(operation(quiet))


def test_networks_with_one_batch_are_known(exact: Calibration) -> None:
    assert exact.works_with_one_batch == []
    alike = [plan for plan in plans("[[32, 1], [64, 1]]") if plan["micro_batch"] == 32]
    assert {plan["workers"] for plan in alike} == {1, 2}
    assert calibrate([measured(plan) for plan in alike], ["x"]).works_with_one_batch == [NAME]


def test_what_cannot_be_separated_is_computation() -> None:
    """With one loader, one worker and one data set, as many images are in every epoch."""
    alone = [plan for plan in plans(SEEN) if plan["workers"] == 1]
    found = calibrate([measured(plan) for plan in alone], ["made-up"])
    assert found.seconds.costs["epoch/all"] == 0
    for each in predict(alone, found, "x.yaml"):
        assert each.shares["loader"] == 0 < each.shares["computation"]


def test_only_what_all_rows_have_alike_cannot_be_separated() -> None:
    rows = [
        {"load/native": 2.0, "image/a": 2.0, "epoch/all": 1.0},
        {"load/dali": 3.0, "image/a": 3.0, "epoch/all": 1.0},
    ]
    assert _separable(rows) == (rows, {})
    assert _separable(rows[:1]) == ([{"image/a": 2.0}], {"epoch/all": 0.0, "load/native": 0.0})


def test_neighbours_of_a_network_that_was_measured_alone_are_those_of_others() -> None:
    several, alone = {"workers": Range(low=1, high=2)}, {"workers": Range(low=1, high=1)}
    costs = {"image/a": 2.0, "neighbour/a": 0.5, "image/b": 8.0, "neighbour/b": 0.0}
    assert neighbours(costs, ["a", "b"], {"a": several, "b": alone}) == {"neighbour/b": 2.0}
    assert neighbours(costs, ["a", "b"], {"a": several, "b": several}) == {}
    assert neighbours(costs, ["a", "b"], {"a": alone, "b": alone}) == {}
