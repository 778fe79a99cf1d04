"""The gate's bounds of lossy options, beside a reduction that is written here anew: right ones are
within them whatever the draws, and none that loses a rank or a factor is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from raysuite.data.base import Batch
from raysuite.gate import gradients
from raysuite.gate.gradients import _WorstErrors, compare_gradients
from raysuite.parallel.base import Engine, MakeOptimizer, StepSettings, World
from raysuite.parallel.single import Single
from raysuite.spec.strategies import Lossy
from tests.unit.gate.test_small_network import Recorded

SIZES = {"first": (8, 1, 3, 3), "second": (10, 40), "bias": (10,)}
RATE = 0.1


def rounded(dtype: torch.dtype) -> Callable[[list[Tensor], str], Tensor]:
    """The mean, each rank's part divided and added up in `dtype`, as DDP's hooks do."""

    def mean(own: list[Tensor], name: str) -> Tensor:
        total = own[0].to(dtype) / len(own)
        for each in own[1:]:
            total = total + each.to(dtype) / len(own)
        return total.float()

    return mean


def projected(rank: int, seed: int) -> Callable[[list[Tensor], str], Tensor]:
    """PowerSGD with error feedback (Vogels et al. 2019, algorithms 1 and 2); exact twice."""
    left: dict[str, list[Tensor]] = {}
    steps: dict[str, int] = {}
    generator = torch.Generator().manual_seed(seed)

    def mean(own: list[Tensor], name: str) -> Tensor:
        steps[name] = steps.get(name, 0) + 1
        if steps[name] < 3 or own[0].dim() == 1:
            return torch.stack(own).mean(0)
        parts = [a.flatten(1) for a in own]
        parts = [a + b for a, b in zip(parts, left.get(name, [0] * len(own)), strict=True)]
        q = torch.randn(parts[0].shape[1], rank, generator=generator)
        p, _ = torch.linalg.qr(sum((m @ q for m in parts), torch.zeros(len(own[0]), rank)))
        whole = p @ (sum((m.T @ p for m in parts), torch.zeros_like(q)) / len(own)).T
        left[name] = [m - whole for m in parts]
        return whole.view_as(own[0])

    return mean


KINDS: dict[str, tuple[Lossy, Callable[[int], Callable[[list[Tensor], str], Tensor]]]] = {
    "fp16": (Lossy(reduced="fp16"), lambda seed: rounded(torch.float16)),
    "bf16": (Lossy(reduced="bf16"), lambda seed: rounded(torch.bfloat16)),
    "rank 1": (Lossy(projected=True), lambda seed: projected(1, seed)),
    "rank 3": (Lossy(projected=True), lambda seed: projected(3, seed)),
}
DEFECTS: dict[str, Callable[[int, int], float]] = {
    "sum for mean": lambda rank, ranks: ranks,
    "one rank lost": lambda rank, ranks: float(rank < ranks - 1),
    "one rank twice": lambda rank, ranks: 1.0 + (rank == 0),
    "twice": lambda rank, ranks: 2.0,
    "half": lambda rank, ranks: 0.5,
    "a tenth": lambda rank, ranks: 0.1,
}


def beyond(kind: str, ranks: int, seed: int, defect: str = "", after: bool = False) -> float:
    """Largest error over its bound; a defect `after` the reduction multiplies its result."""
    torch.set_num_threads(1)  # many small operations
    lossy, make = KINDS[kind]
    reduce, factor = make(seed), DEFECTS.get(defect, lambda rank, ranks: 1.0)
    net = nn.ParameterDict({name: torch.zeros(size) for name, size in SIZES.items()})
    errors = _WorstErrors(net, lossy, ranks, "fp32")
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(size, generator=generator) for name, size in SIZES.items()}
    for active in [range(ranks)] * 4 + [[rank] for rank in range(ranks)]:
        true, moved = {}, {}
        for name, size in SIZES.items():
            scale = 10 ** torch.empty(1).uniform_(-4, 1, generator=generator)
            common = torch.randn(size, generator=generator)
            own = [
                scale * (torch.randn(size, generator=generator) + common) * (rank in active)
                for rank in range(ranks)
            ]
            true[name] = (
                torch.stack(own).double().mean(0),
                torch.stack(own).double().abs().mean(0),
            )
            given = [each * factor(rank, ranks) ** (not after) for rank, each in enumerate(own)]
            found = reduce(given, name) * factor(0, ranks) ** after
            # a step that rounding of the weights does not hide
            weights[name] *= scale
            moved[name] = weights[name] - RATE * found
        errors.take(weights, moved, RATE, true)
        weights = moved
    return errors.worst[1].item()


@pytest.mark.parametrize("ranks", [1, 2, 3, pytest.param(16, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_compression_is_within_its_bounds(kind: str, ranks: int) -> None:
    assert max(beyond(kind, ranks, seed) for seed in range(4)) <= 1


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_rank_or_factor_is_beyond_them(kind: str, defect: str) -> None:
    found = [beyond(kind, ranks, 0, defect) for ranks in (2, 3)]
    if "rank" not in defect:
        found.append(beyond(kind, 2, 0, defect, after=True))
    assert min(found) > 1


U16, U_BF16 = 2.0**-11, 2.0**-8
"""Unit roundoffs of fp16 and bf16."""


@pytest.mark.parametrize(
    ("lossy", "ranks", "precision", "bound"),
    [
        (Lossy(reduced="bf16"), 2, "fp32", 5 * U_BF16),
        (Lossy(reduced="fp16"), 3, "fp32", 6 * U16),
        (Lossy(within=0.1), 1, "fp32", 0.1),
        (Lossy(reduced="bf16"), 1, "bf16", 0.25 + 4 * U_BF16),
        (Lossy(within=0.25), 2, "fp16", 0.4),
    ],
)
def test_a_bound_is_of_the_roundings_of_a_mean_and_at_most_a_lost_half(
    lossy: Lossy, ranks: int, precision: str, bound: float
) -> None:
    """Plus that of fp32. The gradient is (3, 4), and the ranks' absolute ones are (6, 8)."""
    errors = _WorstErrors(nn.ParameterDict({"a": torch.zeros(2)}), lossy, ranks, precision)
    mean = torch.tensor([3.0, 4.0]).double()
    moved = {"a": -RATE * 1.5 * mean}
    errors.take({"a": torch.zeros(2)}, moved, RATE, {"a": (mean, 2 * mean)})
    assert errors.worst.tolist() == pytest.approx([0.25, 0.25 / (bound + 1e-4)], rel=1e-5)
    for wrong in (math.nan, math.inf):
        again = _WorstErrors(nn.ParameterDict({"a": torch.zeros(2)}), lossy, ranks, precision)
        after = {"a": torch.tensor([0.0, wrong]).double()}
        again.take({"a": torch.zeros(2)}, after, RATE, {"a": (mean, 2 * mean)})
        assert again.worst.tolist() == [math.inf] * 2
    errors.take(moved, moved, RATE, {"b": (mean, mean)})
    assert errors.worst.tolist() == [math.inf] * 2


def test_a_bound_has_room_for_the_smallest_numbers_and_the_rounding_of_weights() -> None:
    """Of 4 roundings and two numbers; fp16 has 2^-24, of which half is lost."""
    net, zeros = nn.ParameterDict({"a": torch.zeros(2)}), torch.zeros(2).double()
    for weight, allowed in ((0.0, 4 * 2.0**-25 * math.sqrt(2)), (3.0, 3 * 2.0**-23 / RATE)):
        errors = _WorstErrors(net, Lossy(reduced="fp16"), 1, "fp32")
        before = torch.tensor([weight, 0.0]).double()
        after = before - RATE * torch.tensor([0.0, 1e-6]).double()
        errors.take({"a": before}, {"a": after}, RATE, {"a": (zeros, zeros)})
        assert errors.worst[1].item() == pytest.approx(1e-6 / allowed, rel=0.1)


class OffRate(Single):
    """Steps of the n-th engine are off by `errors[n]`."""

    def __init__(self, *errors: float) -> None:
        super().__init__()
        self.errors, self.made = errors, 0

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        engine = super().prepare(model, make_optimizer, settings)
        right, factor = engine.step, 1 + self.errors[self.made]
        self.made += 1

        def step(batches: Sequence[Batch], lr: float) -> Tensor:
            return right(batches, lr * factor)

        engine.step = step  # type: ignore[method-assign]
        return engine


ALONE = World.alone(torch.device("cpu"))
EXACT = StepSettings(1)


@pytest.mark.parametrize(
    ("settings", "lossy", "errors", "made", "passes"),
    [
        (EXACT, Lossy(reduced="bf16"), (0.0,), 1, True),
        (EXACT, Lossy(reduced="bf16"), (0.6, 0.0), 1, False),
        (EXACT, Lossy(within=0.25), (0.6, 0.0), 2, True),
        (replace(EXACT, precision="bf16"), Lossy(reduced="bf16"), (0.6, 0.6, 0.0), 3, True),
        (replace(EXACT, precision="bf16"), Lossy(reduced="bf16"), (0.6,) * 3, 3, False),
        (EXACT, Lossy(within=0.25), (math.inf, 0.0), 1, False),
    ],
)
def test_beyond_a_bound_counts_once_three_draws_have_shown_it_where_signs_can_change(
    settings: StepSettings, lossy: Lossy, errors: tuple[float, ...], made: int, passes: bool
) -> None:
    strategy = OffRate(*errors)
    strategy.start(ALONE)
    found = compare_gradients(strategy, ALONE, settings, lossy)
    assert (strategy.made, found.beyond <= 1, found.ranks_equal) == (made, passes, True)


def test_ranks_that_differ_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "same_on_all_ranks", lambda comm, weights: False)
    strategy = OffRate(0.6, 0.0)
    strategy.start(ALONE)
    found = compare_gradients(strategy, ALONE, EXACT, Lossy(within=0.25))
    assert (strategy.made, found.ranks_equal) == (1, False)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_steps_are_plain_and_not_clipped_and_the_first_in_fp16_overflows(precision: str) -> None:
    """Four with samples on all ranks, and one with those of the only rank alone."""
    strategy = Recorded()
    strategy.start(ALONE)
    settings = StepSettings(9, 2, 0.01, precision, label_smoothing=0.1)
    found = compare_gradients(strategy, ALONE, settings, Lossy(reduced="fp16"), batch_norm=True)
    assert found.beyond < 1
    assert strategy.settings == [replace(settings, micro_batch=16, clip_norm=None)]
    steps = [(rate, [16, 16], False) for rate in (0.1, 0.05, 0.2, 0.1, 0.1)]
    if precision == "fp16":
        steps.insert(0, (0.1, [16, 16], True))
    assert strategy.steps == steps
