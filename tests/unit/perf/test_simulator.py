"""Properties of simulated steps, which hold whatever the numbers are."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from scipy import stats

from raysuite.errors import UserError
from raysuite.perf.simulator import (
    Crowd,
    Layer,
    Link,
    Network,
    Step,
    Task,
    data_parallel,
    pipeline,
    pipeline_step,
    run,
)
from raysuite.spec.schedules import Schedule, ScheduleName
from raysuite.spec.strategies import STRATEGY_OPTIONS, Reductions

NETWORKS = ("ethernet-40g", "hdr-fat-tree", "juwels-booster")
LAYERS = [Layer(f"layer {n}", 1e-3, 2e-3, 4e6, 1e5) for n in range(40)]
DDP = Reductions(first_bucket_bytes=2**20)


def step(workers: int, network: Network, reductions: Reductions = DDP, **options: float) -> float:
    tasks = data_parallel(LAYERS, [Crowd(workers)], network, reductions, **options)  # type: ignore[arg-type]
    return Step.of(tasks).seconds


def slower(network: Network, factor: float) -> Network:
    links = {
        name: Link(latency_us=link.latency_us, gb_per_s=link.gb_per_s / factor)
        for name, link in (("inside", network.inside), ("between", network.between))
    }
    return network.model_copy(update=links)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 5, 16])
def test_gpipe_without_communication_is_its_formula(stages: int, micro_batches: int) -> None:
    each = [Layer(str(n), 1, 2) for n in range(stages)]
    gpipe = Schedule("gpipe", micro_batches, (1,) * stages)
    simulated = pipeline_step(each, gpipe, None).seconds
    sequential = stages * micro_batches * 3
    bubble = (stages + micro_batches - 1) / (stages * micro_batches)
    assert simulated == sequential * bubble


@pytest.mark.parametrize("name", get_args(ScheduleName))
@pytest.mark.parametrize("replicas", [(1,), (1, 1), (1, 1, 1, 1), (2, 1), (1, 2, 2)])
def test_schedules_replay_without_deadlock(name: ScheduleName, replicas: tuple[int, ...]) -> None:
    chunks = 2 if name == "interleaved_1f1b" else 1
    if name == "interleaved_1f1b" and (len(replicas) == 1 or max(replicas) > 1):
        return
    for micro_batches in (4, 12):
        schedule = Schedule(name, micro_batches, replicas, chunks)
        each = [Layer(str(n), 1 + n, 2, 10, 10) for n in range(schedule.stages)]
        network = Network.read("hdr-fat-tree")
        simulated = pipeline_step(each, schedule, network, copies=2, update_s=0.5)
        work = sum(layer.forward_s + layer.backward_s for layer in each) * micro_batches
        assert simulated.seconds >= work / schedule.workers


def test_an_asynchronous_pipeline_has_no_bubble() -> None:
    each = [Layer(str(n), 1, 2) for n in range(4)]
    full = pipeline_step(each, Schedule("pipedream", 8, (1, 1, 1, 1)), None)
    assert full.seconds == pytest.approx(8 * 3)
    assert full.idle == pytest.approx(0)
    assert full.shares["computation"] == pytest.approx(1)


@pytest.mark.parametrize("middle_s", [1.0, 5.0])
def test_a_full_pipeline_waits_for_transfers_by_the_micro_batches_in_flight(middle_s) -> None:
    link = Link(latency_us=2e6, gb_per_s=1)
    network = Network(name="", source="", workers_per_node=2, inside=link, between=link)
    stages = [Layer("a", 1, 2), Layer("b", middle_s, 2)]
    step = pipeline_step(stages, Schedule("pipedream", 1, (1, 1)), network)
    # two micro-batches pass forward, transfer, forward, backward, transfer, backward: 10 or 14 s
    seconds = {1.0: 5.0, 5.0: 7.0}[middle_s]
    assert step.seconds == pytest.approx(seconds)
    assert step.idle == pytest.approx(1 - (3 + middle_s + 2) / 2 / seconds)
    assert step.shares["computation"] == pytest.approx((middle_s + 2) / seconds)


def test_shares_of_a_long_epoch_add_up_to_one() -> None:
    each = [Layer(str(n), 1, 2) for n in range(4)]
    found = pipeline_step(each, Schedule("pipedream", 1, (1, 1, 1, 1)), None, epoch=100)
    assert found.shares["computation"] == pytest.approx(100 * 3 / (100 * 3 + 9))
    assert sum(found.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("epoch", [1, 2, 3, 4, 10])
def test_an_asynchronous_pipeline_is_emptied_after_an_epoch(epoch: int) -> None:
    """Until the last stage has its first input, and after its last output, others wait."""
    each = [Layer(str(n), 1, 2) for n in range(4)]
    one = Schedule("pipedream", 1, (1, 1, 1, 1))
    found = pipeline_step(each, one, None, epoch=epoch)
    assert found.seconds * epoch == pytest.approx(epoch * 3 + 3 * (1 + 2))
    assert sum(found.shares.values()) == pytest.approx(1)


def test_a_deadlock_is_found() -> None:
    with pytest.raises(ValueError, match="deadlock"):
        run([Task("a", "x", 1, (1,)), Task("b", "y", 1, (0,))])


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("gathers", ["nothing", "updated weights", "weights"])
def test_half_the_bandwidth_is_never_faster(name: str, overlap: bool, gathers: str) -> None:
    network = Network.read(name)
    reductions = Reductions(overlap=overlap, gathers=gathers)  # type: ignore[arg-type]
    for workers in (1, 2, 4, 5, 64, 1024):
        before = step(workers, network, reductions)
        assert step(workers, slower(network, 2), reductions) >= before
        assert step(workers, slower(network, 64), reductions) > before or workers == 1
    stages = [Layer(str(n), 1e-3, 2e-3, 4e6, 1e6) for n in range(4)]
    for schedule in ("gpipe", "1f1b"):
        times = [
            pipeline_step(stages, Schedule(schedule, 8, (1, 1, 1, 1)), each).seconds  # type: ignore[arg-type]
            for each in (network, slower(network, 2))
        ]
        assert times[1] >= times[0]


def test_another_topology_takes_another_time() -> None:
    assert len({step(512, Network.read(name)) for name in NETWORKS}) == 3
    network = Network.read("juwels-booster")
    one_group = network.model_copy(update={"nodes_per_group": None})
    tapered = network.model_copy(update={"taper": 0.1})
    assert step(4 * 48, network) == step(4 * 48, one_group)
    assert step(4 * 49, tapered) > step(4 * 49, network) > step(4 * 49, one_group)
    for rank, longer in ((8 + 4 * 48 - 1, False), (8 + 4 * 48, True)):  # a group has 48 nodes
        there, back = network.send(1e6, 8, rank), network.send(1e6, rank, 8)
        assert there == back
        assert (there > one_group.send(1e6, 8, rank)) == longer


SLOW = Network(
    name="",
    source="",
    workers_per_node=2,
    inside=Link(latency_us=0, gb_per_s=1e-8),  # 10 bytes a second
    between=Link(latency_us=0, gb_per_s=5e-9),
)
THREE = [Layer(name, 1, 2, 10.0) for name in "abc"]
EACH = Reductions(bucket_bytes=10)
SHARDED = replace(EACH, gathers="weights")


@pytest.mark.parametrize(
    ("reductions", "options", "seconds"),
    [
        # forward until 3, backward until 5, 7 and 9; an all-reduce of 10 bytes on two takes 1
        (EACH, {}, 10),
        (EACH, {"update_s": 0.5}, 10.5),
        (replace(EACH, overlap=False), {}, 9 + 3),
        (replace(EACH, compression=0.5), {}, 9.5),
        (EACH, {"accumulate": 2}, 9 + 9 + 1),  # reduced with the last pass alone
        (replace(EACH, every_pass=True), {"accumulate": 2}, 9 + 9 + 1),  # the first beside the next
        (replace(EACH, every_pass=True, overlap=False), {"accumulate": 2}, 2 * (9 + 3)),
        (EACH, {"accumulate": 2, "load_s": 1.0}, 2 + 9 + 9 + 1),
        (Reductions(bucket_bytes=20), {}, 10),  # c and b from 7 to 9, then a
        (Reductions(bucket_bytes=20, first_bucket_bytes=10), {}, 9 + 2),  # c alone, then b and a
        (Reductions(bucket_bytes=1e9), {}, 9 + 3),
        (replace(EACH, gathers="updated weights"), {"update_s": 0.5}, 10.5 + 1.5),
        # weights of `a` are gathered until 0.5, others while it computes; reduce-scatters of half
        (SHARDED, {}, 0.5 + 9 + 0.5),
        (replace(SHARDED, overlap=False), {}, 3 * 0.5 + 9 + 3 * 0.5),
        # `c`, once it was passed forward, is gathered again; the others while it computes
        (replace(SHARDED, gathers_again=True), {}, 0.5 + 3 + 0.5 + 6 + 0.5),
        # with 2 for a gather, forward passes end at 3, 5 and 7; `c` is gathered until 9, `b` until
        # 11 and `a`, after gradients of `c`, from 11.5 to 13.5
        (replace(SHARDED, gathers_again=True, gathered_bytes=4.0), {}, 13.5 + 2 + 0.5),
        (SHARDED, {"accumulate": 2}, 0.5 + 9 + 9 + 0.5),
        # weights of `a` are gathered once more, after its gradients have been reduced
        (replace(SHARDED, every_pass=True), {"accumulate": 2}, 2 * (0.5 + 9 + 0.5)),
        (replace(SHARDED, every_pass=True, kept_bytes=10), {"accumulate": 2}, 0.5 + 18 + 2 * 0.5),
        (replace(SHARDED, overlap=False), {"accumulate": 2}, 2 * (3 * 0.5 + 9) + 3 * 0.5),
        (replace(SHARDED, overlap=False, kept_bytes=10), {"accumulate": 2}, 1.5 + 18 + 1.5),
        (replace(SHARDED, by_unit=True), {}, 1.5 + 9 + 1.5),  # all in no unit
        (EACH, {"storage_s": 5.0}, 10),
        (EACH, {"storage_s": 12.0}, 12),
    ],
)
def test_a_data_parallel_step_by_hand(
    reductions: Reductions, options: dict[str, float], seconds: float
) -> None:
    tasks = data_parallel(THREE, [Crowd(2)], SLOW, reductions, **options)  # type: ignore[arg-type]
    assert Step.of(tasks).seconds == pytest.approx(seconds)


def test_gradients_of_frozen_layers_are_not_reduced() -> None:
    layers = [Layer("a", 1, 2, frozen_bytes=10.0), *THREE[1:]]
    for reductions, seconds in ((EACH, 9.0), (SHARDED, 0.5 + 9)):  # their weights are gathered
        tasks = data_parallel(layers, [Crowd(2)], SLOW, reductions)
        assert Step.of(tasks).seconds == pytest.approx(seconds)


def test_what_lies_in_no_unit_is_gathered_as_one() -> None:
    """First and last layer, in 4 seconds, and once more for the second micro-batch, beside a
    backward pass: from 12 to 16 instead of 14. Passes are as long as in other steps by hand."""
    layers = [Layer("a", 1, 2, 10.0), Layer("b", 1, 2, 10.0, unit=0), Layer("c", 1, 2, 10.0)]
    reductions = replace(SHARDED, by_unit=True, gathered_bytes=4.0)
    once = Step.of(data_parallel(layers, [Crowd(2)], SLOW, reductions)).seconds
    # forward passes end at 5, 7 and 8, as `b` is gathered from 4 to 6
    assert once == pytest.approx(8 + 6 + 1)
    twice = Step.of(data_parallel(layers, [Crowd(2)], SLOW, reductions, accumulate=2)).seconds
    # then at 17, 19 and 20
    assert twice == pytest.approx(20 + 6 + 1)


def test_what_each_lane_does() -> None:
    tasks = data_parallel(THREE, [Crowd(2)], SLOW, replace(EACH, gathers="updated weights"))
    assert [(task.name, task.lane, task.kind) for task in tasks] == [
        *((f"forward {name}", "2 workers", "computation") for name in "abc"),
        ("backward c", "2 workers", "computation"),
        ("reduce bucket 0", "collectives", "communication"),
        ("backward b", "2 workers", "computation"),
        ("reduce bucket 1", "collectives", "communication"),
        ("backward a", "2 workers", "computation"),
        ("reduce bucket 2", "collectives", "communication"),
        ("update", "2 workers", "overhead"),
        ("gather weights", "collectives", "communication"),
    ]
    stages = [Layer(str(n), 1, 2, gradient_bytes=10.0, output_bytes=10.0) for n in range(2)]
    lanes: dict[str, set[str]] = {}
    for task in pipeline(stages, Schedule("gpipe", 2, (1, 1)), SLOW, copies=2):
        lanes.setdefault(f"{task.lane}: {task.kind}", set()).add(task.name)
    passes = {"forward 0", "forward 1", "backward 0", "backward 1"}
    assert lanes == {
        **{f"worker {worker}: computation": passes for worker in (0, 1)},
        **{f"worker {worker}: overhead": {"update"} for worker in (0, 1)},
        "link 0 to 1: communication": {"send forward 0", "send forward 1"},
        "link 1 to 0: communication": {"send backward 0", "send backward 1"},
        **{f"collectives of stage {stage}: communication": {"reduce"} for stage in (0, 1)},
    }


def test_workers_by_hand() -> None:
    alone = Step.of(data_parallel(THREE, [Crowd(1)], SLOW, replace(EACH, gathers="weights")))
    assert (alone.seconds, alone.shares["computation"]) == (9, 1)
    read = Step.of(data_parallel(THREE, [Crowd(1)], SLOW, EACH, storage_s=12.0))
    assert read.shares == {
        "computation": 0.75,
        "overhead": 0,
        "exposed communication and storage": 0.25,
    }
    assert read.idle == 0.25
    straggler = data_parallel(THREE, [Crowd(1), Crowd(1, 2.0)], SLOW, EACH, update_s=0.5)
    found = Step.of(straggler)
    assert found.seconds == 18 + 1 + 0.5
    assert found.shares == pytest.approx(
        {"computation": 18 / 19.5, "overhead": 0.5 / 19.5, "exposed communication": 1 / 19.5}
    )
    slowest = Crowd(2).slowest(0.1)
    jittered = data_parallel(THREE, [Crowd(2)], SLOW, EACH, jitter=0.1)
    assert Step.of(jittered).seconds == pytest.approx(9 * slowest + 1)
    assert Crowd(2, 3.0).slowest(0.1) == pytest.approx(3 * slowest)
    # Blom 1958: the expected largest of two normal values, (2 - 0.375) / (2 + 0.25) of the quantile
    assert slowest == pytest.approx(1 + 0.1 * stats.norm.ppf(1.625 / 2.25))


def test_a_pipeline_step_by_hand() -> None:
    """Two stages and micro-batches; an activation takes a second, either way."""
    each = [Layer(str(n), 1, 2, gradient_bytes=10.0, output_bytes=10.0) for n in range(2)]
    gpipe = Schedule("gpipe", 2, (1, 1))
    plain = pipeline_step(each, gpipe, None)
    assert (plain.seconds, plain.idle) == (9, pytest.approx(1 / 3))
    bubble = {"computation": 2 / 3, "overhead": 0, "bubble and transfers": 1 / 3}
    assert plain.shares == pytest.approx(bubble)
    # forward 0 arrives at 2; backward 0 of the last stage ends at 6, and 1 at 8, which arrives at 9
    assert pipeline_step(each, gpipe, SLOW).seconds == 11
    assert pipeline_step(each, gpipe, SLOW, update_s=0.5).seconds == 11.5
    # between two copies, on other nodes: 2 messages of 5 bytes at 5 bytes a second
    assert pipeline_step(each, gpipe, SLOW, copies=2, update_s=0.5).seconds == 11 + 2 + 0.5


def test_a_message_takes_the_link_between_its_ranks() -> None:
    network = SLOW.model_copy(
        update={"nodes_per_group": 2, "taper": 0.5, "group_latency_us": 3e6},
    )
    assert network.send(10, 0, 1) == network.send(10, 3, 2) == 1
    assert network.send(10, 1, 2) == network.send(10, 2, 0) == 2
    # farther than two nodes: half the rate, and three seconds
    assert network.far(4).seconds(10) == 2
    assert network.far(5).seconds(10) == network.send(10, 0, 4) == 3 + 4
    # inside a node 2 messages of 6 bytes; between two nodes 2 of 3, and of three by binary trees
    assert network.all_reduce(4, 12) == pytest.approx(2 * 0.6 + 2 * 0.6)
    assert network.all_reduce(6, 12) == pytest.approx(2 * 0.6 + 2 * math.log2(3) * 3 + 2 * 6 / 2.5)
    assert network.all_gather(2, 10) == network.all_reduce(2, 10) / 2 == 0.5
    assert network.all_reduce(6, 0) == network.all_reduce(1, 10) == 0


MIB = 2**20


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({"name": "ddp", "bucket_mb": 10.0}, Reductions(10 * MIB, MIB)),
        (
            {"name": "ddp", "bucket_mb": 0.5, "compression": "bf16"},
            Reductions(MIB / 2, MIB / 2, compression=0.5),
        ),
        ({"name": "fabric"}, Reductions(25 * MIB, MIB)),
        (
            {"name": "horovod", "fusion_threshold_mb": 64, "compression": "fp16"},
            Reductions(64 * MIB, compression=0.5),
        ),
        ({"name": "horovod", "fusion_threshold_mb": 0}, Reductions(1)),
        (
            {"name": "deepspeed", "zero_stage": 0, "bucket_mb": 5},
            Reductions(5 * MIB, overlap=False),
        ),
        (
            {"name": "deepspeed", "zero_stage": 1, "bucket_mb": 5, "overlap_comm": True},
            Reductions(5 * MIB, gathers="updated weights"),
        ),
        (
            {"name": "deepspeed", "zero_stage": 2, "bucket_mb": 5},
            Reductions(
                5 * MIB,
                overlap=False,
                gathers="updated weights",
                every_pass=True,
            ),
        ),
        (
            {"name": "deepspeed", "zero_stage": 3, "bucket_mb": 5},
            Reductions(5 * MIB, gathers="weights", kept_bytes=4e5, every_pass=True),
        ),
        (
            {"name": "deepspeed", "zero_stage": 3, "bucket_mb": 5, "overlap_comm": False},
            Reductions(5 * MIB, overlap=False, gathers="weights", kept_bytes=4e5, every_pass=True),
        ),
        ({"name": "fsdp"}, Reductions(gathers="weights", gathers_again=True, by_unit=True)),
        (
            {
                "name": "fsdp",
                "reshard_after_forward": False,
                "gather_dtype": "bf16",
                "reduce_dtype": "bf16",
            },
            Reductions(gathers="weights", gathered_bytes=0.5, compression=0.5, by_unit=True),
        ),
    ],
)
def test_how_a_strategy_shares(strategy: dict[str, Any], expected: Reductions) -> None:
    options = STRATEGY_OPTIONS[strategy["name"]].model_validate(strategy)
    assert options.reductions() == expected


@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "ddp", "compression": "powersgd"},
        {"name": "deepspeed", "zero_stage": 3, "bucket_mb": 5, "offload": "optimizer"},
        {"name": "fsdp", "copies": 2},
        {"name": "fsdp", "offload": "parameters"},
    ],
)
def test_a_strategy_that_is_not_modelled_has_no_reductions(strategy: dict[str, Any]) -> None:
    assert STRATEGY_OPTIONS[strategy["name"]].model_validate(strategy).reductions() is None


def test_a_chart_by_hand() -> None:
    tasks = [
        Task("forward", "x", 2),
        Task("backward", "x", 2),
        Task("reduce", "link", 1, (1,), "communication"),
        Task("update", "x", 1, (2,), "overhead"),
        Task("nothing", "link", 0),
    ]
    simulated = Step.of(tasks)
    assert simulated.gantt(12) == ["x    |FFFFBBBB  uu|", "link |        cc  |"]
    found = json.loads(simulated.trace())
    names, events = found["traceEvents"][:2], found["traceEvents"][2:]
    assert found["displayTimeUnit"] == "ms"
    assert names == [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": place, "args": {"name": lane}}
        for place, lane in enumerate(("x", "link"))
    ]
    assert events == [
        {
            "ph": "X",
            "name": name,
            "cat": kind,
            "pid": 0,
            "tid": lane,
            "ts": at * 1e6,
            "dur": s * 1e6,
        }
        for name, kind, lane, at, s in (
            ("forward", "computation", 0, 0, 2),
            ("backward", "computation", 0, 2, 2),
            ("reduce", "communication", 1, 4, 1),
            ("update", "overhead", 0, 5, 1),
        )
    ]


def test_a_million_workers_are_as_many_tasks_as_two() -> None:
    network = Network.read("juwels-booster")
    layers = [Layer(str(n), 1e-4, 2e-4, 5e5) for n in range(311)]  # as many as ResNet-152 has
    few, many = (
        data_parallel(layers, [Crowd(workers)], network, DDP, jitter=0.02) for workers in (2, 2**20)
    )
    assert len(many) == len(few)
    assert Step.of(many).seconds > Step.of(few).seconds > 311 * 3e-4


def test_a_trace_and_a_chart_hold_every_lane(tmp_path: Path) -> None:
    network = Network.read("hdr-fat-tree")
    simulated = Step.of(data_parallel(LAYERS, [Crowd(8)], network, DDP))
    events = json.loads(simulated.trace())["traceEvents"]
    lanes = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert lanes == {"8 workers", "collectives"}
    ends = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    assert max(ends) == pytest.approx(simulated.seconds * 1e6)
    assert [line.partition("|")[0].strip() for line in simulated.gantt()] == sorted(lanes)
    assert sum(simulated.shares.values()) == pytest.approx(1)


def test_a_task_waits_for_its_lane_and_for_others() -> None:
    events = run([Task("a", "x", 2), Task("b", "y", 1), Task("c", "y", 1, (0,)), Task("d", "x", 1)])
    assert [(event.begin, event.end) for event in events] == [(0, 2), (0, 1), (2, 3), (2, 3)]


def test_lanes_share_processors() -> None:
    tasks = [
        Task("a", "x", 1),
        Task("b", "y", 2),
        Task("c", "z", 3),
        Task("d", "l", 1, (), "communication"),
    ]
    events = run(tasks, lambda lanes: min(1, 2 / lanes))
    # of three at 2/3 the first ends at 1.5; then both others have a processor
    assert [event.end for event in events] == pytest.approx([1.5, 2.5, 3.5, 1])


def test_four_stages_on_two_processors_gain_no_more_than_two() -> None:
    each = [Layer(str(n), 1, 2) for n in range(4)]
    whole = 4 * 8 * 3
    shared = pipeline_step(
        each, Schedule("1f1b", 8, (1, 1, 1, 1)), None, pace=lambda n: min(1, 2 / n)
    )
    assert whole / 2 < shared.seconds < whole / 2 * 1.2
    contended = pipeline_step(
        each, Schedule("model_parallel", 8, (1,) * 4), None, pace=lambda n: 1 / n
    )
    assert contended.seconds == pytest.approx(whole)


def test_a_ring_sends_what_its_formula_tells() -> None:
    link = Link(latency_us=10, gb_per_s=1)
    network = Network(name="", source="", workers_per_node=4, inside=link, between=link)
    assert network.all_reduce(4, 8e6) == pytest.approx(2 * 3 * (10e-6 + 2e6 / 1e9))
    assert network.all_reduce(1, 8e6) == 0
    wide = network.model_copy(update={"workers_per_node": 1})
    tree = 2 * math.log2(1024) * 10e-6 + 2 * 8e3 / 1e9
    assert wide.all_reduce(1024, 8e3) == pytest.approx(tree)


@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("per_node", [1, 4])
def test_a_ring_between_nodes_sends_its_part_of_the_bytes(nodes: int, per_node: int) -> None:
    """2 (n - 1) / n of what is reduced over each link: inside a node all bytes among its workers,
    between nodes each worker's share of them."""
    count, inside, between = 8e9, 5.0, 1.0  # bytes, GB/s, GB/s
    network = Network(
        name="",
        source="",
        workers_per_node=per_node,
        inside=Link(latency_us=0, gb_per_s=inside),
        between=Link(latency_us=0, gb_per_s=between),
    )
    in_node = 2 * (per_node - 1) / per_node * count / (inside * 1e9)
    share = count / per_node
    among = 2 * (nodes - 1) / nodes * share / (between * 1e9)
    assert network.all_reduce(nodes * per_node, count) == pytest.approx(in_node + among)
    late = network.model_copy(update={"between": Link(latency_us=100, gb_per_s=between)})
    messages = 2 * (nodes - 1) * 100e-6
    told = late.all_reduce(nodes * per_node, count)
    assert told == pytest.approx(in_node + among + messages)


def test_a_network_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("{name: a, source: b, workers_per_node: 2, inside: {latency_us: 1}}")
    with pytest.raises(UserError, match=r"read: inside\.gb_per_s: Field req.*; between: Field req"):
        Network.read(str(file))
    with pytest.raises(UserError, match="ethernet-40g, hdr-fat-tree, juwels-booster"):
        Network.read("token-ring")
