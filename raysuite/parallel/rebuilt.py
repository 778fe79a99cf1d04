"""Base classes of engines that rebuild a torch network in another framework.

`operations_of` traces a network by torch.fx, and lists its operations. The operations of raysuite's
CIFAR ResNets and of torchvision's ResNets, VGGs and MobileNetV2 are supported.
`raysuite.parallel.tensorflow` and `.jax` compute each operation on images [b, H, W, C], the layout
of both frameworks on CPUs.
"""

from __future__ import annotations

import operator
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.nn import functional as F

from raysuite.errors import UserError
from raysuite.parallel.base import (
    FrameworkEngine,
    TorchGroupStrategy,
    World,
    read_state,
    set_lr,
)
from raysuite.parallel.compiling import Compiler

if TYPE_CHECKING:
    from raysuite.data.base import Batch

Array = NDArray[Any]
Rules = tuple[tuple[tuple[str, Any], ...], ...]
"""For each group of weights: (name, value) of each optimiser setting except the learning rate."""

CHANNELS_LAST: dict[int, tuple[int, ...]] = {4: (2, 3, 1, 0), 2: (1, 0)}
"""Number of dimensions of a torch weight -> the permutation of its axes that gives the other
framework's layout."""


@dataclass(frozen=True)
class Operation:
    """A computation on the results of earlier operations."""

    name: str
    kind: str
    """input, output, conv, norm, linear, relu, relu6, max_pool, avg_pool, mean, flatten, dropout,
    same, add, cat, subsample or widen."""
    inputs: tuple[str, ...]
    module: str = ""
    """The name of the operation's layer in the torch network; empty if it is not a layer."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """Settings such as stride and padding, by torch's names."""


_MODULES: dict[type[nn.Module], tuple[str, tuple[str, ...]]] = {
    nn.Conv2d: ("conv", ("stride", "padding", "dilation", "groups")),
    nn.BatchNorm2d: ("norm", ("eps", "momentum")),
    nn.Linear: ("linear", ()),
    nn.ReLU: ("relu", ()),
    nn.ReLU6: ("relu6", ()),
    nn.MaxPool2d: ("max_pool", ("kernel_size", "stride", "padding")),
    nn.AvgPool2d: ("avg_pool", ("kernel_size", "stride", "padding")),
    nn.AdaptiveAvgPool2d: ("mean", ()),
    nn.Flatten: ("flatten", ()),
    nn.Dropout: ("dropout", ("p",)),
    nn.Identity: ("same", ()),
}
_FUNCTIONS: dict[Callable[..., Any], str] = {
    F.relu: "relu",
    torch.relu: "relu",
    F.relu6: "relu6",
    F.adaptive_avg_pool2d: "mean",
    torch.flatten: "flatten",
    operator.add: "add",
    operator.iadd: "add",
    torch.add: "add",
    torch.cat: "cat",
    operator.getitem: "subsample",
    F.pad: "widen",
}


def operations_of(model: nn.Module) -> list[Operation]:
    """The operations of `model`'s forward pass on one tensor of images, in order.

    Raises UserError for a network that cannot be traced, or that has an unsupported operation.
    """
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:  # a forward pass can raise any error with a proxy
        raise UserError(
            f"model.name: {type(model).__name__} cannot be traced by torch.fx ({error}), and only "
            "a traced network can be built in another framework; use a PyTorch strategy"
        ) from error
    modules = dict(model.named_modules())
    return [_operation(node, modules) for node in graph.nodes]


def _operation(node: fx.Node, modules: dict[str, nn.Module]) -> Operation:
    inputs = tuple(each.name for each in node.all_input_nodes)
    if node.op == "placeholder":
        return Operation(node.name, "input", inputs)
    if node.op == "output":
        return Operation(node.name, "output", inputs)
    kind, module = "", ""
    numbers: dict[str, Any] | None = None
    if node.op == "call_module":
        module = str(node.target)
        layer: Any = modules[module]
        kind, keys = _MODULES.get(type(layer), ("", ()))
        if kind and _computed(layer):
            numbers = {key: getattr(layer, key) for key in keys}
    elif node.op == "call_function":
        kind = _FUNCTIONS.get(node.target, "")  # type: ignore[arg-type]
        numbers = _numbers(kind, node)
    if numbers is None:
        what = f"layer {module}: {modules[module]}" if module else f"operation {node.format_node()}"
        raise UserError(
            f"model.name: the network's {what} cannot be built in another framework; use a PyTorch "
            "strategy"
        )
    return Operation(node.name, kind, inputs, module, numbers)


def _computed(layer: Any) -> bool:
    """Whether the engines for TensorFlow and JAX can compute a layer with its options."""
    if isinstance(layer, nn.Conv2d):
        groups = layer.groups in (1, layer.in_channels)
        multiple = layer.groups == 1 or layer.out_channels == layer.in_channels
        explicit = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return groups and multiple and explicit
    if isinstance(layer, nn.BatchNorm2d):
        return layer.affine and layer.track_running_stats and layer.momentum is not None
    if isinstance(layer, nn.MaxPool2d):
        return not layer.ceil_mode and layer.dilation == 1
    if isinstance(layer, nn.AvgPool2d):
        padded = layer.padding in (0, (0, 0)) or layer.count_include_pad
        return not layer.ceil_mode and padded and layer.divisor_override is None
    if isinstance(layer, nn.AdaptiveAvgPool2d):
        return layer.output_size in (1, (1, 1))
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return True


def _numbers(kind: str, node: fx.Node) -> dict[str, Any] | None:
    """The numeric arguments of a function call of this kind; None if the call is not supported."""
    rest: list[Any] = [*node.args[1:], *node.kwargs.values()]
    match kind, rest:
        case "relu" | "relu6", _:
            return {}
        case "mean", [1 | (1, 1)]:
            return {}
        case "flatten" | "cat", [1]:
            return {}
        case "add", [fx.Node()]:
            return {} if len(node.all_input_nodes) == 2 else None
        case "widen", [[0, 0, 0, 0, 0, channels], "constant", None | 0]:  # appends channels of 0
            return {"channels": channels}
        # every n-th pixel, as in option A of a ResNet's shortcut
        case "subsample", [[*whole, slice(step=step) as rows, columns]]:
            fits = whole == [slice(None)] * 2 and rows == columns == slice(None, None, step)
            return {"step": step or 1} if fits else None
    return None


def pads(padding: Any) -> list[tuple[int, int]]:
    """The padding (before, after) of each axis of [b, H, W, C]. Before and after are equal, as in
    torch; with TensorFlow's padding "same" they may differ."""
    height, width = pair(padding)
    return [(0, 0), (height, height), (width, width), (0, 0)]


def pair(number: Any) -> tuple[int, int]:
    """A layer's setting for height and width; in torch, it may be a single number for both."""
    return (number, number) if isinstance(number, int) else number


def updated(
    rule: dict[str, Any], rate: Any, weight: Any, gradient: Any, slots: Sequence[Any], steps: Any
) -> tuple[Any, list[Any]]:
    """A weight and its slots after one update by `rule`, as in torch.optim.SGD and AdamW.

    Slots are the momentum, or the first and second moment; `steps` includes this update. Arrays may
    be of any framework.
    """
    if "betas" not in rule:
        gradient = gradient + rule["weight_decay"] * weight
        first = rule["momentum"] * slots[0] + gradient
        way = gradient + rule["momentum"] * first if rule["nesterov"] else first
        return weight - rate * way, [first]
    beta1, beta2 = rule["betas"]
    weight = weight * (1 - rate * rule["weight_decay"])
    first = beta1 * slots[0] + (1 - beta1) * gradient
    second = beta2 * slots[1] + (1 - beta2) * gradient * gradient
    mean = first / (1 - beta1**steps)
    deviation = (second / (1 - beta2**steps)) ** 0.5
    return weight - rate * mean / (deviation + rule["eps"]), [first, second]


def free_address() -> str:
    """The address under which other workers reach this host, with a port that is free now."""
    meeting = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as prober:
        prober.connect((meeting, 9))  # selects the route; no packet is sent
        host = prober.getsockname()[0]
    with socket.socket() as taken:
        taken.bind((host, 0))
        return f"{host}:{taken.getsockname()[1]}"


class RebuiltStrategy(TorchGroupStrategy, ABC):
    """Base of strategies whose gradients are averaged by another framework's own collectives. The
    training loop's own collectives use torch's group."""

    def start(self, world: World) -> None:
        """Join the framework's own process group, and the process group of torch."""
        self.join(world)
        super().start(world)

    @abstractmethod
    def join(self, world: World) -> None:
        """Join the framework's own process group. Raises MissingPartError if the framework is
        absent."""


class RebuiltEngine(FrameworkEngine):
    """A training step of a framework that holds its own copy of the weights.

    The framework's weights are copied into torch's `model` before `model` is used. The framework
    holds arrays with these keys: the names of weights and running statistics in torch's
    `state_dict`, `m.WEIGHT` for the momentum of a weight, `v.WEIGHT` for its second moment (AdamW),
    and `steps`.
    """

    depthwise: ClassVar[tuple[int, ...]] = CHANNELS_LAST[4]
    """As CHANNELS_LAST[4], but for the kernel of a depthwise convolution."""

    def wrap(self) -> None:
        model = self.model
        self.compiler = Compiler(enabled=True)
        # `optimizer` provides the spec's rate, decay and momentum for every weight
        names = {id(each): name for name, each in model.named_parameters()}
        self.groups = {
            names[id(each)]: number
            for number, group in enumerate(self.optimizer.param_groups)
            for each in group["params"]
        }
        """Name of each trainable parameter -> its group."""
        kinds = ("m", "v") if isinstance(self.optimizer, torch.optim.AdamW) else ("m",)
        self.slots = {name: tuple(f"{kind}.{name}" for kind in kinds) for name in self.groups}
        """Name of each trainable parameter -> keys of its optimiser state."""
        self.statistics = tuple(
            f"{name}.{kind}"
            for name, layer in model.named_modules()
            if isinstance(layer, nn.BatchNorm2d)
            for kind in ("running_mean", "running_var")
        )
        """Keys of the running statistics, which each rank computes from its own samples."""
        self.held = (*(name for name, _ in model.named_parameters()), *self.statistics)
        """Keys of weights and running statistics."""
        self._depthwise = {
            f"{name}.weight"
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Conv2d) and layer.groups > 1
        }
        self._stale = False
        """Whether the framework has trained since its weights were last copied into `model`."""

    @abstractmethod
    def read(self, key: str) -> Array:
        """A copy of this rank's array with this key; no collective is needed."""

    @abstractmethod
    def write(self, key: str, value: Array) -> None:
        """Set this rank's array with this key to a copy of `value`. All ranks must call this."""

    @abstractmethod
    def compute_step(
        self,
        images: Array,
        labels: Array,
        sizes: Array,
        real: Array,
        factor: np.float32,
        rates: Array,
        seeds: Array,
    ) -> float:
        """Update the weights once, and return the summed loss of all micro-batches, whose images
        [n, H, W, C] and labels [n] are concatenated.

        `sizes` [a]: the number of samples in each micro-batch. `real` [a]: how many of them
        are not padding. `factor`: the factor by which this rank's loss is multiplied. `rates`: the
        learning rate of each group of weights. `seeds` [a]: the dropout seed of each micro-batch.
        """

    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        set_lr(self.optimizer, lr)
        images = torch.cat([each.images for each in micro_batches]).permute(0, 2, 3, 1)
        loss = self.compute_step(
            images.contiguous().numpy(),
            torch.cat([each.labels for each in micro_batches]).numpy().astype(np.int32),
            np.array([len(each.images) for each in micro_batches], np.int32),
            np.array([each.real for each in micro_batches], np.int32),
            np.float32(self.replicas / micro_batches[0].of_global),
            np.array([group["lr"] for group in self.optimizer.param_groups], np.float32),
            # drawn from torch's random state, which a checkpoint restores
            torch.randint(2**31, (len(micro_batches),), dtype=torch.int32).numpy(),
        )
        self._stale = True
        return torch.tensor(loss)

    def rules(self) -> Rules:
        """The settings of each group of weights except the rate; a change requires a new trace."""
        keys = ("momentum", "nesterov", "weight_decay", "betas", "eps")
        return tuple(
            tuple((key, group[key]) for key in keys if key in group)
            for group in self.optimizer.param_groups
        )

    def order(self, key: str, value: Any) -> tuple[int, ...]:
        """The permutation of the axes of a torch array that gives the framework's layout."""
        if key in self._depthwise:
            return self.depthwise
        return CHANNELS_LAST.get(value.ndim, tuple(range(value.ndim)))

    def give_weights(self) -> None:
        """Copy the weights and running statistics of `model` to the framework."""
        state = self.model.state_dict()
        for key in self.held:
            self.write(key, state[key].detach().permute(self.order(key, state[key])).numpy())

    def take_buffers(self) -> None:
        self.give_weights()

    def _take_weights(self) -> None:
        """Copy the framework's weights, and this rank's running statistics, to torch's `model`."""
        if self._stale:
            state = self.model.state_dict()
            for key in self.held:
                value = self.read(key)
                order = np.argsort(self.order(key, value))
                state[key].copy_(torch.from_numpy(np.ascontiguousarray(value.transpose(order))))
            self._stale = False

    def weights(self) -> dict[str, Tensor]:
        self._take_weights()
        return super().weights()

    def average_buffers(self) -> None:
        self._take_weights()
        super().average_buffers()
        self.give_weights()

    def save(self, folder: Path) -> None:
        self._take_weights()
        if self.world.rank == 0:
            slots = {key: torch.from_numpy(self.read(key)) for key in self._slot_keys()}
            steps = float(self.read("steps"))
            state = {"model": self.model.state_dict(), "slots": slots, "steps": steps}
            torch.save(state, folder / "engine.pt")

    def load(self, folder: Path) -> None:
        state = read_state(folder / "engine.pt")
        self.model.load_state_dict(state["model"])
        self.give_weights()
        for key in self._slot_keys():
            self.write(key, state["slots"][key].numpy())
        self.write("steps", np.array(state["steps"], np.float32))
        self._stale = False

    def _slot_keys(self) -> list[str]:
        return [key for keys in self.slots.values() for key in keys]
