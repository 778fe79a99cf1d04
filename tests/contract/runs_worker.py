"""What test_runs_in_one_process.py asks of the ranks of one world: runs one after the other."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import signal
import sys
import threading
from pathlib import Path
from types import CodeType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from raysuite.gate import strategy_check
from raysuite.parallel.base import World
from raysuite.plan import RunPlan, make_plans
from raysuite.records import EpochFinished, GateVerdict
from raysuite.spec import Document
from raysuite.train.run import execute
from raysuite.train.world import world_from_environment
from tests.contract.launches import write

WIDTH = 24
SITE = f"{Path(torch.__file__).parents[1]}/"


class Attention(nn.Module):
    """Linear layers of three dimensions, of which 16 bits show each change, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.queries = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        parts = self.queries(self.norm(tokens)).chunk(3, -1)
        mixed: Tensor = self.out(functional.scaled_dot_product_attention(*parts))
        return tokens + self.dropout(mixed)


class Tokens(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(2).transpose(1, 2)


class Poison(nn.Module):
    """Makes the gradient before it NaN in one of its training passes, counted from 1."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.passes = at, 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.passes += self.training
        if self.training and self.passes == self.at:
            tokens = tokens.clone()
            tokens.register_hook(lambda gradient: gradient * float("nan"))
        return tokens


class Mean(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.mean(1)


def network(num_classes: int, in_channels: int, poisoned_at: int = 0) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, WIDTH, 4, 4),
        Tokens(),
        Attention(),
        Poison(poisoned_at),
        Attention(),
        Mean(),
        nn.Linear(WIDTH, num_classes),
    )


def plan_of(asked: dict[str, Any], workers: int) -> RunPlan:
    training = {"epochs": 2, "global_batch": 480, **asked.get("training", {})}
    data = {
        "name": "runs",
        "model": {"name": f"{__spec__.name}:network", "options": asked.get("model", {})},
        "data": {"name": "digits"},
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
        "strategy": asked["strategy"],
        "training": training,
        "resources": {"device": "cpu", "workers": workers},
    }
    return make_plans(Document(data, "test"), gpus=0)[0]


def package_of(function: Any) -> str:
    """Whose code a function is: what torch wraps by itself stays torch's."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if not isinstance(code, CodeType):
        return type(function).__name__
    return code.co_filename.removeprefix(SITE).partition("/")[0]


def state() -> dict[str, str]:
    """Whatever of this process a run might change, by name."""
    public = re.compile(r"(torch|numpy)(\.[a-z]\w*)*")
    owners = [
        *(module for name, module in sys.modules.items() if public.fullmatch(name)),
        *(torch.Tensor, nn.Module, nn.Parameter, nn.Linear, torch.optim.Optimizer),
        torch.autograd.Function,
    ]
    functions = {
        f"{getattr(owner, '__name__', owner)}.{name}": package_of(value)
        for owner in owners
        for name, value in list(vars(owner).items())
        if callable(value) or type(value) is classmethod
    }
    settings = {
        "threads of torch": torch.get_num_threads(),
        "threads": sorted(each.name for each in threading.enumerate()),
        "dtype": torch.get_default_dtype(),
        "autocast": [torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")],
        "gradients": torch.is_grad_enabled(),
        "anomalies": torch.is_anomaly_enabled(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "float32": torch.get_float32_matmul_precision(),
        "cudnn": [torch.backends.cudnn.benchmark, torch.backends.cudnn.enabled],
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "draws of torch": torch.get_rng_state().tolist(),
        "draws of numpy": np.random.get_state(),
        "draws of Python": random.getstate(),
        "errors of numpy": np.geterr(),
        "group": dist.is_initialized(),
        "hook": [id(sys.excepthook), id(threading.excepthook)],
        "signals": [signal.getsignal(each) for each in signal.valid_signals()],
        "logging": [logging.root.level, logging.root.handlers, logging.root.manager.disable],
        "folder": os.getcwd(),
    }
    variables = {f"${name}": value for name, value in os.environ.items()}
    return {name: str(each) for name, each in {**functions, **settings, **variables}.items()}


def finished(plan: RunPlan, world: World, watched: bool) -> dict[str, Any]:
    """The outcome of a run on this rank, its figures as hexadecimal text, and, where it is
    `watched`, what it changed in its process."""
    before = state() if watched else {}
    records = list(execute(plan, world))
    after = state() if watched else {}
    epochs = [each for each in records if isinstance(each, EpochFinished)]
    losses = [loss for epoch in epochs for loss in [*epoch.losses, epoch.val_loss]]
    return {
        "losses": [float(each).hex() for each in losses],
        "skipped": sum(each.skipped_steps for each in epochs),
        "end": [getattr(records[-1], name, None) for name in ("kind", "reason", "step")],
        "changed": {
            name: f"{value} -> {after.get(name)}"[:200]
            for name, value in before.items()
            if after.get(name) != value
        }
        | {name: after[name] for name in after.keys() - before.keys() if name.startswith("$")},
    }


def main(request: list[dict[str, Any]], file: Path) -> None:
    world = world_from_environment("cpu")
    verdict = GateVerdict(
        run_id="", strategy="", workers=world.size, passed=True, ranks_equal=True, error=0.0,
        error_batchnorm=0.0, tolerance=1e-5, rule="", steps=0,
    )  # fmt: skip
    with patch.object(strategy_check, "check", lambda *_: verdict):
        found = [
            finished(plan_of(asked, world.size), world, asked.get("watched", False))
            for asked in request
        ]
    write(found, file, world.rank)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
