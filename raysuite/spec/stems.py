"""Names of models and the images that they accept, known without importing torch.

torchvision's ResNets, VGGs and MobileNetV2 adapt to the image size. For small images these models
have the stem and the head that DDLBench (Jansen et al. 2020) uses for MNIST and CIFAR-10; for large
images they have torchvision's own stem and head. Other classifiers of torchvision are unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

CIFAR_RESNETS = ("resnet20", "resnet32", "resnet44", "resnet56", "resnet110")

TORCHVISION_CLASSIFIERS = tuple(
    """
    alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161
    densenet169 densenet201 efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3
    efficientnet_b4 efficientnet_b5 efficientnet_b6 efficientnet_b7 efficientnet_v2_l
    efficientnet_v2_m efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 mnasnet0_75
    mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf
    regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf
    regnet_y_128gf regnet_y_16gf regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf
    regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34 resnet50 resnext101_32x8d
    resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5
    shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s
    swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16 vit_b_32
    vit_h_14 vit_l_16 vit_l_32 wide_resnet101_2 wide_resnet50_2
    """.split()  # noqa: SIM905 - a list literal would take a screen
)
"""Names of torchvision's classifiers; a test compares them with torchvision's own list."""

LANGUAGE_MODELS = ("gpt",)
"""Models for tokens; all other models are for images."""

MODELS = CIFAR_RESNETS + TORCHVISION_CLASSIFIERS + LANGUAGE_MODELS

Stem = Literal["small", "large"]
STEMS: tuple[Stem, ...] = ("small", "large")

SMALL_UP_TO = 64
"""Largest side in pixels of images for which the small stem is used. With torchvision's stem, a
ResNet's last stage has 2 x 2 pixels for images of 64 pixels, and 1 x 1 for MNIST and CIFAR-10."""

RESNETS = tuple(
    name
    for name in TORCHVISION_CLASSIFIERS
    if name.startswith(("resnet", "resnext", "wide_resnet"))
)
VGGS = tuple(name for name in TORCHVISION_CLASSIFIERS if name.startswith("vgg"))
MOBILENETS = ("mobilenet_v2",)
ADAPTING = RESNETS + VGGS + MOBILENETS

_VGG_POOLINGS = 5
_AT_LEAST = {
    "alexnet": 63,
    "convnext": 32,
    "densenet": 29,
    "googlenet": 15,
    "inception": 75,
    "squeezenet1_0": 21,
    "squeezenet1_1": 17,
    "swin": 4,
}
"""Beginning of a model's name -> smallest side of its images in pixels. A test measures the sizes
by running the models."""

_MULTIPLES = {"vit_b_16": 16, "vit_l_16": 16, "vit_b_32": 32, "vit_l_32": 32, "vit_h_14": 14} | {
    "maxvit_t": 224  # windows of 7 after 32 x downsampling; other sizes would need padding
}


PAPERS_MODELS = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "vgg11",
    "vgg11_bn",
    "vgg16",
    "vgg16_bn",
    "mobilenet_v2",
    *CIFAR_RESNETS,
)
"""Models trained by Aach et al. 2023, Mahon et al. 2020 and DDLBench, and similar models."""


def family(name: str) -> str:
    """The family of a model, as shown in tables."""
    if ":" in name:
        return "timm" if name.startswith("timm:") else "own"
    families = {
        "CIFAR ResNet": CIFAR_RESNETS,
        "ResNet": RESNETS,
        "VGG": VGGS,
        "MobileNet": MOBILENETS,
        "GPT": LANGUAGE_MODELS,
    }
    return next((words for words, names in families.items() if name in names), "torchvision")


def stem_of(name: str, image_size: int, wanted: str | None = None) -> Stem | None:
    """The stem of a model: `wanted` if it is given, else the stem for images of this size.

    `image_size` is a side in pixels. None for a model with a single stem.
    """
    if name not in ADAPTING:
        return None
    small = image_size <= SMALL_UP_TO if wanted is None else wanted == "small"
    return "small" if small else "large"


def misfit(
    name: str, options: Mapping[str, Any], channels: int | None, image_size: int | None
) -> tuple[str, str] | None:
    """Return (key of the spec to change, message) if a named model does not accept the images.

    None if it accepts them, or if this is unknown (your own models, timm's, or an argument that is
    None). `channels` is 0 for tokens; `image_size` is a side in pixels.
    """
    if ":" in name:
        return None
    if channels is not None and (name in LANGUAGE_MODELS) != (channels == 0):
        given, valid = ("images", "tokens") if channels else ("tokens", "images")
        return (
            "model.name",
            f"{name} takes {valid}, and the data set has {given}; use another model, or data of "
            f"{valid}",
        )
    if name in LANGUAGE_MODELS:
        return None
    stem = options.get("stem")
    if name in ADAPTING:
        if "stem" in options and stem not in STEMS:
            return "model.options.stem", f"got {stem!r}; it should be small or large"
        least = 2**_VGG_POOLINGS
        if name in VGGS and stem == "large" and image_size is not None and image_size < least:
            return (
                "model.options.stem",
                f"{_VGG_POOLINGS} poolings reduce {image_size} pixels to nothing; set stem to "
                f"small, or data.image_size to {least} or more",
            )
        return None
    if "stem" in options:
        return "model.options.stem", f"{name} has one stem for all images; leave stem out"
    if name in CIFAR_RESNETS:
        return None
    if channels not in (3, None):
        return (
            "data.channels",
            f"torchvision's {name} takes RGB images, and the images have {channels} channel; "
            "set data.channels to 3",
        )
    return None if image_size is None else _size_misfit(name, image_size)


def _size_misfit(name: str, image_size: int) -> tuple[str, str] | None:
    step = _MULTIPLES.get(name)
    if step is not None and image_size % step:
        near = max(1, round(image_size / step)) * step
        return (
            "data.image_size",
            f"torchvision's {name} takes images whose side is a multiple of {step} pixels; got "
            f"{image_size}; give {near}",
        )
    for beginning, least in _AT_LEAST.items():
        if name.startswith(beginning) and image_size < least:
            return (
                "data.image_size",
                f"torchvision's {name} takes images of {least} pixels or more; got {image_size}",
            )
    return None
