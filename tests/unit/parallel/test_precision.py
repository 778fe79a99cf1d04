from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

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


def scaled(
    comm: NoComm, enabled: bool = True, whole: bool = True
) -> tuple[nn.Linear, LossScale, torch.optim.SGD]:
    model = nn.Linear(2, 1, bias=False)
    scale = LossScale(model, comm, enabled, whole)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scale.guard(optimizer)
    return model, scale, optimizer


def step(
    model: nn.Module,
    scale: LossScale,
    optimizer: torch.optim.SGD,
    x: float = 1.0,
    of_global: int = 1,
) -> None:
    """With a rank's share of the loss: one sample's, of a global batch of so many."""
    optimizer.zero_grad()
    logits = scale.apply(Autocast(model, "fp16", CPU)(torch.full((1, 2), x)), of_global)
    (logits.sum() * scale._comm.size / of_global).backward()
    scale.decide()
    optimizer.step()
    scale.update()


WHOLE = pytest.mark.parametrize("whole", [True, False])


@WHOLE
@pytest.mark.parametrize("comm", [NoComm(), TwoRanks()])
def test_gradients_are_unscaled(comm: NoComm, whole: bool) -> None:
    model, scale, optimizer = scaled(comm, whole=whole)
    step(model, scale, optimizer, of_global=4)
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[comm.size / 4] * 2]


@WHOLE
def test_complex_gradients_are_unscaled_too(whole: bool) -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.tensor([3 + 4j]))

        def forward(self, x: Tensor) -> Tensor:
            return torch.view_as_real(self.turn * x.sum()).sum(1)

    model = Turned()
    scale = LossScale(model, NoComm(), True, whole)
    step(model, scale, torch.optim.SGD(model.parameters(), lr=1.0))
    assert model.turn.tolist() == [1 + 2j]  # the derivative by each part is the sum of two ones


@WHOLE
def test_a_frozen_parameter_has_no_gradient_to_unscale(whole: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
    model[0].weight.requires_grad_(False)
    scale = LossScale(model, NoComm(), True, whole)
    step(model, scale, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0))
    assert model[0].weight.grad is None
    assert model[0].bias.grad is not None
    model.zero_grad()
    scale.decide()  # nor has any parameter before a backward pass


@WHOLE
def test_a_large_global_batch_loses_no_small_gradient(whole: bool) -> None:
    """Of 2^16 samples, with 2^-20 as the gradient of one of them: its share is 2^-36, of which
    nothing is left in fp16 unless the scale counts per sample."""
    model, scale, optimizer = scaled(NoComm(), whole=whole)
    step(model, scale, optimizer, x=2.0**-20, of_global=2**16)
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[2.0**-36] * 2]


@pytest.mark.parametrize(("comm", "of_global"), [(NoComm(), 1), (NoComm(), 512), (TwoRanks(), 512)])
def test_16_bits_see_a_sample_alike_in_every_batch(comm: NoComm, of_global: int) -> None:
    _, scale, _ = scaled(comm)
    logits = torch.zeros(1, 1, requires_grad=True)
    (scale.apply(logits, of_global).sum() * comm.size / of_global).backward()
    assert logits.grad is not None
    assert logits.grad.item() == scale.factor == 2.0**8


@WHOLE
def test_an_overflow_skips_the_step_and_halves_the_factor(whole: bool) -> None:
    model, scale, optimizer = scaled(NoComm(), whole=whole)
    before = model.weight.detach().clone()
    step(model, scale, optimizer, x=1e30)
    assert torch.equal(model.weight, before)
    assert (scale.factor, scale.skipped) == (2.0**7, 1)
    step(model, scale, optimizer, x=1e-3)
    assert not torch.equal(model.weight, before)
    assert (scale.factor, scale.skipped) == (2.0**7, 1)


def test_another_ranks_overflow_counts() -> None:
    model, scale, optimizer = scaled(TwoRanks(other=1.0), whole=False)
    before = model.weight.detach().clone()
    step(model, scale, optimizer, x=1e-3)
    assert torch.equal(model.weight, before)
    assert scale.factor == 2.0**7


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("sharded", [[0], [1], [0, 1], []], ids=str)
def test_ranks_agree_on_an_overflow_if_gradients_are_sharded(
    mesh: DeviceMesh, sharded: list[int]
) -> None:
    """Of two layers, some may be sharded. Whole gradients are the same on all ranks."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    for layer in (model[place] for place in sharded):
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.data, mesh))
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    scale = LossScale(model, TwoRanks(other=1.0), True, whole=True)
    scale.decide()
    scale.update()
    assert scale.skipped == (1 if sharded else 0)


@pytest.mark.parametrize("pixel", [1e30, -1e30, float("nan")])
def test_hooks_leave_nothing_that_is_not_finite(pixel: float) -> None:
    """PowerSGD would keep it for ever."""
    model, scale, optimizer = scaled(NoComm(), whole=False)
    step(model, scale, optimizer, x=pixel)
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[0.0, 0.0]]


def test_a_scale_that_only_falls_ends_in_an_error() -> None:
    model, scale, optimizer = scaled(NoComm())
    for _ in range(21):
        step(model, scale, optimizer, x=1e30)
    with pytest.raises(FloatingPointError):
        step(model, scale, optimizer, x=1e30)
    assert (scale.factor, scale.skipped) == (2.0**-14, 22)


def test_the_factor_grows_after_2000_good_steps_on_end() -> None:
    model, scale, optimizer = scaled(NoComm())
    scale.load_state({"sample_factor": 64.0, "good_steps": 1998.0})
    step(model, scale, optimizer, x=1e-3)
    assert scale.factor == 64.0
    step(model, scale, optimizer, x=1e-3)
    assert scale.factor == 128.0
    step(model, scale, optimizer, x=1e-3)
    assert scale.factor == 128.0, "for 2,000 steps more"
    step(model, scale, optimizer, x=1e30)
    assert scale.state() == {"sample_factor": 64.0, "good_steps": 0.0}
    for steps, factor in ((1999.0, 64.0), (1.0, 128.0), (1999.0, 128.0), (1.0, 256.0)):
        scale.load_state({**scale.state(), "good_steps": scale.state()["good_steps"] + steps - 1})
        step(model, scale, optimizer, x=1e-3)
        assert scale.factor == factor


def test_fp32_is_left_alone() -> None:
    model, scale, optimizer = scaled(NoComm(), enabled=False)
    before = model.weight.detach().clone()
    images = torch.full((1, 2), 1e30)
    logits = scale.apply(Autocast(model, "fp32", CPU)(images), 1)
    assert torch.equal(logits, model(images))
    scale.decide()
    optimizer.step()
    scale.update()
    assert scale.factor == 1.0
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_16_bits_round_inside_and_come_out_in_fp32(precision: str) -> None:
    model = nn.Linear(2, 1, bias=False)
    wrapped = Autocast(model, precision, CPU)
    images = torch.randn(3, 2)
    logits = wrapped(images)
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, model(images))
    torch.testing.assert_close(logits, model(images), atol=0.02, rtol=0.02)


class Counted(TorchDispatchMode):
    """Counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


def test_whole_gradients_are_unscaled_in_one_pass() -> None:
    counts = []
    for layers in (2, 20):
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
        model.register_parameter("unused", nn.Parameter(torch.zeros(2)))
        scale = LossScale(model, NoComm(), True, True)
        scale.carry(1)
        for each in model[:].parameters():
            assert not each._backward_hooks
            each.grad = torch.ones_like(each)
        with Counted() as counted:
            scale.decide()
        counts.append(counted.operations)
    assert counts[0] == counts[1]
