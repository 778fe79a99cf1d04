"""The gate on ranks that are threads of this process: right strategies pass, and none with a flaw.

tests/contract/test_gate.py has real collectives, caches and frameworks.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from raysuite.gate.small_network import TOLERANCE, Comparison
from raysuite.gate.strategy_check import _differing_16_bits, examine
from raysuite.parallel.base import MakeOptimizer, StepSettings, TorchEngine, World
from raysuite.parallel.comm import Comm, NoComm, Pending, Reduction
from raysuite.parallel.precision import LossScale
from raysuite.records import GateVerdict
from raysuite.spec.optimizers import AdamWOptions, MuonOptions, OptimizerOptions
from raysuite.spec.strategies import CustomOptions, Lossy
from tests.strategies.broken import FLAWS, Broken

SETTINGS = StepSettings(1, 2, 0.5)
OPTIONS = CustomOptions(target="tests.strategies.broken:Broken")
Found = TypeVar("Found")


class Group:
    """Ranks of which one computes at a time, until it waits for the others."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.computes = threading.Lock()
        self.met = threading.Barrier(size, timeout=60)
        self.values: list[Tensor] = [torch.empty(0)] * size


class ThreadComm(NoComm):
    """The collectives of one rank of a group."""

    def __init__(self, group: Group, rank: int) -> None:
        self.size, self._group, self._rank = group.size, group, rank

    def all_gather(self, value: Tensor) -> Tensor:
        group = self._group
        group.values[self._rank] = value.detach().clone()
        group.computes.release()
        try:
            group.met.wait()
            found = torch.stack(group.values)
            group.met.wait()
        finally:
            group.computes.acquire()
        return found

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        found = self.all_gather(value)
        return {"sum": found.sum, "max": found.amax, "min": found.amin}[reduction](0)

    def begin_max(self, value: Tensor) -> Pending:
        found = self.all_reduce(value, "max")
        return lambda: found


class InThread(Broken):
    """On a rank of a group."""

    def __init__(self, comm: Comm, flaw: str, lossy: Lossy | None) -> None:
        super().__init__(flaw, lossy)
        self._comm = comm

    def start(self, world: World) -> None:
        self._world = world

    def comm(self) -> Comm:
        return self._comm


class Averaging(TorchEngine):
    """Gradients are averaged after the last backward pass."""

    def __init__(
        self, model: nn.Module, make: MakeOptimizer, settings: StepSettings, strategy: InThread
    ) -> None:
        super().__init__(model, strategy.comm(), strategy.world, settings, whole_gradients=True)
        self.optimizer = make(model.parameters())
        self.scale.guard(self.optimizer)

    def take_step(self) -> None:
        for each in self.model.parameters():
            assert each.grad is not None
            each.grad = self.comm.all_reduce(each.grad, "sum") / self.comm.size
        super().take_step()


class Right(InThread):
    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Averaging:
        return Averaging(model, make_optimizer, settings, self)


class Frozen(Averaging):
    """Layers with running statistics normalise by those in training too."""

    def train(self, on: bool = True) -> None:
        super().train(on)
        for part in self.model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.eval()


class WithFrozenStatistics(InThread):
    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Averaging:
        return Frozen(model, make_optimizer, settings, self)


class WithoutDecay(InThread):
    """Optimisers other than SGD lose their weight decay."""

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Averaging:
        engine = Averaging(model, make_optimizer, settings, self)
        if not isinstance(engine.optimizer, torch.optim.SGD):
            for group in engine.optimizer.param_groups:
                group["weight_decay"] = 0.0
        return engine


@pytest.fixture(autouse=True)
def _one_thread_each() -> Iterator[None]:
    threads, tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = tf32  # which the gate's threads restore in any order


def on_ranks(size: int, work: Callable[[World, Comm], Found]) -> list[Found]:
    """What `work` returns on each rank."""
    group = Group(size)

    def rank(number: int) -> Found:
        with group.computes:
            try:
                world = World(number, size, 0, torch.device("cpu"))
                return work(world, ThreadComm(group, number))
            except BaseException:
                group.met.abort()
                raise

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(rank, range(size)))


def verdict(
    flaw: str = "none",
    settings: StepSettings = SETTINGS,
    lossy: Lossy | None = None,
    optimizer: OptimizerOptions | None = None,
    size: int = 2,
    kind: type[InThread] = InThread,
) -> GateVerdict:
    """Of all ranks, which agree."""

    def examined(world: World, comm: Comm) -> GateVerdict:
        strategy = kind(comm, flaw, lossy)
        strategy.start(world)
        return examine(OPTIONS, world, strategy, settings, "run", optimizer)

    first, *others = (each.model_copy(update={"time": 0}) for each in on_ranks(size, examined))
    if not flaw.startswith("comm_"):  # then each rank names the numbers that it got
        assert all(each == first for each in others)
    return first


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", [InThread, Right])
def test_a_right_strategy_passes(size: int, kind: type[InThread]) -> None:
    found = verdict(size=size, kind=kind)
    assert (found.passed, found.ranks_equal, found.message) == (True, True, "")
    assert 0 < found.error < 1e-6
    assert (found.error_batchnorm > 0) == (size > 1)
    assert found.error_batchnorm < 1e-6
    assert (found.workers, found.strategy, found.run_id) == (size, "custom", "run")
    assert (found.tolerance, found.steps) == (1e-5, 4)
    assert found.error_16_bits is found.error_compiled is found.error_rebuilt is None


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_is_refused(flaw: str) -> None:
    found = verdict(flaw)
    assert not found.passed
    assert FLAWS[flaw] in found.message
    assert found.ranks_equal == (flaw not in ("no_sync", "comm_of_one", "comm_of_echoes"))


def test_a_flaw_in_batch_norm_alone_is_refused() -> None:
    found = verdict(size=1, kind=WithFrozenStatistics)
    assert found.error < TOLERANCE < found.error_batchnorm
    assert not found.passed
    assert "differ by" in found.message


@pytest.mark.parametrize(
    "optimizer",
    [AdamWOptions(weight_decay=10.0), MuonOptions(weight_decay=10.0, adamw=())],
    ids=lambda each: each.name,
)
def test_a_flaw_with_the_runs_optimizer_alone_is_refused(optimizer: OptimizerOptions) -> None:
    assert verdict(optimizer=optimizer, kind=Right).passed
    found = verdict(optimizer=optimizer, kind=WithoutDecay)
    assert not found.passed
    assert "differ by" in found.message


def test_clipping_does_not_hide_a_wrong_scale() -> None:
    clipped = StepSettings(1, clip_norm=1e-3)
    assert verdict(settings=clipped).passed
    assert "differ by" in verdict("sum", clipped).message
    before = verdict("clips_before", StepSettings(1))
    assert before.passed  # nothing is clipped


def test_lossy_throughout_is_held_to_the_bounds_that_it_states() -> None:
    bf16 = Lossy(reduced="bf16")
    passed = {flaw: verdict(flaw, lossy=bf16) for flaw in ("none", "sum", "nan")}
    assert [flaw for flaw, each in passed.items() if each.passed] == ["none"]
    assert passed["none"].tolerance is None
    assert "times what they can change" in passed["sum"].message
    assert not verdict(lossy=Lossy()).passed  # states no bound


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_right_strategy_passes_in_16_bits(precision: str) -> None:
    found = verdict(settings=StepSettings(1, 2, 0.5, precision), kind=Right)
    assert found.passed, found.message
    assert found.error_16_bits is not None
    assert 1e-4 < found.error_16_bits < 0.15  # 16 bits were used


def _half(right: Callable[[LossScale], None]) -> Callable[[LossScale], None]:
    def decide(self: LossScale) -> None:
        right(self)
        for each in self._parameters:
            assert each.grad is not None
            each.grad *= 0.5 if self.enabled else 1.0

    return decide


def _never(right: Callable[[LossScale], None]) -> Callable[[LossScale], None]:
    def decide(self: LossScale) -> None:
        right(self)
        self._skip = False

    return decide


@pytest.mark.parametrize(("change", "error"), [(_half, 0.5), (_never, math.inf)])
def test_a_defect_of_16_bits_is_refused(
    change: Any, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LossScale, "decide", change(LossScale.decide))
    found = verdict(settings=StepSettings(1, 2, None, "fp16"), kind=Right)
    assert not found.passed
    assert found.error < TOLERANCE  # fp32 is right
    assert found.error_16_bits is not None
    assert found.error_16_bits >= 0.8 * error


@pytest.mark.parametrize(
    ("updates", "worst_update", "is_refused"),
    [(0.1, 0.4, False), (0.3, 0.4, True), (0.1, 0.6, True)],
)
def test_16_bits_have_a_bound_of_the_whole_and_one_of_each_weight(
    updates: float, worst_update: float, is_refused: bool
) -> None:
    found = Comparison(True, 0.0, 0.0, 0.0, updates, worst_update)
    assert bool(_differing_16_bits([Comparison(True, 0, 0, 0, 0, 0), found])) == is_refused
