"""The network that a spec names, freshly initialised."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raysuite import lazy
from raysuite.errors import UserError
from raysuite.spec.experiment import ModelOptions
from raysuite.spec.names import CIFAR_RESNETS, DatasetFacts

if TYPE_CHECKING:
    from torch import nn

__all__ = ["build"]


def build(model: ModelOptions, facts: DatasetFacts) -> nn.Module:
    """The model for images of this data set: [b, channels, size, size] -> [b, classes] logits.

    Weights are drawn from torch's global generator, so seed it first. Your own
    `module:attribute` is called with those of `num_classes`, `in_channels` and `image_size` that
    its signature names, and with the spec's options, which come first.

    Raises UserError where the model cannot be imported or made, or is not an nn.Module.
    """
    from torch import nn

    constructor, given = _constructor(model.name, facts)
    arguments = {**given, **model.options}
    try:
        built = constructor(**arguments)
    except Exception as error:  # the constructor may be the user's own
        called = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise UserError(
            f"model {model.name!r} cannot be made: called with {called or 'nothing'}, it raised "
            f"{type(error).__name__}: {error}; change model.options"
        ) from error
    if not isinstance(built, nn.Module):
        raise UserError(
            f"model {model.name!r} gave {type(built).__name__}; it should be a class of "
            "torch.nn.Module or a function that returns one"
        )
    return built


def _constructor(name: str, facts: DatasetFacts) -> tuple[Callable[..., Any], dict[str, Any]]:
    """What to call, and what the data set says about its arguments."""
    if name in CIFAR_RESNETS:
        from raysuite.models.cifar_resnet import CifarResNet

        depth = int(name.removeprefix("resnet"))
        return CifarResNet, {
            "depth": depth,
            "num_classes": facts.classes,
            "in_channels": facts.channels,
        }
    if ":" not in name:
        from raysuite.models.torchvision_models import constructor

        return constructor(name, facts)
    own = lazy.load(name)
    if not callable(own):
        raise UserError(f"model {name!r} is {type(own).__name__}; it should be something to call")
    offered = {
        "num_classes": facts.classes,
        "in_channels": facts.channels,
        "image_size": facts.image_size,
    }
    return own, {key: value for key, value in offered.items() if key in _named(own)}


def _named(call: Callable[..., Any]) -> set[str]:
    """Arguments that can be given by name. `**kwargs` names none: who it passes them to may not
    know ours."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # some built-ins have no signature
        return set()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name for parameter in parameters if parameter.kind in by_name}
