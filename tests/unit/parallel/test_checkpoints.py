"""What a framework loads by itself runs no code either."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest
import torch
from torch import nn

from raysuite.errors import RunError
from raysuite.parallel import make_strategy
from raysuite.parallel.base import TorchEngine
from raysuite.parallel.deepspeed import weights_only
from raysuite.parallel.single import Single
from raysuite.spec.strategies import DdpOptions, FsdpOptions, SingleOptions, StrategyOptions
from raysuite.train.world import world_from_environment
from tests.contract.strategy_worker import BASE, engine_of

NAMES = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")


class Malicious:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


class Plain:
    def __init__(self) -> None:
        self.number = 3


@pytest.mark.parametrize("before", [None, "1"])
def test_whatever_the_caller_and_the_user_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    if before:
        monkeypatch.setenv(NAMES[1], before)
    file, mark = tmp_path / "saved.pt", tmp_path / "executed"
    torch.save({"model": Malicious(mark)}, file)
    with weights_only([]), pytest.raises(pickle.UnpicklingError):
        torch.load(file, weights_only=False)
    assert not mark.exists()
    assert [os.environ.get(name) for name in NAMES] == [None, before]
    torch.load(file, weights_only=False)
    assert mark.exists(), "the file is harmless, and proves nothing"


def test_named_classes_alone_are_read(tmp_path: Path) -> None:
    torch.save(Plain(), tmp_path / "plain.pt")
    with weights_only([Plain]):
        assert torch.load(tmp_path / "plain.pt", weights_only=False).number == 3
    with weights_only([]), pytest.raises(pickle.UnpicklingError, match="Plain"):
        torch.load(tmp_path / "plain.pt", weights_only=False)


def test_one_process_refuses_a_malicious_checkpoint(tmp_path: Path) -> None:
    single = Single()
    single.start(world_from_environment("cpu"))
    engine = engine_of(single, BASE)
    mark = tmp_path / "executed"
    torch.save({"model": Malicious(mark)}, tmp_path / "engine.pt")
    with pytest.raises(RunError, match=r"engine\.pt") as raised:
        engine.load(tmp_path)
    assert not mark.exists()
    assert "weights_only" not in "".join(format_exception(raised.value))


@pytest.mark.parametrize("options", [SingleOptions(), DdpOptions(), FsdpOptions()])
def test_the_scale_of_fp16_is_resumed(options: StrategyOptions, tmp_path: Path) -> None:
    strategy = make_strategy(options)
    strategy.start(world_from_environment("cpu"))
    try:
        engines = [engine_of(strategy, replace(BASE, precision="fp16")) for _ in range(2)]
        first, second = (each for each in engines if isinstance(each, TorchEngine))
        kept = {"sample_factor": 32.0, "good_steps": 7.0}
        first.scale.load_state(kept)
        first.save(tmp_path)
        second.load(tmp_path)
        assert second.scale.state() == kept
    finally:
        strategy.stop()


class Counting(nn.Linear):
    calls = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


@pytest.mark.parametrize("options", [SingleOptions(), DdpOptions(), FsdpOptions()])
def test_the_extra_state_of_a_module_is_resumed(options: StrategyOptions, tmp_path: Path) -> None:
    strategy = make_strategy(options)
    strategy.start(world_from_environment("cpu"))
    try:
        models = [Counting(2, 2) for _ in range(2)]
        first, second = (strategy.prepare(each, torch.optim.SGD, BASE) for each in models)
        models[0].calls = 3
        first.save(tmp_path)
        second.load(tmp_path)
        assert models[1].calls == 3
    finally:
        strategy.stop()
