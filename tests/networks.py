"""Small networks as users write them, for images [b, 1, 8, 8] of 10 classes; each odd somehow."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

CLASSES, CHANNELS, SIZE = 10, 1, 8
PIXELS = CHANNELS * SIZE * SIZE


class Net(nn.Module):
    """Linear, ReLU, linear, with whatever a subclass adds."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.body = nn.Linear(PIXELS, 12)
        self.head = nn.Linear(12, classes)

    def features(self, images: Tensor) -> Tensor:
        return F.relu(self.body(images.flatten(1)))

    def forward(self, images: Tensor) -> Any:
        return self.head(self.features(images))


def convolutions(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(CHANNELS, 6, 3, padding=1),
        *middle,
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, CLASSES),
    )


class Dropout(Net):
    def features(self, images: Tensor) -> Tensor:
        return F.dropout(super().features(images), 0.3, self.training)


class Tied(Net):
    """An autoencoder's two layers share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(12, 12, bias=False)
        self.up = nn.Linear(12, 12, bias=False)
        self.up.weight = self.down.weight

    def features(self, images: Tensor) -> Tensor:
        return self.up(F.relu(self.down(super().features(images))))


class Buffers(Net):
    """Buffers of every kind; `scale` is not to be kept."""

    mask: Tensor
    index: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.arange(12) % 3 > 0)
        self.register_buffer("index", torch.arange(12).flip(0) + 10**6)
        self.register_buffer("scale", torch.full((12,), 0.5), persistent=False)

    def features(self, images: Tensor) -> Tensor:
        return (super().features(images) * self.mask * self.scale)[:, self.index - 10**6]


class Counter(Net):
    """Counts its steps in a buffer."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def features(self, images: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return super().features(images)


class FrozenBackbone(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body.requires_grad_(False)


class FrozenNorm(nn.Module):
    """Batch norms whose statistics and weights stay, as in fine-tuning."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(6).requires_grad_(False)
        self.layers = convolutions(self.norm)

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, images: Tensor) -> Any:
        return self.layers(images)


class Scalar(Net):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, images: Tensor) -> Any:
        return super().forward(images) * self.temperature


class Unused(Net):
    """Two layers that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.auxiliary = nn.Linear(12, 7)


class EverySecondStep(Net):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(12, 12)
        self.calls = 0

    def features(self, images: Tensor) -> Tensor:
        self.calls += 1
        found = super().features(images)
        return self.extra(found) if self.calls % 2 == 0 else found


class TupleOutput(Net):
    def forward(self, images: Tensor) -> Any:
        found = self.features(images)
        return self.head(found), found


class DictOutput(Net):
    def forward(self, images: Tensor) -> Any:
        return {"logits": super().forward(images)}


class FlatOutput(Net):
    def forward(self, images: Tensor) -> Any:
        return super().forward(images).flatten()


class Maps(Net):
    """Logits that keep the image's dimensions."""

    def forward(self, images: Tensor) -> Any:
        return super().forward(images)[:, :, None, None]


class Labels(Net):
    """Classes in the place of logits."""

    def forward(self, images: Tensor) -> Any:
        return super().forward(images).argmax(1, keepdim=True).expand(-1, CLASSES)


class Detached(Net):
    def forward(self, images: Tensor) -> Any:
        return super().forward(images).detach()


class Sparse(Net):
    """A bag of pixels' brightness levels, with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.EmbeddingBag(16, 12, mode="sum", sparse=True)

    def features(self, images: Tensor) -> Tensor:
        levels = (images.flatten(1) * 4 + 8).clamp(0, 15).long()
        return super().features(images) + self.levels(levels)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, SIZE, SIZE))
        self.attention = nn.MultiheadAttention(SIZE, 2, batch_first=True)
        self.norm = nn.LayerNorm(SIZE)
        self.head = nn.Linear(SIZE, CLASSES)

    def forward(self, images: Tensor) -> Any:
        rows = images[:, 0] + self.position
        mixed, _ = self.attention(rows, rows, rows, need_weights=False)
        return self.head(self.norm(rows + mixed).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.GRU(SIZE, 12, batch_first=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, images: Tensor) -> Any:
        return self.head(self.rows(images[:, 0])[0][:, -1])


class Recomputed(Net):
    def features(self, images: Tensor) -> Tensor:
        found: Tensor = checkpoint(super().features, images, use_reentrant=False)
        return found


class InPlace(Net):
    """Writes over its own input."""

    def features(self, images: Tensor) -> Tensor:
        return super().features(images.sub_(0.1)).mul(2).clamp_(max=3)


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by_name = nn.ModuleDict({"a": nn.Linear(PIXELS, 12), "b": nn.Linear(PIXELS, 12)})
        self.scales = nn.ParameterList([torch.ones(12), torch.ones(12)])
        self.head = nn.Linear(12, CLASSES)

    def forward(self, images: Tensor) -> Any:
        flat = images.flatten(1)
        parts = zip(self.by_name.values(), self.scales, strict=True)
        return self.head(sum(scale * layer(flat) for layer, scale in parts))


class DataDependent(Net):
    """Branches on numbers, which the meta device does not have."""

    def features(self, images: Tensor) -> Tensor:
        found = super().features(images)
        return found * 2 if found.mean().item() > 0 else found


class OwnGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.sign() * value.abs().sqrt()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class StraightThrough(Net):
    def features(self, images: Tensor) -> Tensor:
        found: Tensor = OwnGradient.apply(super().features(images))
        return found


class Hooked(Net):
    """Gradients are halved by a hook on the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.body.weight.register_hook(lambda gradient: gradient / 2)


class Empty(Net):
    """A parameter without values."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0, 12))

    def forward(self, images: Tensor) -> Any:
        return super().forward(images) + self.nothing.sum()


class Needs(Net):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width


class Raises(Net):
    def forward(self, images: Tensor) -> Any:
        raise ValueError("not for these images")


def weight_norm() -> nn.Module:
    net = Net()
    parametrizations.weight_norm(net.body)
    return net


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(12), nn.ReLU(), nn.LazyLinear(CLASSES))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # deprecated, and yet in use
        found: nn.Module = torch.jit.script(convolutions())
    return found


def ends() -> nn.Module:
    raise SystemExit(0)


NETWORKS: dict[str, Callable[..., Any]] = {
    "plain": Net,
    "convolutions": convolutions,
    "batch_norm": lambda: convolutions(nn.BatchNorm2d(6)),
    "group_norm": lambda: convolutions(nn.GroupNorm(2, 6)),
    "channels_last": lambda: convolutions().to(memory_format=torch.channels_last),
    "dropout": Dropout,
    "tied": Tied,
    "buffers": Buffers,
    "counter": Counter,
    "frozen_backbone": FrozenBackbone,
    "frozen_norm": FrozenNorm,
    "all_frozen": lambda: Net().requires_grad_(False),
    "lazy": lazy,
    "scalar": Scalar,
    "empty": Empty,
    "unused": Unused,
    "every_second_step": EverySecondStep,
    "tuple": TupleOutput,
    "dict": DictOutput,
    "flat": FlatOutput,
    "maps": Maps,
    "labels": Labels,
    "too_few": lambda: Net(7),
    "too_many": lambda: Net(13),
    "detached": Detached,
    "scripted": scripted,
    "double": lambda: Net().double(),
    "sparse": Sparse,
    "weight_norm": weight_norm,
    "attention": Attention,
    "recurrent": Recurrent,
    "recomputed": Recomputed,
    "in_place": InPlace,
    "lists": Lists,
    "data_dependent": DataDependent,
    "straight_through": StraightThrough,
    "hooked": Hooked,
    "needs_argument": Needs,
    "raises": Raises,
    "ends": ends,
}


def made(which: str) -> Any:
    """For a spec: `model: {name: tests.networks:made, options: {which: plain}}`."""
    return NETWORKS[which]()
