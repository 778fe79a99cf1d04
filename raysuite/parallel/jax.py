"""Train with JAX in several processes. Each worker computes the gradient of its samples, and a
collective over Gloo averages the gradients.

(Bradbury et al. 2018, "JAX: composable transformations of Python+NumPy programs".)

XLA compiles three functions: a worker's gradients, as one vector; the mean of the vectors over
workers; and the update. The gradients are not computed by one function for all workers
(`jax.shard_map`), because workers may have different numbers of samples, which JAX's multi-process
functions do not support (jax-ml/jax, pull request 6891). The network is built from JAX operations:
see `raysuite.parallel.rebuilt`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysuite.errors import MissingPartError
from raysuite.parallel import rebuilt
from raysuite.parallel.base import World
from raysuite.parallel.comm import shared_store
from raysuite.parallel.rebuilt import (
    Array,
    Operation,
    RebuiltEngine,
    RebuiltStrategy,
    Rules,
    updated,
)

_AXIS = "workers"
_SHUTDOWN_S = 10
"""Maximum seconds that a process waits at its end for other processes, which may have failed."""


@cache
def _jax() -> Any:
    """The jax module, on CPUs only, with as many threads as torch."""
    os.environ["PJRT_NPROC"] = str(torch.get_num_threads())
    try:
        import jax
    except ImportError as error:
        raise MissingPartError(f"JAX cannot be loaded ({error})") from error
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    return jax


@cache
def _mesh(rank: int, size: int) -> Any:
    """A mesh of all workers. The first call in a process starts JAX's runtime."""
    jax = _jax()
    if size > 1:
        store = shared_store("jax", rank, size)
        if rank == 0:
            store.set("coordinator", rebuilt.free_address())
        address = store.get("coordinator").decode()
        jax.distributed.initialize(
            address,
            size,
            rank,
            coordinator_bind_address=address,
            shutdown_timeout_seconds=_SHUTDOWN_S,
        )
    return jax.make_mesh((size,), (_AXIS,))


State = dict[str, Any]
"""Key (see RebuiltEngine) -> array."""


class Network:
    """The operations of a torch network, computed by JAX."""

    def __init__(self, model: nn.Module) -> None:
        self._jax = _jax()
        self.operations = rebuilt.operations_of(model)

    def __call__(self, state: State, images: Any, key: Any = None) -> tuple[Any, State]:
        """Logits [b, classes] for images [b, H, W, C], and new running statistics.

        `key`: JAX's key for random numbers; given only in training.
        """
        values: dict[str, Any] = {}
        found: State = {}
        for index, each in enumerate(self.operations):
            given = [values[name] for name in each.inputs] or [images]
            if each.kind == "norm":
                values[each.name], news = self._normalized(each, given[0], state, key is not None)
                found |= news
            elif each.kind == "dropout" and key is not None and each.numbers["p"]:
                kept, random = 1 - each.numbers["p"], self._jax.random
                mask = random.bernoulli(random.fold_in(key, index), kept, given[0].shape)
                values[each.name] = self._jax.numpy.where(mask, given[0] / kept, 0.0)
            else:
                values[each.name] = self._compute(each, given, state)
        return given[0], found

    def _compute(self, each: Operation, given: list[Any], state: State) -> Any:
        jax, x, numbers = self._jax, given[0], each.numbers
        jnp, lax = jax.numpy, jax.lax
        match each.kind:
            case "conv":
                x = lax.conv_general_dilated(
                    x,
                    state[f"{each.module}.weight"],
                    numbers["stride"],
                    rebuilt.pads(numbers["padding"])[1:3],
                    rhs_dilation=numbers["dilation"],
                    dimension_numbers=("NHWC", "HWIO", "NHWC"),
                    feature_group_count=numbers["groups"],
                )
                return x + state.get(f"{each.module}.bias", 0.0)
            case "linear":
                return x @ state[f"{each.module}.weight"] + state.get(f"{each.module}.bias", 0.0)
            case "relu" | "relu6":
                return getattr(jax.nn, each.kind)(x)
            case "max_pool" | "avg_pool":
                window, steps = (
                    (1, *rebuilt.pair(numbers[key]), 1) for key in ("kernel_size", "stride")
                )
                lowest, add = (-math.inf, lax.max) if each.kind == "max_pool" else (0.0, lax.add)
                x = lax.reduce_window(
                    x, lowest, add, window, steps, rebuilt.pads(numbers["padding"])
                )
                return x if each.kind == "max_pool" else x / math.prod(window)
            case "mean":
                return x.mean((1, 2), keepdims=True)
            case "flatten":  # in torch's channel order
                x = x.transpose(0, 3, 1, 2) if x.ndim == 4 else x
                return x.reshape(len(x), -1)
            case "add":
                return given[0] + given[1]
            case "cat":
                return jnp.concatenate(given, -1)
            case "subsample":
                return x[:, :: numbers["step"], :: numbers["step"], :]
            case "widen":
                return jnp.pad(x, [(0, 0), (0, 0), (0, 0), (0, numbers["channels"])])
            case _:
                return x

    def _normalized(
        self, each: Operation, x: Any, state: State, training: bool
    ) -> tuple[Any, State]:
        """(normalised `x`, new running statistics). As in torch's BatchNorm2d, `x` is divided by
        the biased standard deviation of the batch, and the running variance is unbiased."""
        old = {kind: f"{each.module}.running_{kind}" for kind in ("mean", "var")}
        mean, variance = (state[key] for key in old.values())
        found = {}
        if training:
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
            count, momentum = x.size // x.shape[-1], each.numbers["momentum"]
            new = {"mean": mean, "var": variance * count / (count - 1)}
            found = {
                key: (1 - momentum) * state[key] + momentum * new[kind] for kind, key in old.items()
            }
        scale = self._jax.lax.rsqrt(variance + each.numbers["eps"]) * state[f"{each.module}.weight"]
        return (x - mean) * scale + state[f"{each.module}.bias"], found


class JaxEngine(RebuiltEngine):
    """A training step as three compiled functions on each worker."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._jax = _jax()
        self._mesh = _mesh(self.world.rank, self.world.size)
        self._network = Network(self.model)
        self._state: State = {}
        self._compiled: dict[Any, Any] = {}
        self.give_weights()
        for name, keys in self.slots.items():
            for key in keys:
                self.write(key, np.zeros_like(self.read(name)))
        self.write("steps", np.zeros((), np.float32))

    def read(self, key: str) -> Array:
        return np.array(self._state[key])

    def write(self, key: str, value: Array) -> None:
        # a copy: JAX may use the memory of NumPy arrays without a copy
        self._state[key] = self._jax.device_put(np.array(value, np.float32), self._device)

    @property
    def _device(self) -> Any:
        return self._jax.local_devices()[0]

    def _call(self, function: Callable[..., Any], *given: Any, **fixed: Any) -> Any:
        """The result of `function`, which is compiled once for each combination of the arguments'
        shapes and of the values in `fixed`."""
        tree, leaves = self._jax.tree, self._jax.tree.leaves(given)
        key = (function, *fixed.values(), tree.structure(given), *(each.shape for each in leaves))
        if key not in self._compiled:
            with self.compiler.timed():
                whole = self._jax.jit(partial(function, **fixed))
                self._compiled[key] = whole.lower(*given).compile()
        return self._compiled[key](*given)

    def compute_step(
        self,
        images: Array,
        labels: Array,
        sizes: Array,
        real: Array,
        factor: Any,
        rates: Array,
        seeds: Array,
    ) -> float:
        ends = np.cumsum(sizes)[:-1]
        batch = (np.split(images, ends), np.split(labels, ends), real, factor, seeds)
        gradient, loss, statistics = self._call(self._gradient, self._of(self.held), batch)
        trained = self._of(("steps", *self.groups, *self._slot_keys()))
        mean = self._mean(gradient)
        self._state |= self._call(self._update, trained, mean, rates, rules=self.rules())
        self._state |= statistics
        return float(loss)

    def drain(self) -> None:
        """Wait for the last update, which JAX computes while the training loop continues."""
        self._jax.block_until_ready(self._state)

    def _of(self, keys: Iterable[str]) -> State:
        return {key: self._state[key] for key in keys}

    def _mean(self, gradient: Any) -> Any:
        """The mean of the gradient over all workers, by one collective."""
        jax, spec = self._jax, self._jax.P(_AXIS)
        every = jax.make_array_from_single_device_arrays(
            (self.world.size, *gradient.shape),
            jax.sharding.NamedSharding(self._mesh, spec),
            [gradient[None]],
        )
        return self._call(self._mean_of, every).addressable_data(0)

    def _mean_of(self, every: Any) -> Any:
        jax = self._jax
        mean = partial(jax.lax.pmean, axis_name=_AXIS)
        return jax.shard_map(
            lambda own: mean(own[0]), mesh=self._mesh, in_specs=jax.P(_AXIS), out_specs=jax.P()
        )(every)

    def _gradient(self, state: State, batch: Any) -> tuple[Any, Any, State]:
        """(gradient vector, summed over micro-batches; summed loss; new running statistics)."""
        jax, jnp = self._jax, self._jax.numpy
        images, labels, real, factor, seeds = batch

        def loss(weights: State, state: State, index: int) -> Any:
            key = jax.random.key(seeds[index])
            logits, found = self._network(state | weights, images[index], key)
            summed = self._loss(logits, labels[index], real[index])
            return summed * factor, (summed, found)

        whole, total, statistics = jnp.zeros(()), jnp.zeros(()), {}
        for index in range(len(images)):
            weights = {name: state[name] for name in self.groups}
            gradients, (summed, found) = jax.grad(loss, has_aux=True)(weights, state, index)
            flat = jnp.concatenate([gradients[name].ravel() for name in self.groups])
            whole, total, statistics = whole + flat, total + summed, found
            state = state | found
        return whole, total, statistics

    def _update(self, state: State, mean: Any, rates: Any, *, rules: Rules) -> State:
        """The weights, optimiser slots and step count after the update."""
        jnp = self._jax.numpy
        if self.settings.clip_norm is not None:
            # as torch.nn.utils.clip_grad_norm_
            mean *= jnp.minimum(1.0, self.settings.clip_norm / (jnp.linalg.norm(mean) + 1e-6))
        after: State = {"steps": state["steps"] + 1}
        begin = 0
        for name, number in self.groups.items():
            weight, slots = state[name], self.slots[name]
            gradient = mean[begin : begin + weight.size].reshape(weight.shape)
            begin += weight.size
            kept = [state[key] for key in slots]
            after[name], kept = updated(
                dict(rules[number]), rates[number], weight, gradient, kept, after["steps"]
            )
            after |= dict(zip(slots, kept, strict=True))
        return after

    def _loss(self, logits: Any, labels: Any, real: Any) -> Any:
        """The summed cross-entropy of the samples that are not padding."""
        jax, smoothing, classes = self._jax, self.settings.label_smoothing, logits.shape[-1]
        target = jax.nn.one_hot(labels, classes) * (1 - smoothing) + smoothing / classes
        each = -(target * jax.nn.log_softmax(logits)).sum(-1)
        return jax.numpy.where(jax.numpy.arange(len(each)) < real, each, 0.0).sum()

    def forward(self, images: Tensor) -> Tensor:
        given = images.permute(0, 2, 3, 1).contiguous().numpy()
        return torch.from_numpy(np.array(self._call(self._infer, self._of(self.held), given)))

    def _infer(self, state: State, images: Any) -> Any:
        return self._network(state, images)[0]


class Jax(RebuiltStrategy):
    """Gradients are averaged by JAX's collectives over Gloo."""

    engine = JaxEngine

    def join(self, world: World) -> None:
        _mesh(world.rank, world.size)
