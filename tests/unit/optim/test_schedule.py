"""Learning-rate schedules: against their formulas, and against torch's at every step."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD
from torch.optim import lr_scheduler as theirs

from raysuite.optim import factor
from raysuite.spec.optimizers import (
    ConstantOptions,
    CosineOptions,
    ExponentialOptions,
    PolynomialOptions,
    ScheduleOptions,
    StepOptions,
)

STEPS_PER_EPOCH, EPOCHS = 5, 9
TOTAL = STEPS_PER_EPOCH * EPOCHS

DECAYS: list[tuple[type[Any], dict[str, Any]]] = [
    (ConstantOptions, {}),
    (StepOptions, {"milestones": (3, 5.4, 7), "factor": 0.3}),
    (CosineOptions, {"min_factor": 0.1}),
    (ExponentialOptions, {"gamma": 0.8}),
    (PolynomialOptions, {"power": 1.7}),
]
options_of_any_kind = st.one_of(
    st.builds(ConstantOptions, warmup_epochs=st.floats(0, 5)),
    st.builds(
        StepOptions,
        warmup_epochs=st.floats(0, 5),
        milestones=st.lists(st.floats(0, 20), max_size=4).map(tuple),
        factor=st.floats(0.01, 1),
    ),
    st.builds(CosineOptions, warmup_epochs=st.floats(0, 5), min_factor=st.floats(0, 1)),
    st.builds(ExponentialOptions, warmup_epochs=st.floats(0, 5), gamma=st.floats(0.01, 1)),
    st.builds(
        PolynomialOptions,
        warmup_epochs=st.floats(0, 5),
        power=st.floats(0.1, 5),
        min_factor=st.floats(0, 1),
    ),
)
steps_per_epoch = st.integers(1, 50)
epochs = st.integers(1, 20)


def rates(options: ScheduleOptions) -> list[float]:
    return [factor(options, step, STEPS_PER_EPOCH, TOTAL) for step in range(TOTAL)]


def torchs_rates(kind: type[Any], values: dict[str, Any], warmup: int) -> list[float]:
    """The same schedule by torch, one scheduler step per optimiser step."""
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    after: theirs.LRScheduler
    if kind is CosineOptions:
        after = theirs.CosineAnnealingLR(optimizer, TOTAL - warmup, eta_min=values["min_factor"])
    elif kind is StepOptions:
        drops = [round(m * STEPS_PER_EPOCH) - warmup for m in values["milestones"]]
        after = theirs.MultiStepLR(optimizer, drops, gamma=values["factor"])
    elif kind is ExponentialOptions:
        after = theirs.StepLR(optimizer, STEPS_PER_EPOCH, gamma=values["gamma"])
    elif kind is PolynomialOptions:
        after = theirs.PolynomialLR(optimizer, TOTAL - warmup, power=values["power"])
    else:
        after = theirs.ConstantLR(optimizer, factor=1.0)
    scheduler = after
    if warmup:
        ramp = theirs.LinearLR(optimizer, start_factor=1 / warmup, total_iters=max(1, warmup - 1))
        scheduler = theirs.SequentialLR(optimizer, [ramp, after], milestones=[warmup])
    found = []
    for _ in range(TOTAL):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SequentialLR passes a deprecated epoch
            scheduler.step()
    return found


@pytest.mark.parametrize("warmup_epochs", [0, 0.4, 2])
@pytest.mark.parametrize(("kind", "values"), DECAYS, ids=lambda part: getattr(part, "__name__", ""))
def test_every_step_is_torchs(
    kind: type[Any], values: dict[str, Any], warmup_epochs: float
) -> None:
    warmup = round(warmup_epochs * STEPS_PER_EPOCH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = torchs_rates(kind, values, warmup)
    assert rates(kind(warmup_epochs=warmup_epochs, **values)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("epoch", [0, 1, 30, 89])
def test_the_paper_s_exponential(epoch: int) -> None:
    assert factor(ExponentialOptions(), epoch * 7, 7, 90 * 7) == pytest.approx(0.95**epoch)


def test_the_exponential_is_torchs_stepped_once_an_epoch() -> None:
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = theirs.ExponentialLR(optimizer, gamma=0.95)
    for epoch in range(90):
        expected = optimizer.param_groups[0]["lr"]
        for step in (7 * epoch, 7 * epoch + 6):
            assert factor(ExponentialOptions(), step, 7, 630) == pytest.approx(expected, rel=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("t", [0, 100, 315, 629])
def test_the_polynomial_of_you_et_al(t: int) -> None:
    """Poly decay with power 2, here down to a fifth."""
    options = PolynomialOptions(min_factor=0.2)
    assert factor(options, t, 7, 630) == pytest.approx(0.2 + 0.8 * (1 - t / 630) ** 2)


def test_the_paper_s_steps() -> None:
    found = [factor(StepOptions(), epoch * 7, 7, 90 * 7) for epoch in (29, 30, 59, 60, 79, 80, 89)]
    assert found == pytest.approx([1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


@pytest.mark.parametrize("t", [0, 100, 315, 629])
def test_the_paper_s_cosine(t: int) -> None:
    # LR_t = LR_min + (LR_max - LR_min) / 2 * (1 + cos(pi * t / t_max)), here with LR_max = 1
    low, t_max = 0.2, 630
    expected = low + (1 - low) / 2 * (1 + math.cos(math.pi * t / t_max))
    assert factor(CosineOptions(min_factor=low), t, 7, t_max) == pytest.approx(expected)


def test_one_step_of_warmup_has_the_full_rate() -> None:
    assert factor(ConstantOptions(warmup_epochs=0.2), 0, 5, 10) == 1.0


@pytest.mark.parametrize("kind", [CosineOptions, PolynomialOptions])
def test_a_decay_of_one_step_or_none_ends_at_its_least(kind: type[Any]) -> None:
    """Of two steps, one or both of warm-up."""
    ends = [factor(kind(warmup_epochs=w, min_factor=0.25), 2, 1, 2) for w in (1, 2)]
    assert ends == [0.25, 1.0]


@given(options_of_any_kind, steps_per_epoch, epochs)
def test_a_factor_is_above_0_and_at_most_1(
    options: ScheduleOptions, per_epoch: int, count: int
) -> None:
    total = per_epoch * count
    found = [factor(options, step, per_epoch, total) for step in range(total)]
    assert all(0 < value <= 1 for value in found)


@given(options_of_any_kind, steps_per_epoch, epochs)
def test_it_rises_to_the_full_rate_and_then_never_again(
    options: ScheduleOptions, per_epoch: int, count: int
) -> None:
    total = per_epoch * count
    warmup = min(total, round(options.warmup_epochs * per_epoch))
    found = [factor(options, step, per_epoch, total) for step in range(total)]
    rise, fall = found[:warmup], found[warmup:]
    assert rise == sorted(rise)
    assert fall == sorted(fall, reverse=True)
    if rise and warmup < total:
        assert rise[-1] == 1.0


@given(options_of_any_kind, steps_per_epoch, epochs, st.integers(0, 1000))
def test_past_the_end_it_stays(
    options: ScheduleOptions, per_epoch: int, count: int, more: int
) -> None:
    total = per_epoch * count
    end = factor(options, total, per_epoch, total)
    assert factor(options, total + more, per_epoch, total) == end
