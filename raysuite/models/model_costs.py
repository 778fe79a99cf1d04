"""The cost of a model: parameters, forward FLOPs, bytes of activations and of gradients.

The model is run on torch's meta device, where tensors have shapes but no values.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import FlopCounterMode

from raysuite.errors import UserError
from raysuite.models.base import example
from raysuite.models.layers import LayerCost
from raysuite.nested import called
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.strategies import SMALL

_FEW, _MORE = 2, 4
"""The batch sizes of two forward passes. The cost of an image is half the difference of the two
costs: costs that do not grow with the batch (weights, BatchNorm's statistics) cancel. A batch of
one image is not possible: BatchNorm refuses to train on one value per channel."""


@dataclass(frozen=True)
class ModelCost:
    """The cost of a model in training with fp32."""

    parameters: int
    """Number of parameters, trainable or frozen, without BatchNorm's running statistics."""
    forward_flops: int
    """Multiply-adds of one image's forward pass. Each counts as one operation, as in He et al. 2015
    and Aach et al. 2023; the peak FLOP/s of a device usually count it as two. Convolutions, matrix
    products and attention count, but not norms, poolings and element-wise work."""
    activation_bytes: int
    """Bytes that autograd saves for the backward pass of one image, including the image. Each
    tensor storage counts once; weights and a framework's work space do not count."""
    gradient_bytes: int
    """Bytes of the trainable parameters' gradients, which an all-reduce moves."""
    small_parameters: int
    """The number of parameters in tensors so small that ZeRO-3 does not shard them."""


def cost(model: nn.Module, facts: DatasetFacts) -> ModelCost:
    """The cost of `model` for samples of this data set. `model` is not changed.

    If the model cannot run on the meta device, a copy runs on the device of its weights.

    Raises UserError if the model cannot process these samples.
    """
    parameters = list(model.parameters())
    try:
        few, more = _measured(_without_numbers(model), facts)
    except Exception as error:  # the user's forward may raise any exception here
        if any(parameter.is_meta for parameter in parameters):
            raise _unfit(error, facts) from error
        try:
            few, more = _measured(copy.deepcopy(model), facts)
        except Exception as real:
            raise _unfit(real, facts) from real
    images = _MORE - _FEW
    return ModelCost(
        parameters=sum(parameter.numel() for parameter in parameters),
        forward_flops=(more[0] - few[0]) // images // 2,  # torch counts 2 for each multiply-add
        activation_bytes=(more[1] - few[1]) // images,
        gradient_bytes=sum(
            each.numel() * each.element_size() for each in parameters if each.requires_grad
        ),
        small_parameters=sum(n for each in parameters if (n := each.numel()) <= SMALL),
    )


def layer_costs(model: nn.Module, facts: DatasetFacts) -> list[LayerCost]:
    """The costs of modules with FLOPs or parameters, in the order in which their forward passes
    end. An operation between two modules, such as attention, counts for the module that ends next,
    for example the module around it. Parameters of a module that is never called count for the
    module around it. A shared weight counts for the first module that has it.

    Raises UserError if the model cannot run on the meta device with samples of this shape.
    """
    empty, found = _without_numbers(model), list[LayerCost]()
    inputs = example(facts, _FEW, "meta")
    counted, seen = 0, set[nn.Parameter]()
    with FlopCounterMode(display=False) as flops:

        def leave(name: str, module: nn.Module, _given: object, result: object) -> None:
            nonlocal counted
            done, counted = int(flops.get_total_flops()) - counted, int(flops.get_total_flops())
            own = {*module.parameters()} - seen
            seen.update(own)
            held = sum(each.numel() for each in own)
            trained = sum(each.numel() for each in own if each.requires_grad)
            size = result.numel() * 4 if isinstance(result, Tensor) else 0
            if done or held:
                found.append(LayerCost(name, held, trained, done // _FEW // 2, size // _FEW))

        for name, module in empty.named_modules():
            module.register_forward_hook(partial(leave, name or type(model).__name__))
        try:
            with torch.no_grad():
                called(empty.train(), inputs)
        except Exception as error:  # the user's forward may raise any exception here
            raise _unfit(error, facts) from error
    return found


def _unfit(error: Exception, facts: DatasetFacts) -> UserError:
    shape = f"images of {facts.channels} x {facts.image_size} x {facts.image_size}"
    if facts.inputs:
        shape = f"inputs {facts.inputs}"
    elif facts.sequence:
        shape = f"sequences of {facts.sequence} tokens"
    return UserError(
        f"the model cannot process {shape}: {type(error).__name__}: {error}; "
        "choose another model, or change the shape in the spec's section data"
    )


def _without_numbers(model: nn.Module) -> nn.Module:
    """A copy of the model on the meta device, where weights and buffers take no memory."""
    memo: dict[int, object] = {}
    for weight in model.parameters():
        empty = torch.empty_like(weight, device="meta")
        memo[id(weight)] = nn.Parameter(empty, requires_grad=weight.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)


def _measured(model: nn.Module, facts: DatasetFacts) -> tuple[tuple[int, int], tuple[int, int]]:
    """(FLOPs as counted by torch, saved bytes) of a forward pass, for _FEW and for _MORE images."""
    first = next(model.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    model.train()
    with torch.random.fork_rng(devices=[]):  # on a real device, dropout draws random numbers
        few, more = (_forward(model, example(facts, count, device)) for count in (_FEW, _MORE))
    return few, more


def _lstm_flops(
    inputs: Sequence[int],
    input_weights: Sequence[int],
    hidden_weights: Sequence[int],
    *_: Any,
    **__: Any,
) -> int:
    """FLOPs of an LSTM layer, from shapes: two for each weight, time step and sample."""
    time_steps, samples = inputs[:2]
    return 2 * time_steps * samples * (math.prod(input_weights) + math.prod(hidden_weights))


_UNCOUNTED = {torch.ops.aten.mkldnn_rnn_layer: _lstm_flops}
"""Operations that torch does not count: oneDNN's LSTM, for networks that run on the CPU."""


def _forward(model: nn.Module, inputs: Any) -> tuple[int, int]:
    """FLOPs and saved bytes of one forward pass in training mode."""
    saved: dict[StorageWeakRef, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[StorageWeakRef(storage)] = storage.nbytes()
        return tensor

    with (
        FlopCounterMode(display=False, custom_mapping=_UNCOUNTED) as flops,
        torch.enable_grad(),
        saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        output = called(model, inputs)
    # Not deleted earlier: another tensor could reuse the freed storage, and both would count once.
    del output
    return int(flops.get_total_flops()), sum(saved.values())
