"""The papers' networks at the papers' sizes: shapes, parameters, stems and heads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from raysuite.models import build
from raysuite.spec.datasets import DIGITS, DatasetFacts
from raysuite.spec.experiment import ModelOptions
from raysuite.spec.stems import ADAPTING, PAPERS_MODELS, VGGS


def facts(channels: int = 3, size: int = 32, classes: int = 10) -> DatasetFacts:
    return DatasetFacts(100, 10, classes, channels, size)


def on_meta(name: str, images: DatasetFacts, **options: object) -> nn.Module:
    with torch.device("meta"):
        return build(ModelOptions(name=name, options=options), images)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def children(model: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, kind)]


SHAPES = ((1, 8), (1, 28), (3, 32), (1, 224), (3, 512))
"""Channels and sides."""
DEEP = (
    *("resnet44", "resnet56", "resnet101", "resnet110", "resnet152"),
    *("resnext101_32x8d", "resnext101_64x4d", "wide_resnet101_2"),
)
"""More blocks of shallower ones, from whose stem and stages alone sizes can go wrong."""


def networks(names: Iterable[str]) -> list[Any]:
    """Of them, CI has those that are not DEEP."""
    thorough = {True: [pytest.mark.thorough], False: []}
    return [pytest.param(name, marks=thorough[name in DEEP]) for name in names]


@pytest.mark.parametrize("name", networks(sorted({*PAPERS_MODELS, *ADAPTING})))
@torch.no_grad()
def test_logits_at_every_size_in_grey_and_in_colour(name: str) -> None:
    every = name in PAPERS_MODELS and name not in DEEP
    for channels, size in SHAPES if every else SHAPES[2:4]:
        model = on_meta(name, facts(channels, size, classes=7)).train()
        logits = model(torch.empty(2, channels, size, size, device="meta"))
        assert logits.shape == (2, 7), f"{size} x {size}"


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "mobilenet_v2", "resnet20"])
def test_one_pixel_is_an_image_too(name: str) -> None:
    assert (
        build(ModelOptions(name=name), facts(1, 1)).eval()(torch.ones(1, 1, 1, 1)).isfinite().all()
    )


@pytest.mark.parametrize("name", networks(ADAPTING))
def test_large_stems_are_torchvisions(name: str) -> None:
    def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
        return {key: tuple(value.shape) for key, value in model.state_dict().items()}

    with torch.device("meta"):
        theirs = torchvision.models.get_model(name, weights=None)
    assert shapes(on_meta(name, facts(3, 224, classes=1000))) == shapes(theirs)
    assert shapes(on_meta(name, facts(3, 32, 1000), stem="large")) == shapes(theirs)


@pytest.mark.parametrize("name", [name for name in PAPERS_MODELS if name in ADAPTING])
def test_parameters_as_torchvision_publishes_them(name: str) -> None:
    published = torchvision.models.get_model_weights(name)["IMAGENET1K_V1"].meta["num_params"]
    assert count(on_meta(name, facts(3, 224, classes=1000))) == published


def test_the_seed_gives_torchvisions_weights_at_large_sizes() -> None:
    torch.manual_seed(3)
    ours = build(ModelOptions(name="resnet18"), facts(3, 224)).state_dict()
    torch.manual_seed(3)
    theirs = torchvision.models.resnet18(num_classes=10).state_dict()
    assert all(torch.equal(ours[key], value) for key, value in theirs.items())


@pytest.mark.parametrize(
    ("name", "channels", "size", "parameters"),
    [
        # DDLBench's mnistresnet.py and pytorchcifargitmodels/resnet.py, mnistvgg.py and vgg.py
        # (github.com/sara-nl/DDLBench), counted by hand: torchvision's net of ten classes less
        # its first convolution of 7 x 7 x 3 x 64 = 9408 weights, plus one of 3 x 3 x C x 64
        ("resnet18", 3, 32, 11_181_642 - 9408 + 1728),
        ("resnet50", 3, 32, 23_528_522 - 9408 + 1728),
        ("resnet152", 1, 28, 58_164_298 - 9408 + 576),
        # VGG's convolutions and biases, and 512 x 10 + 10
        ("vgg11", 3, 32, 9_220_480 + 5130),
        ("vgg11", 1, 28, 9_220_480 - 1152 + 5130),
        ("vgg16", 3, 32, 14_714_688 + 5130),
        # the paper's, of ten classes; the stem has as many weights at stride 1
        ("mobilenet_v2", 3, 32, 2_236_682),
    ],
)
def test_small_networks_are_ddlbenchs(name: str, channels: int, size: int, parameters: int) -> None:
    assert count(on_meta(name, facts(channels, size))) == parameters


def test_small_resnets_keep_every_pixel_up_to_the_second_stage() -> None:
    model = build(ModelOptions(name="resnet18"), facts(1, 28)).eval()
    sides = {}
    for name in ("conv1", "layer1", "layer2", "layer4"):
        model.get_submodule(name).register_forward_hook(
            lambda _, __, out, name=name: sides.update({name: out.shape[-1]})
        )
    model(torch.zeros(1, 1, 28, 28))
    assert sides == {"conv1": 28, "layer1": 28, "layer2": 14, "layer4": 4}  # DDLBench pools 4 x 4
    assert not children(model, nn.MaxPool2d)


def test_small_mobilenet_divides_by_eight() -> None:
    model = build(ModelOptions(name="mobilenet_v2"), facts(3, 32)).eval()
    assert isinstance(model.features, nn.Sequential)
    assert model.features(torch.zeros(1, 3, 32, 32)).shape == (1, 1280, 4, 4)


@pytest.mark.parametrize(
    ("size", "poolings"), [(1, 0), (2, 1), (8, 3), (28, 4), (31, 4), (32, 5), (64, 5)]
)
def test_vgg_leaves_out_the_poolings_that_would_find_one_pixel(size: int, poolings: int) -> None:
    for name in VGGS:
        model = on_meta(name, facts(3, size))
        assert len(children(model, nn.MaxPool2d)) == poolings
        (classifier,) = children(model, nn.Linear)
        assert (classifier.in_features, classifier.out_features) == (512, 10)
        names = [key for key, _ in model.named_parameters() if key.startswith("features.")]
        large = on_meta(name, facts(3, 224))
        assert names == [k for k, _ in large.named_parameters() if k.startswith("features.")]


@pytest.mark.parametrize("channels", [1, 3])
def test_first_convolutions_are_drawn_as_the_others(channels: int) -> None:
    torch.manual_seed(0)
    for name, path in (("resnet18", "conv1"), ("vgg11", "features.0")):
        conv = build(ModelOptions(name=name), facts(channels, 28)).get_submodule(path)
        assert isinstance(conv, nn.Conv2d)
        assert conv.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)
        assert conv.bias is None or not conv.bias.any()


@pytest.mark.parametrize("size", [17, 64, 65])
def test_the_stem_goes_by_the_side_unless_the_spec_says_otherwise(size: int) -> None:
    stems = {"small": 3, "large": 7}
    chosen = on_meta("resnet18", facts(size=size)).get_submodule("conv1")
    assert chosen.kernel_size == ((3, 3) if size <= 64 else (7, 7))
    for stem, side in stems.items():
        forced = on_meta("resnet18", facts(size=size), stem=stem).get_submodule("conv1")
        assert forced.kernel_size == (side, side)


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "vgg11_bn", "mobilenet_v2", "resnet20"])
def test_gradients_reach_every_weight_on_the_digits(name: str) -> None:
    torch.manual_seed(0)
    model = build(ModelOptions(name=name), DIGITS).train()
    logits: Tensor = model(torch.rand(4, 1, 8, 8))
    nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 3])).backward()
    for key, weight in model.named_parameters():
        assert weight.grad is not None, key
        assert weight.grad.isfinite().all(), key
        assert weight.grad.any(), key
