"""Networks as lists of blocks, and where they are cut."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from raysuite import models
from raysuite.data.base import Batch
from raysuite.errors import UserError
from raysuite.models.base import example
from raysuite.parallel.base import StepSettings, World
from raysuite.parallel.pipeline.asynchronous import Stash
from raysuite.parallel.pipeline.blocks import Block, blocks_of, entered, prune, sent_bytes
from raysuite.parallel.pipeline.engine import Groups, Measured, SynchronousEngine
from raysuite.parallel.pipeline.partition import (
    BlockCosts,
    block_costs,
    partition,
    stage_cost,
    stage_sizes,
)
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.experiment import ModelOptions
from raysuite.spec.schedules import Schedule
from raysuite.spec.strategies import PipelineOptions


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("resnet20", 11), ("resnet18", 10), ("resnet50", 18), ("vgg11", 9), ("mobilenet_v2", 20)],
)
def test_blocks_one_after_the_other_are_the_network(name: str, blocks: int) -> None:
    facts = DatasetFacts(train_samples=1, val_samples=1, classes=10, channels=3, image_size=32)
    torch.manual_seed(0)
    model = models.build(ModelOptions(name=name), facts).eval()
    found = blocks_of(model)
    assert len(found) == blocks
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected, x = model(images), images
        for block in found:
            x = block(x)
    assert torch.equal(x, expected)
    whole = dict(model.named_parameters())
    prune(model, found[2:4], found)
    kept = dict(model.named_parameters())
    assert kept
    assert {id(each) for each in kept.values()} == {
        id(each) for block in found[2:4] for each in block.parameters
    }
    assert all(whole[key] is each for key, each in kept.items())


def test_a_network_of_ones_own() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)

        def layers(self) -> list[nn.Module]:
            return [self.one, self.one]

    class Opaque(nn.Module):
        pass

    class Extra(nn.Linear):
        def get_extra_state(self) -> int:
            return 1

    assert len(blocks_of(nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.ReLU(True)))) == 1
    with pytest.raises(UserError, match=r"other\.weight"):
        blocks_of(Tied())
    with pytest.raises(UserError, match="Opaque"):
        blocks_of(Opaque())
    with pytest.raises(UserError, match=r"1\._extra_state would be lost"):
        blocks_of(nn.Sequential(nn.Linear(2, 2), Extra(2, 2)))


def test_the_partition_is_the_best_of_all() -> None:
    draws = random.Random(5)
    for _ in range(1000):
        costs = [draws.choice([0, 1, 2, 3, 5, 8]) for _ in range(draws.randint(2, 12))]
        stages = draws.randint(1, min(5, len(costs)))
        weights = [draws.choice([1, 1, 2, 3]) for _ in range(stages)]

        def cost(stage: int, begin: int, end: int) -> float:
            return sum(costs[begin:end]) / weights[stage]  # noqa: B023 - called in this turn

        found = partition(len(costs), stages, cost)
        assert len(found) == stages
        assert sum(found) == len(costs)
        assert min(found) >= 1
        assert worst(found, cost) == min(worst(c, cost) for c in cuts(len(costs), stages))
    with pytest.raises(UserError, match="2 blocks"):
        partition(2, 3, lambda stage, begin, end: 1.0)


def cuts(count: int, parts: int) -> Iterator[list[int]]:
    """Every way to cut `count` things in a row into non-empty parts."""
    for ends in itertools.combinations(range(1, count), parts - 1):
        yield [b - a for a, b in itertools.pairwise([0, *ends, count])]


def worst(sizes: list[int], cost: Callable[[int, int, int], float]) -> float:
    ends = list(itertools.accumulate(sizes))
    return max(
        cost(stage, end - size, end)
        for stage, (end, size) in enumerate(zip(ends, sizes, strict=True))
    )


def test_of_equally_good_partitions_the_one_with_shorter_earlier_stages_is_taken() -> None:
    assert partition(3, 2, lambda stage, begin, end: end - begin) == [1, 2]
    assert partition(5, 3, lambda stage, begin, end: end - begin) == [1, 2, 2]
    assert partition(3, 3, lambda stage, begin, end: 0.0) == [1, 1, 1]


def test_a_stages_time_is_of_both_passes_and_divided_by_its_workers_and_its_bytes_are_not() -> None:
    costs = [BlockCosts(10 * n, forward_s=n, backward_s=2 * n) for n in (1, 2, 3, 4)]
    schedule = Schedule("pipedream", 4, (2, 1))
    time, size = (stage_cost(name, schedule, costs) for name in ("time", "parameters"))
    assert [time(0, 0, 2), time(1, 2, 4)] == [9 / 2, 21]
    assert [size(0, 0, 2), size(1, 2, 4)] == [30, 70]
    interleaved = stage_cost("time", Schedule("interleaved_1f1b", 4, (1, 1), 2), costs)
    assert [interleaved(3, 3, 4), interleaved(2, 0, 4)] == [12, 30]


def test_stages_are_those_given_or_balanced_by_what_is_known() -> None:
    """By time only if it was measured."""
    blocks = blocks_of(nn.Sequential(*(nn.Linear(n, n) for n in (2, 2, 9))))
    costs = [BlockCosts(1, forward_s=n) for n in (9.0, 1.0, 1.0)]

    def sizes(costs: list[BlockCosts] | None = None, **options: Any) -> list[int]:
        return list(stage_sizes(PipelineOptions(stages=2, **options), blocks, costs))

    assert sizes(partition=(2, 1)) == [2, 1]
    assert sizes(costs, partition=(1, 2)) == [1, 2]
    assert sizes(balance="time") == [2, 1]
    assert sizes(costs, balance="time") == [1, 2]
    assert sizes(costs, balance="parameters") == [1, 2]
    for given in ((1, 1), (2, 2)):
        with pytest.raises(UserError, match="the network has 3; give 2 numbers"):
            sizes(partition=given)


def test_memory_is_balanced_by_what_each_stage_holds() -> None:
    """The first stage of 1f1b holds more activations and so fewer layers; gpipe's hold the same."""
    costs = [BlockCosts(1, kept_bytes=100)] * 12
    sizes = {
        name: partition(12, 3, stage_cost("memory", Schedule(name, 6, (1, 1, 1)), costs))
        for name in ("gpipe", "1f1b")
    }
    assert sizes == {"gpipe": [4, 4, 4], "1f1b": [2, 3, 7]}


def test_a_stage_that_recomputes_holds_one_micro_batch_and_what_it_was_given() -> None:
    costs = [BlockCosts(1, kept_bytes=100, output_bytes=n) for n in range(12)]
    schedule = Schedule("1f1b", 6, (1, 1, 1))
    cost = stage_cost("memory", schedule, costs, recompute=True)
    assert cost(0, 0, 4) == 3 * 4 + 400  # weights, gradient and momentum; the loader has the images
    assert cost(1, 4, 8) == 3 * 4 + 400 + 2 * 3  # of the block before its own, twice
    assert cost(2, 8, 12) == 3 * 4 + 400  # one at a time: nothing is recomputed
    assert partition(12, 3, cost) == [4, 4, 4]


def test_a_repeated_forward_pass_drops_the_same_and_counts_no_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of two stages, with a mailbox instead of the second. Its layer of weights 0 and
    biases 1 sends 0 or 2 after dropout. If it gets gradients of 1, a bias's gradient is the sum of
    what was sent."""
    sent: list[torch.Tensor] = []
    arrived = SimpleNamespace(wait=lambda: None)

    def isend(value: torch.Tensor, *_: object) -> object:
        sent.append(value.clone())
        return arrived

    def irecv(value: torch.Tensor, *_: object) -> object:
        value.fill_(1.0)
        return arrived

    monkeypatch.setattr(dist, "isend", isend)
    monkeypatch.setattr(dist, "irecv", irecv)
    first, norm = nn.Linear(3, 8), nn.BatchNorm1d(3, momentum=0.5)
    nn.init.zeros_(first.weight)
    nn.init.ones_(first.bias)
    model = nn.Sequential(norm, first, nn.Dropout(0.5), nn.Linear(8, 2)).train()
    images = [torch.full((4, 3), value) for value in (2.0, 4.0, 6.0, 8.0)]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        engine = SynchronousEngine(
            model,
            lambda parameters: torch.optim.SGD(parameters, 1.0),
            World(0, 2, 0, torch.device("cpu")),
            StepSettings(4, 4),
            PipelineOptions(partition=(2, 1), recompute=True),
            Groups([None], [None], None, None),
        )
        engine.step([Batch(each, torch.zeros(4, dtype=torch.long), 4, 16) for each in images], 1.0)
        engine.measured = Measured(itertools.count(1.0, 0.5).__next__)
        for _ in range(3):  # as an operation that waits for sends, then for a reduction
            with engine._waiting():
                pass
        assert engine.measured.waited_s == 1.5
    finally:
        dist.destroy_process_group()
    _, *activations = sent  # after their shape
    assert [each.unique().tolist() for each in activations] == [[0.0, 2.0]] * 4
    torch.testing.assert_close(first.bias.detach(), 1 - torch.cat(activations).sum(0))
    assert norm.running_mean is not None
    assert norm.running_mean.tolist() == [6.125] * 3  # 0 -> 1 -> 2.5 -> 4.25 -> 6.125


def test_a_stage_may_change_what_it_was_given_in_place() -> None:
    given = torch.tensor([-1.0, 2.0], requires_grad=True)
    torch.relu_(entered(given)).sum().backward()
    assert given.grad is not None
    assert given.grad.tolist() == [0.0, 1.0]
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 1))
    blocks = [Block((model[0],)), Block((model[1], model[2]))]
    costs = block_costs(model, blocks, torch.randn(2, 3, 5, 5), nullcontext)
    assert all(each.forward_s > 0 and each.backward_s > 0 for each in costs)


@pytest.mark.parametrize("name", ["resnet20", "gpt"])
@pytest.mark.parametrize("lower", [None, torch.bfloat16])
def test_bytes_between_blocks_are_those_of_a_real_pass(
    name: str, lower: torch.dtype | None
) -> None:
    """Of residual networks in 16 bits, but of a transformer, whose sums begin in fp32, in 32."""
    facts = DatasetFacts(1, 1, 10, channels=3, image_size=32)
    if name == "gpt":
        facts = DatasetFacts(1, 1, 10, channels=0, image_size=0, sequence=16)
    options = ModelOptions(name=name, options={"tied": False} if name == "gpt" else {})
    blocks, x = blocks_of(models.build(options, facts)), example(facts, 2)
    real = []
    with torch.no_grad(), torch.autocast("cpu", lower, enabled=lower is not None):
        for block in blocks:
            x = block(x)
            real.append(x.nbytes // 2)
    with torch.device("meta"):
        empty = blocks_of(models.build(options, facts))
    assert sent_bytes(empty, example(facts, 2, "meta"), lower) == real
    in_32 = sent_bytes(empty, example(facts, 2, "meta"), None)
    assert (real[1] < in_32[1]) == (lower is not None and name != "gpt")


def test_each_version_of_the_weights_is_the_one_of_its_number() -> None:
    weight = torch.zeros(2)
    stash = Stash([weight])
    for _ in range(3):
        with stash.changed(oldest=0):
            weight += 1
    for version in (0, 2, 1, 3):
        with stash.used(version):
            assert weight.tolist() == [version] * 2
        assert weight.tolist() == [3, 3]
    assert stash.most == 4
    with stash.changed(oldest=2):
        weight += 1
    with stash.used(2):
        assert weight.tolist() == [2, 2]
    with pytest.raises(KeyError), stash.used(1):
        pass
