"""Networks whose ranks may use different layers in a step are refused before anything starts."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raysuite.errors import SpecError, UserError
from raysuite.plan import make_plans
from raysuite.spec import parse_document
from raysuite.spec.optimizers import ScheduleFreeOptions
from raysuite.spec.strategies import Network
from raysuite.tasks import make_task
from raysuite.train import trial_batch
from raysuite.train.trial_batch import _loss, examine, mistakes
from tests.networks import Net
from tests.unit.train.conftest import plan_of


class Branches(Net):
    """Leaves out its middle layer by a draw."""

    def __init__(self, by: str, num_classes: int = 10) -> None:
        super().__init__(num_classes)
        self.by, self.middle = by, torch.nn.Linear(12, 12)

    def features(self, images: Tensor) -> Tensor:
        draws = {"torch": lambda: torch.rand(()).item(), "random": random.random}
        draw = draws.get(self.by, np.random.rand)()
        found = super().features(images)
        return self.middle(found) if draw < 0.5 else found


STRATEGIES: dict[str, dict[str, Any]] = {
    name: {"name": name} for name in ("ddp", "horovod", "deepspeed", "fsdp", "fabric", "accelerate")
}


@pytest.mark.parametrize("by", ["torch", "random", "numpy"])
def test_layers_that_are_chosen_at_random_are_refused(by: str) -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model = {"name": "tests.unit.train.test_trial_batch:Branches", "options": {"by": by}}
    found = {
        name: [mistake.key for mistake in mistakes(plan_of(model=model, strategy=strategy))]
        for name, strategy in STRATEGIES.items()
    }
    expected = {name: ["strategy.name"] for name in STRATEGIES}
    assert found == {**expected, "ddp": ["strategy.find_unused_parameters"]}


class Waves(Net):
    """Multiplies its features by a complex number."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(num_classes)
        self.wave = nn.Parameter(torch.tensor([1 + 1j]))

    def features(self, images: Tensor) -> Tensor:
        return (super().features(images) * self.wave).abs()


@pytest.mark.parametrize(
    ("strategy", "optimizer", "keys"),
    [
        ("ddp", "adamw", []),
        ("fsdp", "sgd", ["strategy.name"]),
        ("deepspeed", "sgd", ["strategy.name"]),
        ("horovod", "sgd", ["strategy.name"]),
        ("ddp", "muon", ["optimizer.name"]),
        ("ddp", "schedule_free", ["optimizer.name"]),
    ],
)
def test_complex_weights_that_would_not_be_trained_are_refused(
    strategy: str, optimizer: str, keys: list[str]
) -> None:
    model = {"name": "tests.unit.train.test_trial_batch:Waves"}
    plan = plan_of(model=model, strategy=strategy, optimizer={"name": optimizer})
    assert [mistake.key for mistake in mistakes(plan)] == keys


def test_a_mistake_is_at_the_value_of_its_plan() -> None:
    text = """\
name: two
model: resnet20
data: {name: digits}
training: {epochs: 1, global_batch: 8}
resources: {device: cpu}
matrix:
  model:
  - resnet20
  - tests.networks:TupleOutput
"""
    document = parse_document(text, "two.yaml")
    with pytest.raises(SpecError) as error:
        trial_batch.check(make_plans(document, gpus=0), document)
    [mistake] = error.value.mistakes
    assert (mistake.key, mistake.line) == ("model.name", 9)


def test_a_large_network_is_examined_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []

    def seen(model: nn.Module, *given: Any) -> Network:
        devices.append(next(model.parameters()).device.type)
        return examine(model, *given)

    monkeypatch.setattr(trial_batch, "examine", seen)
    monkeypatch.setattr(trial_batch, "_LARGE", 1)
    assert mistakes(plan_of(model={"name": "resnet32"})) == []
    assert devices == ["meta"]


def test_weights_that_do_not_fit_a_large_network_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_batch, "_LARGE", 1)
    torch.save({"other": torch.zeros(1)}, tmp_path / "w.pt")
    model = {"name": "resnet20", "weights": str(tmp_path / "w.pt")}
    [found] = mistakes(plan_of(model=model))
    assert "w.pt" in found.message


def test_dropout_alone_is_not() -> None:
    model = {"name": "tests.networks:made", "options": {"which": "dropout"}}
    assert mistakes(plan_of(model=model, strategy={"name": "fsdp"})) == []


def test_what_a_network_consists_of_is_listed_by_kind() -> None:
    model, plan = Net(), plan_of()
    model.body.bias.requires_grad_(False)
    model.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
    model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 12)))
    model.register_parameter("wave", nn.Parameter(torch.tensor([1j])))
    model.norm = nn.SyncBatchNorm(12, affine=False)
    model.plain = nn.BatchNorm1d(12, affine=False, track_running_stats=False)
    layers = ("body.weight", "body.bias", "head.weight", "head.bias")
    assert examine(model, make_task(plan.spec.task, plan.dataset)) == Network(
        parameters=("scale", "nothing", "wave", *layers),
        frozen=("body.bias",),
        unused=("scale", "nothing", "wave"),
        scalar=("scale",),
        empty=("nothing",),
        complex=("wave",),
        synced=("norm",),
        running=("norm",),
    )


@pytest.mark.parametrize(
    ("network", "changes", "keys"),
    [
        (Network(), {}, {}),
        (Network(scripted=True), {"training_ema_decay": 0.5}, {"training.ema_decay": "ScriptMod"}),
        (Network(scripted=True), {}, {}),
        (Network(), {"training_ema_decay": 0.5}, {}),
        (Network(synced=("norm",)), {"strategy": "ddp"}, {"model.name": "norm: SyncBatchNorm"}),
        (Network(synced=("norm",)), {}, {}),
        (Network(sparse=("table",)), {}, {"model.name": "table: sparse gradients"}),
        (
            Network(parameters=("a.b",)),
            {"lr_factors": {"a.*": 2, "c": 3}},
            {"optimizer.lr_factors": "c"},
        ),
        (Network(parameters=("a.b",)), {"lr_factors": {"a.*": 2}}, {}),
        ("it raised", {}, {"model.name": "it raised"}),
        ("task: it raised", {}, {"task": "it raised"}),
        ("data.name: hold NaN", {}, {"data.name": "hold NaN"}),
        ("model.weights: damaged", {}, {"model.weights": "damaged"}),
    ],
)
def test_what_a_network_has_is_refused_with_the_settings_that_it_does_not_fit(
    network: Network | str,
    changes: dict[str, Any],
    keys: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial_batch, "_network", lambda *_: network)
    monkeypatch.setattr(trial_batch, "_untrained", lambda plan: {})
    if "lr_factors" in changes:
        changes = {"optimizer": {"name": "sgd", "lr": 0.1, **changes}}
    found = {mistake.key: mistake.message for mistake in mistakes(plan_of(**changes))}
    assert found.keys() == keys.keys()
    for key, words in keys.items():
        assert words in found[key]
        assert isinstance(network, Network) or found[key] == words


def test_running_statistics_do_not_fit_an_optimiser_that_averages_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial_batch, "_untrained", lambda plan: {})
    plan = plan_of()
    averaging = plan.spec.model_copy(update={"optimizer": ScheduleFreeOptions()})
    for running, changed, keys in (
        (("norm",), averaging, ["optimizer.name"]),
        (("norm",), plan.spec, []),
        ((), averaging, []),
    ):
        network = Network(running=running)
        monkeypatch.setattr(trial_batch, "_network", lambda *_, network=network: network)
        found = mistakes(plan.model_copy(update={"spec": changed}))
        assert [mistake.key for mistake in found] == keys


@pytest.mark.parametrize(("left", "keys"), [(512, []), (511, ["data.image_size"])])
def test_two_images_have_to_fit_into_memory(
    left: int, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 x 8 numbers of 4 bytes."""
    monkeypatch.setattr(trial_batch, "available_bytes", lambda device: left)
    assert [mistake.key for mistake in mistakes(plan_of())] == keys


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, ""),
        ({"weight": 0}, ""),
        ({"weight": -1}, "weight of .* is -1"),
        ({"weight": math.nan}, "weight of .* is nan"),
        ({"loss": torch.zeros(1)}, "loss of .*; got shape"),
        ({"loss": torch.tensor(1)}, "loss of .*; got shape"),
        ({"loss": 1.0}, "loss of .*; got float"),
        ({"sums": torch.tensor(1.0)}, "sums of .* metric m are"),
        ({"targets": torch.tensor([1.0, math.inf])}, "NaN or infinity"),
    ],
    ids=str,
)
def test_a_task_that_computes_no_sums_is_refused(given: dict[str, Any], refused: str) -> None:
    def sums(output: Any, targets: Any) -> Any:
        return given.get("sums", torch.zeros(2))

    task: Any = SimpleNamespace(
        loss=lambda output, targets: given.get("loss", torch.tensor(2.0)),
        weight=lambda targets: given.get("weight", 1),
        metrics=[SimpleNamespace(name="m", sums=sums), SimpleNamespace(name="n", sums=None)],
    )
    targets = given.get("targets", torch.ones(2))
    if refused:
        with pytest.raises(UserError, match=refused):
            _loss(task, torch.ones(2), targets)
    else:
        assert _loss(task, torch.ones(2), targets) == 2.0


def test_patterns_that_match_nothing_are_named_beside_other_mistakes() -> None:
    plan = plan_of(
        model={"name": "tests.unit.train.test_trial_batch:Branches", "options": {"by": "torch"}},
        strategy={"name": "horovod"},
        optimizer={"name": "sgd", "lr_factors": {"absent.*": 2.0}},
    )
    assert [each.key for each in mistakes(plan)] == ["strategy.name", "optimizer.lr_factors"]
