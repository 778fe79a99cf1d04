"""Records -> figures of a run: warm-up, retries, the gate."""

from __future__ import annotations

import math

import pytest

from raysuite.plan import make_plans
from raysuite.plan.run_plan import RunPlan
from raysuite.records import (
    GateVerdict,
    Journal,
    Record,
    RunCosts,
    RunFailed,
    RunFinished,
    RunJudged,
    RunPruned,
    RunStarted,
    RunStopped,
    SamplesSkipped,
    TimeShares,
    read_journal,
    run_figures,
)
from raysuite.records.batch_trials import BatchFound
from raysuite.records.derive import RunFigures, current, run_shares
from raysuite.records.names import run_name
from raysuite.records.power import PowerUse
from raysuite.records.schema import ScriptMeasured, StagesMeasured
from raysuite.spec import parse_document
from raysuite.spec.tasks import CLASSIFICATION
from tests.fake_batches import batch_found
from tests.fake_results import ENVIRONMENT, TWELVE_ROWS, epoch, run_records, verdict


def plans(spec: str = TWELVE_ROWS) -> list[RunPlan]:
    return make_plans(parse_document(spec.replace("REPEATS", "2"), "spec.yaml"), gpus=0)


PLAN = plans()[0]
DATA = PLAN.model_dump(mode="json")


def figures(records: list) -> RunFigures:
    return run_figures(DATA, records)


def test_throughput_is_steady_images_over_steady_seconds_of_all_epochs():
    first, second = epoch(PLAN, 0), epoch(PLAN, 1)
    first = first.model_copy(update={"images": 100, "steady_images": 60, "steady_seconds": 3.0})
    second = second.model_copy(update={"images": 100, "steady_images": 100, "steady_seconds": 2.0})
    found = figures([verdict(PLAN), first, second])
    assert found.throughput == 160 / 5.0


def test_epoch_time_and_data_wait_leave_out_epochs_with_warm_up():
    made = [epoch(PLAN, number) for number in range(3)]
    made = [
        e.model_copy(update={"seconds": s, "data_wait_seconds": w})
        for e, s, w in zip(made, (9.0, 2.0, 4.0), ([9.0], [0.5, 1.5], [1.0]), strict=True)
    ]
    found = figures([verdict(PLAN), *made])
    assert found.epoch_seconds == 3.0
    assert found.data_wait_share == (1.0 + 1.0) / 6.0
    only = figures([verdict(PLAN), made[0]])
    assert only.epoch_seconds == 9.0, "an epoch with warm-up counts where there is no other"


def test_no_steps_after_the_warm_up_means_no_throughput():
    for seconds in (0.0, 1.0):
        cold = epoch(PLAN, 0).model_copy(update={"steady_images": 0, "steady_seconds": seconds})
        assert figures([verdict(PLAN), cold]).throughput is None


def test_figures_of_a_run_of_fractions_of_a_second():
    short = {"images": 8, "steady_images": 8, "steady_seconds": 0.25, "seconds": 0.5}
    waits = {"data_wait_seconds": [0.125, 0.375], "other_cores": [0.25, 0.5]}
    end = run_records(PLAN)[-1].model_copy(update={"peak_device_bytes": [1, 0]})
    found = figures([verdict(PLAN), epoch(PLAN, 1).model_copy(update=short | waits), end])
    assert (found.throughput, found.epoch_seconds) == (32, 0.5)
    assert (found.data_wait_share, found.other_cores) == (0.5, 0.5)
    assert (found.peak_device_bytes, found.mean_device_bytes) == (1, 0.5)


def test_of_an_epoch_recorded_twice_the_latest_counts():
    records = run_records(PLAN)
    again = RunStarted(run_id=PLAN.run_id, plan=DATA, environment=ENVIRONMENT, first_epoch=2)
    retried = [epoch(PLAN, number, accuracy=0.5) for number in (2, 3, 4, 5)]
    found = figures([*records[:6], again, *retried, records[-1]])
    assert [e.epoch for e in found.epochs] == [0, 1, 2, 3, 4, 5]
    assert found.final_primary == 0.5
    assert found.best_primary == max(e.val_accuracy for e in found.epochs)


WRITTEN_AGAIN = (
    *(RunFinished, RunFailed, RunPruned, RunStopped, SamplesSkipped),
    *(StagesMeasured, TimeShares, RunCosts, ScriptMeasured),
)
KEPT = (BatchFound, GateVerdict, RunJudged)


def test_a_resumed_attempt_replaces_what_it_writes_again():
    begun = run_records(PLAN)[0]
    made = [kind.model_construct(run_id="x") for kind in (*WRITTEN_AGAIN, *KEPT)]
    assert current([begun, *made, begun]) == [begun, *made[-len(KEPT) :], begun]


def test_energy_is_of_epochs_without_a_warm_up():
    def use(joules: float, busy: float) -> PowerUse:
        return PowerUse(
            devices=["d"], device_joules=[joules], device_busy=[busy], hosts=["h"],
            host_joules=[2 * joules],
        )  # fmt: skip

    made = [epoch(PLAN, 0).model_copy(update={"power": use(9000.0, 0.1)})]
    made += [epoch(PLAN, 1).model_copy(update={"power": use(1437.0, 0.5)})]
    costs = figures([verdict(PLAN), *made]).costs
    assert (costs.device_joules, costs.host_joules, costs.device_busy) == (1.0, 2.0, 0.5)


def test_the_units_of_an_epoch_are_planned_and_tokens_are_counted():
    made = [epoch(PLAN, n).model_copy(update={"images": 7 + n}) for n in range(2)]
    assert figures(made).epoch_units == 1437
    task = CLASSIFICATION.model_copy(update={"unit": "tokens"}).model_dump(mode="json")
    plan = {**DATA, "task": task, "dataset": {**DATA["dataset"], "sequence": 16}}
    assert run_figures(plan, made).epoch_units == 7
    assert run_figures(plan, []).epoch_units == 16 * 1437


def test_a_run_started_afresh_forgets_the_attempt_before():
    records = run_records(PLAN)
    again = RunStarted(run_id=PLAN.run_id, plan=DATA, environment=ENVIRONMENT, first_epoch=0)
    found = figures([*records, again, epoch(PLAN, 0)])
    assert len(found.epochs) == 1
    assert found.status == "missing"
    assert "no end on record" in found.reason


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_run_that_failed_the_gate_has_no_speed_whatever_its_journal_holds(ends_well):
    records = run_records(PLAN)
    records[1] = verdict(PLAN, passed=False)
    if not ends_well:
        records[-1] = RunFailed(run_id=PLAN.run_id, reason="gate", message="the ranks disagree")
    found = figures(records)
    assert found.gate == "failed"
    speeds = (found.throughput, found.epoch_seconds, found.data_wait_share, found.time_to_accuracy)
    assert speeds == (None,) * 4


def test_a_gate_failure_counts_even_beside_a_passed_verdict():
    records = [*run_records(PLAN)[:-1], RunFailed(run_id="x", reason="gate", message="differs")]
    assert figures(records).gate == "failed"
    assert figures(records).throughput is None


def test_without_a_verdict_only_a_single_process_has_a_speed():
    records = [r for r in run_records(PLAN) if r.kind != "gate_verdict"]
    assert figures(records).gate == "not checked"
    assert figures(records).throughput is None
    single = {**DATA, "spec": {**DATA["spec"], "strategy": {"name": "single"}}}
    assert run_figures(single, records).gate == "not needed"
    assert run_figures(single, records).throughput is not None


def test_status_and_reason():
    assert figures([]).status == "missing"
    assert figures([]).reason == figures([batch_found("x")]).reason == "was not started"
    failed = figures(run_records(PLAN, RunFailed(run_id="x", reason="lost", message="gone")))
    assert (failed.status, failed.reason) == ("failed", "lost: gone")
    assert failed.final == failed.epochs[-1].validation, "its epochs count"
    assert figures(run_records(PLAN)).status == "finished"
    early = RunPruned(run_id="x", by="asha", epoch=1, value=0.5)
    assert (figures([early]).status, figures([early]).reason) == ("pruned", early.words)


def test_the_records_of_a_run_are_those_that_count_and_profiles_need_the_gate():
    begun, gate, *rest = run_records(PLAN)
    profile = TimeShares(
        run_id=PLAN.run_id,
        steps=5,
        warmup_steps=3,
        window_seconds=[2.0],
        seconds=9,
        **{f"{name}_seconds": [0.5] for name in PARTS},
    )
    stages = StagesMeasured(
        run_id=PLAN.run_id,
        schedule="gpipe",
        stages=2,
        micro_batches=4,
        steps=3,
        partition=[1, 1],
        window_seconds=1.0,
        ideal_bubble=0.2,
        bubble=[0.4, 0.6],
        versions=[1, 2],
        slots=[],
        **{f"{name}_bytes": [2**20, 3 * 2**19] for name in ("weight", "activation", "sent")},
        **{f"{name}_seconds": [0.1, 0.3] for name in ("forward", "backward", "update", "wait")},
    )
    assert stages.words == (
        "gpipe: bubble 50% (with equal stages 20%), slowest worker 1.50 times the mean, "
        "activations up to 1.5 MiB, up to 2 versions of weights"
    )
    idle = {"forward_seconds": [0.0, 0.0], "backward_seconds": [0.0, 0.0]}
    assert stages.model_copy(update=idle).imbalance == 1.0
    batch = BatchFound(
        run_id=PLAN.run_id,
        key="training.batch_per_worker",
        goal="largest",
        micro_batch=64,
        accumulate=1,
        global_batch=64,
        bound="memory",
        memory_share=0.9,
        tried=[],
        seconds=1.0,
    )
    kept = [*rest[:-1], profile, stages, rest[-1]]
    found = figures([batch, begun, gate, *kept])
    assert (found.started, found.verdict, found.end) == (begun, gate, rest[-1])
    assert (found.epochs, found.batch, found.stages) == (tuple(rest[:-1]), batch, stages)
    assert (found.shares, found.attempts) == (run_shares(profile), 1)
    failed = figures([begun, gate.model_copy(update={"passed": False}), *kept])
    assert failed.shares is failed.stages is failed.costs is failed.batch is None


PARTS = ("computation", "communication", "communication_exposed", "data", "data_exposed")


def test_memory_is_the_largest_and_the_mean_over_workers():
    records = run_records(PLAN)
    end = records[-1]
    assert isinstance(end, RunFinished)
    records[-1] = end.model_copy(
        update={
            "peak_process_bytes": [30, 50],
            "start_process_bytes": [20, 45],
            "peak_device_bytes": [7, 5],
        }
    )
    found = figures(records)
    assert (found.peak_process_bytes, found.mean_process_bytes) == (50, 40)
    assert found.grown_process_bytes == 10
    assert (found.peak_device_bytes, found.mean_device_bytes) == (7, 6)
    on_cpu = figures(run_records(PLAN))
    assert on_cpu.peak_device_bytes is None


def test_time_to_accuracy_is_the_first_validation_that_met_the_target():
    accuracies = (0.5, 0.9, 0.8)
    made = [epoch(PLAN, n, elapsed=10.0 * n, accuracy=a) for n, a in enumerate(accuracies)]
    found = figures([verdict(PLAN), *made])
    assert found.time_to_accuracy == made[1].elapsed_seconds
    assert figures([verdict(PLAN), made[0]]).time_to_accuracy is None


def test_a_target_is_met_by_what_equals_it_and_by_no_run_whose_speed_may_not_count():
    met = epoch(PLAN, 3, elapsed=7.0, accuracy=DATA["spec"]["training"]["target_accuracy"])
    found = figures([verdict(PLAN), epoch(PLAN, 0, accuracy=0.1), met])
    assert (found.epochs_to_accuracy, found.time_to_accuracy) == (4, met.elapsed_seconds)
    failed = figures([verdict(PLAN, passed=False), met])
    assert failed.epochs_to_accuracy is failed.time_to_accuracy is None


def test_figures_of_several_epochs_by_hand():
    made = [
        epoch(PLAN, number).model_copy(
            update={
                "seconds": seconds,
                "other_cores": cores,
                "compile_seconds": compiled,
                "graph_breaks": breaks,
                "val_top5": top5,
            }
        )
        for number, (seconds, cores, compiled, breaks, top5) in enumerate(
            [
                (2.0, [0.5, 1.0], 3.0, {"loop": 5}, 0.8),
                (6.0, [2.0], 1.0, {"loop": 1, "print": 2}, 0.7),
                (9.0, [], 0.0, {"loop": 1, "print": 3}, 0.9),
            ]
        )
    ]
    found = figures([verdict(PLAN), *made])
    assert found.other_cores == (2 * 1.0 + 6 * 2.0) / 8
    assert (found.compile_seconds, found.graph_breaks, found.final["top5"]) == (4.0, None, 0.9)
    caught = figures([verdict(PLAN, passed=False), *made])
    assert (caught.compile_seconds, caught.other_cores) == (4.0, found.other_cores)
    assert (caught.final, caught.best, caught.throughput) == (found.final, found.best, None)
    training = {**DATA["spec"]["training"], "compile": "default"}
    compiled = {**DATA, "spec": {**DATA["spec"], "training": training}}
    assert run_figures(compiled, [verdict(PLAN), *made]).graph_breaks == 4
    assert run_figures(compiled, [verdict(PLAN)]).graph_breaks is None
    plain = figures([verdict(PLAN), made[2].model_copy(update={"epoch": 0})])
    assert plain.compile_seconds is plain.other_cores is None


def test_of_epochs_made_in_one_attempt_their_mean_and_share_of_waiting_count():
    made = [
        epoch(PLAN, number).model_copy(
            update={"attempts": attempts, "seconds": seconds, "data_wait_seconds": waits}
        )
        for number, attempts, seconds, waits in (
            (1, 1, 4.0, [1.0, 0.0]),
            (2, 2, 50.0, [40.0, 40.0]),
            (3, 1, 6.0, [2.0, 1.0]),
        )
    ]
    found = figures([verdict(PLAN), *made])
    assert (found.epoch_seconds, found.data_wait_share) == (5.0, 2.0 / 10.0)
    empty = figures([verdict(PLAN), made[0].model_copy(update={"data_wait_seconds": []})])
    assert empty.data_wait_share == 0.0


def test_names_are_those_of_the_plan():
    spec = TWELVE_ROWS.replace(
        "[ddp, horovod, deepspeed]",
        "[single, {name: ddp, compression: fp16}]\n  optimizer.lr: [0.1, 0.2]",
    ).replace("[1, 2]", "[1]")
    for plan in [*plans(), *plans(spec)]:
        assert run_name(plan.model_dump(mode="json")) == plan.title


def test_zero_and_false_are_in_names_and_what_is_left_open_is_not():
    spec = TWELVE_ROWS.replace(
        "[ddp, horovod, deepspeed]",
        "[ddp]\n  optimizer.weight_decay: [0, 0.5]\n  optimizer.nesterov: [false]"
        "\n  training.target_accuracy: [null]",
    ).replace("[native, dali]", "[native]")
    made = [each for each in plans(spec.replace("[1, 2]", "[1]")) if not each.repeat]
    ends = ["weight_decay=0 · nesterov=False", "weight_decay=0.5 · nesterov=False"]
    wanted = [f"ddp · native · 1 worker · {end}" for end in ends]
    assert [plan.title for plan in made] == wanted
    assert [run_name(plan.model_dump(mode="json")) for plan in made] == wanted


def test_a_diverged_epoch_survives_the_journal(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    nan = float("nan")
    journal.write(epoch(PLAN, 0).model_copy(update={"losses": [nan, 1.0], "val_loss": nan}))
    [record] = read_journal(journal.file)
    assert math.isnan(record.losses[0])
    assert math.isnan(record.val_loss)


def test_a_line_cut_inside_a_character_is_passed_over(tmp_path):
    file = tmp_path / "journal.jsonl"
    whole = verdict(PLAN).model_dump_json().encode()
    file.write_bytes(whole + b"\n" + whole[:40] + "é".encode()[:1])
    assert len(read_journal(file)) == 1


def skipped(split: str, count: int) -> SamplesSkipped:
    return SamplesSkipped(
        run_id=PLAN.run_id,
        split=split,
        samples=100,
        skipped=count,
        places=[f"{number}.jpg: cut short" for number in range(count)],
        known=0,
        seconds=1.0,
    )


def test_what_was_left_out_is_that_of_the_last_attempt():
    started, gate, *rest = run_records(PLAN)
    assert figures([started, gate, *rest]).skipped_samples is None
    first, val, again = skipped("train", 3), skipped("val", 0), skipped("train", 2)
    again_started = started.model_copy(update={"first_epoch": 3})
    found = figures([started, gate, first, val, *rest[:3], again_started, again, val, *rest[3:]])
    assert found.skipped == (again, val)
    assert found.skipped_samples == 2
    assert len(found.epochs) == 6


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], False),
        (["TCP, this host"], False),
        (["TCP, eth0", "TCP, this host"], True),
        (["UCX, mlx5_0"], False),
        (["NCCL, NET/IB/GDRDMA", "TCP, eth0"], False),
        (["NCCL, NET/Socket", "NCCL, P2P/CUMEM"], True),
    ],
)
def test_gradients_over_tcp(names: list[str], expected: bool) -> None:
    started = RunStarted(run_id="x", plan={}, environment={}, transports=names)
    assert started.over_tcp is expected


def of_script(check: int, workers: int, *records: Record) -> RunFigures:
    spec = {**DATA["spec"], "script": {"command": ["train.py"], "check": check}}
    return run_figures({**DATA, "workers": workers, "spec": spec}, [epoch(PLAN, 0), *records])


SCRIPT = ScriptMeasured(
    run_id=PLAN.run_id,
    steps=10,
    left_out=0,
    samples_per_step=64,
    steps_per_second=1.0,
    parameters=7,
    hosts=["here"],
    start_seconds={},
)


def test_the_gate_of_a_script_is_what_was_asked_and_could_be_decided():
    assert of_script(0, 2).gate == of_script(0, 1).gate == "not asked"
    assert of_script(3, 1).gate == "not needed"
    assert of_script(3, 2).gate == "not checked"
    assert of_script(3, 2).throughput is None
    assert of_script(3, 2, SCRIPT).gate == "not decidable"
    assert of_script(3, 2, SCRIPT, verdict(PLAN)).gate == "passed"
    assert of_script(3, 2, SCRIPT, verdict(PLAN, passed=False)).gate == "failed"


def test_a_script_has_a_throughput_and_no_epochs_of_its_own():
    found = of_script(0, 2, SCRIPT)
    made = epoch(PLAN, 0)
    assert found.throughput == made.steady_images / made.steady_seconds
    assert found.epoch_seconds is found.time_to_accuracy is None
    assert (found.final, found.best, found.script) == ({}, {}, SCRIPT)


def test_figures_of_an_end_whose_lists_are_empty_or_uneven_are_not_known():
    *records, end = run_records(PLAN)
    assert isinstance(end, RunFinished)
    none = {"peak_process_bytes": [], "start_process_bytes": [], "peak_device_bytes": []}
    found = figures([*records, end.model_copy(update=none)])
    assert found.peak_process_bytes is found.mean_process_bytes is found.grown_process_bytes is None
    assert found.peak_device_bytes is found.mean_device_bytes is None
    uneven = end.model_copy(update={"start_process_bytes": [1, 2, 3]})
    assert figures([*records, uneven]).grown_process_bytes is None


@pytest.mark.parametrize(("values", "best"), [((math.nan, 0.5), 0.5), ((math.nan,), None)])
def test_a_metric_that_is_not_a_number_is_not_the_best(values, best):
    made = [
        epoch(PLAN, n).model_copy(update={"val_accuracy": value}) for n, value in enumerate(values)
    ]
    assert figures([verdict(PLAN), *made]).best_primary == best


def test_best_is_the_lowest_of_a_metric_that_should_be_low():
    low = CLASSIFICATION.metrics[0].model_copy(update={"name": "rmse", "higher_is_better": False})
    task = CLASSIFICATION.model_copy(update={"metrics": (low,), "primary": "rmse"})
    plan = {**DATA, "task": task.model_dump(mode="json")}
    plan["spec"] = {**plan["spec"], "training": {**plan["spec"]["training"], "target": 0.3}}
    plan["spec"]["training"].pop("target_accuracy")
    made = [
        epoch(PLAN, n).model_copy(
            update={"val_metrics": {"rmse": value}, "elapsed_seconds": 10.0 + n}
        )
        for n, value in enumerate((0.5, 0.3, 0.4))
    ]
    found = run_figures(plan, [verdict(PLAN), *made])
    assert (found.final_primary, found.best_primary, found.target) == (0.4, 0.3, 0.3)
    assert (found.epochs_to_accuracy, found.time_to_accuracy) == (2, 11.0)
