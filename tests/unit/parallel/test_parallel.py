"""The shared parts of strategies: the loss, buffers, the store, DeepSpeed's configuration."""

from __future__ import annotations

import copy
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from raysuite.data.base import Batch
from raysuite.errors import UserError
from raysuite.optim import build_optimizer
from raysuite.parallel import comm, make_strategy
from raysuite.parallel.base import (
    Engine,
    StepSettings,
    World,
    kept_settings,
    seed_draws,
    whole_state,
)
from raysuite.parallel.comm import NoComm, Reduction, average_buffers, shared_store
from raysuite.parallel.compiling import Compiler
from raysuite.parallel.deepspeed import DeepSpeed, engine_config
from raysuite.parallel.pipeline.engine import Pipeline, PipelineEngine
from raysuite.parallel.precision import DTYPES
from raysuite.parallel.process_state import restored
from raysuite.parallel.single import SingleEngine
from raysuite.spec.optimizers import LambOptions
from raysuite.spec.schedules import Schedule
from raysuite.spec.strategies import (
    COMPUTED_IN_16_BITS,
    CustomOptions,
    DdpOptions,
    DeepSpeedOptions,
    FsdpOptions,
    HorovodOptions,
    Lossy,
    PipelineOptions,
    SingleOptions,
)
from tests.require import require

CPU = torch.device("cpu")


def engine(size: int = 1, **settings: Any) -> Engine:
    return SingleEngine(
        nn.Linear(2, 3),
        lambda parameters: torch.optim.SGD(parameters, lr=9.0),
        World(0, size, 0, CPU),
        StepSettings(4, **settings),
    )


class TestLoss:
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1])

    def batch(self, start: int, real: int) -> Batch:
        """Samples from `start` on, of which `real` count, out of a global batch of 5."""
        return Batch(self.logits[start:], self.labels[start:], real, of_global=5)

    @pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
    def test_shares_average_to_the_mean_of_the_global_batch(self, label_smoothing: float) -> None:
        own = engine(size=3, label_smoothing=label_smoothing)
        parts = [self.batch(0, 4), self.batch(4, 1), self.batch(3, 0)]  # the last only pads
        found = [own.loss(part, part.images) for part in parts]
        expected = nn.functional.cross_entropy(
            self.logits, self.labels, label_smoothing=label_smoothing
        )
        torch.testing.assert_close(torch.stack([share for share, _ in found]).mean(), expected)
        torch.testing.assert_close(sum(summed for _, summed in found) / 5, expected)

    def test_padding_has_no_gradient(self) -> None:
        logits = self.logits.clone().requires_grad_()
        share, _ = engine().loss(Batch(logits, self.labels, 2, 2), logits)
        share.backward()
        assert logits.grad is not None
        assert logits.grad[:2].abs().sum() > 0
        assert not logits.grad[2:].any()

    def test_a_task_gets_complex_and_whole_numbers_as_the_network_returns_them(self) -> None:
        own = engine()
        own.criterion = lambda output, _: output["wave"].abs()[output["place"]].sum()
        output = {"wave": torch.tensor([3 + 4j, 6 + 8j]), "place": torch.tensor([1, 1])}
        _, summed = own.loss(Batch(torch.zeros(2, 2), torch.zeros(2), 2, 2), output)
        assert summed.item() == 20


def test_an_optimizer_that_averages_the_weights_changes_its_mode_with_the_layers() -> None:
    own, modes = engine(), list[str]()
    own.optimizer.train = lambda: modes.append("train")  # type: ignore[attr-defined]
    own.optimizer.eval = lambda: modes.append("eval")  # type: ignore[attr-defined]
    for on in (False, True):
        own.train(on)
        assert own.model.training == on
    assert modes == ["eval", "train"]


def test_a_state_is_of_given_weights_by_each_of_their_names_and_of_buffers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    given = {name: torch.full_like(each, 7.0) for name, each in model.named_parameters()}
    state = whole_state(model, given)
    assert state.keys() == model.state_dict().keys()
    assert all((state[name] == 7).all() for name in (*given, "1.weight"))
    assert state["2.running_var"].tolist() == [1.0, 1.0]
    assert not any(each.requires_grad for each in state.values())


def test_settings_of_the_plan_stay_while_an_optimizers_state_is_loaded() -> None:
    """LAMB's step count is among its settings, and is state."""
    weights = [nn.Parameter(torch.ones(2, 2)) for _ in range(2)]
    old, new = (
        build_optimizer(LambOptions(weight_decay=decay, betas=(decay, 0.9)), weights, lr)
        for decay, lr in ((0.1, 1.0), (0.2, 2.0))
    )
    for each in weights:
        each.grad = torch.ones_like(each)
    old.step()
    with kept_settings(new):
        new.load_state_dict(old.state_dict())
    (group,) = new.param_groups
    assert {key: group[key] for key in ("weight_decay", "betas", "steps")} == {
        "weight_decay": 0.2,
        "betas": (0.2, 0.9),
        "steps": 1,
    }
    assert len(new.state) == 2


def test_a_step_uses_its_rate_and_clips() -> None:
    own = engine(clip_norm=1e-3)
    before = own.weights()
    own.step([Batch(torch.randn(4, 2), torch.tensor([0, 1, 2, 0]), 4, 4)], lr=2.0)
    moved = torch.cat([(own.weights()[name] - before[name]).flatten() for name in before])
    torch.testing.assert_close(moved.norm(), torch.tensor(2e-3), rtol=1e-2, atol=0)


@pytest.mark.parametrize("clip_norm", [None, 1e-3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_norm_of_a_step_is_that_of_a_plain_loop(precision: str, clip_norm: Any) -> None:
    """Of two micro-batches; unscaled, and before it is clipped."""
    own = engine(accumulate=2, precision=precision, clip_norm=clip_norm, figures=("gradient_norm",))
    images, labels = torch.randn(8, 2), torch.tensor([0, 1, 2, 0, 1, 1, 2, 2])
    plain = copy.deepcopy(own.model)
    for part in (slice(0, 4), slice(4, 8)):
        with torch.autocast("cpu", DTYPES[precision], enabled=precision != "fp32"):
            logits = plain(images[part])
        nn.functional.cross_entropy(logits.float(), labels[part]).div(2).backward()
    wanted = math.sqrt(sum(float(each.grad.double().square().sum()) for each in plain.parameters()))
    parts = [Batch(images[part : part + 4], labels[part : part + 4], 4, 8) for part in (0, 4)]
    own.step(parts, lr=0.1)
    assert float(own.figures["gradient_norm"]) == pytest.approx(wanted, rel=2e-6)


class OtherRank(NoComm):
    """The other of two ranks holds zeros."""

    size = 2

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        assert reduction == "sum"
        return value.clone()


def test_a_seed_is_of_all_that_a_users_code_may_draw_from() -> None:
    def drawn(seed: int) -> list[float]:
        seed_draws(seed)
        return [random.random(), float(np.random.random()), float(torch.rand(()))]

    with restored(torch.device("cpu")):
        first, other, again = drawn(7), drawn(2**63 - 1), drawn(7)
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))


def test_floating_buffers_are_averaged_and_others_kept() -> None:
    model = nn.Sequential(nn.BatchNorm2d(2), nn.Linear(2, 2), nn.BatchNorm1d(3))
    for index, norm in enumerate((model[0], model[2])):
        norm.running_mean.fill_(4.0 + index)
        norm.num_batches_tracked.fill_(7)
    average_buffers(model, NoComm())
    assert model[0].running_mean.tolist() == [4.0, 4.0]
    model[0].register_buffer("complex", torch.tensor([4 + 2j]))
    average_buffers(model, OtherRank())
    assert model[0].complex.tolist() == [2 + 1j]
    assert model[0].running_mean.tolist() == [2.0, 2.0]
    assert model[0].running_var.tolist() == [0.5, 0.5]
    assert model[2].running_mean.tolist() == [2.5, 2.5, 2.5]
    assert model[2].num_batches_tracked.item() == 7
    average_buffers(nn.Linear(1, 1), OtherRank())  # has none


def test_buffers_that_all_ranks_hold_alike_keep_their_values_to_the_bit() -> None:
    class Three(NoComm):
        size = 3

        def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
            return value + value + value

    generator = torch.Generator().manual_seed(0)
    tensors = {
        "mask": torch.full((2,), torch.finfo(torch.float32).min),
        "places": torch.rand(1000, generator=generator),
        "fp64": torch.tensor([1 / 3], dtype=torch.float64),
        "complex": torch.tensor([1 + 2j, 0.1j]),
    }
    for names in (*zip(tensors), tensors):  # together, all are of the widest dtype
        model = nn.Module()
        for name in names:
            model.register_buffer(name, tensors[name].clone())
        average_buffers(model, Three())
        assert [n for n, each in model.named_buffers() if not each.equal(tensors[n])] == []


@pytest.fixture
def silent_ranks() -> Iterator[Callable[..., PipelineEngine]]:
    """Makes the engine of a pipeline's rank 0. The other ranks send nothing, and add zeros."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    made: list[Pipeline] = []

    def prepared(options: PipelineOptions, model: nn.Module | None = None) -> PipelineEngine:
        size = options.pipeline().workers
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        made.append(strategy := Pipeline(options))
        strategy.start(World(0, size, 0, CPU))
        own = (nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2), nn.Linear(2, 3))
        found = strategy.prepare(
            model or nn.Sequential(*own),
            lambda parameters: torch.optim.SGD(parameters, lr=9.0),
            StepSettings(4, accumulate=int(options.micro_batches)),
        )
        assert isinstance(found, PipelineEngine)
        return found

    yield prepared
    for strategy in made:
        strategy.stop()
    dist.destroy_process_group()


class Masked(nn.Module):
    """A function between its layers uses a buffer and a module that belong to no layer."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(2, affine=False).eval()
        self.register_buffer("mask", torch.tensor([0.0, 1.0]))

    def layers(self) -> list[Callable[[Tensor], Tensor]]:
        return [self.first, lambda x: self.norm(x) * self.mask, self.last]


def test_a_pipeline_keeps_the_buffers_that_belong_to_no_block(
    silent_ranks: Callable[..., PipelineEngine], tmp_path: Path
) -> None:
    wanted = Masked().state_dict()
    engine = silent_ranks(PipelineOptions(stages=2), Masked())
    assert engine._through(0, torch.ones(3, 2))[:, 0].tolist() == [0.0] * 3
    found = engine.whole_state(engine.weights())
    assert {name: each.shape for name, each in found.items()} == {
        name: each.shape for name, each in wanted.items()
    }
    assert found["mask"].tolist() == [0.0, 1.0]
    engine.model.get_buffer("mask").fill_(0.5)
    engine.save(tmp_path)
    engine.model.get_buffer("mask").fill_(0.0)
    engine.load(tmp_path)
    assert engine.model.get_buffer("mask").tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("copy", "norm"), [(0, 5.0), (1, 13.0)])
def test_the_norm_of_a_pipeline_is_that_of_the_stages_of_one_copy(copy: int, norm: float) -> None:
    squares = torch.tensor([9.0, 16.0, 25.0, 144.0]).double()  # of two copies of two stages
    given: list[float] = []

    def all_gather(own: Tensor) -> Tensor:
        given.append(float(own))
        return squares

    rank: Any = SimpleNamespace(
        replicas=2, replica=copy, comm=SimpleNamespace(all_gather=all_gather)
    )
    found = PipelineEngine.norm(rank, [torch.tensor([1.0, 2.0]), torch.tensor([[2.0]])])
    assert (float(found), given) == (norm, [pytest.approx(9.0)])


def test_a_stage_of_a_second_copy_is_on_the_ranks_after_those_of_the_first() -> None:
    two: Any = SimpleNamespace(replica=1, schedule=Schedule("pipedream", 4, (1, 2)))
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]  # stage, micro-batch
    assert [PipelineEngine._rank(two, *place) for place in places] == [3, 3, 4, 5]


@pytest.mark.parametrize("schedule", ["pipedream", "pipedream_2bw"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_late_update_of_a_pipeline_has_the_rate_of_its_own_step(
    silent_ranks: Callable[..., PipelineEngine], schedule: Any, stages: int
) -> None:
    """The first of n stages is n - 1 passes late; draining makes up for them."""
    count = 1 if schedule == "pipedream" else stages
    options = PipelineOptions(schedule=schedule, stages=stages, micro_batches=count)
    own = silent_ranks(options)
    found: list[float] = []
    own.optimizer.register_step_pre_hook(
        lambda optimizer, *_: found.append(optimizer.param_groups[0]["lr"])
    )
    batch = Batch(torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]), 4, 4)
    for epoch in ([1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0]):
        found.clear()
        for lr in epoch:
            own.step([batch] * count, lr)
        late = stages - 1 if count == 1 else 1  # 2BW's step has as many passes as stages
        assert found == epoch[:-late]
        own.drain()
        assert found == epoch


@pytest.mark.parametrize(
    ("replicas", "mean"), [((2, 1), 2.0), ((3, 1), 4.0 / 3), ((1, 2), 4.0), (None, 4.0)]
)
def test_buffers_of_a_stage_are_averaged_over_its_workers_and_gradients_summed(
    silent_ranks: Callable[..., PipelineEngine],
    replicas: tuple[int, ...] | None,
    mean: float,
) -> None:
    """A copy's gradients are parts of one sum, each worker's from micro-batches of its own."""
    own = silent_ranks(
        PipelineOptions(schedule="pipedream", stages=2, partition=(2, 2), replicas=replicas)
    )
    [norm] = [each for each in own.model.modules() if isinstance(each, nn.BatchNorm1d)]
    norm.running_mean.fill_(4.0)
    norm.num_batches_tracked.fill_(7)
    norm.weight.grad = torch.full((2,), 4.0)
    own.average_buffers()
    own.average_gradients()
    assert norm.running_mean.tolist() == pytest.approx([mean] * 2)
    assert norm.num_batches_tracked.item() == 7
    assert norm.weight.grad.tolist() == [4.0, 4.0]


def test_a_pipeline_holds_a_bounded_number_of_sent_tensors(
    silent_ranks: Callable[..., PipelineEngine],
) -> None:
    """The sends of two micro-batches in a step, and four for each of two workers."""
    own = silent_ranks(PipelineOptions(schedule="pipedream_2bw", stages=2, micro_batches=2))
    batch, held = Batch(torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]), 4, 4), list[int]()
    for _ in range(9):
        own.step([batch] * 2, 0.1)
        held.append(len(own._sends))
    assert held[-3:] == [12, 12, 12]
    own.drain()
    assert not own._sends


def test_compilations_by_other_frameworks_are_timed_and_counted() -> None:
    compiler = Compiler(enabled=True)
    for _ in range(2):
        with compiler.timed():
            time.sleep(0.01)
    assert 0.02 <= compiler.seconds < 10
    assert compiler.graphs == 2


def test_each_join_has_keys_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    one = dist.HashStore()
    monkeypatch.setattr(comm, "_environment_store", lambda rank, size: one)
    monkeypatch.setattr(comm, "_joins", Counter())
    first, second = shared_store("x", 0, 2), shared_store("x", 0, 2)
    first.set("port", "1")
    assert not second.check(["port"])
    assert not shared_store("y", 0, 2).check(["port"])


class TestDeepSpeedConfiguration:
    def test_batch_clipping_and_precision(self) -> None:
        settings = StepSettings(4, accumulate=3, clip_norm=0.5, precision="bf16")
        config = engine_config(DeepSpeedOptions(), settings, workers=2)
        assert config["train_batch_size"] == 24
        assert config["train_micro_batch_size_per_gpu"] == 4
        assert config["gradient_accumulation_steps"] == 3
        assert config["gradient_clipping"] == 0.5
        # raysuite's own autocast does it, alike for all frameworks
        assert not {"bf16", "fp16", "amp", "torch_autocast"} & config.keys()

    def test_no_clipping(self) -> None:
        assert engine_config(DeepSpeedOptions(), StepSettings(4), 2)["gradient_clipping"] == 0.0

    @pytest.mark.parametrize(
        ("offload", "keys"),
        [
            ("none", set()),
            ("optimizer", {"offload_optimizer"}),
            ("parameters", {"offload_optimizer", "offload_param"}),
        ],
    )
    def test_offload(self, offload: Any, keys: set[str]) -> None:
        options = DeepSpeedOptions(zero_stage=3, offload=offload)
        zero = engine_config(options, StepSettings(4), 2)["zero_optimization"]
        assert zero["stage"] == 3
        assert {key for key in zero if key.startswith("offload")} == keys

    @pytest.mark.parametrize(("mb", "values"), [(200, 52_428_800), (0.0005, 130), (1e-9, 2)])
    def test_buckets_hold_an_even_number_of_values(self, mb: float, values: int) -> None:
        zero = engine_config(DeepSpeedOptions(bucket_mb=mb), StepSettings(4), 2)
        assert zero["zero_optimization"]["reduce_bucket_size"] == values

    def test_nothing_waits_for_the_device_that_nobody_reads(self) -> None:
        for stage in (0, 1, 2, 3):
            config = engine_config(DeepSpeedOptions(zero_stage=stage), StepSettings(4), 2)
            assert config["timers"]["throughput"]["enabled"] is False
            norm = config["zero_optimization"].get("compute_grad_norm", True)
            assert norm == (stage not in (1, 2))
        for options, clip in (
            (DeepSpeedOptions(), 1.0),
            (DeepSpeedOptions(offload="optimizer"), None),
        ):
            config = engine_config(options, StepSettings(4, clip_norm=clip), 2)
            assert "compute_grad_norm" not in config["zero_optimization"]

    @pytest.mark.parametrize("asked", [None, True, False])
    def test_overlap_is_deepspeeds_default_unless_given(self, asked: bool | None) -> None:
        options = DeepSpeedOptions(zero_stage=3, overlap_comm=asked)
        zero = engine_config(options, StepSettings(4), 2)["zero_optimization"]
        assert zero.get("overlap_comm") is asked

    @pytest.mark.integration
    def test_whole_numbers_among_the_parameters_are_not_rounded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        require("deepspeed")
        monkeypatch.setenv("LOCAL_RANK", "0")
        model, places = nn.Linear(2, 2), torch.tensor([2**24 + 1])
        model.register_parameter("places", nn.Parameter(places, requires_grad=False))
        strategy = DeepSpeed(DeepSpeedOptions(zero_stage=1))
        strategy.start(World(0, 1, 0, torch.device("cpu")))
        try:
            own = strategy.prepare(
                model, lambda each: torch.optim.SGD([*each][:2], lr=0.1), StepSettings(1)
            )
            assert own.weights()["places"].tolist() == [2**24 + 1]
        finally:
            strategy.stop()

    @pytest.mark.integration
    @pytest.mark.parametrize(("saved", "now"), [(1.0, None), (None, 1.0)])
    def test_clipping_is_the_runs_and_not_the_checkpoints(
        self,
        saved: float | None,
        now: float | None,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        require("deepspeed")
        monkeypatch.setenv("LOCAL_RANK", "0")
        strategy = DeepSpeed(DeepSpeedOptions(zero_stage=1))
        strategy.start(World(0, 1, 0, torch.device("cpu")))
        try:
            engines = [
                strategy.prepare(
                    nn.Linear(2, 2),
                    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
                    StepSettings(1, clip_norm=clip),
                )
                for clip in (saved, now)
            ]
            engines[0].save(tmp_path)
            engines[1].load(tmp_path)
            assert vars(engines[1])["_optimizer"].clip_grad == (now or 0.0)
        finally:
            strategy.stop()


def test_which_options_are_lossy() -> None:
    exact = [SingleOptions(), DdpOptions(), HorovodOptions(), DeepSpeedOptions()]
    assert [make_strategy(options).lossy for options in exact] == [None] * 4
    lossy = [
        (DdpOptions(compression="bf16"), Lossy(reduced="bf16")),
        (DdpOptions(compression="powersgd"), Lossy(projected=True)),
        (HorovodOptions(compression="fp16"), Lossy(reduced="fp16")),
        (FsdpOptions(reduce_dtype="bf16"), Lossy(reduced="bf16")),
        (FsdpOptions(gather_dtype="bf16"), Lossy(within=COMPUTED_IN_16_BITS)),
    ]
    for options, expected in lossy:
        assert make_strategy(options).lossy == expected


def test_a_strategy_of_ones_own() -> None:
    target = "tests.strategies.broken:Broken"
    made: Any = make_strategy(CustomOptions(target=target, options={"flaw": "sum"}))
    assert made.flaw == "sum"
    with pytest.raises(UserError, match="no module named"):
        make_strategy(CustomOptions(target="nowhere:Strategy"))
