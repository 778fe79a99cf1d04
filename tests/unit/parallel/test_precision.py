from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from raysuite.parallel.comm import NoComm, Reduction
from raysuite.parallel.precision import Autocast, LossScale

CPU = torch.device("cpu")


class TwoRanks(NoComm):
    """The other rank of two says `other`, whatever it is asked."""

    size = 2

    def __init__(self, other: float = 0.0) -> None:
        self.other = other

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        assert reduction == "max"
        return value.clamp(min=self.other)


def scaled(comm: NoComm, enabled: bool = True) -> tuple[nn.Linear, LossScale, torch.optim.SGD]:
    model = nn.Linear(2, 1, bias=False)
    scale = LossScale(model, comm, enabled)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scale.guard(optimizer)
    return model, scale, optimizer


def step(model: nn.Module, scale: LossScale, optimizer: torch.optim.SGD, x: float = 1.0) -> None:
    optimizer.zero_grad()
    (Autocast(model, "fp16", CPU, scale)(torch.full((1, 2), x))).sum().backward()
    scale.decide()
    optimizer.step()
    scale.update()


@pytest.mark.parametrize("comm", [NoComm(), TwoRanks()])
def test_what_the_framework_sees_is_not_scaled(comm: NoComm) -> None:
    model, scale, optimizer = scaled(comm)
    scale.factor = 1024.0
    step(model, scale, optimizer)
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[1.0, 1.0]]


def test_the_world_size_is_taken_out_of_the_factor() -> None:
    """A rank's share of the loss is larger by it, and 16 bits shall see the same everywhere."""
    assert scaled(TwoRanks())[1].carried == scaled(NoComm())[1].carried / 2


def test_an_overflow_skips_the_step_and_halves_the_factor() -> None:
    model, scale, optimizer = scaled(NoComm())
    before = model.weight.detach().clone()
    step(model, scale, optimizer, x=1e30)
    assert torch.equal(model.weight, before)
    assert scale.factor == 2.0**15
    step(model, scale, optimizer, x=1e-3)
    assert not torch.equal(model.weight, before)
    assert scale.factor == 2.0**15


def test_another_ranks_overflow_counts() -> None:
    model, scale, optimizer = scaled(TwoRanks(other=1.0))
    before = model.weight.detach().clone()
    step(model, scale, optimizer, x=1e-3)
    assert torch.equal(model.weight, before)
    assert scale.factor == 2.0**15


def test_the_factor_grows_after_2000_good_steps_on_end() -> None:
    model, scale, optimizer = scaled(NoComm())
    scale.load_state({"factor": 64.0, "good_steps": 1998.0})
    step(model, scale, optimizer, x=1e-3)
    assert scale.factor == 64.0
    step(model, scale, optimizer, x=1e-3)
    assert scale.factor == 128.0
    step(model, scale, optimizer, x=1e30)
    assert scale.state() == {"factor": 64.0, "good_steps": 0.0}


def test_fp32_is_left_alone() -> None:
    model, scale, optimizer = scaled(NoComm(), enabled=False)
    before = model.weight.detach().clone()
    images = torch.full((1, 2), 1e30)
    logits = Autocast(model, "fp32", CPU, scale)(images)
    assert torch.equal(logits, model(images))
    scale.decide()
    optimizer.step()
    scale.update()
    assert scale.factor == 1.0
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_16_bits_round_inside_and_come_out_in_fp32(precision: str) -> None:
    model = nn.Linear(2, 1, bias=False)
    wrapped = Autocast(model, precision, CPU, LossScale(model, NoComm(), precision == "fp16"))
    images = torch.randn(3, 2)
    logits = wrapped(images)
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, model(images))
    torch.testing.assert_close(logits, model(images), atol=0.02, rtol=0.02)
