"""How the gate computes errors from outcomes, and what it has of collectives and samples; figures
by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from raysuite.data.base import Batch, Slice
from raysuite.gate import small_network
from raysuite.gate.small_network import (
    RATES,
    TOLERANCE,
    Comparison,
    Outcome,
    SmallNet,
    batch_of,
    comm_fault,
    compare,
    make_engine,
    make_samples,
    outcomes_compared,
    overflowing,
    same_on_all_ranks,
    small_net,
    without_tf32,
)
from raysuite.parallel.base import Engine, StepSettings, World
from raysuite.parallel.comm import NoComm, Pending, Reduction
from raysuite.parallel.single import Single
from raysuite.spec.optimizers import (
    AdamWOptions,
    LambOptions,
    LarsOptions,
    MuonOptions,
    SgdOptions,
)
from tests.strategies.broken import Broken

CPU = torch.device("cpu")
ALONE = World(0, 1, 0, CPU)
THREE = World(1, 3, 1, CPU)


@dataclass
class Ranks:
    """The collectives of the second of three ranks; `values` are what the others send in turn."""

    others: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    size: int = 3
    without: str = ""
    """A reduction that does not reach the others."""

    def all_gather(self, value: Tensor) -> Tensor:
        first, last = self.others[0] if self.others else (value - 1, value + 1)
        return torch.stack([first, value, last])

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        if reduction == self.without:
            return value.clone()
        stacked = self.all_gather(value)
        if reduction == "sum":
            return stacked.sum(0)
        return stacked.amax(0) if reduction == "max" else stacked.amin(0)

    def begin_max(self, value: Tensor) -> Pending:
        return value.clone


def test_collectives_reach_all_ranks_or_the_fault_names_what_they_give() -> None:
    assert comm_fault(NoComm(), ALONE) == ""
    assert comm_fault(Ranks(), THREE) == ""
    assert comm_fault(NoComm(), THREE) == (
        "the strategy's comm does not reach all ranks: there are 3 ranks, the comm's size is 1; "
        "applied to the rank numbers, all_gather gives [1], and all_reduce gives 1 (sum), 1 (max), "
        "1 (min)"
    )
    for wrong in (
        Ranks(size=2),
        Ranks(without="sum"),
        Ranks(without="max"),
        Ranks(without="min"),
        Ranks([(torch.tensor([2.0]), torch.tensor([0.0]))]),
    ):
        assert comm_fault(wrong, THREE), wrong


def test_weights_are_the_same_only_to_the_bit_under_the_same_names_and_shapes() -> None:
    weights = {"b": torch.tensor([1.0, -2.0]), "a": torch.ones(2, 3)}
    sent: list[Tensor] = []

    class Noted(NoComm):
        def all_gather(self, value: Tensor) -> Tensor:
            sent.append(value)
            return super().all_gather(value)

    changes: list[dict[str, Tensor]] = [
        weights,
        dict(reversed(weights.items())),
        {**weights, "b": torch.tensor([1.0, -2.0000002])},
        {**weights, "a": torch.ones(3, 2)},
        {"c": weights["b"], "a": weights["a"]},
        {"b": weights["b"]},
    ]
    for each in changes:
        assert same_on_all_ranks(Noted(), each)
    first, reversed_, *others = (int(each) for each in sent)
    assert first == reversed_
    assert first not in others
    own = sent[0]
    assert same_on_all_ranks(Ranks([(own, own)]), weights)
    assert not same_on_all_ranks(Ranks([(own, own + 1)]), weights)


BEFORE = {"a": torch.tensor([0.0, 0.0]), "b": torch.tensor([10.0])}
EXPECTED = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([22.0])}
"""Moved by 5 and by 12: by 13 together."""


def compared(
    weights: dict[str, Tensor],
    logits: tuple[float, ...] = (3.0, 4.0),
    losses: tuple[float, ...] = (2.0, 4.0),
) -> Comparison:
    outcomes = (
        Outcome(held, torch.tensor(found), torch.tensor(steps, dtype=torch.float64))
        for held, found, steps in (
            (weights, logits, losses),
            (EXPECTED, (3.0, 4.0), (2.0, 4.0)),
        )
    )
    return outcomes_compared(NoComm(), *outcomes, BEFORE)


def test_errors_are_relative_distances_of_the_worst_tensor_and_step() -> None:
    assert compared(EXPECTED) == Comparison(True, 0.0, 0.0, 0.0, 0.0, 0.0)
    found = compared({"a": torch.tensor([3.0, 5.0]), "b": torch.tensor([22.5])})
    assert found.weights == pytest.approx(1 / 5)
    assert found.updates == pytest.approx(math.hypot(1, 0.5) / 13)
    assert found.worst_update == pytest.approx(1 / 5)
    assert (found.error, found.subject) == (found.weights, "weights")
    assert found.loose_error == found.updates
    found = compared(EXPECTED, logits=(3.0, 4.5))
    assert (found.error, found.subject) == (pytest.approx(0.1), "logits")
    assert found.loose_error == found.error
    found = compared(EXPECTED, losses=(2.5, 4.4))
    assert (found.error, found.subject) == (pytest.approx(0.25), "losses")
    assert found.loose_error == found.error


@pytest.mark.parametrize(
    "weights",
    [
        {"a": EXPECTED["a"]},
        {**EXPECTED, "c": torch.ones(1)},
        {"a": EXPECTED["a"], "b": torch.tensor([math.nan])},
        {"a": torch.tensor([math.inf, 4.0]), "b": EXPECTED["b"]},
    ],
)
def test_what_is_not_finite_or_another_network_is_infinitely_far(weights) -> None:
    found = compared(weights)
    assert (found.weights, found.updates, found.worst_update) == (math.inf,) * 3
    assert compared(EXPECTED, logits=(3.0, math.nan)).logits == math.inf
    assert compared(EXPECTED, logits=(3.0,)).logits == math.inf
    assert compared(EXPECTED, losses=(2.0, math.nan)).losses == math.inf
    assert Comparison().error == Comparison().loose_error == math.inf


def test_losses_are_summed_over_ranks_and_errors_are_the_largest_of_any() -> None:
    own = Outcome(EXPECTED, torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0], dtype=torch.float64))
    expected = Outcome(EXPECTED, own.logits, torch.tensor([3.0, 6.0], dtype=torch.float64))

    class Same(Ranks):
        def all_gather(self, value: Tensor) -> Tensor:
            return torch.stack([value] * 3)

    assert outcomes_compared(Same(), own, expected, BEFORE).error == 0.0
    worse = torch.tensor([0.0, 0.0, 0.5, 0.0, 0.0], dtype=torch.float64)

    class Worse(Same):
        def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
            return torch.maximum(value, worse) if reduction == "max" else 3 * value

    assert outcomes_compared(Worse(), own, expected, BEFORE).error == 0.5


def test_samples_and_first_weights_are_the_same_everywhere_and_others_in_each_draw() -> None:
    images, labels = make_samples(40, CPU)
    assert (images.shape, labels.shape) == ((40, 1, 8, 8), (40,))
    assert images.dtype == torch.float32
    assert set(labels.tolist()) == set(range(10))
    for again, equal in ((make_samples(40, CPU), True), (make_samples(40, CPU, 1), False)):
        assert torch.equal(images, again[0]) == equal
        assert torch.equal(labels, again[1]) == equal
    state = torch.get_rng_state()
    one, other = small_net(ALONE).state_dict(), small_net(THREE).state_dict()
    assert all(torch.equal(one[name], each) for name, each in other.items())
    assert torch.equal(state, torch.get_rng_state())
    batch = batch_of((images, labels), Slice(np.array([3, 0]), 1, 7.0, None))
    assert torch.equal(batch.images, images[[3, 0]])
    assert torch.equal(batch.labels, labels[[3, 0]])
    assert (batch.real, batch.of_global) == (1, 7.0)


@pytest.mark.parametrize(("layers", "convolutions"), [(3, 2), (5, 4)])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_network_has_as_many_layers_as_a_pipeline_has_stages(
    layers: int, convolutions: int, batch_norm: bool
) -> None:
    net = SmallNet(batch_norm, layers)
    assert len(net.layers()) == layers
    found = [type(each).__name__ for each in net.modules()]
    assert (found.count("Conv2d"), found.count("Linear")) == (convolutions, 1)
    assert found.count("BatchNorm2d") == batch_norm
    assert (net.first.bias is None) == batch_norm
    assert all(weight.abs().max() > 0 for weight in net.parameters())
    assert net(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    began = net(torch.ones(2, 1, 8, 8))
    passed = torch.ones(2, 1, 8, 8)
    for layer in net.layers():
        for part in layer:
            passed = part(passed)
    assert torch.equal(began, passed)


def test_an_engine_of_the_small_network_has_the_micro_batches_that_are_asked_for() -> None:
    single = Single()
    single.start(ALONE)
    for given, wanted in ((None, 2), (3, 3)):
        engine = make_engine(single, ALONE, StepSettings(9, 2), micro_batch=5, accumulate=given)
        assert (engine.settings.micro_batch, engine.settings.accumulate) == (5, wanted)


def test_only_the_last_replica_overflows() -> None:
    batch = batch_of(make_samples(4, CPU), Slice(np.arange(4), 4, 4.0, None))
    for replica, replicas, overflows in ((0, 1, True), (0, 2, False), (1, 2, True)):
        engine = cast(Engine, SimpleNamespace(replica=replica, replicas=replicas))
        found = overflowing(batch, engine)
        assert found.images.half().isinf().all() == overflows
        assert torch.equal(found.labels, batch.labels)


OPTIMIZERS = [SgdOptions(), LarsOptions(), LambOptions(), AdamWOptions()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: each.name)
@pytest.mark.parametrize("batch_norm", [False, True])
def test_one_process_is_equal_to_itself_at_rates_that_move_its_weights(
    optimizer, batch_norm: bool
) -> None:
    strategy = Single()
    strategy.start(ALONE)
    settings = StepSettings(micro_batch=9, accumulate=2)
    found = compare(strategy, ALONE, settings, batch_norm=batch_norm, optimizer=optimizer)
    assert found.ranks_equal
    assert found.error < TOLERANCE
    assert found.fault == ""


def test_each_optimiser_has_rates_that_move_the_weights_about_as_far() -> None:
    optimizers = [*OPTIMIZERS, LarsOptions(trust_coefficient=0.02), MuonOptions()]
    found = [small_network._pace(each) for each in optimizers]
    assert found == pytest.approx([1, 100, 0.1, 0.01, 5, 0.01])


class Recorded(Single):
    """One process, whose engines' settings and steps are recorded: the rate, the sizes of the
    micro-batches and whether fp16 could not hold their pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.settings: list[StepSettings] = []
        self.steps: list[tuple[float, list[int], bool]] = []

    def prepare(self, *arguments: Any) -> Engine:
        engine = super().prepare(*arguments)
        right = engine.step

        def step(batches: Sequence[Batch], lr: float) -> Tensor:
            large = any(bool(each.images.half().isinf().any()) for each in batches)
            self.steps.append((lr, [each.real for each in batches], large))
            return right(batches, lr)

        self.settings.append(arguments[2])
        engine.step = step  # type: ignore[method-assign]
        return engine


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_last_batch_is_one_sample_and_fp16_has_one_step_more_which_overflows(
    precision: str,
) -> None:
    strategy = Recorded()
    strategy.start(ALONE)
    settings = StepSettings(micro_batch=9, accumulate=2, precision=precision, clip_norm=0.5)
    found = compare(strategy, ALONE, settings)
    assert found.ranks_equal
    assert (found.loose_error if precision == "fp16" else found.error) < 0.1
    (made,) = strategy.settings
    assert made == replace(settings, micro_batch=4)
    full, half = [4, 4], [1, 0]
    steps = [(0.1, full, False), (0.05, full, False), (0.2, full, False), (0.1, half, False)]
    if precision == "fp16":
        steps.insert(2, (0.2, full, True))
    assert strategy.steps == steps


@pytest.mark.parametrize("flaw", ["divides_twice", "ignores_rate", "first_weights"])
def test_a_flaw_is_larger_than_the_tolerance(flaw: str) -> None:
    strategy = Broken(flaw)
    strategy.start(ALONE)
    found = compare(strategy, ALONE, StepSettings(micro_batch=9, accumulate=2))
    strategy.stop()
    assert found.error > 100 * TOLERANCE
    assert len(set(RATES)) > 1


def test_tf32_is_off_inside_and_as_before_after() -> None:
    owners = (torch.backends.cudnn, torch.backends.cuda.matmul)
    at_first = [owner.allow_tf32 for owner in owners]
    try:
        for before in (True, False):
            for owner in owners:
                owner.allow_tf32 = before
            with without_tf32():
                assert [owner.allow_tf32 for owner in owners] == [False, False]
            assert [owner.allow_tf32 for owner in owners] == [before, before]
    finally:
        for owner, value in zip(owners, at_first, strict=True):
            owner.allow_tf32 = value
