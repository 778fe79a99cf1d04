"""What every framework that holds its own weights shares, with NumPy as the framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from raysuite.data.base import Batch
from raysuite.errors import UserError
from raysuite.models.cifar_resnet import BasicBlock
from raysuite.parallel.base import Engine, MakeOptimizer, StepSettings, World
from raysuite.parallel.comm import NoComm, Reduction
from raysuite.parallel.jax import Jax
from raysuite.parallel.rebuilt import Array, RebuiltEngine, operations_of, pads, updated
from raysuite.parallel.single import Single
from tests.require import require

ALONE = World(0, 1, 0, torch.device("cpu"))
SETTINGS = StepSettings(8)
CLASSES = 5


class NumpyEngine(RebuiltEngine):
    """A linear layer on flattened images, whose gradient is written out."""

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        super().__init__(model, make_optimizer, ALONE, SETTINGS, None)
        self._arrays: dict[str, Array] = {}
        self.give_weights()
        for name, keys in self.slots.items():
            self._arrays |= {key: np.zeros_like(self.read(name)) for key in keys}
        self.write("steps", np.zeros((), np.float32))

    def read(self, key: str) -> Array:
        return self._arrays[key].copy()

    def write(self, key: str, value: Array) -> None:
        self._arrays[key] = np.array(value, np.float32)

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1).numpy()
        return torch.from_numpy(x @ self._arrays["1.weight"] + self._arrays["1.bias"])

    def compute_step(self, images: Any, labels: Any, *given: Any) -> float:
        _, _, factor, rates, _ = given
        x = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        scores = x @ self._arrays["1.weight"] + self._arrays["1.bias"]
        shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        slope = factor * (shares - np.eye(CLASSES)[labels])
        self._arrays["steps"] = self._arrays["steps"] + 1
        for name, gradient in (("1.weight", x.T @ slope), ("1.bias", slope.sum(0))):
            number, slots = self.groups[name], self.slots[name]
            self._arrays[name], after = updated(
                dict(self.rules()[number]),
                rates[number],
                self._arrays[name],
                gradient,
                [self._arrays[key] for key in slots],
                self._arrays["steps"],
            )
            self._arrays |= dict(zip(slots, after, strict=True))
        return float(-np.log(shares[np.arange(len(labels)), labels]).sum())


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """In a group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 2 * 4, CLASSES))


def trained(engine: Engine, steps: range) -> list[float]:
    """The loss of each step."""
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(8, 3, 2, 4, generator=generator)
        labels = torch.randint(0, CLASSES, (8,), generator=generator)
        losses.append(float(engine.step([Batch(images, labels, 8, 8)], 0.1 / (1 + step))))
    return losses


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.1),
        partial(torch.optim.AdamW, betas=(0.5, 0.8), weight_decay=0.1),
    ],
    ids=["sgd", "adamw"],
)
def test_training_is_torchs_also_where_it_is_resumed(optimizer: Any, tmp_path: Path) -> None:
    def make(parameters: Any) -> Any:
        return optimizer(parameters, lr=9.0)

    single = Single()
    single.start(ALONE)
    reference = single.prepare(model_of(), make, SETTINGS)
    expected = trained(reference, range(6))
    engine = NumpyEngine(model_of(), make)
    losses = trained(engine, range(3))
    engine.save(tmp_path)
    again = NumpyEngine(model_of(seed=1), make)
    again.load(tmp_path)
    losses += trained(again, range(3, 6))
    assert losses == pytest.approx(expected, rel=1e-5)
    weights = reference.weights()
    for name, value in again.weights().items():
        torch.testing.assert_close(value, weights[name], rtol=1e-5, atol=1e-6)


def test_axes_of_weights_are_in_the_frameworks_order() -> None:
    class Swapped(NumpyEngine):
        depthwise = (2, 3, 0, 1)

    layers = nn.Conv2d(3, 6, (1, 2)), nn.Conv2d(6, 6, (1, 3), groups=6), nn.Linear(4, 5)
    model = nn.Sequential(*layers)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    engine = Swapped(model, partial(torch.optim.SGD, lr=0.1))
    shapes = {name: engine.read(name).shape for name in before}
    assert shapes == {
        "0.weight": (1, 2, 3, 6),
        "0.bias": (6,),
        "1.weight": (1, 3, 6, 1),
        "1.bias": (6,),
        "2.weight": (4, 5),
        "2.bias": (5,),
    }
    for value in model.state_dict().values():
        value.zero_()
    engine._stale = True
    for name, value in engine.weights().items():
        assert torch.equal(value, before[name]), name


class OtherRank(NoComm):
    """The other of two ranks holds zeros."""

    size = 2

    def all_reduce(self, value: Tensor, reduction: Reduction) -> Tensor:
        assert reduction == "sum"
        return value.clone()


def test_the_framework_validates_with_the_mean_of_the_ranks_statistics() -> None:
    model = nn.Sequential(*model_of().children(), nn.BatchNorm2d(3))
    engine = NumpyEngine(model, partial(torch.optim.SGD, lr=0.1))
    engine.comm = OtherRank()
    trained(engine, range(1))
    engine.write("2.running_mean", np.array([2.0, 4.0, 6.0]))
    engine.write("2.running_var", np.array([8.0, 8.0, 1.0]))
    engine.average_buffers()
    assert engine.read("2.running_mean").tolist() == [1.0, 2.0, 3.0]
    assert engine.read("2.running_var").tolist() == [4.0, 4.0, 0.5]
    assert model[2].running_mean.tolist() == [1.0, 2.0, 3.0]


COMPUTED = [
    nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2),
    nn.Conv2d(4, 4, 3, groups=4),
    nn.BatchNorm2d(4),
    nn.MaxPool2d(3, 2, padding=1),
    nn.AvgPool2d(2, padding=1),
    nn.AvgPool2d(2, count_include_pad=False),
    nn.AdaptiveAvgPool2d(1),
    nn.AdaptiveAvgPool2d((1, 1)),
]
NOT_COMPUTED = [
    nn.Conv2d(4, 4, 3, groups=2),
    nn.Conv2d(4, 8, 3, groups=4),
    nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    nn.Conv2d(4, 4, 3, padding="same"),
    nn.BatchNorm2d(4, affine=False),
    nn.BatchNorm2d(4, track_running_stats=False),
    nn.BatchNorm2d(4, momentum=None),
    nn.MaxPool2d(3, ceil_mode=True),
    nn.MaxPool2d(3, dilation=2),
    nn.AvgPool2d(2, ceil_mode=True),
    nn.AvgPool2d(2, padding=1, count_include_pad=False),
    nn.AvgPool2d(2, divisor_override=3),
    nn.AdaptiveAvgPool2d(2),
    nn.AdaptiveAvgPool2d((7, 7)),
    nn.AdaptiveAvgPool2d((1, 2)),
    nn.Flatten(2),
    nn.Flatten(1, 2),
    nn.GELU(),
]


def test_layers_whose_options_the_frameworks_do_not_compute_are_refused() -> None:
    for layer in COMPUTED:
        assert len(operations_of(nn.Sequential(layer))) == 3, layer
    for layer in NOT_COMPUTED:
        with pytest.raises(UserError, match="the network's layer 0: "):
            operations_of(nn.Sequential(layer))


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x: torch.cat([x, x.relu()], 1), ""),
        (lambda x: torch.cat([x, torch.relu(x)], 1), "cat"),
        (lambda x: torch.cat([x, torch.relu(x)], 2), ""),
        (lambda x: x + torch.relu(x), "add"),
        (lambda x: x + 1, ""),
        (lambda x: torch.add(x, torch.relu(x), alpha=2), ""),
        (lambda x: torch.flatten(x, 1), "flatten"),
        (lambda x: torch.flatten(x), ""),
        (lambda x: torch.flatten(x, 1, 2), ""),
        (lambda x: functional.adaptive_avg_pool2d(x, 1), "mean"),
        (lambda x: functional.adaptive_avg_pool2d(x, 2), ""),
        (lambda x: functional.pad(x, (0, 0, 0, 0, 0, 4)), "widen"),
        (lambda x: functional.pad(x, (0, 0, 0, 0, 2, 4)), ""),
        (lambda x: functional.pad(x, (1, 1)), ""),
        (lambda x: functional.pad(x, (0, 0, 0, 0, 0, 4), value=1.0), ""),
        (lambda x: x[:, :, ::2, ::2], "subsample"),
        (lambda x: x[:, :, ::2, ::3], ""),
        (lambda x: x[:, 1:, ::2, ::2], ""),
        (lambda x: x[:, :, 1::2, 1::2], ""),
    ],
)
def test_function_calls_that_the_frameworks_do_not_compute_are_refused(
    function: Callable[[Tensor], Tensor], kind: str
) -> None:
    class Calls(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    if kind:
        *_, last, output = operations_of(Calls())
        assert (last.kind, output.kind) == (kind, "output")
    else:
        with pytest.raises(UserError, match="cannot be built in another"):
            operations_of(Calls())


def test_an_operation_has_its_inputs_its_layer_and_its_numbers() -> None:
    """Of a block of a residual network that halves the image and adds two channels."""
    same, half = {"padding": (1, 1), "dilation": (1, 1), "groups": 1}, {"stride": (2, 2)}
    norm = {"eps": 1e-5, "momentum": 0.1}
    found = [
        (each.kind, each.inputs, each.module, each.numbers)
        for each in operations_of(BasicBlock(4, 6, stride=2))
    ]
    assert found == [
        ("input", (), "", {}),
        ("conv", ("x",), "conv1", {**half, **same}),
        ("norm", ("conv1",), "bn1", norm),
        ("relu", ("bn1",), "", {}),
        ("conv", ("relu",), "conv2", {"stride": (1, 1), **same}),
        ("norm", ("conv2",), "bn2", norm),
        ("subsample", ("x",), "", {"step": 2}),
        ("widen", ("getitem",), "", {"channels": 2}),
        ("add", ("bn2", "pad"), "", {}),
        ("relu", ("add",), "", {}),
        ("output", ("relu_1",), "", {}),
    ]
    assert pads(2) == [(0, 0), (2, 2), (2, 2), (0, 0)]
    assert pads((1, 3)) == [(0, 0), (1, 1), (3, 3), (0, 0)]


def test_each_weight_has_its_groups_rate_and_rule_and_the_state_of_its_optimizer() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm2d(2), nn.Linear(2, 2))
    model[2].bias.requires_grad_(False)
    groups = [
        {"params": [model[0].weight, model[1].weight], "weight_decay": 0.1},
        {"params": [model[0].bias, model[1].bias, model[2].weight], "weight_decay": 0.0},
    ]
    adamw = NumpyEngine(model, lambda parameters: torch.optim.AdamW(groups, lr=0.1))
    assert adamw.groups == {"0.weight": 0, "1.weight": 0, "0.bias": 1, "1.bias": 1, "2.weight": 1}
    assert adamw.slots["0.bias"] == ("m.0.bias", "v.0.bias")
    assert adamw.statistics == ("1.running_mean", "1.running_var")
    assert adamw.held[-3:] == ("2.bias", "1.running_mean", "1.running_var")
    decays = [dict(rule)["weight_decay"] for rule in adamw.rules()]
    assert (decays, "lr" in dict(adamw.rules()[0])) == ([0.1, 0.0], False)
    sgd = NumpyEngine(model, lambda parameters: torch.optim.SGD(groups, lr=0.1))
    assert sgd.slots["0.bias"] == ("m.0.bias",)


def test_a_framework_gets_micro_batches_as_one_with_their_sizes_and_rates() -> None:
    given: list[Any] = []

    class Noted(NumpyEngine):
        def compute_step(self, *arguments: Any) -> float:
            given.extend(arguments)
            return 2.5

    engine = Noted(model_of(), lambda parameters: torch.optim.SGD(parameters, lr=9.0))
    engine.replicas = 4
    engine.optimizer.param_groups[0]["lr_factor"] = 0.5
    images = [torch.randn(n, 3, 2, 4) for n in (3, 2)]
    batches = [
        Batch(each, torch.arange(len(each)), real, 8)
        for each, real in zip(images, (3, 1), strict=True)
    ]
    assert float(engine.step(batches, 0.2)) == 2.5
    pixels, labels, sizes, real, factor, rates, seeds = given
    assert np.array_equal(pixels, torch.cat(images).numpy().transpose(0, 2, 3, 1))
    assert (labels.tolist(), sizes.tolist(), real.tolist()) == ([0, 1, 2, 0, 1], [3, 2], [3, 1])
    assert (factor, rates.tolist()) == (0.5, [pytest.approx(0.1)])
    assert len(set(seeds.tolist())) == 2


def test_jax_counts_each_micro_batch_in_the_running_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each channel: 1 and 3, with mean 2 and variance 2; then 0 and 8, with 4 and 32."""
    require("jax")
    monkeypatch.setenv("PJRT_NPROC", "1")  # the engine sets it; undone after the test
    model = nn.Sequential(nn.BatchNorm2d(3, momentum=0.5), nn.Flatten(), nn.Linear(3, CLASSES))
    strategy = Jax()
    strategy.start(ALONE)
    engine = strategy.prepare(model, partial(torch.optim.SGD, lr=0.1), StepSettings(2, 2))
    batches = [
        Batch(torch.tensor(pair).view(2, 1, 1, 1).expand(2, 3, 1, 1), torch.arange(2), 2, 4)
        for pair in ([1.0, 3.0], [0.0, 8.0])
    ]
    engine.step(batches, 0.1)
    state = engine.whole_state(engine.weights())
    assert state["0.running_mean"].tolist() == pytest.approx([2.5] * 3)  # (0 + 2) / 2, (1 + 4) / 2
    assert state["0.running_var"].tolist() == pytest.approx([16.75] * 3)  # 1 -> 1.5 -> 16.75


def test_each_rank_has_the_frameworks_weights() -> None:
    engine = NumpyEngine(model_of(), partial(torch.optim.SGD, lr=0.1))
    engine.world = World(1, 2, 1, torch.device("cpu"))
    before = engine.weights()["1.weight"].clone()
    trained(engine, range(1))
    after = engine.weights()["1.weight"]
    assert not torch.equal(after, before)
    assert after.numpy() == pytest.approx(engine.read("1.weight").T)
