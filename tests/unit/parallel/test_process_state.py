"""What a run changes in its process is undone."""

from __future__ import annotations

import functools
import os
import random
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from raysuite.errors import UserError
from raysuite.parallel import joined
from raysuite.parallel.base import World
from raysuite.parallel.comm import join_torch_group
from raysuite.parallel.fsdp import Fsdp
from raysuite.parallel.process_state import restored
from raysuite.spec.strategies import FsdpOptions

CPU = torch.device("cpu")


def state() -> list[Any]:
    return [
        *(functional.linear, torch.zeros, vars(nn.Linear)["forward"], torch.nn.Linear, np.dot),
        *(
            vars(nn.Module)["apply"],
            vars(torch.autograd.Function)["apply"],
            sys.excepthook,
            dict(os.environ),
        ),
        *(torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()),
        *(torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, np.geterr()),
        *(torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()),
        *(torch.get_deterministic_debug_mode(), dist.is_initialized()),
    ]


def test_what_a_block_changes_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANGED", "before")
    monkeypatch.setenv("REMOVED", "before")
    before = state()

    @functools.wraps(nn.Linear.forward)  # then it has the module and the name of torch's
    def forward(*arguments: Any) -> Any:
        return None

    with restored(CPU):
        for owner, name, value in (
            (functional, "linear", lambda *arguments: None),
            (nn.Linear, "forward", forward),
            (nn.Module, "apply", torch.no_grad()(forward)),
            (torch.autograd.Function, "apply", classmethod(forward)),
            (torch, "zeros", functools.partial(torch.ones, 1)),
            (torch.nn, "Linear", type("Linear", (nn.Linear,), {})),
            (np, "dot", forward),
            (sys, "excepthook", forward),
        ):
            setattr(owner, name, value)
        os.environ.update(CHANGED="after", ADDED="after")
        del os.environ["REMOVED"]
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.set_deterministic_debug_mode(1)
        torch.set_grad_enabled(False)
        torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
        np.seterr(all="raise")
        for draw in (torch.rand, np.random.rand):
            draw(1)
        random.random()
        join_torch_group(0, 1, CPU)
    assert state() == before


def test_what_torch_replaces_by_itself_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functional, "gelu", functional.gelu)
    with restored(CPU):
        changed = torch.no_grad()(functional.relu)
        setattr(functional, "gelu", changed)  # noqa: B010 - mypy allows no other function there
    assert functional.gelu is changed


def test_a_strategy_that_does_not_start_leaves_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        assert dist.is_initialized()
        raise UserError("strategy.copies: nodes")

    monkeypatch.setattr(Fsdp, "_copies", refuse)
    before = state()
    with pytest.raises(UserError), joined(FsdpOptions(), World(0, 1, 0, CPU)):
        pass
    assert state() == before
