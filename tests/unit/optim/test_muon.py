"""Muon with AdamW is both of torch's optimisers, each over its own weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon

from raysuite.errors import UserError
from raysuite.optim import build_optimizer
from raysuite.parallel.base import set_lr
from raysuite.spec.optimizers import MuonOptions

RATES = (0.1, 0.02, 0.05)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.hidden = nn.Linear(4, 6)
        self.convolution = nn.Conv1d(1, 2, 3)
        self.head = nn.Linear(6, 5, bias=False)


def made() -> tuple[Net, dict[Tensor, str]]:
    torch.manual_seed(1)
    net = Net()
    return net, {each: name for name, each in net.named_parameters()}


def set_gradients(net: nn.Module, step: int) -> None:
    draws = torch.Generator().manual_seed(step)
    for each in net.parameters():
        each.grad = torch.randn(each.shape, generator=draws)


@pytest.mark.parametrize(
    ("nesterov", "adjust_lr", "eps"), [(True, "match_rms_adamw", 1e-8), (False, "original", 1e-2)]
)
def test_it_is_torchs_two_optimisers_side_by_side(
    nesterov: bool, adjust_lr: Any, eps: float
) -> None:
    net, names = made()
    options = MuonOptions(
        momentum=0.9,
        nesterov=nesterov,
        adjust_lr=adjust_lr,
        weight_decay=0.2,
        betas=(0.8, 0.95),
        eps=eps,
    )
    ours = build_optimizer(options, net.parameters(), 7.0, names)
    twin, _ = made()
    others = [twin.embedding.weight, twin.convolution.weight, twin.head.weight]
    theirs = [
        Muon([twin.hidden.weight], 7.0, 0.2, 0.9, nesterov, adjust_lr_fn=adjust_lr),
        AdamW(others, 7.0, (0.8, 0.95), eps, weight_decay=0.2),
        AdamW([twin.hidden.bias, twin.convolution.bias], 7.0, (0.8, 0.95), eps, weight_decay=0.0),
    ]
    for step, rate in enumerate(RATES):
        if step == 1:  # as after a checkpoint
            fresh = build_optimizer(options, net.parameters(), 9.0, names)
            fresh.load_state_dict(ours.state_dict())
            ours = fresh
        for net_, optimizers in ((net, [ours]), (twin, theirs)):
            set_gradients(net_, step)
            for each in optimizers:
                set_lr(each, rate)
                each.step()
    for name, weight in net.named_parameters():
        assert torch.equal(weight, twin.get_parameter(name)), name


def test_patterns_choose_the_matrices_of_adamw() -> None:
    net, names = made()

    def moved_by_muon(**options: object) -> set[str]:
        optimizer = build_optimizer(MuonOptions(**options), net.parameters(), 1.0, names)  # type: ignore[arg-type]
        groups = [group for group in optimizer.param_groups if group["matrices"]]
        return {names[each] for group in groups for each in group["params"]}

    assert moved_by_muon() == {"hidden.weight"}
    assert moved_by_muon(adamw=()) == {"embedding.weight", "hidden.weight", "head.weight"}
    assert moved_by_muon(adamw=("hidden.*", "head*")) == {"embedding.weight"}
    with pytest.raises(UserError, match=r"optimizer\.adamw: no parameter matches 'nothing'"):
        moved_by_muon(adamw=("nothing",))
    with pytest.raises(UserError, match=r"optimizer\.lr_factors: no parameter matches 'nothing'"):
        moved_by_muon(lr_factors={"nothing": 2.0})
    net.embedding.requires_grad_(False)
    assert moved_by_muon(adamw=("embedding.*",)) == {"hidden.weight", "head.weight"}
