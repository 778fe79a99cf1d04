"""Simulated steps of a network of two layers, whose times are computed by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysuite.errors import UserError
from raysuite.perf.costs import Work, work_name
from raysuite.perf.simulator import Link, Network, Step
from raysuite.plan import RunPlan, make_plans
from raysuite.plan.simulation import (
    _layers,
    _pace,
    beside_training,
    epoch_seconds,
    idle_of,
    kind_of,
    measured_network,
    step_of,
    with_failures,
)
from raysuite.records.predicted import Interval
from raysuite.spec import Document
from tests.fake_calibration import calibration_of

# tests.tiny_model: a convolution of 80 parameters and 8 * 16 * 9 = 1152 multiply-adds, whose
# output has 8 * 16 values, and a linear layer of 1290 parameters and 1280 multiply-adds
WHOLE, IMAGES = 2.432, 32
RATE = IMAGES / (3 * WHOLE)
"""Images per second with which a multiply-add takes a millisecond for 32 images: a forward pass of
1.152 and 1.280 seconds, and a backward pass of twice as many."""
SLOW = Network(
    name="",
    source="",
    workers_per_node=2,
    inside=Link(latency_us=0, gb_per_s=1e-6),  # 1000 bytes a second
    between=Link(latency_us=0, gb_per_s=1e-6),
)
FAST = SLOW.model_copy(update={"inside": Link(latency_us=0, gb_per_s=1e6)})
BUCKETS = {"name": "ddp", "bucket_mb": 1e-3}
"""Of 1049 bytes: one for each layer."""
GPIPE = {"name": "pipeline", "schedule": "gpipe", "stages": 2, "micro_batches": 2}
AGAIN = {"recompute": True}
LAYERS = {"name": "fsdp", "units": "layers"}


def plan_of(
    strategy: Any = "ddp",
    workers: int = 2,
    model: str = "tests.tiny_model:sequential",
    **training: Any,
) -> RunPlan:
    """Of 32 images for each worker, or for each of two micro-batches."""
    batch = IMAGES * max(2, workers)
    data = {
        "name": "simulated",
        "model": {"name": model},
        "data": "digits",
        "strategy": strategy,
        "training": {"epochs": 1, "global_batch": batch} | training,
        "resources": {"workers": workers, "device": "cpu"},
    }
    return make_plans(Document(data, "spec.yaml"), gpus=0)[0]


@pytest.mark.parametrize(
    ("plan", "options", "seconds"),
    [
        # the linear layer's 5160 bytes are sent from 4.992 on, the convolution's 320 after them
        (plan_of(BUCKETS), {}, 4.992 + 5.160 + 0.320),
        (plan_of(), {}, 3 * WHOLE + 5.480),  # both in a bucket
        (plan_of(BUCKETS, accumulate=2), {}, 1.5 * WHOLE + 2.496 + 5.160 + 0.320),
        (plan_of(BUCKETS), {"straggler": 2.0}, 2 * 4.992 + 5.160 + 0.320),
        # 1 + 0.1 z, z = 0.5895 being the expected larger one of two normal values (Blom 1958)
        (plan_of(), {"jitter": 0.1}, 3 * WHOLE * 1.05895 + 5.480),
        # weights are gathered until 0.160 and 2.740, so that forward passes end at 1.312 and 4.020;
        # the linear layer's again until 6.600, and after its pass its gradients are scattered
        (plan_of(LAYERS), {}, 6.600 + 2.560 + 2.580 + 0.160),
        (plan_of({"name": "fsdp"}), {}, 2.740 + 3 * WHOLE + 2.740),  # in no block
        (plan_of(), {"storage": 2.0}, 64 / 2),
        (plan_of(accumulate=2), {"storage": 2.0}, 64 / 2),
        (plan_of(workers=1), {}, 2 * 3 * WHOLE),  # 64 images, and nothing is sent
        (plan_of(workers=1), {"straggler": 3.0}, 3 * 2 * 3 * WHOLE),
        # forward passes until 1.152 and 3 * 1.280 later, backward ones of 2.560, 2.560 and 2.304
        (plan_of(GPIPE), {}, 1.152 + 2 * 1.280 + 2 * 2.560 + 2.304),
        # each backward pass computes the forward pass once more, but for 1F1B's last worker, which
        # has just made it
        (plan_of(GPIPE | AGAIN), {}, 1.152 + 2 * 1.280 + 2 * 3.840 + 3.456),
        (plan_of(GPIPE | AGAIN | {"schedule": "1f1b"}), {}, 1.152 + 2 * 3.840 + 3.456),
    ],
)
def test_a_step_at_a_rate_by_hand(plan: RunPlan, options: dict[str, float], seconds: float) -> None:
    network = FAST if plan.schedule else SLOW
    found = step_of(plan, None, RATE, network, **options).seconds
    assert found == pytest.approx(seconds, rel=1e-5)


def test_a_step_may_take_milliseconds() -> None:
    found = step_of(plan_of(workers=1), None, 1000 * RATE, SLOW)
    assert found.seconds == pytest.approx(2 * 3 * WHOLE / 1000)


def test_tokens_are_what_is_computed_and_read_of_text(tmp_path: Path) -> None:
    """64 sequences of 16 tokens: at 8 tokens a second, and at one from storage."""
    for split in ("train", "val"):
        (tmp_path / f"{split}.txt").write_bytes(b"a" * 2000)
    data = {
        "name": "simulated",
        "task": "language_model",
        "model": {"name": "gpt", "options": {"layers": 1, "heads": 1, "width": 8}},
        "data": {"name": "text", "path": str(tmp_path), "sequence": 16},
        "training": {"epochs": 1, "global_batch": 64},
        "resources": {"workers": 1, "device": "cpu"},
    }
    (plan,) = make_plans(Document(data, "spec.yaml"), gpus=0)
    assert step_of(plan, None, 8.0, FAST).seconds == pytest.approx(128)
    assert step_of(plan, None, 8.0, FAST, storage=1.0).seconds == pytest.approx(1024)


def test_layers_are_counted_for_each_precision_and_data_set() -> None:
    """A stage sends 8 channels of 4 x 4 values of 4 or 2 bytes; the first convolution of a ResNet
    has 16 channels of 8 x 8 or 16 x 16 values."""
    plan, short = plan_of(GPIPE), plan_of(GPIPE, precision="bf16")
    resnet = plan_of(model="resnet20")
    larger = resnet.model_copy(update={"dataset": replace(resnet.dataset, image_size=16)})
    plans = (plan, short, plan, resnet, larger)
    found = [_layers(each, 1.0, None)[0].output_bytes / 32 for each in plans]
    assert found == [512, 256, 512, 4096, 16_384]


def test_the_output_of_a_stage_is_sent_both_ways() -> None:
    """32 images of 512 bytes take a second; the second of them waits for no other."""
    link = Link(latency_us=0, gb_per_s=32 * 512 / 1e9)
    network = SLOW.model_copy(update={"inside": link})
    found = step_of(plan_of(GPIPE), None, RATE, network).seconds
    assert found == pytest.approx(1 + 1.152 + 2 * 1.280 + 2 * 2.560 + 1 + 2.304)


def costs_of(plan: RunPlan) -> dict[str, float]:
    name = work_name(plan.model_dump(mode="json"))
    return {
        f"image/{name}": 0.01,
        f"neighbour/{name}": 0.004,
        f"pass/{name}": 0.5,
        f"update/{name}": 0.25,
        "load/native": 0.002,
        "step/ddp": 0.125,
        "copy/ddp": 1e-6,
        "hook/ddp": 0.3,
        "beside/ddp": 1e-7,
        "byte/ddp": 1e-4,
        "message/ddp": 0.05,
    }


@pytest.mark.parametrize(("workers", "images"), [(1, 64), (2, 32)])
def test_a_step_has_the_costs_of_a_calibration(workers: int, images: int) -> None:
    plan = plan_of(workers=workers)
    name = work_name(plan.model_dump(mode="json"))
    known = calibration_of(costs_of(plan), name, Work(1370, 5480, 2432))
    found = step_of(plan, known, None, measured_network(plan, known)).seconds
    passes = images * (0.01 + 0.002) + 0.5
    update = 0.25 + 0.125 + 4 * 1370 * 1e-6
    if workers == 1:
        assert found == pytest.approx(passes + update)
        return
    passes += images * 0.004 / 2 + 0.3 + images * 2432 * 1e-7
    sent = 2 * (0.05 + 5480 / 2 * 1e-4)  # two messages of half the gradients
    assert found == pytest.approx(passes + sent + update)


def test_a_stage_has_its_part_of_the_costs_and_that_of_each_operation() -> None:
    plan = plan_of(GPIPE)
    name = work_name(plan.model_dump(mode="json"))
    costs = {**costs_of(plan), f"neighbour/{name}": 0.0}
    known = calibration_of(costs, name, Work(1370, 5480, 2432))
    whole = (0.5 + 32 * 0.012) * (1.152 + 2 * 1.280 + 2 * 2.560 + 2.304) / (3 * WHOLE)
    for operations, each in (({}, 0.01), ({"gpipe": 0.02, "1f1b": 0.04}, 0.02)):
        costly = known.model_copy(update={"operation": 0.01, "operations": operations})
        found = step_of(plan, costly, None, FAST).seconds
        # six operations follow one another; each of two stages makes half of the update
        assert found == pytest.approx(whole + 6 * each + 0.25 / 2)


def test_stages_share_the_processors_of_their_node() -> None:
    """One processor has work at all times: as long as all passes, and the update."""
    plan = plan_of(GPIPE)
    name = work_name(plan.model_dump(mode="json"))
    costs = {**costs_of(plan), f"neighbour/{name}": 0.0}
    one = calibration_of(costs, name, Work(1370, 5480, 2432)).model_copy(
        update={"machine": {"cpu": {"logical_cores": 1}}}
    )
    found = step_of(plan, one, None, FAST).seconds
    assert found == pytest.approx(2 * (0.5 + 32 * 0.012) + 0.25)


def test_stages_take_the_times_of_their_blocks_where_these_were_measured() -> None:
    """Forward passes of 1 and 3, backward ones of 2 each, of 8 in all."""
    plan = plan_of(GPIPE)
    name = work_name(plan.model_dump(mode="json"))
    costs = {**costs_of(plan), f"neighbour/{name}": 0.0}
    known = calibration_of(costs, name, Work(1370, 5480, 2432)).model_copy(
        update={"blocks": {name: ((1.0, 2.0), (3.0, 2.0))}}
    )
    found = step_of(plan, known, None, FAST).seconds
    assert found == pytest.approx((0.5 + 32 * 0.012) * (1 + 2 * 3 + 2 * 2 + 2) / 8 + 0.25 / 2)


@pytest.mark.parametrize(
    ("balance", "first"), [("time", [(6.0, 2.0)] + [(1.0, 1.0)] * 2), ("parameters", None)]
)
def test_measured_blocks_are_cut_where_their_times_are_balanced(
    balance: str, first: list[tuple[float, float]] | None
) -> None:
    """Of eleven blocks the first one takes 8 seconds, the next two 2 each, the others 1.5 each:
    twelve seconds on either side of the third. By parameters, the first stage has more blocks."""
    plan = plan_of({**GPIPE, "balance": balance}, model="resnet20")
    name = work_name(plan.model_dump(mode="json"))
    blocks = [(6.0, 2.0), *[(1.0, 1.0)] * 2, *[(0.5, 1.0)] * 8]
    known = calibration_of(costs_of(plan), name).model_copy(update={"blocks": {name: blocks}})
    stages = _layers(plan, 24.0, known)
    assert sum(each.forward_s + each.backward_s for each in stages) == pytest.approx(24)
    found = (stages[0].forward_s, stages[0].backward_s)
    if first:
        assert found == pytest.approx(tuple(map(sum, zip(*first, strict=True))))
    else:
        assert sum(found) > 13


def test_what_stands_beside_training_is_validation_after_each_epoch_and_a_measured_start() -> None:
    plan = plan_of(epochs=3)
    assert (plan.global_batch, plan.dataset.val_samples) == (64, 360)
    step = step_of(plan, None, RATE, SLOW)
    assert step.shares["computation"] * step.seconds == pytest.approx(3 * WHOLE)
    validation, start = beside_training(plan, step, None)
    assert (validation, start) == (pytest.approx(3 * WHOLE * 360 / 64), 0.0)
    known = calibration_of(costs_of(plan)).model_copy(update={"start": Interval(7, 6, 9)})
    assert beside_training(plan, step, known) == (validation, 7)


def test_what_a_simulation_was_held_against_depends_on_what_it_was_made_from() -> None:
    one, pipeline = plan_of(), plan_of(GPIPE)
    on_gpus = one.model_copy(update={"device": "gpu"})
    known = calibration_of(costs_of(one))
    assert [kind_of(each, None, None) for each in (one, on_gpus, pipeline)] == [
        None,
        "from one",
        None,
    ]
    assert [kind_of(each, known, None) for each in (one, pipeline)] == [None, "pipelines"]
    assert kind_of(pipeline, known, "hdr-fat-tree") is None


def test_nothing_overlaps_on_processors_whose_link_was_measured_beside_passes() -> None:
    plan = plan_of(BUCKETS)
    name = work_name(plan.model_dump(mode="json"))
    known = calibration_of(costs_of(plan), name, Work(1370, 5480, 2432))
    network = measured_network(plan, known)
    passes = 32 * (0.01 + 0.002 + 0.004 / 2) + 0.5 + 0.3 + 32 * 2432 * 1e-7
    update, sent = 0.25 + 0.125 + 4 * 1370 * 1e-6, 2 * 2 * 0.05 + 5480 * 1e-4
    assert step_of(plan, known, None, network).seconds == pytest.approx(passes + sent + update)
    stated = network.model_copy(update={"source": "a file"})
    assert step_of(plan, known, None, stated).seconds < passes + sent + update - 0.01
    on_gpus = plan.model_copy(update={"device": "gpu"})
    name = work_name(on_gpus.model_dump(mode="json"))
    known = calibration_of(costs_of(on_gpus), name, Work(1370, 5480, 2432))
    assert step_of(on_gpus, known, None, network).seconds < passes + sent + update - 0.01


def test_transfers_of_a_pipeline_cost_what_gradients_of_any_strategy_do_best_of_ddp() -> None:
    plan = plan_of(GPIPE)
    costs = {"byte/horovod": 1e-3, "message/horovod": 0.5, **costs_of(plan)}
    known = calibration_of(costs)
    assert measured_network(plan, known).inside.seconds(10) == pytest.approx(0.05 + 1e-3)
    others = calibration_of({key: value for key, value in costs.items() if key[-3:] != "ddp"})
    assert measured_network(plan, others).inside.seconds(10) == pytest.approx(0.5 + 1e-2)


@pytest.mark.parametrize(
    ("workers", "known", "words"),
    [
        (2, True, "no run with horovod on several workers; measure one, or give --network"),
        (4, True, "4 workers is not known: the calibration measured up to 2 workers on one node;"),
        (4, False, "between 4 workers is not known: give --network NAME"),
        (2, False, "between 2 workers is not known: give --network NAME"),
    ],
)
def test_a_link_that_was_not_measured_is_refused(workers: int, known: bool, words: str) -> None:
    plan = plan_of("horovod", workers)
    calibration = calibration_of(costs_of(plan)) if known else None
    with pytest.raises(UserError, match=re.escape(words)):
        measured_network(plan, calibration)
    four = plan_of(workers=4)  # by ddp, which was measured on two
    with pytest.raises(UserError, match="between 4 workers"):
        measured_network(four, calibration_of(costs_of(four)))
    alone = measured_network(plan_of("horovod", 1), calibration)
    assert (alone.source, alone.inside.latency_us) == ("calibration", 0)


def test_a_measured_link_has_the_units_of_networks() -> None:
    for plan in (plan_of(), plan_of(GPIPE)):  # transfers of a pipeline cost what gradients do
        found = measured_network(plan, calibration_of(costs_of(plan)))
        assert found.inside.seconds(1000) == pytest.approx(0.05 + 1000 * 1e-4)
        assert found.inside == found.between


def test_lanes_share_processors_and_slow_each_other() -> None:
    """Three workers on two processors; a neighbour costs 0.4 of a pass alone."""
    assert _pace(3, 0.0, 3) == 1
    assert _pace(2, 0.0, 3) == pytest.approx(2 / 3)
    assert _pace(2, 0.4, 3) == pytest.approx(2 / 3 / (1 + 0.4 / 2))
    assert _pace(4, 0.4, 3) == pytest.approx(1 / (1 + 0.4 * 2 / 3))


def test_failures_are_those_of_all_nodes() -> None:
    """Of four nodes with a failure in 40 hours each: one in 36,000 seconds."""
    plan = plan_of(workers=8)
    found = with_failures(plan, SLOW, 1e5, mtbf_hours=40, write=2, restart=0)
    assert found["checkpoint_every_s"] == pytest.approx(379.473)  # sqrt(2 * 2 * 36000)
    # about write / every + (every + write) / (2 * mtbf) is lost (Young 1974)
    assert found["expected_s"] == pytest.approx(1e5 * (1 + 0.00527 + 0.00530), rel=1e-4)
    short = with_failures(plan, SLOW, 100, mtbf_hours=40, write=2, restart=0)
    assert short["checkpoint_every_s"] == 100
    never = with_failures(plan, SLOW, 1e5, mtbf_hours=1e-9, write=2, restart=0)
    assert never["expected_s"] is None


def test_what_a_pipeline_loses_to_its_bubble_and_to_unequal_stages() -> None:
    bubble, imbalance = idle_of(plan_of(GPIPE).model_dump(mode="json"))
    equal, real = 3 * 3 * WHOLE / 2, 1.152 + 2 * 1.280 + 2 * 2.560 + 2.304
    assert imbalance == pytest.approx(1 - equal / real)
    assert bubble == pytest.approx(equal / real / 3)  # of equal stages a third


def test_an_epochs_last_step_has_the_remaining_samples() -> None:
    def simulated(run: RunPlan) -> Step:
        return step_of(run, None, RATE, FAST)

    # 22 steps of 64 samples, and one of 29: 15 on a worker
    plan, step = plan_of(BUCKETS), 3 * WHOLE
    assert epoch_seconds(plan, simulated(plan), simulated) == pytest.approx(
        (22 + 15 / 32) * step, rel=1e-5
    )
    alone = plan_of("single", 1, global_batch=479)  # three steps
    assert epoch_seconds(
        alone, simulated(alone), lambda _: pytest.fail("a fourth")
    ) == pytest.approx(3 * simulated(alone).seconds)
    # a sample on each worker, and one left: every step is padded to two samples on each
    padded = plan_of(BUCKETS, global_batch=2)
    assert (padded.micro_batch, padded.steps_per_epoch) == (1, 719)
    assert epoch_seconds(padded, simulated(padded), simulated) == pytest.approx(
        719 * simulated(padded).seconds
    )


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
def test_an_asynchronous_pipeline_loses_what_filling_and_emptying_it_takes(schedule: str) -> None:
    """Once in an epoch of 23 steps: a stage waits for the other's pass each way."""
    own = {"micro_batches": 1 if schedule == "pipedream" else 2}
    plan = plan_of({**GPIPE, **own, "schedule": schedule})
    assert plan.steps_per_epoch == 23
    bubble, imbalance = idle_of(plan.model_dump(mode="json"))
    passes = 23 * plan.accumulate
    full, slowest = 3 * WHOLE / 2, 3 * 1.280  # of a micro-batch and a stage, equal and real
    begin, real_begin = full, 3 * 1.152
    whole, real = passes * full + begin, passes * slowest + real_begin
    assert bubble == pytest.approx(begin / real)
    assert imbalance == pytest.approx(1 - whole / real)
