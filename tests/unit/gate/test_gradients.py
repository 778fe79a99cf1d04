"""The gate's bounds of lossy options, beside a reduction that is written here anew: right ones are
within them whatever the draws, and none that loses a rank or a factor is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from raysuite.gate.gradients import _WorstErrors
from raysuite.spec.strategies import Lossy

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
