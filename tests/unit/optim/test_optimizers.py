"""Optimisers: LARS and LAMB against the papers' algorithms, and what is spared weight decay."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from raysuite.errors import UserError
from raysuite.optim import build_optimizer, parameter_groups
from raysuite.optim.layerwise import Lamb, Lars
from raysuite.parallel.base import set_lr
from raysuite.spec.optimizers import (
    AdamWOptions,
    LambOptions,
    LarsOptions,
    OptimizerOptions,
    ScheduleFreeOptions,
    SgdOptions,
)
from tests.require import require

BY_NAME = ("sgd", "lars", "lamb", "adamw")
RATES = (0.5, 0.1, 0.8, 0.3)
ADAPTER: TypeAdapter[OptimizerOptions] = TypeAdapter(OptimizerOptions)


def start() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes = ((4, 3), (5,), (2, 3, 3, 3))
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def gradients() -> Iterator[list[Tensor]]:
    generator = torch.Generator().manual_seed(4)
    while True:
        yield [torch.randn(weight.shape, generator=generator) for weight in start()]


def trained(optimizer: Optimizer, weights: list[nn.Parameter]) -> list[Tensor]:
    for rate, slopes in zip(RATES, gradients(), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for weight, slope in zip(weights, slopes, strict=True):
            weight.grad = slope.clone()
        optimizer.step()
    return [weight.detach() for weight in weights]


def norm(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def test_lars_is_algorithm_1() -> None:
    """Written out with Python's own floats, one tensor after the other."""
    momentum, beta, eta = 0.8, 0.03, 0.02
    weights = start()
    found = trained(Lars(weights, 9.0, momentum, beta, eta), weights)
    for index, first in enumerate(start()):
        w = first.detach().flatten().tolist()
        v = [0.0] * len(w)
        for rate, slopes in zip(RATES, gradients(), strict=False):
            g = slopes[index].flatten().tolist()
            local = eta * norm(w) / (norm(g) + beta * norm(w))
            v = [
                momentum * a + rate * local * (b + beta * c)
                for a, b, c in zip(v, g, w, strict=True)
            ]
            w = [c - a for c, a in zip(w, v, strict=True)]
        assert found[index].flatten().tolist() == pytest.approx(w, rel=1e-5, abs=1e-6)


def test_lamb_is_algorithm_2() -> None:
    beta1, beta2, eps, decay = 0.8, 0.95, 1e-3, 0.04
    weights = start()
    found = trained(Lamb(weights, 9.0, (beta1, beta2), eps, decay), weights)
    for index, first in enumerate(start()):
        x = first.detach().flatten().tolist()
        m, v = [0.0] * len(x), [0.0] * len(x)
        for step, (rate, slopes) in enumerate(zip(RATES, gradients(), strict=False), 1):
            g = slopes[index].flatten().tolist()
            m = [beta1 * a + (1 - beta1) * b for a, b in zip(m, g, strict=True)]
            v = [beta2 * a + (1 - beta2) * b * b for a, b in zip(v, g, strict=True)]
            r = [
                (a / (1 - beta1**step)) / (math.sqrt(b / (1 - beta2**step)) + eps) + decay * c
                for a, b, c in zip(m, v, x, strict=True)
            ]
            ratio = norm(x) / norm(r)
            x = [c - rate * ratio * a for c, a in zip(x, r, strict=True)]
        assert found[index].flatten().tolist() == pytest.approx(x, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_a_complex_weight_is_updated_as_two_real_ones(kind: type[Any]) -> None:
    pairs = nn.Parameter(torch.tensor([[1.0, 2.0], [-3.0, 0.5]]))
    weight = nn.Parameter(torch.view_as_complex(pairs.detach().clone()))
    optimizers = [kind([each], lr=0.1, weight_decay=0.1) for each in (pairs, weight)]
    for slope in ([[1.0, -2.0], [0.5, 0.0]], [[0.0, 3.0], [1.0, -1.0]]):
        pairs.grad, weight.grad = torch.tensor(slope), torch.view_as_complex(torch.tensor(slope))
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(torch.view_as_real(weight), pairs)


def test_lamb_without_its_ratio_is_adam() -> None:
    ours, theirs = start(), start()
    found = trained(Lamb(ours, adapt=False), ours)
    expected = trained(AdamW(theirs, eps=1e-6, weight_decay=0.0), theirs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_lars_without_its_ratio_is_sgd_at_a_constant_rate() -> None:
    ours, theirs = start(), start()
    first, second = Lars(ours, adapt=False, weight_decay=0.1), SGD(theirs, 1.0, 0.9, 0.0, 0.1)
    for slopes, _ in zip(gradients(), range(4), strict=False):
        for weight, twin, slope in zip(ours, theirs, slopes, strict=True):
            weight.grad, twin.grad = slope.clone(), slope.clone()
        first.step()
        second.step()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_zeros_are_no_division_by_zero(kind: type[Any]) -> None:
    zero, still = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.ones(2, 2))
    unused = nn.Parameter(torch.ones(2))
    optimizer = kind([zero, still, unused], lr=0.1, weight_decay=0.0)
    zero.grad, still.grad = torch.ones(2, 2), torch.zeros(2, 2)
    optimizer.step()
    torch.testing.assert_close(zero, torch.full((2, 2), -0.1), rtol=1e-4, atol=0)
    assert torch.equal(still, torch.ones(2, 2))
    assert torch.equal(unused, torch.ones(2))


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_a_group_without_gradients_stays_as_it_is(kind: type[Any]) -> None:
    """Beside one that moves; LAMB's step counts for both."""
    still, moved = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = kind([{"params": [still]}, {"params": [moved]}], lr=0.1)
    moved.grad = torch.ones(2)
    optimizer.step()
    assert torch.equal(still, torch.ones(2))
    assert not torch.equal(moved, torch.ones(2))
    assert [group.get("steps", 1) for group in optimizer.param_groups] == [1, 1]


@pytest.mark.parametrize("name", [*BY_NAME, "muon", "schedule_free"])
def test_its_state_continues_to_the_bit(name: str) -> None:
    if name == "schedule_free":
        require("schedulefree")
    options = ADAPTER.validate_python({"name": name, "decay_bias_and_norm": False})
    weights = start()
    optimizer = build_optimizer(options, weights, 0.1)
    trained(optimizer, weights)
    copies = [nn.Parameter(weight.detach().clone()) for weight in weights]
    again = build_optimizer(options, copies, 9.0)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert all(map(torch.equal, trained(again, copies), trained(optimizer, weights)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 3)
        self.batch_norm = nn.BatchNorm2d(2)
        self.linear = nn.Linear(2, 3)
        self.layer_norm = nn.LayerNorm(3)


DECAYED = {"convolution.weight", "linear.weight"}


@pytest.mark.parametrize("name", BY_NAME)
def test_biases_and_norms_can_be_spared(name: str) -> None:
    model = Net()
    names = {parameter: key for key, parameter in model.named_parameters()}
    block = {"name": name, "weight_decay": 0.3, "decay_bias_and_norm": False}
    optimizer = build_optimizer(ADAPTER.validate_python(block), model.parameters(), 0.1)
    decayed, spared = optimizer.param_groups
    assert {names[parameter] for parameter in decayed["params"]} == DECAYED
    assert {names[parameter] for parameter in spared["params"]} == set(names.values()) - DECAYED
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.3, 0.0)
    if name in ("lars", "lamb"):
        assert (decayed["adapt"], spared["adapt"]) == (True, False)


@pytest.mark.parametrize("named", [True, False])
def test_groups_without_decay_come_last_and_a_frozen_weight_is_in_none(named: bool) -> None:
    shapes = {"body.bias": (2,), "body.weight": (2, 2), "frozen": (3, 3), "head.bias": (),
              "head.weight": (2, 1, 1), "other.weight": (4, 1)}  # fmt: skip
    names = {nn.Parameter(torch.ones(shape)): name for name, shape in shapes.items()}
    next(each for each, name in names.items() if name == "frozen").requires_grad_(False)
    options = LambOptions(decay_bias_and_norm=False, lr_factors={"head.*": 10.0})
    found = [
        {**group, "params": [names[each] for each in group["params"]]}
        for group in parameter_groups(options, names, names if named else None)
    ]
    spared = {"weight_decay": 0.0, "adapt": False}
    if named:
        assert found == [
            {"params": ["body.weight", "other.weight"]},
            {"params": ["head.weight"], "lr_factor": 10.0},
            {"params": ["body.bias"], **spared},
            {"params": ["head.bias"], "lr_factor": 10.0, **spared},
        ]
    else:
        assert found == [
            {"params": ["body.weight", "head.weight", "other.weight"]},
            {"params": ["body.bias", "head.bias"], **spared},
        ]


def test_rates_by_layer() -> None:
    model = Net()
    names = {parameter: key for key, parameter in model.named_parameters()}
    model.convolution.weight.requires_grad_(False)
    # the first pattern matches a frozen parameter alone
    factors = {"convolution.weight": 3.0, "lin*": 10.0, "*.weight": 0.5}
    options = SgdOptions(decay_bias_and_norm=False, lr_factors=factors)
    optimizer = build_optimizer(options, model.parameters(), 0.1, names)
    set_lr(optimizer, 0.2)
    rates = {names[p]: group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates == {
        "convolution.bias": 0.2,
        "batch_norm.weight": 0.1,
        "batch_norm.bias": 0.2,
        "linear.weight": 2.0,
        "linear.bias": 2.0,
        "layer_norm.weight": 0.1,
        "layer_norm.bias": 0.2,
    }
    with pytest.raises(UserError, match="'nothing'"):
        parameter_groups(SgdOptions(lr_factors={"nothing": 1.0}), model.parameters(), names)


def test_or_not() -> None:
    (group,) = parameter_groups(SgdOptions(), Net().parameters())
    assert len(group["params"]) == 8
    linear = nn.Linear(2, 2, bias=False)
    (group,) = parameter_groups(LarsOptions(), linear.parameters())
    assert group["params"] == [linear.weight]


@pytest.mark.parametrize(
    ("options", "kind", "values"),
    [
        (SgdOptions(momentum=0.8, nesterov=True), SGD, {"momentum": 0.8, "nesterov": True}),
        (
            LarsOptions(momentum=0.7, trust_coefficient=0.02),
            Lars,
            {"momentum": 0.7, "trust_coefficient": 0.02},
        ),
        (LambOptions(betas=(0.5, 0.6), eps=0.1), Lamb, {"betas": (0.5, 0.6), "eps": 0.1}),
        (AdamWOptions(betas=(0.5, 0.6), eps=0.1), AdamW, {"betas": (0.5, 0.6), "eps": 0.1}),
        (
            ScheduleFreeOptions(betas=(0.5, 0.6), eps=0.1),
            None,
            {"betas": (0.5, 0.6), "eps": 0.1},
        ),
    ],
)
def test_the_optimizer_has_the_options(
    options: OptimizerOptions, kind: type[Optimizer] | None, values: dict[str, Any]
) -> None:
    if isinstance(options, ScheduleFreeOptions):
        require("schedulefree")
    options = options.model_copy(update={"weight_decay": 1e-3})
    optimizer = build_optimizer(options, start(), lr=0.3)
    assert kind in (None, type(optimizer))
    assert optimizer.defaults["weight_decay"] == 1e-3
    for group in optimizer.param_groups:
        assert group["lr"] == 0.3
        assert {key: group[key] for key in values} == values
