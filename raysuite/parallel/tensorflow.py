"""TensorFlow's MultiWorkerMirroredStrategy, by a loop of our own or by Keras's `model.fit`.

(Abadi et al. 2016, "TensorFlow", OSDI 12; Mahon et al. 2020 compare both with PyTorch and Horovod.)

The network is built of Keras layers from what torch.fx traces of ours, and starts from its weights:
see `raysuite.parallel.tracing`. Images lie as [b, H, W, C], which TensorFlow computes in on CPUs.
Loss, learning rates, decay, momentum and clipping are those of every other strategy, and so is the
order of arithmetic in the optimiser: Keras's own momentum holds learning rates of earlier steps.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import socket
import threading
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from raysuite.errors import MissingPartError
from raysuite.parallel.base import Engine, MakeOptimizer, StepSettings, World, set_lr
from raysuite.parallel.comm import TorchComm, join_torch_group, leave_torch_group, shared_store
from raysuite.parallel.tracing import Operation, operations_of
from raysuite.spec.strategies import KerasOptions, TensorflowOptions

if TYPE_CHECKING:
    from raysuite.data.base import Batch

Rules = tuple[tuple[tuple[str, Any], ...], ...]
"""[groups of weights][(name, value) of each setting of the optimiser but its rate]."""

_TO_TF: dict[int, tuple[int, ...]] = {4: (2, 3, 1, 0), 2: (1, 0)}
"""Dimensions of a weight -> how torch's are transposed."""
_TO_TORCH: dict[int, tuple[int, ...]] = {4: (3, 2, 0, 1), 2: (1, 0)}


@cache
def _tensorflow() -> tuple[Any, Any]:
    """tensorflow and tf_keras, on CPUs alone, with as many threads as torch has here."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with contextlib.suppress(ImportError):
        # torch imports it later, and its LLVM then finds the options of TensorFlow's registered
        # already, and ends the process (triton 3.9, TensorFlow 2.21)
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
    """TensorFlow's strategy, of which a process can make one: it begins with TensorFlow's runtime.

    TF_CONFIG names the address of every worker, each with a port that is free now.
    """
    tf, _ = _tensorflow()
    if size > 1:
        store = shared_store("tensorflow", rank, size)
        store.set(str(rank), _free_address())
        every = [store.get(str(each)).decode() for each in range(size)]
        cluster = {"cluster": {"worker": every}, "task": {"type": "worker", "index": rank}}
        os.environ["TF_CONFIG"] = json.dumps(cluster)
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def _free_address() -> str:
    """Of this host, as the other workers reach it."""
    meeting = os.environ.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as prober:
        prober.connect((meeting, 9))  # sends nothing
        host = prober.getsockname()[0]
    with socket.socket() as taken:
        taken.bind((host, 0))
        return f"{host}:{taken.getsockname()[1]}"


class TensorFlow:
    """Gradients are averaged by the collectives of MultiWorkerMirroredStrategy."""

    lossy = False

    def __init__(self, options: TensorflowOptions | KerasOptions) -> None:
        self.options = options
        self._joined = False
        self._world: World | None = None

    def start(self, world: World) -> None:
        """Join torch's group, for what the loop itself asks of all ranks, and TensorFlow's."""
        _tensorflow()
        self._world = world
        self._joined = join_torch_group(world.rank, world.size, world.device)
        _workers(world.rank, world.size)

    def prepare(
        self, model: nn.Module, make_optimizer: MakeOptimizer, settings: StepSettings
    ) -> Engine:
        assert self._world is not None, "start() comes first"
        kind = FitEngine if isinstance(self.options, KerasOptions) else TensorFlowEngine
        return kind(model, make_optimizer, self._world, settings)

    def stop(self) -> None:
        if self._joined:
            leave_torch_group()
            self._joined = False


def make_layer(layer: Any, keras: Any) -> Any:
    """Keras's layer for one of torch's with weights; padding is an operation of its own.

    Keras counts what momentum keeps of a running statistic, torch what it takes of the batch's.
    Both take the unbiased variance for it, as long as Keras computes the layer by its fused kernel.
    """
    if isinstance(layer, nn.BatchNorm2d):
        momentum = 1 - (layer.momentum or 0.0)
        made = keras.layers.BatchNormalization(momentum=momentum, epsilon=layer.eps, fused=True)
        made.build((None, None, None, layer.num_features))
        return made
    if isinstance(layer, nn.Linear):
        made = keras.layers.Dense(layer.out_features, use_bias=layer.bias is not None)
        made.build((None, layer.in_features))
        return made
    options = {
        "strides": layer.stride,
        "dilation_rate": layer.dilation,
        "use_bias": layer.bias is not None,
    }
    if layer.groups > 1:
        made = keras.layers.DepthwiseConv2D(layer.kernel_size, **options)
    else:
        made = keras.layers.Conv2D(layer.out_channels, layer.kernel_size, **options)
    made.build((None, None, None, layer.in_channels))
    return made


def pads(padding: Any) -> list[tuple[int, int]]:
    """Of [b, H, W, C], alike on both sides, as torch pads; TensorFlow's "same" is not."""
    height, width = (padding, padding) if isinstance(padding, int) else padding
    return [(0, 0), (height, height), (width, width), (0, 0)]


class Network:
    """The operations of a torch network, computed by TensorFlow with Keras's layers."""

    def __init__(self, model: nn.Module) -> None:
        self._tf, self._keras = _tensorflow()
        self.operations = operations_of(model)
        self.layers = {
            each.module: make_layer(model.get_submodule(each.module), self._keras)
            for each in self.operations
            if each.kind in ("conv", "norm", "linear")
        }

    def __call__(self, images: Any, training: bool) -> Any:
        """Logits [b, classes] for images [b, H, W, C]."""
        values: dict[str, Any] = {}
        for each in self.operations:
            given = [values[name] for name in each.inputs] or [images]
            values[each.name] = self._compute(each, given, training)
        return given[0]

    def _compute(self, each: Operation, given: list[Any], training: bool) -> Any:
        tf, x, numbers = self._tf, given[0], each.numbers
        match each.kind:
            case "conv":
                padded = any(any(pair) for pair in pads(numbers["padding"]))
                x = tf.pad(x, pads(numbers["padding"])) if padded else x
                return self.layers[each.module](x)
            case "norm":
                return self.layers[each.module](x, training=training)
            case "linear":
                return self.layers[each.module](x)
            case "relu":
                return tf.nn.relu(x)
            case "relu6":
                return tf.nn.relu6(x)
            case "max_pool" | "avg_pool":
                lowest = -math.inf if each.kind == "max_pool" else 0.0
                pool = tf.nn.max_pool2d if each.kind == "max_pool" else tf.nn.avg_pool2d
                x = tf.pad(x, pads(numbers["padding"]), constant_values=lowest)
                return pool(x, numbers["kernel_size"], numbers["stride"], "VALID")
            case "mean":
                return tf.reduce_mean(x, [1, 2], keepdims=True)
            case "flatten":  # in torch's order
                x = tf.transpose(x, [0, 3, 1, 2]) if len(x.shape) == 4 else x
                return tf.reshape(x, [tf.shape(x)[0], math.prod(x.shape[1:])])
            case "dropout":
                return tf.nn.dropout(x, numbers["p"]) if training and numbers["p"] else x
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
        """Torch's name of each weight and running statistic -> TensorFlow's variable."""
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


def _as_torch(value: Any, depthwise: bool) -> Tensor:
    array = np.asarray(value)
    order = (2, 3, 0, 1) if depthwise else _TO_TORCH.get(array.ndim)
    return torch.from_numpy(np.ascontiguousarray(array.transpose(order) if order else array))


def _as_tf(value: Tensor, depthwise: bool) -> Any:
    order = (2, 3, 0, 1) if depthwise else _TO_TF.get(value.ndim)
    return value.detach().permute(order).numpy() if order else value.detach().numpy()


class TensorFlowEngine(Engine):
    """A training step as one tf.function on each worker.

    `model`, torch's, has the weights of TensorFlow's variables whenever it is asked for them.
    """

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, world: World, settings: StepSettings
    ) -> None:
        super().__init__(model, TorchComm(world.device), world, settings)
        tf, _ = _tensorflow()
        self._tf, self._distribute = tf, _workers(world.rank, world.size)
        # rates, decay and momentum of every weight, as the spec asks for them
        self.optimizer = make_optimizer(model.parameters())
        names = {id(each): name for name, each in model.named_parameters()}
        self._groups = {
            names[id(each)]: number
            for number, group in enumerate(self.optimizer.param_groups)
            for each in group["params"]
        }
        kinds = ("m", "v") if isinstance(self.optimizer, torch.optim.AdamW) else ("m",)
        self._depthwise = {
            f"{name}.weight"
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Conv2d) and layer.groups > 1
        }
        with self._distribute.scope():
            self._network = Network(model)
            self._variables = self._network.variables(model)
            self._slots = {
                f"{kind}.{name}": tf.Variable(tf.zeros_like(self._variables[name]), trainable=False)
                for name in self._groups
                for kind in kinds
            }
            self._count = tf.Variable(0.0, trainable=False)
        self._step = tf.function(self._on_each_worker)
        self._infer = tf.function(
            lambda images: self._distribute.run(self._network, args=(images, False))
        )
        self._stale = False
        """TensorFlow has trained since `model` was given its weights."""
        self._give_weights()

    def _give_weights(self) -> None:
        state = self.model.state_dict()
        for name, variable in self._variables.items():
            variable.assign(_as_tf(state[name], name in self._depthwise))

    def _take_weights(self) -> None:
        """Into torch's model: the weights, and the running statistics of this rank."""
        if self._stale:
            state = self.model.state_dict()
            for name, variable in self._variables.items():
                state[name].copy_(_as_torch(self._own(variable), name in self._depthwise))
            self._stale = False

    def _own(self, variable: Any) -> Any:
        """This worker's value, without a collective."""
        return self._distribute.experimental_local_results(variable)[0].numpy()

    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        set_lr(self.optimizer, lr)
        loss = self._take_step(*self._fed(micro_batches))
        self._stale = True
        return torch.tensor(float(loss))

    def _fed(self, micro_batches: Sequence[Batch]) -> tuple[Any, ...]:
        """[n, H, W, C] images, [n] labels of all micro-batches, [a] their samples, [a] those that
        count, the rank's factor of the loss, and the learning rate of each group of weights."""
        images = torch.cat([each.images for each in micro_batches]).permute(0, 2, 3, 1)
        return (
            images.contiguous().numpy(),
            torch.cat([each.labels for each in micro_batches]).numpy().astype(np.int32),
            np.array([len(each.images) for each in micro_batches], np.int32),
            np.array([each.real for each in micro_batches], np.int32),
            np.float32(self.replicas / micro_batches[0].of_global),
            np.array([group["lr"] for group in self.optimizer.param_groups], np.float32),
        )

    def _take_step(self, *fed: Any) -> Any:
        tensors = tuple(self._tf.constant(each) for each in fed)
        return self._step(*tensors, rules=self._rules())

    def _rules(self) -> Rules:
        """Of each group of weights, what is not its rate; a step with others is traced anew."""
        keys = ("momentum", "nesterov", "weight_decay", "betas", "eps")
        return tuple(
            tuple((key, group[key]) for key in keys if key in group)
            for group in self.optimizer.param_groups
        )

    def _on_each_worker(self, *fed: Any, rules: Rules) -> Any:
        def run(*own: Any) -> Any:
            return self._train(rules, *own)

        return self._distribute.run(run, args=fed)

    def _train(
        self,
        rules: Rules,
        images: Any,
        labels: Any,
        sizes: Any,
        real: Any,
        factor: Any,
        rates: Any,
    ) -> Any:
        """On one worker: gradients of the micro-batches, their mean over workers, the update."""
        tf = self._tf
        weights = [self._variables[name] for name in self._groups]
        sums: list[Any] = []
        total = tf.constant(0.0)
        several = self.settings.accumulate
        whole = several == 1
        parts = [images] if whole else tf.split(images, sizes, num=several)
        classes = [labels] if whole else tf.split(labels, sizes, num=several)
        for index in range(several):
            # one after the other, or their activations would be held together
            with tf.control_dependencies(sums), tf.GradientTape() as tape:
                logits = self._network(tf.identity(parts[index]), True)
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
        """Summed cross-entropy of the samples that count."""
        tf, smoothing = self._tf, self.settings.label_smoothing
        classes = logits.shape[-1]
        target = tf.one_hot(labels, classes) * (1 - smoothing) + smoothing / classes
        each = tf.nn.softmax_cross_entropy_with_logits(target, logits)
        counts = tf.range(tf.shape(labels)[0]) < real
        return tf.reduce_sum(tf.where(counts, each, tf.zeros_like(each)))

    def _update(self, distribute: Any, rules: Rules, rates: Any, *gradients: Any) -> None:
        """As torch.optim.SGD and torch.optim.AdamW do it."""
        tf, update = self._tf, distribute.extended.update

        def sgd(weight: Any, gradient: Any, first: Any, rates: Any, number: int) -> None:
            rule = dict(rules[number])
            gradient += rule["weight_decay"] * weight
            first.assign(rule["momentum"] * first + gradient)
            way = gradient + rule["momentum"] * first if rule["nesterov"] else first
            weight.assign_sub(rates[number] * way)

        def adamw(
            weight: Any,
            gradient: Any,
            first: Any,
            rates: Any,
            number: int,
            second: Any,
            count: Any,
        ) -> None:
            rule = dict(rules[number])
            beta1, beta2 = rule["betas"]
            weight.assign(weight * (1 - rates[number] * rule["weight_decay"]))
            first.assign(beta1 * first + (1 - beta1) * gradient)
            second.assign(beta2 * second + (1 - beta2) * tf.square(gradient))
            mean = first / (1 - tf.pow(beta1, count))
            deviation = tf.sqrt(second / (1 - tf.pow(beta2, count)))
            weight.assign_sub(rates[number] * mean / (deviation + rule["eps"]))

        update(self._count, lambda count: count.assign_add(1.0), group=False)
        for (name, number), gradient in zip(self._groups.items(), gradients, strict=True):
            weight, given = self._variables[name], (gradient, self._slots[f"m.{name}"], rates)
            if f"v.{name}" in self._slots:
                more = (number, self._slots[f"v.{name}"], self._count)
                update(weight, adamw, args=(*given, *more), group=False)
            else:
                update(weight, sgd, args=(*given, number), group=False)

    def forward(self, images: Tensor) -> Tensor:
        given = self._tf.constant(images.permute(0, 2, 3, 1).contiguous().numpy())
        return torch.from_numpy(np.array(self._infer(given)))

    def weights(self) -> dict[str, Tensor]:
        self._take_weights()
        return {
            name: parameter.detach().cpu().clone()
            for name, parameter in self.model.named_parameters()
        }

    def average_buffers(self) -> None:
        self._take_weights()
        super().average_buffers()
        self._give_weights()

    def save(self, folder: Path) -> None:
        self._take_weights()
        if self.world.rank == 0:
            slots = {name: torch.from_numpy(self._own(each)) for name, each in self._slots.items()}
            steps = float(self._own(self._count))
            state = {"model": self.model.state_dict(), "slots": slots, "steps": steps}
            torch.save(state, folder / "engine.pt")

    def load(self, folder: Path) -> None:
        state = torch.load(folder / "engine.pt", map_location="cpu", weights_only=True)
        self.model.load_state_dict(state["model"])
        self._give_weights()
        for name, slot in self._slots.items():
            slot.assign(state["slots"][name].numpy())
        self._count.assign(state["steps"])
        self._stale = False


class FitEngine(TensorFlowEngine):
    """The same step as the `train_step` of a Keras model, whose `fit` runs in a thread of its own
    and asks for a batch whenever it has trained on one."""

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, world: World, settings: StepSettings
    ) -> None:
        super().__init__(model, make_optimizer, world, settings)
        self._batches: queue.Queue[Any] = queue.Queue()
        self._losses: queue.Queue[Any] = queue.Queue()
        self._fit: threading.Thread | None = None
        self._fitted: Rules | None = None

    def _take_step(self, *fed: Any) -> Any:
        if self._fitted != self._rules():
            self._end_fit()
            self._fitted = self._rules()
            self._fit = threading.Thread(
                target=self._run_fit, args=(self._fitted, fed), daemon=True, name="fit"
            )
            self._fit.start()
        self._batches.put(fed)
        loss = self._losses.get()
        if isinstance(loss, BaseException):
            raise loss
        return loss

    def _run_fit(self, rules: Rules, example: tuple[Any, ...]) -> None:
        tf, keras = _tensorflow()
        train, losses, workers = self._train, self._losses, self.world.size

        class Fitted(keras.Model):  # type: ignore[name-defined]
            def train_step(self, data: Any) -> dict[str, Any]:
                return {"loss": train(rules, *data)}

        class Told(keras.callbacks.Callback):  # type: ignore[name-defined]
            def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
                losses.put(logs["loss"] / workers)  # Keras adds up those of all workers

        def shape(value: Any) -> Any:
            return tf.TensorSpec(value.shape, value.dtype)

        images, labels, *rest = example
        signature = (
            tf.TensorSpec((None, *images.shape[1:]), images.dtype),
            tf.TensorSpec((None,), labels.dtype),
            *map(shape, rest),
        )

        def dataset(_: Any) -> Any:
            return tf.data.Dataset.from_generator(
                lambda: iter(self._batches.get, None), output_signature=signature
            )

        try:
            with self._distribute.scope():
                model = Fitted()
                model.compile()
                data = self._distribute.distribute_datasets_from_function(dataset)
                # until the data end; Keras wants a number for data that are distributed
                model.fit(data, steps_per_epoch=10**9, verbose=0, callbacks=[Told()])
        except BaseException as error:  # the step that waits for it raises it
            losses.put(error)

    def _end_fit(self) -> None:
        if self._fit is not None:
            self._batches.put(None)
            self._fit.join()
            self._fit = None

    def close(self) -> None:
        super().close()
        self._end_fit()
