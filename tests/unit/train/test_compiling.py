"""torch.compile in a run: what it takes is known and in no other time, and it leaves nothing."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysuite.data.base import Batch
from raysuite.gate.small_network import compare
from raysuite.gate.strategy_check import TOLERANCE_COMPILED
from raysuite.parallel.base import StepSettings, World
from raysuite.parallel.compiling import Compiler, TorchCompiler
from raysuite.parallel.single import Single
from raysuite.records import EpochFinished, GateVerdict
from raysuite.train.loop import TrainingLoop
from raysuite.train.stop_together import Watch, never
from tests.require import require
from tests.unit.train.conftest import plan_of, run

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _compiler() -> None:
    require("compiler")


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_compiled_run() -> None:
    records = run(plan_of(training_compile="default"))
    verdict = next(each for each in records if isinstance(each, GateVerdict))
    assert verdict.passed, verdict.message
    assert verdict.error_compiled is not None
    assert verdict.error_compiled < TOLERANCE_COMPILED
    first, second = [each for each in records if isinstance(each, EpochFinished)]
    # training and validation, of two sizes of batches at most
    assert 2 <= first.graphs <= 4
    assert second.graphs >= first.graphs
    assert first.graph_breaks == {}
    assert first.compile_seconds > 1
    assert first.elapsed_seconds > first.compile_seconds + first.seconds
    # compiled code takes milliseconds, compiling takes seconds
    assert first.seconds < first.compile_seconds / 2
    assert first.steady_seconds <= first.seconds
    if second.graphs == first.graphs:
        assert second.compile_seconds == 0


class Cut(nn.Module):
    """Its forward pass prints in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        y: Tensor = self.second(x)
        return y


def test_torch_gets_the_mode() -> None:
    with pytest.raises(RuntimeError, match="Unrecognized mode=quick"):
        TorchCompiler(nn.Linear(4, 4), "quick", CPU)


@pytest.mark.slow
def test_graph_breaks_are_told_and_nothing_is_left() -> None:
    model = Cut()
    compiler = TorchCompiler(model, "default", CPU)
    with torch.no_grad():
        model(torch.ones(2, 4))
    assert compiler.graphs == 2
    assert sum(compiler.graph_breaks.values()) == 1
    compiler.close()
    left = weakref.ref(model)
    del model
    gc.collect()
    assert left() is None
    following = TorchCompiler(nn.Linear(4, 4), "default", CPU)
    assert (following.graphs, following.graph_breaks) == (0, {})
    following.close()
    seconds = compiler.seconds
    other = Compiler()
    assert (other.seconds, other.graphs, other.graph_breaks) == (0.0, 0, {})
    assert compiler.seconds == seconds


def test_a_cold_compiler_has_a_cache_of_its_own_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/shared")
    compiler = TorchCompiler(nn.Linear(4, 4), "default", CPU)
    compiler.cold()
    own = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert own.is_dir()
    compiler.close()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/shared"
    assert not own.exists()


def test_compiling_in_the_warm_up_is_not_taken_off_the_steps_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compilations that claim to take 1,000 s in step 0 of six, a warm-up of two, 2,000 s in step
    4, and 500 s in the validation: what is left is the time of the steps, of some milliseconds
    each."""
    strategy, world = Single(), World(0, 1, 0, CPU)
    strategy.start(world)
    loop = TrainingLoop(plan_of(), world, strategy)
    compiler = loop.engine.compiler = Compiler(enabled=True)
    step, took = loop.engine.step, iter((1000.0, 0.0, 0.0, 0.0, 2000.0, 0.0))

    def compiled(micro_batches: Sequence[Batch], lr: float) -> Tensor:
        compiler.seconds += next(took)
        return step(micro_batches, lr)

    forward, compiles = loop.engine.forward, iter((500.0,))

    def validated(images: Tensor) -> Any:
        compiler.seconds += next(compiles, 0.0)
        return forward(images)

    monkeypatch.setattr(loop.engine, "step", compiled)
    monkeypatch.setattr(loop.engine, "forward", validated)
    done = loop.run_epoch(Watch(never, world, loop.engine.comm))
    loop.close()
    assert isinstance(done, EpochFinished)
    assert done.compile_seconds == 3500
    assert -500 < done.validation_seconds < -400
    assert 0 < done.steady_seconds + 2000 <= done.seconds + 3000 < 1000
    assert [each < 0 for each in done.step_seconds] == [False, False, True, False]
    assert sum(done.step_seconds) <= done.steady_seconds + 1e-3


def test_wrong_compiled_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = Single()
    strategy.start(World(0, 1, 0, CPU))

    def wrong(module: nn.Module, mode: str) -> None:
        plain = module.forward
        module.forward = lambda images: plain(images) * 1.001

    monkeypatch.setattr(nn.Module, "compile", wrong)
    found = compare(strategy, World(0, 1, 0, CPU), StepSettings(1, compile="default"))
    assert found.error > TOLERANCE_COMPILED
