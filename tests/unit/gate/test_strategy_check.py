"""The gate on ranks that are threads of this process: right strategies pass, and none with a flaw.

tests/contract/test_gate.py has real collectives, caches and frameworks.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
import torch
from torch import Tensor, nn

from raysuite.data.base import Batch
from raysuite.gate import own_network, small_network, strategy_check
from raysuite.gate.__main__ import main as verify
from raysuite.gate.delayed import Delayed
from raysuite.gate.gradients import Gradients
from raysuite.gate.own_network import Found
from raysuite.gate.rebuilt_network import TOLERANCE_REBUILT, compare_rebuilt
from raysuite.gate.small_network import TOLERANCE, Comparison, SmallNet, small_net
from raysuite.gate.strategy_check import (
    _differing,
    _differing_16_bits,
    _faults,
    _own,
    beyond_bounds,
    check,
    comm_of,
    examine,
    examine_network,
)
from raysuite.parallel.base import (
    BaseStrategy,
    Engine,
    MakeOptimizer,
    StepSettings,
    Strategy,
    TorchEngine,
    World,
)
from raysuite.parallel.comm import Comm, NoComm, Pending, Reduction
from raysuite.parallel.precision import LossScale
from raysuite.parallel.single import Single
from raysuite.records import GateVerdict
from raysuite.spec.optimizers import AdamWOptions, MuonOptions, OptimizerOptions, SgdOptions
from raysuite.spec.strategies import (
    CustomOptions,
    DdpOptions,
    FsdpOptions,
    HorovodOptions,
    JaxOptions,
    Lossy,
    PipelineOptions,
    StrategyOptions,
)
from tests.strategies.broken import FLAWS, Broken, BrokenEngine
from tests.unit.gate.test_rebuilt_network import Off
from tests.unit.train.conftest import plan_of

SETTINGS = StepSettings(1, 2, 0.5)
OPTIONS = CustomOptions(target="tests.strategies.broken:Broken")
Value = TypeVar("Value")


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
    """Gradients are averaged after the last backward pass; micro-batches are no larger than stated,
    as frameworks expect that are told their size."""

    def __init__(
        self, model: nn.Module, make: MakeOptimizer, settings: StepSettings, strategy: InThread
    ) -> None:
        super().__init__(model, strategy.comm(), strategy.world, settings, whole_gradients=True)
        self.optimizer = make(model.parameters())
        self.scale.guard(self.optimizer)

    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        assert max(len(each.images) for each in micro_batches) <= self.settings.micro_batch
        return super().step(micro_batches, lr)

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


def on_ranks(size: int, work: Callable[[World, Comm], Value]) -> list[Value]:
    """What `work` returns on each rank."""
    group = Group(size)

    def rank(number: int) -> Value:
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
    # Muon's own bound is wider, and its error is in the message
    assert (found.error > TOLERANCE) == (optimizer.name == "adamw")
    assert "differ by" in found.message


@pytest.mark.parametrize(
    ("flaw", "lossy", "message"),
    [
        ("comm_of_one", None, "the strategy's comm does not reach all ranks: there are 2 ranks, "),
        ("none", Lossy(), "custom changes gradients on purpose, and no bound for that is known"),
        ("none", True, "custom changes gradients on purpose, and no bound for that is known"),
    ],
)
def test_nothing_is_known_of_ranks_that_do_not_meet_and_of_gradients_without_a_bound(
    flaw: str, lossy: Any, message: str
) -> None:
    found = verdict(flaw, lossy=lossy)
    assert found.message.startswith(message)
    rule = "the strategy's collectives reach all ranks"
    assert found == GateVerdict(
        **{"run_id": "run", "strategy": "custom", "workers": 2, "steps": 4, "time": 0},
        **{"passed": False, "ranks_equal": False, "error": math.inf, "error_batchnorm": math.inf},
        **{"tolerance": 1e-5, "rule": rule, "message": found.message},
    )


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
    assert passed["none"].rule == (
        "ranks bit-equal; lossy options: gradients within the bounds that follow from them"
    )
    assert "times the largest error that these options allow" in passed["sum"].message
    assert verdict(lossy=bf16, kind=Right).passed


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_right_strategy_passes_in_16_bits(precision: str) -> None:
    found = verdict(settings=StepSettings(1, 2, 0.5, precision), kind=Right)
    assert found.passed, found.message
    assert found.error_16_bits is not None
    assert 1e-4 < found.error_16_bits < 0.15  # 16 bits were used


def test_lossy_options_are_held_to_their_bounds_in_16_bits_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, bf16 = StepSettings(1, 2, 0.5, "fp16"), Lossy(reduced="bf16")
    assert verdict(settings=settings, lossy=bf16, kind=Right).passed
    monkeypatch.setattr(LossScale, "decide", _half(LossScale.decide))
    found = verdict(settings=settings, lossy=bf16, kind=Right)
    assert not found.passed
    assert "times the largest error that these options allow" in found.message


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
    [(0.2, 0.5, False), (0.3, 0.4, True), (0.1, 0.6, True)],
)
def test_16_bits_have_a_bound_of_the_whole_and_one_of_each_weight(
    updates: float, worst_update: float, is_refused: bool
) -> None:
    found = Comparison(True, 0.0, 0.0, 0.0, updates, worst_update)
    assert bool(_differing_16_bits([Comparison(True, 0, 0, 0, 0, 0), found])) == is_refused


def test_of_errors_beyond_their_bound_the_worst_is_named() -> None:
    some, more = Comparison(True, 0.0, 0.1, 0.0), Comparison(True, 0.2, 0.1, 0.0)
    assert _differing([some, more], 0.2) == []
    for found in ([some, more, more], [more, some]):
        assert _differing(found, 0.05) == [
            "its weights differ by 2.0e-01 from those of one process on the same global batch; at "
            "most 5e-02 can be rounding"
        ]
    at, beyond = Gradients(True, 0.1, 1.0), Gradients(False, math.inf, 1.5)
    assert beyond_bounds([at]) == []
    assert beyond_bounds([at, beyond]) == [
        "with lossy options the error of a parameter's mean gradient is 1.5e+00 times the largest "
        "error that these options allow"
    ]
    assert _faults([some, at]) == []
    assert _faults([some, beyond]) == [
        "the ranks hold different weights: gradients are not synchronised",
        "weights, logits or losses are not finite, or have other names or shapes than those of "
        "one process",
    ]


# The gate of a run, in one process: the verdict on its strategy, then that on its own network.

ALONE = World(0, 1, 0, torch.device("cpu"))
SMALL_BUCKETS = {"name": "ddp", "bucket_mb": 1e-3}
"""What the gate itself would choose for several reductions in a step."""


class WrongOfOthers(InThread):
    """Right with the gate's small network alone."""

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        self.flaw = "none" if isinstance(model, SmallNet) else "divides_twice"
        return BrokenEngine(model, make_optimizer, self.world, settings, self)


class Alone(InThread):
    """Without other ranks; made without arguments, as by its name in a spec."""

    def __init__(self) -> None:
        super().__init__(NoComm(), "none", None)


class WrongOfSmall(Alone):
    """Right with all but the gate's small network."""

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        self.flaw = "divides_twice" if isinstance(model, SmallNet) else "none"
        return BrokenEngine(model, make_optimizer, self.world, settings, self)


def started(
    flaw: str = "none", lossy: Lossy | None = None, kind: type[InThread] = InThread
) -> InThread:
    strategy = kind(NoComm(), flaw, lossy)
    strategy.start(ALONE)
    return strategy


def run_verdict(ours: Strategy, **changes: Any) -> GateVerdict:
    plan = plan_of(**{"strategy": SMALL_BUCKETS, "training_accumulate": 2, **changes})
    found = check(plan, ALONE, ours, {})
    assert found.run_id == plan.run_id
    return found


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many passed checks a cache of our own has."""
    monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path))
    return lambda: len(list((tmp_path / "gate").glob("*.json")))


def test_a_passed_check_is_made_once_for_its_strategy_and_its_network(
    kept: Callable[[], int],
) -> None:
    strategy, model = started(), "resnet20"
    first = run_verdict(strategy, model=model)
    assert (first.passed, first.cached, first.network) == (True, False, "equal to one process")
    assert first.error_network is not None
    assert first.error_network < 1e-4
    assert first.network_seconds > 0
    assert kept() == 2
    # plans differ in what a verdict does not depend on
    again = run_verdict(strategy, model=model, seed=3, training_epochs=9)
    assert again.cached
    assert again.time > first.time
    own = {"run_id", "cached", "time"}
    assert again.model_dump(exclude=own) == first.model_dump(exclude=own)
    clipped = run_verdict(strategy, model=model, training_clip_norm=0.5)
    assert (clipped.cached, clipped.network_seconds, kept()) == (False, first.network_seconds, 3)
    other = run_verdict(strategy, model="resnet32")
    assert (other.passed, other.cached, kept()) == (True, False, 4)


def test_a_network_that_was_not_compared_is_compared_by_the_next_run(
    kept: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(own_network, "available_bytes", lambda _: 0)
        found = run_verdict(started())
    assert (found.passed, found.error_network, kept()) == (True, None, 1)
    assert found.network.startswith("not compared: the comparison would need ")
    again = run_verdict(started())
    assert (again.network, again.cached, kept()) == ("equal to one process", False, 2)


def test_a_strategy_that_fails_is_not_kept_nor_is_its_network_looked_at(
    kept: Callable[[], int],
) -> None:
    for _ in range(2):
        found = run_verdict(started("divides_twice"))
        assert (found.passed, found.cached, found.error_network) == (False, False, None)
        assert kept() == 0


def test_a_network_that_is_trained_otherwise_than_by_one_process_fails(
    kept: Callable[[], int],
) -> None:
    for place in range(2):
        found = run_verdict(started(kind=WrongOfOthers))
        assert (found.passed, found.cached, found.ranks_equal) == (False, False, True)
        assert found.error < TOLERANCE  # of the small networks
        assert found.error_network is not None
        assert found.error_network > 0.1
        assert "in step 1 layers.0.weight differs first" in found.network
        assert found.message.startswith("tests.tiny_model:Tiny is not trained as in one process")
        assert kept() == 1, place  # of the small networks


def test_ones_own_strategy_is_checked_in_every_run(kept: Callable[[], int]) -> None:
    own = {"name": "custom", "target": "tests.strategies.broken:Broken"}
    for _ in range(2):
        found = run_verdict(started(), strategy=own)
        assert (found.passed, found.cached, found.strategy) == (True, False, "custom")
        assert found.network == "equal to one process"
    assert kept() == 0


@pytest.mark.parametrize("name", ["ddp", "jax"])
def test_a_network_of_unknown_code_or_of_another_framework_is_compared_in_every_run(
    name: str, noted: type[Noted], kept: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "ddp":
        monkeypatch.setattr(own_network, "key", lambda plan: None)
    strategy = noted({"ddp": DdpOptions(), "jax": JaxOptions()}[name])
    strategy.start(ALONE)
    for cached in (False, True):
        found = run_verdict(strategy, strategy=name)
        assert (found.passed, found.cached, kept()) == (True, cached, 1)
        assert (found.error_network is None) == (name == "jax") == (found.error_rebuilt is not None)
        assert "image=(1, 8, 8)" in noted.made[-1] or name == "jax"


def test_a_run_is_checked_by_small_networks_of_their_own_size_and_then_by_its_own(
    noted: type[Noted], kept: Callable[[], int]
) -> None:
    plan = {
        "strategy": {"name": "ddp", "compression": "bf16"},
        "optimizer": "adamw",
        "training_clip_norm": 0.5,
        "training_accumulate": 3,
    }
    strategy = noted(DdpOptions(compression="bf16"))
    strategy.start(ALONE)
    assert [run_verdict(strategy, **plan).cached for _ in range(2)] == [False, True]
    accumulated = "accumulate=3"
    assert noted.made == [
        "compression=bf16",  # whose collectives are taken
        accumulated,
        f"{accumulated} clip_norm=0.05",
        f"{SMALL} {accumulated}",
        f"{accumulated} norm=True",
        f"{accumulated} optimizer=AdamW",
        f"compression=bf16 micro_batch=16 {accumulated}",
        f"{SMALL} compression=bf16 micro_batch=16 {accumulated} norm=True",
        "accumulate=2 image=(1, 8, 8) norm=True",
        "compression=bf16",  # again, and the rest is known
    ]
    del noted.made[:], noted.closed[:]
    options, *_ = CASES["pipeline"]
    comm_of(options, ALONE, strategy)
    staged = "schedule=pipedream_2bw stages=4 micro_batches=5"
    assert noted.made == [f"{staged} accumulate=5 layers=4"]


def test_a_single_process_is_checked_by_the_small_networks_alone(kept: Callable[[], int]) -> None:
    found = run_verdict(started(), strategy="single")
    assert (found.passed, found.error_network, found.network, kept()) == (True, None, "", 1)


@pytest.mark.parametrize(
    ("optimizer", "same", "is_checked_too"),
    [
        (SgdOptions(), {"lr": 3.0, "momentum": 0.0}, False),
        (
            SgdOptions(decay_bias_and_norm=False),
            {"lr": 3.0, "lr_reference_batch": 256, "lr_scaling": "sqrt"},
            True,
        ),
        (AdamWOptions(), {"lr": 3.0, "lr_reference_batch": 256, "lr_scaling": "sqrt"}, True),
    ],
)
def test_rates_of_an_optimiser_are_not_what_is_checked(
    optimizer: OptimizerOptions, same: dict[str, Any], is_checked_too: bool
) -> None:
    found = _own(optimizer)
    assert (found is not None) == is_checked_too
    assert _own(optimizer.model_copy(update=same)) == found
    if found is not None:
        assert _own(optimizer.model_copy(update={"weight_decay": 0.3})) != found


class Noted(BaseStrategy):
    """One process. Notes what each engine has, except defaults; engines with the words of `off`
    take steps with another multiple of the rate."""

    made: ClassVar[list[str]] = []
    off: ClassVar[tuple[str, float]] = ("", 1.0)
    closed: ClassVar[list[str]] = []

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        inner = (Delayed if self.options.staged() else Single)(self.options)
        inner.start(self.world)
        engine = inner.prepare(model, make_optimizer, replace(settings, compile="off"))
        has = {
            **self.options.model_dump(exclude={"name", "target"}, exclude_defaults=True),
            **asdict(settings),
            "layers": len(model.layers()) if isinstance(model, SmallNet) else 3,
            "pause_s": getattr(model, "_pause_s", 0.0),
            "optimizer": type(engine.optimizer).__name__,  # type: ignore[attr-defined]
            "norm": any(isinstance(each, nn.BatchNorm2d) for each in model.modules()),
        }
        words = " ".join(f"{key}={has[key]}" for key in has if has[key] != USUAL.get(key))
        self.made.append(words)
        right, (wrong, factor) = engine.step, self.off
        if wrong and all(word in words for word in wrong.split()):
            engine.step = lambda batches, lr: right(batches, lr * factor)  # type: ignore[method-assign]
        engine.close = lambda: self.closed.append(words)  # type: ignore[method-assign]
        return engine


USUAL = asdict(StepSettings(4)) | {"layers": 3, "pause_s": 0.0, "optimizer": "SGD", "norm": False}


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Noted]]:
    """So are strategies with the options that the gate changes; each engine is closed in turn."""
    monkeypatch.setattr(strategy_check, "make_strategy", Noted)
    yield Noted
    assert Noted.closed == Noted.made
    Noted.made.clear()
    Noted.closed.clear()
    Noted.off = "", 1.0


EQUAL = "ranks bit-equal; equal to one process on the same global batch"
SEVERAL = ", also with several reductions per step"
BOUNDS = "; with lossy options: gradients within the bounds that follow from them"
SMALL = "bucket_mb=0.001953125"


CASES: dict[str, tuple[StrategyOptions, StepSettings | None, OptimizerOptions | None]] = {
    "own": (OPTIONS, StepSettings(9, 1, 0.5, "fp16", compile="default"), AdamWOptions()),
    "ddp": (
        DdpOptions(compression="powersgd", powersgd_rank=5),
        StepSettings(9, 1, 0.5, "bf16"),
        MuonOptions(weight_decay=0.1, adamw=()),
    ),
    "horovod": (HorovodOptions(compression="fp16"), None, None),
    "fsdp": (FsdpOptions(gather_dtype="bf16"), None, None),
    "pipeline": (
        PipelineOptions(
            schedule="pipedream_2bw", stages=4, micro_batches=5, partition=(2, 1, 1, 1)
        ),
        None,
        None,
    ),
    "jax": (JaxOptions(), None, None),
}


def examined(case: str, kind: type[Noted]) -> GateVerdict:
    options, settings, optimizer = CASES[case]
    strategy = kind(options)
    strategy.start(ALONE)
    return examine(options, ALONE, strategy, settings, optimizer=optimizer)


@pytest.mark.parametrize(
    ("case", "made", "rule", "remarks"),
    [
        (
            "own",
            [
                "",
                "clip_norm=0.05",
                "norm=True",
                "optimizer=AdamW",
                "compile=default",
                "compile=default norm=True",
                "precision=fp16 compile=default",
                "clip_norm=0.05 precision=fp16 compile=default",
            ],
            f"{EQUAL}, also with adamw; compiled within 1e-04; "
            "in fp16 within 20% of one process in fp32",
            r"with torch.compile results differ by 0.0e\+00; "
            r"in fp16 the updates differ by \d.\de-0\d",
        ),
        (
            "ddp",
            [
                "powersgd_rank=3",
                "powersgd_rank=3 clip_norm=0.05",
                f"{SMALL} powersgd_rank=3",
                "powersgd_rank=3 norm=True",
                "powersgd_rank=3 optimizer=MuonWithAdamW",
                "powersgd_rank=3 precision=bf16",
                "powersgd_rank=3 clip_norm=0.05 precision=bf16",
                "compression=powersgd powersgd_rank=3 micro_batch=16",
                f"{SMALL} compression=powersgd powersgd_rank=3 micro_batch=16 norm=True",
                "compression=powersgd powersgd_rank=3 micro_batch=16 precision=bf16",
            ],
            f"{EQUAL}{SEVERAL}, also with muon within 1e-03; "
            "in bf16 within 20% of one process in fp32"
            f"{BOUNDS}",
            r"with muon results differ by 0.0e\+00; in bf16 the updates differ by \d.\de-0\d; "
            r"with lossy options a gradient differs by \d.\de-0\d",
        ),
        (
            "horovod",
            [
                "",
                "pause_s=0.003",
                "norm=True",
                "compression=fp16 micro_batch=16",
                "compression=fp16 micro_batch=16 pause_s=0.003 norm=True",
            ],
            f"{EQUAL}{SEVERAL}{BOUNDS}",
            r"with lossy options a gradient differs by \d.\de-0\d",
        ),
        (
            "fsdp",
            [
                "",
                "units=layers",
                "norm=True",
                "gather_dtype=bf16 micro_batch=16",
                "units=layers gather_dtype=bf16 micro_batch=16",
            ],
            f"{EQUAL}{SEVERAL}{BOUNDS}",
            r"with lossy options a gradient differs by \d.\de-0\d",
        ),
        (
            "pipeline",
            [
                f"schedule=pipedream_2bw stages=4 micro_batches=5 accumulate=5 layers=4{each}"
                for each in ("", " norm=True")
            ],
            f"{EQUAL} (the process delays gradients and keeps versions of the weights as the "
            "schedule does)",
            "",
        ),
        (
            "jax",
            ["", "norm=True", "micro_batch=8 norm=True"],
            f"{EQUAL}; running statistics within 1e-04 of those of torch",
            "",
        ),
    ],
    ids=list(CASES),
)
def test_what_is_trained_follows_from_options_and_settings(
    case: str, made: list[str], rule: str, remarks: str, noted: type[Noted]
) -> None:
    found = examined(case, noted)
    assert noted.made == made
    assert (found.passed, found.ranks_equal, found.rule) == (True, True, rule)
    assert (found.run_id, found.strategy, found.tolerance) == ("", CASES[case][0].name, TOLERANCE)
    assert re.fullmatch(remarks, found.message)
    assert (found.error_compiled is not None) == ("compiled" in rule)
    assert (found.error_16_bits is not None) == ("in fp32" in rule)


@pytest.mark.parametrize(
    ("case", "wrong", "right_by", "wrong_by"),
    [
        ("own", "clip_norm=0.05", 1.0, 1.001),
        ("own", "optimizer=AdamW", 1.0, 1.001),
        ("own", "compile=default", 1.00003, 1.001),
        ("own", "compile=default norm", 1.00005, 1.001),
        ("own", "precision=fp16", 1.1, 1.3),
        ("own", "clip_norm=0.05 precision=fp16", 1.1, 1.3),
        ("ddp", "optimizer=Muon", 1.001, 1.02),
        ("ddp", f"{SMALL}", 1.0, 1.001),
        ("horovod", "micro_batch=16 pause_s", 1.001, 1.1),
        ("jax", "micro_batch=8", 1.001, 1.02),
    ],
)
def test_each_of_them_has_a_bound(
    case: str, wrong: str, right_by: float, wrong_by: float, noted: type[Noted]
) -> None:
    """Of which the rates of one of them are off."""
    for factor, passes in ((right_by, True), (wrong_by, False)):
        noted.off = wrong, factor
        assert examined(case, noted).passed == passes, factor


PASSED = GateVerdict(
    run_id="run",
    strategy="ddp",
    workers=1,
    steps=4,
    passed=True,
    ranks_equal=True,
    error=0.0,
    error_batchnorm=0.0,
    tolerance=1e-5,
    rule="a rule",
    message="a remark",
)


@pytest.mark.parametrize(
    ("compared", "network", "faults"),
    [
        (
            [Found(1e-5, seconds=1.0), Found(0.6, differs="in step 1 x", seconds=2.0)],
            "equal to one process; in bf16 updates differ by at most 6.0e-01, in step 1 x",
            "",
        ),
        (
            [Found(1e-5, seconds=1.0), Found(0.4, seconds=2.0)],
            "equal to one process; in bf16 updates differ by at most 4.0e-01",
            "",
        ),
        (
            [Found(0.6, differs="in step 1 x", seconds=3.0), Found(skipped="too slow")],
            "in step 1 x; not compared: too slow",
            "Tiny is not trained as in one process: in step 1 x; at most 1e-03 can be rounding; ",
        ),
        (
            [Found(1e-5, ranks_equal=False, seconds=1.0), Found(0.4, seconds=2.0)],
            "equal to one process; in bf16 updates differ by at most 4.0e-01",
            "the ranks hold different weights of Tiny; ",
        ),
        (
            [Found(None, ranks_equal=False, skipped="one process cannot", seconds=3.0)],
            "not compared: one process cannot",
            "the ranks hold different weights of Tiny; ",
        ),
    ],
)
def test_what_is_found_of_a_runs_network_is_told_with_its_faults_first(
    compared: list[Found], network: str, faults: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, asked = iter(compared), list[str]()
    monkeypatch.setattr(
        own_network, "compare", lambda *given: asked.append(given[-1]) or next(left)
    )
    found = examine_network(PASSED, plan_of(), ALONE, started(), NoComm(), ("fp32", "bf16"))
    assert asked == ["fp32", "bf16"][: len(compared)]
    assert (found.network, found.network_seconds) == (network, 3.0)
    assert found.message == f"{faults.replace('Tiny', 'tests.tiny_model:Tiny')}a remark"
    assert (found.passed, found.ranks_equal) == (not faults, "ranks" not in faults)
    assert found.error_network == compared[0].error


@pytest.mark.parametrize(
    ("changes", "lossy", "why"),
    [
        ({}, Lossy(reduced="bf16"), "the strategy has no exact form"),
        (
            {
                "strategy": {"name": "pipeline", "schedule": "pipedream"},
                "resources_workers": 2,
            },
            *(None, "the strategy applies gradients late by design"),
        ),
        (
            {"model": {"name": "tests.unit.gate.test_own_network:Synced"}},
            *(None, "in one process, the network's SyncBatchNorm would wait for other ranks"),
        ),
    ],
)
def test_why_a_runs_network_is_not_compared(
    changes: dict[str, Any], lossy: Lossy | None, why: str
) -> None:
    own = {"name": "custom", "target": "tests.strategies.broken:Broken"}
    plan = plan_of(**{"strategy": own, **changes})
    found = examine_network(PASSED, plan, ALONE, started(lossy=lossy), NoComm())
    assert (found.passed, found.error_network, found.message) == (True, None, "a remark")
    assert found.network == f"not compared: {why}"


def test_verify_looks_at_a_network_only_of_a_strategy_that_passed(tmp_path: Path) -> None:
    """The flaw is one of the gate's own networks alone."""
    target = "tests.unit.gate.test_strategy_check"
    strategies = [
        {"name": "custom", "target": f"{target}:{kind}"} for kind in ("Alone", "WrongOfSmall")
    ]
    plans = [plan_of(strategy=each).model_dump(mode="json") for each in strategies]
    request = {
        "strategies": list(enumerate(strategies)),
        "settings": {"accumulate": 2, "precision": "bf16"},
        "device": "cpu",
        "plans": list(enumerate(plans)),
    }
    assert verify(tmp_path / "answers", request) == 0
    lines = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
    assert [line.get("begin", line.get("number")) for line in lines] == [0, 0, 1, 1]
    right, wrong = (GateVerdict.model_validate_json(line["verdict"]) for line in lines[1::2])
    assert right.passed
    assert re.fullmatch("equal to one process; in bf16 updates differ by at most .*", right.network)
    assert (wrong.passed, wrong.network, wrong.error_network) == (False, "", None)
    assert "differ by" in wrong.message


class Raising(Alone):
    def prepare(self, *_: object) -> Engine:
        raise KeyError("gradients")


def test_verify_ends_at_a_strategy_that_raises_with_its_error(tmp_path: Path) -> None:
    target = "tests.unit.gate.test_strategy_check"
    strategies = [{"name": "custom", "target": f"{target}:{kind}"} for kind in ("Raising", "Alone")]
    request = {"strategies": [(4, strategies[0]), (5, strategies[1])], "settings": {}}
    assert verify(tmp_path / "answers", {**request, "device": "cpu"}) == 1
    lines = [json.loads(line) for line in (tmp_path / "answers").read_text().splitlines()]
    assert lines == [{"begin": 4}, {"number": 4, "error": "rank 0: KeyError: 'gradients'"}]


@pytest.mark.parametrize(("flaw", "passes"), [("none", True), ("sum", False)])
def test_a_network_that_is_built_anew_is_compared_on_all_ranks(flaw: str, passes: bool) -> None:
    """Whose losses are added up."""

    def compared(world: World, comm: Comm) -> Comparison:
        strategy = InThread(comm, flaw, None)
        strategy.start(world)
        net = small_net(world, batch_norm=True)
        return compare_rebuilt(strategy, world, net, net.IMAGE, net.CLASSES)

    first, *others = on_ranks(2, compared)
    assert all(each == first for each in others)
    assert first.ranks_equal
    assert first.losses < 1e-6
    assert (first.error <= TOLERANCE_REBUILT) == passes


@pytest.mark.parametrize(
    ("off", "ranks_equal", "message"),
    [
        (0.0, True, ""),
        (
            3e-4,
            True,
            r"its (weights|logits) differ by \d\.\de-04 .* at most 1e-04 can be rounding; ",
        ),
        (math.inf, True, "weights, logits or losses are not finite, .*; "),
        (0.0, False, "the ranks hold different weights: .*; "),
    ],
)
def test_a_network_that_is_built_anew_is_compared_with_torchs(
    off: float, ranks_equal: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_network, "same_on_all_ranks", lambda comm, weights: ranks_equal)
    strategy = Off(off, off, off)
    strategy.start(ALONE)
    found = examine_network(PASSED, plan_of(strategy="jax"), ALONE, strategy, NoComm())
    assert (found.passed, found.ranks_equal) == (not message, ranks_equal)
    assert found.error_rebuilt is not None
    assert off <= found.error_rebuilt <= 10 * off + 1e-6
    assert found.rule == "a rule; the run's network within 1e-04 of the same network in torch"
    assert re.fullmatch(f"{message}a remark", found.message)
