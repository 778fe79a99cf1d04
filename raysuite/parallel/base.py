"""Strategy -> Engine: the one interface between the training loop and every framework.

    Strategy.start(world)            join the process group
    Strategy.prepare(model, ...)     -> Engine
    Engine.step(micro_batches, lr)   one optimiser step: forward, backward, synchronise, update

The loss of a step is the mean over the *global* batch: over its samples, over its tokens, or over
its samples weighted by class. A rank's share of this loss is sum(loss of its samples) * replicas /
N, where N is the number of samples or tokens in the global batch, or the sum of their weights. The
average of the shares over replicas is then exactly the loss of the step, even if the last batch of
an epoch is split unevenly. A replica is a whole copy of the model: one rank, or the ranks that hold
its stages.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysuite.errors import RunError
from raysuite.nested import mapped, unpadded
from raysuite.parallel.comm import (
    Comm,
    TorchComm,
    average_buffers,
    join_torch_group,
    leave_torch_group,
)
from raysuite.parallel.compiling import Compiler, TorchCompiler
from raysuite.parallel.precision import Autocast, LossScale
from raysuite.spec.optimizers import SETTINGS
from raysuite.spec.strategies import Lossy

if TYPE_CHECKING:
    from raysuite.data.base import Batch

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Criterion = Callable[[Any, Any], Tensor]
"""(output, targets) -> the sum of the samples' losses, a scalar."""


@dataclass(frozen=True)
class World:
    """This process's place among all processes of the run."""

    rank: int
    size: int
    local_rank: int
    device: torch.device

    @classmethod
    def alone(cls, device: torch.device) -> World:
        """The World of a single process."""
        return cls(0, 1, 0, device)


@dataclass(frozen=True)
class StepSettings:
    """Settings that define an optimiser step, independent of the strategy."""

    micro_batch: int
    """Samples per full micro-batch on one rank."""
    accumulate: int = 1
    clip_norm: float | None = None
    """Gradients with a larger global L2 norm are scaled down to this norm; None: no clipping."""
    precision: str = "fp32"
    label_smoothing: float = 0.0
    memory_format: str = "contiguous"
    """contiguous or channels_last: the layout of the model's input images and, if the framework
    allows it, of its weights."""
    image: tuple[int, int, int] = (3, 32, 32)
    """Channels, height and width."""
    compile: str = "off"
    """torch.compile's mode."""
    figures: tuple[str, ...] = ()
    """Names of the optional values that are measured in each step: see `Engine.figures`."""

    @property
    def needs_norm(self) -> bool:
        return self.clip_norm is not None or "gradient_norm" in self.figures


class Strategy(Protocol):
    """A method by which ranks synchronise their gradients."""

    lossy: Lossy | None
    """How the options deliberately change the mean of the ranks' gradients, as by compression; None
    if they do not."""

    def start(self, world: World) -> None:
        """Join the process group, unless this process has joined it already."""

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        """The engine that trains `model`, which is on the world's device."""

    def stop(self) -> None:
        """Leave the process group, if `start` joined it."""


class BaseStrategy:
    """The strategy of one process, and the base class of the other strategies."""

    lossy: Lossy | None = None
    engine: ClassVar[Callable[..., Engine]]
    """Makes the engine from (model, MakeOptimizer, World, StepSettings, options)."""
    _world: World | None = None

    def __init__(self, options: Any = None) -> None:
        self.options = options
        self.lossy = getattr(options, "lossy", None)

    @property
    def world(self) -> World:
        assert self._world is not None, "start() comes first"
        return self._world

    def start(self, world: World) -> None:
        self._world = world

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        return self.engine(model, make_optimizer, self.world, settings, self.options)

    def stop(self) -> None:
        pass


class TorchGroupStrategy(BaseStrategy):
    """Base of strategies whose ranks communicate through torch's default process group."""

    _joined = False

    def start(self, world: World) -> None:
        """Join torch's group, unless this process has joined it already."""
        super().start(world)
        self._joined = join_torch_group(world.rank, world.size, world.device)

    def stop(self) -> None:
        """Leave the group, if `start` joined it."""
        if self._joined:
            leave_torch_group()
            self._joined = False


class Engine(ABC):
    """Trains one model on one rank."""

    def __init__(
        self,
        model: nn.Module,
        comm: Comm,
        world: World,
        settings: StepSettings,
        whole_gradients: bool = False,
    ) -> None:
        """`whole_gradients`: see `whole` of LossScale."""
        self.model = model
        """The model, without the framework's wrapper."""
        self.comm = comm
        self.world = world
        self.settings = settings
        self.replicas = world.size
        """The number of model copies that share the global batch."""
        self.replica = world.rank
        """The index of this rank's copy; all ranks of a copy load the same samples."""
        self.own_statistics = self.replicas > 1
        """Whether several ranks compute BatchNorm's running statistics for the same layers."""
        self.counts = True
        """Whether this rank evaluates predictions. One rank of each replica evaluates them."""
        self.takes_images = True
        """Whether this rank needs images; a later stage of a pipeline needs only labels."""
        self.figures: dict[str, Tensor] = {}
        """Name -> a value measured in this step, as a scalar tensor on any device. All ranks have
        the same names, and the training loop records each value's mean over ranks."""
        self.scale = LossScale(model, comm, settings.precision == "fp16", whole_gradients)
        self.criterion: Criterion | None = None
        """The loss of a task other than classification."""
        self.class_weights: Tensor | None = None
        """Weight of each class in the loss, a tensor [classes] on the device; `Batch.of_global` is
        then the sum of the weights of the global batch's samples."""
        self.autocast = Autocast(model, settings.precision, world.device, settings.memory_format)
        """The model with autocast: the module that each framework wraps."""
        self.compiler = (
            Compiler()
            if settings.compile == "off"
            else TorchCompiler(self.autocast, settings.compile, world.device)
        )

    @abstractmethod
    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        """Take one optimiser step over `settings.accumulate` micro-batches.

        Returns the summed loss of this rank's samples, a detached scalar on the device.
        """

    def train(self, on: bool = True) -> None:
        """Switch the layers, and an optimiser that averages the weights, to training mode (`on`) or
        to evaluation mode."""
        self.model.train(on)
        # torch's own optimisers lack these methods
        change = getattr(getattr(self, "optimizer", None), "train" if on else "eval", None)
        if change is not None:
            change()

    def drain(self) -> None:  # noqa: B027 - most engines are synchronous
        """Finish deferred updates; called before weights are read. All ranks must call this."""

    @abstractmethod
    def forward(self, images: Any) -> Any:
        """Logits [b, classes] for images [b, C, H, W]; in other tasks, the network's output for
        `images`. All ranks must make the same number of calls."""

    def weights(self) -> dict[str, Tensor]:
        """All parameters by name, unsharded, on the CPU. All ranks must call this."""
        return {
            name: parameter.detach().cpu().clone()
            for name, parameter in self.model.named_parameters()
        }

    def whole_state(self, weights: dict[str, Tensor]) -> dict[str, Any]:
        """The `state_dict` of the whole model on the CPU. `weights` (keys as in `named_parameters`)
        replace the model's own parameters, which may be sharded. All ranks must call this."""
        return whole_state(self.model, weights)

    def average_buffers(self) -> None:
        """See `raysuite.parallel.comm.average_buffers`. All ranks must call this."""
        average_buffers(self.model, self.comm)

    def take_buffers(self) -> None:  # noqa: B027 - most engines use `model`'s buffers
        """Take over the buffers of `model`, if the engine keeps a copy of its own. Called after a
        checkpoint within an epoch has restored this rank's buffers. All ranks must call this."""

    def complete(self, model: nn.Module) -> None:  # noqa: B027 - most ranks hold all of it
        """Fill `model`, which has the structure of the whole model, with the parameters and buffers
        of all ranks. All ranks must call this."""

    def norm(self, own: Sequence[Tensor]) -> Tensor:
        """The L2 norm of the whole network's gradients or weights, a scalar on all ranks. `own`:
        the gradients or weights in this rank's model. All ranks must call this."""
        norm: Any = nn.utils.get_total_norm(own)
        whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return whole

    def gradient_norm(self) -> Tensor:
        """The norm of the gradients, which is also set in `figures`. All ranks must call this."""
        gradients = (each.grad for each in self.model.parameters())
        norm = self.figures["gradient_norm"] = self.norm([g for g in gradients if g is not None])
        return norm

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write model and optimiser into `folder`. All ranks must call this. Data that are equal on
        several ranks are written by one of them."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Restore what `save` wrote."""

    def close(self) -> None:
        """Free all memory that the engine has allocated in addition to the model."""
        self.compiler.close()

    @contextmanager
    def timeline(self, file: Path) -> Iterator[None]:
        """Within the context, record the framework's own timeline of collectives, if any.

        All ranks must call this. Rank 0 writes the timeline to `file`.
        """
        yield

    def loss(self, batch: Batch, output: Any) -> tuple[Tensor, Tensor]:
        """(this rank's share of the global batch's loss in the micro-batch `batch`, the summed loss
        of the samples of `batch`)."""

        def scaled(each: Tensor) -> Tensor:
            whole = each.float() if each.is_floating_point() else each
            return self.scale.apply(whole, batch.of_global)

        output = unpadded(mapped(output, scaled), batch.real)
        targets = unpadded(batch.labels, batch.real)
        if self.criterion is None:
            total = functional.cross_entropy(
                output,
                targets,
                weight=self.class_weights,
                reduction="sum",
                label_smoothing=self.settings.label_smoothing,
            )
        else:
            total = self.criterion(output, targets)
        return total * (self.replicas / batch.of_global), total.detach()


class FrameworkEngine(Engine):
    """Base class of raysuite's own engines that begin with the whole model on every rank."""

    whole_gradients: ClassVar[bool] = True
    """The argument `whole` of LossScale; with lossy options, `whole` is False."""

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        world: World,
        settings: StepSettings,
        options: Any = None,
    ) -> None:
        whole = self.whole_gradients and getattr(options, "lossy", None) is None
        super().__init__(model, self.make_comm(world), world, settings, whole)
        self.options = options
        self.optimizer = make_optimizer(model.parameters())
        self.scale.guard(self.optimizer)
        self.wrap()

    def make_comm(self, world: World) -> Comm:
        """The collectives of the engine's process group."""
        return TorchComm(world.device)

    def wrap(self) -> None:
        """Give `autocast`, which contains the model, and `optimizer` to the framework."""


class TorchEngine(Engine):
    """Base class of engines with an unsharded model and a torch optimiser on every rank."""

    optimizer: torch.optim.Optimizer

    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        set_lr(self.optimizer, lr)
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.world.device)
        for index, batch in enumerate(micro_batches):
            total += self.add_gradients(batch, last=index == len(micro_batches) - 1)
        self.take_step()
        return total

    def add_gradients(self, batch: Batch, last: bool) -> Tensor:
        """Run the forward and backward pass of a micro-batch; in a step's `last` micro-batch, ranks
        synchronise gradients. Returns the summed loss of the micro-batch's samples."""
        loss, summed = self.loss(batch, self.autocast(batch.images))
        loss.backward()
        return summed

    def forward(self, images: Any) -> Any:
        return self.autocast(images)

    def save(self, folder: Path) -> None:
        if self.world.rank == 0:
            torch.save(self._state(), folder / "engine.pt")

    def load(self, folder: Path) -> None:
        # load_state_dict moves tensors to the device, except AdamW's step counts, which the host
        # reads in every step
        state = read_state(folder / "engine.pt")
        self.model.load_state_dict(state["model"])
        with kept_settings(self.optimizer):
            self.optimizer.load_state_dict(state["optimizer"])
        self.scale.load_state(state["scale"])

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scale": self.scale.state(),
        }

    def take_step(self) -> None:
        """Update the weights with the synchronised gradients, unless these overflowed on a rank."""
        self.scale.decide()
        self.clip()
        self.update_weights()
        self.scale.update()

    def update_weights(self) -> None:
        self.optimizer.step()

    def clip(self) -> None:
        """If needed, measure the norm of the synchronised gradients; scale them down if it exceeds
        `clip_norm`."""
        if self.settings.clip_norm is not None:
            self.figures["gradient_norm"] = self.clip_to(self.settings.clip_norm)
        elif self.settings.needs_norm:
            self.gradient_norm()

    def clip_to(self, limit: float) -> Tensor:
        """Scale gradients with a larger norm down to the norm `limit`; return the norm before
        scaling, on all ranks."""
        norm = self.gradient_norm()
        nn.utils.clip_grads_with_norm_(self.model.parameters(), limit, norm)
        return norm


def read_state(file: Path, mapped: bool = False) -> dict[str, Any]:
    """The content of a file written by `torch.save`, on the CPU. `mapped`: read through a memory
    map, so that only the used parts are read.

    Raises RunError if the file is damaged, or contains more than tensors and plain data. RunError
    replaces torch's error, whose message suggests allowing the file's code to run.
    """
    try:
        state: dict[str, Any] = torch.load(
            file, map_location="cpu", weights_only=True, mmap=mapped or None
        )
    except Exception as error:  # torch's parser raises many kinds of errors
        raise unreadable(file, error) from None
    return state


def unreadable(file: Path, error: Exception) -> RunError:
    """The error for a checkpoint file that cannot be read as tensors and plain data."""
    return RunError(
        f"{file} is missing, damaged, or contains more than tensors ({type(error).__name__}); "
        "remove its folder, and start the run again"
    )


def draws(device: torch.device) -> dict[str, Any]:
    """The states of this process's random generators, which dropout and the user's own code use, as
    tensors and plain data."""
    of_numpy: Any = np.random.get_state()
    kind, keys, *rest = of_numpy
    found: dict[str, Any] = {
        "cpu": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (kind, keys.tolist(), *rest),
    }
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def restore_draws(device: torch.device, state: dict[str, Any]) -> None:
    """Restore the states that `draws` returned; old checkpoints have only torch's states."""
    torch.set_rng_state(state["cpu"])
    if "python" in state:
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def kept_draws(device: torch.device) -> Iterator[None]:
    """Restore the states of the process's random generators at the end of the context."""
    before = draws(device)
    try:
        yield
    finally:
        restore_draws(device, before)


def seed_draws(seed: int) -> None:
    """Seed the random generators of torch, Python and NumPy, which the user's code may use."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def whole_state(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Any]:
    """`model.state_dict()` on the CPU. `weights` (keys as in `named_parameters`) replace the
    model's own parameters, which may be sharded. A tied weight occurs under each of its names."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def whole(value: Any) -> Any:
        if id(value) in names:
            return weights[names[id(value)]].contiguous()
        return value.cpu() if isinstance(value, Tensor) else value

    return {key: whole(value) for key, value in model.state_dict(keep_vars=True).items()}


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every parameter group the learning rate `lr`, times the group's `lr_factor` if set."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)


@contextmanager
def kept_settings(optimizer: Any) -> Iterator[None]:
    """Keep the plan's momentum, decay and other settings while a checkpoint is loaded.

    The settings of a resumed run may differ from those in its checkpoint. The optimiser's state
    comes from the checkpoint, even state that is stored among the settings, such as LAMB's step
    count.
    """
    before = [
        {name: group[name] for name in SETTINGS if name in group}
        for group in optimizer.param_groups
    ]
    yield
    for group, settings in zip(optimizer.param_groups, before, strict=True):
        group.update(settings)
