"""The gate on the run's own network, in one process: what it compares, finds and leaves out."""

from __future__ import annotations

import importlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysuite.data.base import Batch
from raysuite.gate import own_network
from raysuite.gate.own_network import Found, compare
from raysuite.parallel.base import Engine, StepSettings, TorchEngine, World
from raysuite.parallel.comm import Comm, NoComm, Reduction
from raysuite.parallel.single import Single, SingleEngine
from raysuite.plan import make_plans
from raysuite.spec import Document
from raysuite.spec.datasets import IGNORED_TOKEN
from raysuite.tasks.classification import Classification
from tests.strategies.broken import Broken
from tests.task_sets import spec_of
from tests.unit.train.conftest import plan_of

ALONE = World(0, 1, 0, torch.device("cpu"))
ODD = {"name": "tests.networks:made"}


@pytest.fixture
def _joined() -> Iterator[None]:
    first = Broken()
    first.start(ALONE)
    yield
    first.stop()


class Largest(NoComm):
    """What ranks find is the largest of any."""

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        assert reduction == "max"
        return value


class Probed(Largest):
    """First they find the seconds of a pass, the bytes of the weights and those that are free."""

    def __init__(self, pass_s: float, size: float, left: float) -> None:
        self._probed = [torch.tensor([pass_s, 0.01, size, left, 0.0])]

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        return self._probed.pop() if self._probed else super().all_reduce(value, reduction)


def found(
    flaw: str = "none", precision: str = "fp32", comm: Comm | None = None, **plan: Any
) -> Found:
    strategy = Broken(flaw)
    strategy.start(ALONE)
    comm = comm or Largest()
    found = compare(plan_of(training_accumulate=2, **plan), ALONE, strategy, comm, precision)
    assert 0 < found.seconds < 60
    return found


@pytest.mark.usefixtures("_joined")
class TestOneProcess:
    @pytest.mark.parametrize("which", ["batch_norm", "dropout", "tied", "buffers"])
    def test_a_right_strategy_is_equal(self, which: str) -> None:
        got = found(model={**ODD, "options": {"which": which}})
        assert got.error is not None
        assert got.error < own_network.TOLERANCE / 10
        assert (got.differs, got.ranks_equal, got.skipped) == ("", True, "")

    def test_rates_of_a_network_within_a_network(self) -> None:
        options = {"name": "sgd", "lr": 0.1, "lr_factors": {"network.*": 0.5}}
        got = found(model={"name": "tests.tiny_model:Wrapped"}, optimizer=options)
        assert got.error is not None
        assert got.error < own_network.TOLERANCE / 10

    @pytest.mark.parametrize("flaw", ["divides_twice", "ignores_rate", "first_weights"])
    def test_a_wrong_one_is_told_by_the_parameter_that_differs_first(self, flaw: str) -> None:
        got = found(flaw)
        assert got.error is not None
        assert got.error > own_network.TOLERANCE
        if flaw == "divides_twice":  # the first of the network, in the first step, by a half
            assert "in step 1 layers.0.weight" in got.differs
            assert got.error == pytest.approx(0.5, abs=0.3)

    def test_sixteen_bits_are_compared_with_fp32(self) -> None:
        got = found(precision="bf16", model_options={})
        assert got.error is not None
        assert 1e-4 < got.error < 0.5
        assert got.differs == ""

    def test_what_takes_too_long_or_too_much_is_left_out(self) -> None:
        """Of two steps of two micro-batches on a rank and the same in one process, eight passes;
        nine copies of the weights."""
        assert found(comm=Probed(7.5, 100.0, 900.0)).error is not None
        for probed, why in (
            ((7.6, 100.0, 900.0), "the comparison would take about 61 s, more than 60 s"),
            ((7.5, 100.0, 899.0), "the comparison would need 900 B of memory, and 899 B are free"),
        ):
            got = found(comm=Probed(*probed))
            assert (got.error, got.ranks_equal, got.skipped) == (None, True, why)

    def test_what_one_process_cannot_train_is_not_compared(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(own_network, "_reference", None)
        got = found()
        assert (got.error, got.ranks_equal) == (None, True)
        assert got.skipped == "one process cannot train the network"

    def test_what_fails_is_left_to_the_run(self) -> None:
        got = found(model={**ODD, "options": {"which": "raises"}})
        assert (got.error, got.ranks_equal) == (None, True)
        assert got.skipped

    def test_one_that_exchanges_statistics_makes_no_pass_alone(self) -> None:
        got = found(model={"name": "tests.unit.gate.test_own_network:Synced"})
        assert (got.error, Synced.passes) == (None, 0)
        assert "SyncBatchNorm" in got.skipped

    def test_the_draws_of_the_run_stay_as_they_were(self) -> None:
        def drawn() -> list[float]:
            return [torch.rand(1).item(), random.random(), np.random.rand()]

        states = torch.get_rng_state(), random.getstate(), np.random.get_state()
        expected = drawn()
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])
        found()
        assert drawn() == expected


def test_both_parts_of_complex_weights_are_compared() -> None:
    before, right, wrong = ({"w": torch.tensor([value])} for value in (0j, 3 + 4j, 3 - 4j))
    found = own_network._first_difference([before, wrong], [before, right], 0.01).tolist()
    assert found == pytest.approx([1, 0, 8 / 5, 8 / 5])


def test_the_first_difference_is_of_the_first_step_that_has_one() -> None:
    """And of the first parameter in it; the error is the largest of all."""
    right = [{"a": torch.tensor([1.0, 0.0]) + n, "b": torch.tensor([3.0]) + n} for n in range(4)]

    def found(changes: dict[tuple[int, str], float]) -> list[float]:
        made = [
            {name: each + changes.get((step, name), 0.0) for name, each in weights.items()}
            for step, weights in enumerate(right)
        ]
        return own_network._first_difference(made, right, 0.01).tolist()

    assert found({}) == [0.0] * 4
    # relative to the update from the start, of 1, 2 and 3 in each element
    assert found({(1, "b"): 0.5, (2, "a"): 0.6, (3, "b"): 2.4}) == pytest.approx([1, 1, 0.5, 0.8])
    assert found({(2, "a"): 0.6, (2, "b"): 1.0, (3, "a"): 0.3}) == pytest.approx([2, 0, 0.3, 0.5])
    assert found({(0, "b"): 0.1})[:2] == [1, 1], "weights that differ before the first step"
    assert found({(2, "a"): math.inf}) == [2, 0, math.inf, math.inf]
    assert found({(3, "b"): 0.02}) == pytest.approx([0, 0, 0, 0.02 / 3], abs=1e-6)
    # of one that does not move: of a thousandth of its own size or of the whole update
    for each in right:
        each |= {"c": torch.tensor([30.0]), "d": torch.tensor([0.0])}
    assert found({(1, "c"): 0.015})[:3] == pytest.approx([1, 2, 0.5], abs=1e-3)
    assert found({(1, "d"): 5e-4})[:3] == pytest.approx([1, 3, 0.5 / math.sqrt(3)], abs=1e-3)
    other = [{"a": each["a"]} for each in right]
    differs = own_network._first_difference(other, right, 0.01).tolist()
    assert differs == [1, 0, math.inf, math.inf]


# Defects of a strategy that trains a language model, each as an engine's own code would have it.


def mean_of_means(engine: TorchEngine, batch: Batch, output: Tensor) -> Tensor:
    """Each micro-batch's mean over its own tokens, averaged."""
    output, targets = (each[: batch.real] for each in (output, batch.labels))
    return total(output, targets) / ((targets != IGNORED_TOKEN).sum() * engine.settings.accumulate)


def ignored_counted(engine: TorchEngine, batch: Batch, output: Tensor) -> Tensor:
    """Tokens that do not count are divided by all the same."""
    output, targets = (each[: batch.real] for each in (output, batch.labels))
    count = targets.numel() * engine.settings.accumulate
    return total(output, targets) / count


def padding_counted(engine: TorchEngine, batch: Batch, output: Tensor) -> Tensor:
    return total(output, batch.labels) / batch.of_global


def shifted_twice(engine: TorchEngine, batch: Batch, output: Tensor) -> Tensor:
    """As if the targets were not shifted yet."""
    output, targets = output[: batch.real, :-1], batch.labels[: batch.real, 1:]
    return total(output, targets) / batch.of_global


def total(output: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(
        output.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORED_TOKEN
    )


def right(engine: TorchEngine, batch: Batch, output: Tensor) -> Tensor:
    return total(output[: batch.real], batch.labels[: batch.real]) / batch.of_global


class Defect(Single):
    """One process, with another loss; `tied_twice`: it also updates the first weight again."""

    def __init__(self, loss: Callable[..., Tensor], tied_twice: bool = False) -> None:
        super().__init__()
        self.loss, self.tied_twice = loss, tied_twice

    def prepare(self, *arguments: Any) -> Engine:
        defect, engine = self, super().prepare(*arguments)

        class Wrong(SingleEngine):
            def loss(self, batch: Batch, output: Tensor) -> tuple[Tensor, Tensor]:
                return defect.loss(self, batch, output), torch.zeros(())

            def take_step(self) -> None:
                super().take_step()
                if defect.tied_twice:
                    first = next(self.model.parameters())
                    with torch.no_grad():
                        first -= self.optimizer.param_groups[0]["lr"] * first.grad

        engine.__class__ = Wrong
        return engine


@pytest.mark.parametrize(
    ("loss", "tied_twice"),
    [
        (right, False),
        (right, True),
        (mean_of_means, False),
        (ignored_counted, False),
        (padding_counted, False),
        (shifted_twice, False),
    ],
)
def test_defects_with_tokens_are_found(
    loss: Callable[..., Tensor], tied_twice: bool, tmp_path: Path
) -> None:
    spec = spec_of(
        "language_model", tmp_path, training={"epochs": 1, "global_batch": 12, "accumulate": 2}
    )
    plan = make_plans(Document(spec, "test"), gpus=0)[0]
    strategy = Defect(loss, tied_twice)
    strategy.start(ALONE)
    got = compare(plan, ALONE, strategy, NoComm())
    assert got.error is not None
    if loss is right and not tied_twice:
        assert got.error < own_network.TOLERANCE / 10
        assert not got.differs
    else:
        assert got.error > 10 * own_network.TOLERANCE
        assert got.differs


class Synced(torch.nn.SyncBatchNorm):
    passes = 0

    def __init__(self, num_classes: int) -> None:
        super().__init__(1)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        Synced.passes += 1
        return super().forward(input).flatten(1)[:, :10]


@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb"])
def test_the_runs_own_decay_and_factors_are_checked_whatever_its_optimiser(name: str) -> None:
    own = {"weight_decay": 0.1, "decay_bias_and_norm": False, "lr_factors": {"layers.*": 0.5}}
    options = own_network._optimizer(plan_of(optimizer={"name": name, "lr": 0.1, **own}))
    assert options.name == "sgd"
    assert options.model_dump(include={"momentum", *own}) == {"momentum": 0.9, **own}


class Unweighted(SingleEngine):
    def loss(self, batch: Batch, output: Any) -> tuple[Tensor, Tensor]:
        self.class_weights = None
        return super().loss(batch, output)


@pytest.mark.parametrize("engine", [SingleEngine, Unweighted])
def test_a_strategy_that_ignores_class_weights_differs(
    engine: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = Single()
    monkeypatch.setattr(strategy, "engine", engine, raising=False)
    strategy.start(ALONE)
    plan = plan_of(training_class_weights="auto")
    got = compare(plan, ALONE, strategy, Largest())
    assert got.error is not None
    assert (got.error > 0.1) == (engine is Unweighted)


@pytest.mark.parametrize(
    ("changes", "micro_batch", "accumulate"),
    [
        ({"training_global_batch": 3, "training_accumulate": 3}, 2, 2),
        ({"training_global_batch": 9, "training_accumulate": 3}, 3, 2),
        ({"training_global_batch": 240, "training_accumulate": 3}, 4, 2),
        ({}, 4, 1),
        ({"strategy": {"name": "pipeline", "micro_batches": 5}, "resources_workers": 2}, 4, 5),
    ],
)
def test_a_step_is_small_and_not_clipped_or_compiled(
    changes: dict[str, Any], micro_batch: int, accumulate: int
) -> None:
    plan = plan_of(training_clip_norm=0.5, **changes)
    assert own_network._settings(plan, "bf16") == StepSettings(
        micro_batch, accumulate, precision="bf16", image=(1, 8, 8)
    )


def test_the_last_micro_batch_of_the_last_step_has_a_sample_of_padding() -> None:
    """And counts as one less, over all ranks; no two micro-batches have the same samples."""
    plan = plan_of(strategy="ddp", resources_workers=2, training_accumulate=2)
    settings = own_network._settings(plan, "fp32")
    assert (settings.micro_batch, settings.accumulate, plan.replicas) == (4, 2, 2)
    made = [
        [own_network._batch(plan, ALONE, settings, step, index) for index in range(4)]
        for step in range(2)
    ]
    assert [[each.real for each in step] for step in made] == [[4] * 4, [4, 4, 4, 3]]
    assert [{each.of_global for each in step} for step in made] == [{16.0}, {15.0}]
    pixels = [tuple(each.images.flatten().tolist()) for step in made for each in step]
    assert len(set(pixels)) == 8
    assert all(len(each.labels) == len(each.images) == 4 for step in made for each in step)


def test_copies_share_weights_and_have_statistics_of_their_own() -> None:
    plan, draws = plan_of(), own_network._Draws()
    network = own_network._network(plan, ALONE, draws)
    copies = own_network._Replicas(network, 2, 2, draws)
    inputs = [torch.randn(4, 1, 8, 8) + shift for shift in range(4)]
    for each in inputs:
        copies(each)
    (other,) = copies._others
    assert [*map(id, network.parameters())] == [*map(id, other.parameters())]
    for held, shifts in ((network, inputs[:2]), (other, inputs[2:])):
        alone = own_network._network(plan, ALONE, own_network._Draws())
        for each in shifts:
            alone(each)
        for name, value in alone.named_buffers():
            assert torch.equal(dict(held.named_buffers())[name], value), name


def test_each_rank_draws_for_itself_and_the_one_process_for_each_of_them() -> None:
    plan = plan_of(model={**ODD, "options": {"which": "dropout"}})
    images = torch.randn(4, 1, 8, 8)
    draws = [own_network._Draws(), own_network._Draws()]
    ranks = own_network._network(plan, ALONE, draws[0])
    copies = own_network._Replicas(own_network._network(plan, ALONE, draws[1]), 2, 1, draws[1])
    alone, together = [], []
    for step in range(2):
        for replica in range(2):
            draws[0].replica, draws[0].step, draws[1].step = replica, step, step
            alone.append(ranks(images))
            together.append(copies(images))
    assert all(map(torch.equal, alone, together))
    assert not any(torch.equal(alone[0], each) for each in alone[1:])


def test_its_key_is_of_the_network_and_what_it_is_trained_with() -> None:
    importlib.import_module("tests.tiny_model")
    plan = plan_of()
    same = [
        plan_of(training_epochs=9, seed=3, training_clip_norm=0.5),
        plan_of(optimizer_lr=0.7, optimizer_lr_reference_batch=8, optimizer_lr_scaling="sqrt"),
    ]
    others = [
        plan_of(**changes)
        for changes in (
            {"model_options": {}},
            {"training_global_batch": 3},
            {"training_label_smoothing": 0.1},
            {"optimizer_weight_decay": 0.1},
            {"optimizer_momentum": 0.5},
            {"optimizer": {"name": "sgd", "lr": 0.1, "lr_factors": {"layers.*": 0.5}}},
            {"training_memory_format": "channels_last"},
        )
    ]
    shapes: dict[str, Any] = {
        "channels": 3,
        "image_size": 16,
        "classes": 7,
        "sequence": 32,
        "inputs": "float32[3]",
    }
    for name, value in shapes.items():
        facts = replace(plan.dataset, **{name: value})
        others.append(plan.model_copy(update={"dataset": facts}))
    task = plan.spec.task.model_copy(update={"name": "regression", "options": {"loss": "mae"}})
    spec = plan.spec.model_copy(update={"task": task})
    others.append(plan.model_copy(update={"spec": spec}))
    facts = replace(plan.dataset, train_samples=7, val_samples=8)
    same.append(plan.model_copy(update={"dataset": facts}))
    first, *keys = (str(own_network.key(each)) for each in (plan, *same, *others))
    assert keys[: len(same)] == [first] * len(same)
    assert len({first, *keys}) == 1 + len(others)


def test_the_probed_rate_moves_the_weights_by_a_hundredth() -> None:
    """In a step of one micro-batch, which is the probe's own. Frozen weights do not count."""
    plan = plan_of(model={**ODD, "options": {"which": "tied"}, "freeze": ["body.*"]})
    settings = own_network._settings(plan, "fp32")
    seconds, rate, size, left, communicates = own_network._probe(plan, ALONE, settings).tolist()
    single, draws = Single(), own_network._Draws()
    single.start(ALONE)
    network = own_network._network(plan, ALONE, draws)
    trained = [name for name, each in network.named_parameters() if each.requires_grad]
    engine = own_network._prepared(plan, network, single, settings, rate)
    before, after, _ = own_network._train(plan, engine, settings, rate, draws, kept=True)
    norms = [
        torch.stack([each[name].norm() for name in trained]).norm()
        for each in (before, {name: after[name] - before[name] for name in trained})
    ]
    assert len(trained) < len(before)
    assert norms[1] / norms[0] == pytest.approx(0.01, rel=0.02)
    assert size == 4 * sum(each.numel() for each in before.values())
    assert (seconds > 0, left > size, communicates) == (True, True, 0)


def test_a_network_that_no_probe_can_train_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of()
    settings = own_network._settings(plan, "fp32")
    for loss in (math.nan, math.inf):
        monkeypatch.setattr(Classification, "loss", lambda _, out, to, by=loss: out.sum() * by)
        assert own_network._probe(plan, ALONE, settings)[1] == 0


def test_its_key_is_of_all_code_in_the_folder_of_the_users_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which modules are imported, and which is not an installed package's."""
    plan, folder = plan_of(), tmp_path / "gate_own_network"
    spec = plan.spec
    for name in ("layers", "site-packages/installed", "unused"):
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (tmp_path / "gate_helper.py").write_text("")

    def key(name: str, task: str = "classification") -> Any:
        model = spec.model.model_copy(update={"name": name})
        kind = spec.task.model_copy(update={"name": task})
        changed = spec.model_copy(update={"model": model, "task": kind})
        return own_network.key(plan.model_copy(update={"spec": changed}))

    own = "gate_own_network.layers:Net"
    assert key(own) is key("timm:resnet18", task="own:Task") is None
    for path in (tmp_path, folder / "site-packages"):
        monkeypatch.syspath_prepend(path)
    for name in ("gate_own_network.layers", "gate_helper", "installed"):
        importlib.import_module(name)
    first = key(own)
    assert len(first[-1]) == len(key("timm:resnet18")[-1]) + 2
    (folder / "site-packages" / "installed.py").write_text("1")
    (folder / "unused.py").write_text("1")
    assert key(own) == first
    for changed in (folder / "layers.py", tmp_path / "gate_helper.py"):
        changed.write_text("1")
        assert key(own) != first
        changed.write_text("")
