"""Train with TensorFlow's MultiWorkerMirroredStrategy, step by step or by Keras's `model.fit`.

(Abadi et al. 2016, "TensorFlow", OSDI 12; Mahon et al. 2020 compare both with PyTorch and Horovod.)

The network is built from Keras layers: see `raysuite.parallel.rebuilt`. Loss, learning rates,
decay, momentum and clipping are the same as in the other strategies. Weights are updated by
torch's rule, because the momentum of Keras's optimiser includes the learning rates of earlier
steps.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import threading
import warnings
from functools import cache
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


@cache
def _tensorflow() -> tuple[Any, Any]:
    """tensorflow and tf_keras, on CPUs only, with as many threads as torch."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with contextlib.suppress(ImportError):
        # imported before TensorFlow: otherwise triton's LLVM finds options that TensorFlow's LLVM
        # has registered, and ends the process (triton 3.9, TensorFlow 2.21)
        import triton._C.libtriton  # noqa: F401
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import tensorflow
            import tf_keras
    except ImportError as error:
        raise MissingPartError(f"TensorFlow cannot be loaded ({error})") from error
    tensorflow.get_logger().setLevel("ERROR")
    tensorflow.config.set_visible_devices([], "GPU")
    tensorflow.config.threading.set_intra_op_parallelism_threads(torch.get_num_threads())
    return tensorflow, tf_keras


@cache
def _workers(rank: int, size: int) -> Any:
    """TensorFlow's strategy. It is made once per process, because it starts TensorFlow's runtime.

    TF_CONFIG is set to the addresses of all workers, each with a port that is free now.
    """
    tf, _ = _tensorflow()
    if size > 1:
        store = shared_store("tensorflow", rank, size)
        store.set(str(rank), rebuilt.free_address())
        every = [store.get(str(each)).decode() for each in range(size)]
        cluster = {"cluster": {"worker": every}, "task": {"type": "worker", "index": rank}}
        os.environ["TF_CONFIG"] = json.dumps(cluster)
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def make_layer(layer: Any, numbers: dict[str, Any], keras: Any) -> Any:
    """The Keras layer for a torch layer with weights; padding is a separate operation.

    In Keras, BatchNorm's momentum is the weight of the old running statistic; in torch, it is the
    weight of the batch's statistic. The running variance of Keras's fused kernel is unbiased, as in
    torch.
    """
    if isinstance(layer, nn.BatchNorm2d):
        made = keras.layers.BatchNormalization(
            momentum=1 - numbers["momentum"], epsilon=numbers["eps"], fused=True
        )
        made.build((None, None, None, layer.num_features))
        return made
    if isinstance(layer, nn.Linear):
        made = keras.layers.Dense(layer.out_features, use_bias=layer.bias is not None)
        made.build((None, layer.in_features))
        return made
    options = {
        "strides": numbers["stride"],
        "dilation_rate": numbers["dilation"],
        "use_bias": layer.bias is not None,
    }
    if layer.groups > 1:
        made = keras.layers.DepthwiseConv2D(layer.kernel_size, **options)
    else:
        made = keras.layers.Conv2D(layer.out_channels, layer.kernel_size, **options)
    made.build((None, None, None, layer.in_channels))
    return made


class Network:
    """The operations of a torch network, computed by TensorFlow with Keras's layers."""

    def __init__(self, model: nn.Module) -> None:
        self._tf, self._keras = _tensorflow()
        self.operations = rebuilt.operations_of(model)
        self.layers = {
            each.module: make_layer(model.get_submodule(each.module), each.numbers, self._keras)
            for each in self.operations
            if each.kind in ("conv", "norm", "linear")
        }

    def __call__(self, images: Any, seed: Any = None) -> Any:
        """Logits [b, classes] for images [b, H, W, C]. `seed`: for dropout; None in evaluation."""
        values: dict[str, Any] = {}
        for index, each in enumerate(self.operations):
            given = [values[name] for name in each.inputs] or [images]
            values[each.name] = self._compute(each, given, None if seed is None else [seed, index])
        return given[0]

    def _compute(self, each: Operation, given: list[Any], seed: list[Any] | None) -> Any:
        tf, x, numbers = self._tf, given[0], each.numbers
        match each.kind:
            case "conv":
                padding = rebuilt.pads(numbers["padding"])
                x = tf.pad(x, padding) if any(map(any, padding)) else x
                return self.layers[each.module](x)
            case "norm":
                return self.layers[each.module](x, training=seed is not None)
            case "linear":
                return self.layers[each.module](x)
            case "relu" | "relu6":
                return getattr(tf.nn, each.kind)(x)
            case "max_pool" | "avg_pool":
                lowest = -math.inf if each.kind == "max_pool" else 0.0
                pool = tf.nn.max_pool2d if each.kind == "max_pool" else tf.nn.avg_pool2d
                x = tf.pad(x, rebuilt.pads(numbers["padding"]), constant_values=lowest)
                return pool(x, numbers["kernel_size"], numbers["stride"], "VALID")
            case "mean":
                return tf.reduce_mean(x, [1, 2], keepdims=True)
            case "flatten":  # in torch's channel order
                x = tf.transpose(x, [0, 3, 1, 2]) if len(x.shape) == 4 else x
                return tf.reshape(x, [tf.shape(x)[0], math.prod(x.shape[1:])])
            case "dropout":
                drawn = seed is not None and numbers["p"]
                return tf.nn.experimental.stateless_dropout(x, numbers["p"], seed) if drawn else x
            case "add":
                return given[0] + given[1]
            case "cat":
                return tf.concat(given, -1)
            case "subsample":
                return x[:, :: numbers["step"], :: numbers["step"], :]
            case "widen":
                return tf.pad(x, [(0, 0), (0, 0), (0, 0), (0, numbers["channels"])])
            case _:
                return x

    def variables(self, model: nn.Module) -> dict[str, Any]:
        """torch's name of each weight and running statistic -> TensorFlow's variable."""
        found = {}
        for name, layer in self.layers.items():
            if isinstance(model.get_submodule(name), nn.BatchNorm2d):
                kinds = {
                    "weight": layer.gamma,
                    "bias": layer.beta,
                    "running_mean": layer.moving_mean,
                    "running_var": layer.moving_variance,
                }
            else:
                depthwise = hasattr(layer, "depthwise_kernel")
                kernel = layer.depthwise_kernel if depthwise else layer.kernel
                kinds = {"weight": kernel, "bias": layer.bias}
            found.update({f"{name}.{kind}": each for kind, each in kinds.items()})
        return {name: each for name, each in found.items() if each is not None}


class TensorFlowEngine(RebuiltEngine):
    """A training step as one tf.function on each worker."""

    depthwise = (2, 3, 0, 1)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        tf, _ = _tensorflow()
        self._tf, self._distribute = tf, _workers(self.world.rank, self.world.size)
        with self._distribute.scope():
            self._network = Network(self.model)
            self._variables = self._network.variables(self.model)
            for name, keys in self.slots.items():
                for key in keys:
                    zeros = tf.zeros_like(self._variables[name])
                    self._variables[key] = tf.Variable(zeros, trainable=False)
            self._variables["steps"] = tf.Variable(0.0, trainable=False)
        self._traced: dict[Rules, Any] = {}
        self._infer = tf.function(
            lambda images: self._distribute.run(self._network, args=(images,)),
            reduce_retracing=True,
        )
        self.give_weights()

    def read(self, key: str) -> Array:
        local = self._distribute.experimental_local_results(self._variables[key])[0]
        return np.array(local.numpy())

    def write(self, key: str, value: Array) -> None:
        self._variables[key].assign(value)

    def compute_step(self, *fed: Any) -> float:
        tf, run, rules = self._tf, self._distribute.run, self.rules()
        if rules not in self._traced:
            with self.compiler.timed():
                self._traced[rules] = tf.function(
                    lambda *own: run(lambda *each: self._train(rules, *each), args=own),
                    input_signature=self._signature(fed),
                ).get_concrete_function()
        return float(self._traced[rules](*map(tf.constant, fed)))

    def _signature(self, fed: tuple[Any, ...]) -> tuple[Any, ...]:
        """The signature of a step's arguments, for any number of samples."""
        shapes = [np.shape(each) for each in fed]
        shapes[:2] = [(None, *shape[1:]) for shape in shapes[:2]]
        return tuple(
            self._tf.TensorSpec(shape, each.dtype) for shape, each in zip(shapes, fed, strict=True)
        )

    def _train(
        self,
        rules: Rules,
        images: Any,
        labels: Any,
        sizes: Any,
        real: Any,
        factor: Any,
        rates: Any,
        seeds: Any,
    ) -> Any:
        """One worker's step: gradients of the micro-batches, their mean over workers, update."""
        tf = self._tf
        weights = [self._variables[name] for name in self.groups]
        sums: list[Any] = []
        total = tf.constant(0.0)
        several = self.settings.accumulate
        whole = several == 1
        parts = [images] if whole else tf.split(images, sizes, num=several)
        classes = [labels] if whole else tf.split(labels, sizes, num=several)
        for index in range(several):
            # one after the other, so that only one micro-batch's activations are in memory
            with tf.control_dependencies(sums), tf.GradientTape() as tape:
                logits = self._network(tf.identity(parts[index]), seeds[index])
                loss = self._loss(logits, classes[index], real[index])
                share = loss * factor
            gradients = tape.gradient(share, weights)
            sums = [a + b for a, b in zip(sums, gradients, strict=True)] if sums else gradients
            total += loss
        context = tf.distribute.get_replica_context()
        gradients = list(context.all_reduce(tf.distribute.ReduceOp.MEAN, sums))
        if self.settings.clip_norm is not None:
            norm = tf.linalg.global_norm(gradients)
            # as torch.nn.utils.clip_grad_norm_
            scale = tf.minimum(1.0, self.settings.clip_norm / (norm + 1e-6))
            gradients = [each * scale for each in gradients]
        context.merge_call(self._update, args=(rules, rates, *gradients))
        return total

    def _loss(self, logits: Any, labels: Any, real: Any) -> Any:
        """The summed cross-entropy of the samples that are not padding."""
        tf, smoothing = self._tf, self.settings.label_smoothing
        classes = logits.shape[-1]
        target = tf.one_hot(labels, classes) * (1 - smoothing) + smoothing / classes
        each = tf.nn.softmax_cross_entropy_with_logits(target, logits)
        counts = tf.range(tf.shape(labels)[0]) < real
        return tf.reduce_sum(tf.where(counts, each, tf.zeros_like(each)))

    def _update(self, distribute: Any, rules: Rules, rates: Any, *gradients: Any) -> None:
        steps, update = self._variables["steps"], distribute.extended.update

        def change(weight: Any, gradient: Any, rates: Any, number: int, *kept: Any) -> None:
            rule, (steps, *slots) = dict(rules[number]), kept
            changed, after = updated(rule, rates[number], weight, gradient, slots, steps)
            weight.assign(changed)
            for slot, value in zip(slots, after, strict=True):
                slot.assign(value)

        update(steps, lambda steps: steps.assign_add(1.0), group=False)
        for (name, number), gradient in zip(self.groups.items(), gradients, strict=True):
            slots = [self._variables[key] for key in self.slots[name]]
            given = (gradient, rates, number, steps, *slots)
            update(self._variables[name], change, args=given, group=False)

    def forward(self, images: Tensor) -> Tensor:
        given = self._tf.constant(images.permute(0, 2, 3, 1).contiguous().numpy())
        return torch.from_numpy(np.array(self._infer(given)))


class FitEngine(TensorFlowEngine):
    """The step of TensorFlowEngine, as the `train_step` of a Keras model. The model's `fit` runs in
    a thread, and takes the next batch after each step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._batches: queue.Queue[Any] = queue.Queue()
        self._losses: queue.Queue[Any] = queue.Queue()
        self._fit: threading.Thread | None = None
        self._fitted: Rules | None = None

    def compute_step(self, *fed: Any) -> float:
        if self._fitted != self.rules():
            self._end_fit()
            self._fitted = self.rules()
            self._fit = threading.Thread(
                target=self._run_fit, args=(self._fitted, fed), daemon=True, name="fit"
            )
            self._fit.start()
        self._batches.put(fed)
        loss = self._losses.get()
        if isinstance(loss, BaseException):
            raise loss
        return float(loss)

    def _run_fit(self, rules: Rules, example: tuple[Any, ...]) -> None:
        tf, keras = _tensorflow()
        train, losses, workers = self._train, self._losses, self.world.size
        batches = self._batches  # a local variable: TensorFlow's graphs would keep `self` alive

        class Fitted(keras.Model):  # type: ignore[name-defined]
            def train_step(self, data: Any) -> dict[str, Any]:
                return {"loss": train(rules, *data)}

        class Told(keras.callbacks.Callback):  # type: ignore[name-defined]
            def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
                losses.put(logs["loss"] / workers)  # Keras sums the loss over all workers

        signature = self._signature(example)

        def dataset(_: Any) -> Any:
            return tf.data.Dataset.from_generator(
                lambda: iter(batches.get, None), output_signature=signature
            )

        try:
            with self._distribute.scope():
                model = Fitted()
                model.compile()
                data = self._distribute.distribute_datasets_from_function(dataset)
                # `fit` ends with the data, but for distributed data Keras needs steps_per_epoch
                model.fit(data, steps_per_epoch=10**9, verbose=0, callbacks=[Told()])
        except BaseException as error:  # the waiting step raises it again
            losses.put(error)

    def _end_fit(self) -> None:
        if self._fit is not None:
            self._batches.put(None)
            self._fit.join()
            self._fit = None

    def close(self) -> None:
        super().close()
        self._end_fit()


class TensorFlow(RebuiltStrategy):
    """Gradients are averaged by the collectives of MultiWorkerMirroredStrategy."""

    engine = TensorFlowEngine

    def join(self, world: World) -> None:
        _workers(world.rank, world.size)


class Keras(TensorFlow):
    """Gradients are averaged as in `TensorFlow`, but Keras's `fit` runs the steps."""

    engine = FitEngine
