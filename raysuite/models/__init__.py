"""Build the network that a spec names, and compute its costs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from raysuite import lazy
from raysuite.errors import UserError
from raysuite.models.layers import LayerCost, kept
from raysuite.nested import called
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.experiment import ModelOptions
from raysuite.spec.stems import CIFAR_RESNETS, LANGUAGE_MODELS, MOBILENETS, RESNETS, VGGS, misfit

if TYPE_CHECKING:
    from torch import nn

    from raysuite.models.base import Constructor
    from raysuite.models.model_costs import ModelCost

Count = TypeVar("Count")

__all__ = ["build", "check", "cost_of", "layers_of"]


def build(model: ModelOptions, facts: DatasetFacts) -> nn.Module:
    """The model for samples of this data set; for images, [b, channels, size, size] -> [b, classes]
    logits.

    Initial weights are drawn from torch's global generator, so seed it first. Lazy layers are
    initialised. A user's own `module:attribute` gets all options of the spec, and `num_classes`,
    `in_channels` and `image_size` (or `sequence`) if its signature has them; options take
    precedence.

    Raises UserError if the model cannot be imported or made, does not accept the data set's
    samples, or is not an nn.Module.
    """
    from torch import nn

    reason = misfit(model.name, model.options, facts.channels, facts.image_size)
    if reason is not None:
        raise UserError(": ".join(reason))
    constructor, given = _constructor(model.name, facts)
    arguments = {**given, **model.options}
    try:
        built = constructor(**arguments)
    except (Exception, SystemExit) as error:  # the constructor may be the user's own code
        called = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise UserError(
            f"model {model.name!r} cannot be made: called with {called or 'nothing'}, it raised "
            f"{type(error).__name__}: {error}; change model.options"
        ) from error
    if not isinstance(built, nn.Module):
        raise UserError(
            f"model {model.name!r}, when called, returned an object of type "
            f"{type(built).__name__}, not a torch.nn.Module; give a subclass of torch.nn.Module or "
            "a function that returns an instance of one"
        )
    if any(isinstance(each, nn.UninitializedParameter) for each in built.parameters()):
        _initialise(built, facts)
    if model.freeze:
        from raysuite.models.fine_tuning import freeze

        freeze(built, model.freeze)
    return built


def _initialise(model: nn.Module, facts: DatasetFacts) -> None:
    """Initialise lazy layers by a forward pass, because frameworks need all shapes."""
    import torch

    from raysuite.models.base import example

    model.eval()  # dropout draws no random numbers, and BatchNorm's statistics stay unchanged
    with torch.no_grad():
        called(model, example(facts, 2))
    model.train()


def check(name: str) -> None:
    """Raise UserError if `timm:NAME` or `module:attribute` does not exist; ignore other names."""
    if name.startswith("timm:"):
        from raysuite.models import timm_models

        timm_models.check(name)
    elif ":" in name:
        lazy.load(name)


def cost_of(model: ModelOptions, facts: DatasetFacts) -> ModelCost:
    """The cost of a spec's model: parameters, forward FLOPs, activation bytes. The model is built
    on torch's meta device, where weights take no memory, or on the CPU if that fails.

    Raises the errors of `build`, and UserError if the model cannot process the data set's samples.
    """
    from raysuite.models.model_costs import cost

    return _counted(model, facts, cost)


def layers_of(model: ModelOptions, facts: DatasetFacts) -> list[LayerCost]:
    """The costs of the layers of the model that a spec names, in the order of a forward pass. If
    the costs are in the cache, torch is not imported.

    Raises the errors of `build`, and UserError if the model cannot process the data set's samples.
    """

    def count() -> list[LayerCost]:
        from raysuite.models.model_costs import layer_costs

        return _counted(model, facts, layer_costs)

    return kept(model, facts, count)


def _counted(
    model: ModelOptions, facts: DatasetFacts, count: Callable[[nn.Module, DatasetFacts], Count]
) -> Count:
    import torch

    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return count(build(model, facts), facts)
        except UserError:  # some constructors read values of tensors; meta tensors have none
            return count(build(model, facts), facts)


def _constructor(name: str, facts: DatasetFacts) -> Constructor:
    """The function that makes the model, and its arguments from the data set's facts."""
    shape = {"num_classes": facts.classes, "in_channels": facts.channels}
    if name in LANGUAGE_MODELS:
        from raysuite.models.gpt import Gpt

        return Gpt, {"num_classes": facts.classes, "sequence": facts.sequence}
    sized = {**shape, "image_size": facts.image_size}
    if not facts.channels:
        sized = {"num_classes": facts.classes, "sequence": facts.sequence}
        sized = {key: value for key, value in sized.items() if value}
    if name in CIFAR_RESNETS:
        from raysuite.models.cifar_resnet import CifarResNet

        return CifarResNet, {"depth": int(name.removeprefix("resnet")), **shape}
    if name in RESNETS:
        from raysuite.models.resnet import resnet

        return partial(resnet, name), sized
    if name in VGGS:
        from raysuite.models.vgg import vgg

        return partial(vgg, name), sized
    if name in MOBILENETS:
        from raysuite.models.mobilenet import mobilenet_v2

        return mobilenet_v2, sized
    if name.startswith("timm:"):
        from raysuite.models import timm_models

        return timm_models.constructor(name, facts)
    if ":" not in name:
        from raysuite.models.base import torchvision_constructor

        return torchvision_constructor(name, facts)
    own = lazy.load(name)
    if not callable(own):
        raise UserError(
            f"model {name!r} is {type(own).__name__}; it should be a callable, such as a class"
        )
    return own, {key: value for key, value in sized.items() if key in _named(own)}


def _named(call: Callable[..., Any]) -> set[str]:
    """The names of arguments that can be given by keyword. `**kwargs` is not counted: the function
    to which it is passed on may not accept every name."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # some built-ins have no signature
        return set()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name for parameter in parameters if parameter.kind in by_name}
