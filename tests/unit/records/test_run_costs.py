"""Costs of runs, from figures that are known."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest

from raysuite.plan import make_plans
from raysuite.records import EpochFinished, RunCosts, TimeShares
from raysuite.records.power import PowerUse, once
from raysuite.records.run_costs import Costs, run_costs, step_traffic
from raysuite.spec import Document
from raysuite.spec.strategies import Traffic
from raysuite.spec.tasks import CLASSIFICATION
from tests.fake_results import epoch


def plan_of(strategy: Any = "ddp", workers: int = 4, accumulate: int = 1) -> dict[str, Any]:
    document = {
        "name": "costs",
        "model": "resnet20",
        "data": "digits",
        "strategy": strategy,
        "training": {"epochs": 2, "global_batch": 64, "accumulate": accumulate},
        "resources": {"workers": workers, "device": "cpu"},
    }
    return make_plans(Document(document, "test"), gpus=0)[0].model_dump(mode="json")


def counted(**changes: Any) -> RunCosts:
    values = {"run_id": "a", "parameters": 250, "forward_flops": 10**9, "gradient_bytes": 1000}
    return RunCosts.model_validate({**values, **changes})


def shares(seconds: list[float]) -> TimeShares:
    known: dict[str, list[float]] = {
        name: [1.0] * len(seconds) for name in TimeShares.model_fields if name.endswith("_seconds")
    }
    known["communication_seconds"] = seconds
    del known["kernel_seconds"]
    return TimeShares(run_id="a", steps=10, warmup_steps=2, seconds=3.0, **known)


def epochs(*power: PowerUse | None, images: int = 100, seconds: float = 10.0) -> list[Any]:
    document = Document(
        {
            "name": "a",
            "model": "resnet20",
            "data": "digits",
            "training": {"epochs": 9, "global_batch": 64},
        },
        "test",
    )
    plan = make_plans(document, gpus=0)[0]
    made = []
    for number, each in enumerate(power):
        values = {"images": images, "seconds": seconds, "power": each}
        made.append(epoch(plan, number).model_copy(update=values))
    return made


def costs_of(**changes: Any) -> Costs:
    values: dict[str, Any] = {
        "plan": plan_of(),
        "counted": counted(),
        "shares": None,
        "epochs": [],
        "epoch_seconds": 20.0,
        "throughput": 100.0,
    }
    return run_costs(**{**values, **changes})


class TestOperations:
    def test_three_forward_passes_of_two_operations_a_multiply_add(self) -> None:
        assert costs_of().flops == pytest.approx(3 * 2 * 1e9 * 100)

    @pytest.mark.parametrize(("unit", "units"), [("tokens", 8), ("samples", 1)])
    def test_a_sequence_is_divided_into_what_the_throughput_counts(
        self, unit: Literal["tokens", "samples"], units: int
    ) -> None:
        task = CLASSIFICATION.model_copy(update={"unit": unit}).model_dump(mode="json")
        plan = plan_of()
        plan = {**plan, "task": task, "dataset": {**plan["dataset"], "sequence": 8}}
        assert costs_of(plan=plan).flops == pytest.approx(6 * 1e9 * 100 / units)

    def test_mfu_is_against_all_devices(self) -> None:
        costs = costs_of(counted=counted(peak_flops=1e12))
        assert costs.mfu == pytest.approx(6e11 / 4e12)

    def test_a_peak_that_is_unknown_gives_no_mfu(self) -> None:
        assert costs_of().mfu is None

    @pytest.mark.parametrize("changes", [{"counted": None}, {"throughput": None}])
    def test_what_is_not_known_is_not_told(self, changes: dict[str, Any]) -> None:
        costs = costs_of(**({"counted": counted(peak_flops=1e12)} | changes))
        assert costs.flops is costs.mfu is None

    def test_a_model_that_could_not_be_counted(self) -> None:
        nothing = {"parameters": None, "forward_flops": None, "gradient_bytes": None}
        costs = costs_of(counted=counted(**nothing, message="no"))
        assert (costs.flops, costs.traffic) == (None, None)

    @pytest.mark.parametrize(
        ("unit", "sequence", "rate"),
        [("tokens", 16, 6e9 / 16 * 100), ("tokens", 0, None), ("samples", 0, 6e9 * 100)],
    )
    def test_of_a_token_its_part_of_a_sequence(
        self, unit: str, sequence: int, rate: float | None
    ) -> None:
        plan = plan_of()
        plan["task"] = CLASSIFICATION.model_copy(update={"unit": unit}).model_dump(mode="json")
        plan["dataset"]["sequence"] = sequence
        found = costs_of(plan=plan).flops
        assert found == (rate if rate is None else pytest.approx(rate))


def test_ninety_epochs() -> None:
    assert costs_of().projected_seconds == 1800.0
    assert costs_of(epoch_seconds=None).projected_seconds is None


class TestTraffic:
    @pytest.mark.parametrize(
        ("strategy", "accumulate", "traffic"),
        [
            ("ddp", 2, Traffic(1000)),
            ({"name": "ddp", "compression": "bf16"}, 1, Traffic(500)),
            ("horovod", 2, Traffic(1000)),
            ({"name": "horovod", "compression": "fp16"}, 1, Traffic(500)),
            ({"name": "deepspeed", "zero_stage": 0}, 2, Traffic(1000)),
            ({"name": "deepspeed", "zero_stage": 1}, 2, Traffic(1000, 0, 1000)),
            ({"name": "deepspeed", "zero_stage": 2}, 2, Traffic(2000, 0, 1000)),
            ({"name": "deepspeed", "zero_stage": 3}, 1, Traffic(0, 1000, 1000)),
            # each micro-batch's, of which 50 numbers of small tensors are gathered once
            ({"name": "deepspeed", "zero_stage": 3}, 2, Traffic(0, 2000, 4 * (50 + 2 * 200))),
            ({"name": "deepspeed", "zero_stage": 1, "offload": "optimizer"}, 1, None),
            # gathered before both passes of each micro-batch, or before the forward pass alone
            ("fsdp", 2, Traffic(0, 1000, 4000)),
            ({"name": "fsdp", "reshard_after_forward": False}, 2, Traffic(0, 1000, 2000)),
            (
                {"name": "fsdp", "gather_dtype": "bf16", "reduce_dtype": "bf16"},
                1,
                Traffic(0, 500, 1000),
            ),
            ({"name": "fsdp", "copies": 2}, 1, None),
            ({"name": "ddp", "compression": "powersgd"}, 1, None),
            ({"name": "custom", "target": "a.b:C"}, 1, None),
        ],
    )
    def test_of_a_step(self, strategy: Any, accumulate: int, traffic: Traffic | None) -> None:
        assert step_traffic(plan_of(strategy, 2, accumulate), 250, 1000, 50) == traffic

    def test_what_zero_3_gathers_for_each_micro_batch_is_not_known_of_earlier_journals(
        self,
    ) -> None:
        zero = {"name": "deepspeed", "zero_stage": 3}
        assert step_traffic(plan_of(zero, 2, 2), 250, 1000) is None
        assert step_traffic(plan_of(zero, 2, 1), 250, 1000) == Traffic(0, 1000, 1000)

    def test_of_a_run_by_its_counts(self) -> None:
        zero = plan_of({"name": "deepspeed", "zero_stage": 3}, 2, 2)
        record = counted(small_parameters=50)
        costs = costs_of(plan=zero, counted=record)
        assert costs.traffic == Traffic(0, 2000, 4 * (50 + 2 * 200))
        assert costs.counted is record
        assert costs_of(counted=counted(gradient_bytes=None)).traffic == Traffic()

    def test_a_strategy_of_another_version_has_none(self) -> None:
        plan = plan_of()
        plan["spec"]["strategy"]["gone"] = 1
        assert step_traffic(plan, 250, 1000) is None

    def test_one_worker_sends_nothing(self) -> None:
        alone = step_traffic(plan_of("ddp", 1), 250, 1000)
        assert alone == Traffic()

    def test_what_each_worker_sends(self) -> None:
        assert Traffic(1000).sent(4) == 1500
        assert Traffic(1000, 0, 1000).sent(2) == 1500
        assert Traffic(0, 1000, 1000).sent(4) == 1500

    def test_a_ring_all_reduces_in_two_rounds_and_gathers_in_one(self) -> None:
        assert Traffic(1000).messages(4, 400) == 2 * 3 * 3
        assert Traffic(0, 1000, 400).messages(4, 400) == 3 * (3 + 1)
        assert Traffic(0, 0, 1000).messages(4, math.inf) == 3
        assert Traffic().messages(4, 400) == 0

    def test_bus_bandwidth_is_by_the_worker_that_waited_least(self) -> None:
        costs = costs_of(shares=shares([5.0, 2.0, 3.0, 4.0]))
        assert costs.bus_bandwidth == pytest.approx(10 * 1500 / 2.0)

    @pytest.mark.parametrize("profile", [None, shares([]), shares([0.0, 1.0])])
    def test_without_a_time_there_is_no_bandwidth(self, profile: TimeShares | None) -> None:
        assert costs_of(shares=profile).bus_bandwidth is None

    def test_one_worker_has_no_bus(self) -> None:
        alone = costs_of(plan=plan_of(workers=1), shares=shares([2.0]))
        assert (alone.traffic, alone.bus_bandwidth) == (Traffic(), None)


def use(**changes: Any) -> PowerUse:
    """Two workers on one host, each with a device of its own."""
    values = {
        "devices": ["a", "b"],
        "device_joules": [100.0, 300.0],
        "device_busy": [0.5, 0.7],
        "hosts": ["h", "h"],
        "host_joules": [50.0, 51.0],
    }
    return PowerUse.model_validate({**values, **changes})


class TestEnergy:
    def test_a_host_counts_once(self) -> None:
        assert once(["h", "h", "i"], [50.0, 51.0, 40.0]) == 91.0
        assert once(["h", "i"], [50.0, None]) is None
        assert once(["", ""], [None, None]) is None
        assert once(["h", ""], [50.0, 2.0]) is None, "of an unknown counter"
        assert once([], []) is None

    def test_per_image_over_the_epochs(self) -> None:
        costs = costs_of(epochs=epochs(use(), use(host_joules=[150.0, 140.0])))
        assert costs.device_joules == pytest.approx(800 / 200)
        assert costs.host_joules == pytest.approx((51 + 150) / 200)
        assert costs.device_busy == pytest.approx(0.6)

    def test_the_share_in_which_devices_are_busy_is_weighted_by_the_length_of_epochs(self) -> None:
        long, short = use(device_busy=[0.2, 0.4]), use(device_busy=[1.0, 1.0])
        made = [*epochs(long, seconds=30.0), *epochs(short, seconds=10.0)]
        assert costs_of(epochs=made).device_busy == pytest.approx((0.3 * 30 + 1.0 * 10) / 40)

    def test_an_epoch_that_does_not_tell_leaves_no_sum(self) -> None:
        costs = costs_of(epochs=epochs(use(), None))
        assert costs.device_joules is None
        assert costs.device_busy == pytest.approx(0.6)
        assert costs_of(epochs=epochs(None)).host_joules is None
        assert costs_of(epochs=epochs(use(), images=0)).host_joules is None, "per no image"

    def test_a_worker_that_does_not_tell_leaves_none(self) -> None:
        costs = costs_of(epochs=epochs(use(device_joules=[1.0, None], device_busy=[None, 0.5])))
        assert (costs.device_joules, costs.device_busy) == (None, None)
        assert costs.host_joules == pytest.approx(0.51)


def test_records_of_before_are_read() -> None:
    record = epochs(None)[0]
    old = record.model_dump(mode="json", exclude={"power", "val_top5"})
    assert EpochFinished.model_validate(old).power is None
