"""A short check of each part of the installation:
`python -m raysuite.orchestrate.part_trials ray`.

A check runs in its own process. It returns if its part works, raises PartMissingError or
ModuleNotFoundError if the part is missing, RayStartError or TimeoutError if the part is too slow,
and any other exception if the part is broken. All checks except `gpu` use only the CPU, and all use
only the loopback address.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from raysuite.ending import end_group
from raysuite.errors import RayStartError
from raysuite.files import sqlite_uri
from raysuite.measure.environment import cuda_mistake_here, gpus
from raysuite.measure.topology import cpu_list, read_topology
from raysuite.orchestrate.torchrun import Request, verify
from raysuite.parts import PARTS, Part, installed, part
from raysuite.spec.strategies import (
    AccelerateOptions,
    DdpOptions,
    DeepSpeedOptions,
    FabricOptions,
    HorovodOptions,
    StrategyOptions,
)

# Which parts of the installation work: each is tried in its own process, with a deadline.

_AT_ONCE = 2
"""Number of parallel checks; each starts up to three processes, and a laptop should stay usable."""


class State(StrEnum):
    WORKS = "works"
    MISSING = "missing"
    SLOW = "slow"
    """The part's check did not end within its time limit, on a machine that is busy with other
    work."""
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    name: str
    version: str
    state: State
    note: str
    fix: str = ""
    """How to fix the part; empty if it works."""
    required: bool = False
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        """Whether the part is broken, or is required but missing or slow."""
        return self.state is State.BROKEN or (self.required and self.state is not State.WORKS)


_BUSY = 3.0
"""Load per processor above which a check that exceeds its time limit is no evidence of a fault;
`raysuite doctor` itself does not cause a higher load."""
TRIED = tuple(part for part in PARTS if part.title)


def try_parts() -> Iterator[Finding]:
    """Yield the findings in the order in which `raysuite doctor` prints them, each as soon as it
    and all earlier findings are known."""
    yield find_compiler()
    yield find_binding()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(try_part, TRIED)


def find_binding() -> Finding:
    """Find the memory nodes of this host. Workers are bound to them if there are several."""
    topology = read_topology()
    found = [f"{node}: CPUs {cpu_list(topology.cpus_of(node))}" for node in topology.nodes]
    what = "workers are bound to them" if len(found) > 1 else "workers are not bound"
    note = f"memory nodes {'; '.join(found)}; {what} (resources.binding)"
    return Finding("CPU binding", "", State.WORKS, note)


def find_compiler() -> Finding:
    """Find the C++ compiler of this machine, which is needed to build Horovod."""
    title, command = "C++ compiler", os.environ.get("CXX", "g++")
    path = shutil.which(command)
    if path is None:
        note = f"no {command}: `make setup` cannot build Horovod"
        fix = "apt-get install g++ (Debian, Ubuntu), then make setup"
        return Finding(title, "", State.MISSING, note, fix)
    answer = subprocess.run([path, "-dumpfullversion"], capture_output=True, text=True, check=False)
    version = answer.stdout.strip()
    return Finding(title, version, State.WORKS, path)


def try_part(part: Part) -> Finding:
    """Check a part in a new process group, which is killed at the deadline."""
    started = time.monotonic()
    command = [sys.executable, "-m", "raysuite.orchestrate.part_trials", part.name]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=part.deadline_s)
        note = _marked(output if process.returncode == 0 else errors)
        state = _STATES.get(process.returncode, State.BROKEN)
        if state is State.BROKEN and not note:
            note = _death(process.returncode, errors)
    except subprocess.TimeoutExpired:
        state, note = State.SLOW, f"its check did not end within {part.deadline_s:g} s"
    finally:
        end_group(process)  # ends a hanging rank, or a Ray that has not fully started
        process.communicate()
    if state is State.SLOW:
        load, processors = os.getloadavg()[0], os.cpu_count() or 1
        note = f"{note}; the load is {load:.0f} on {processors} processors"
        if load <= _BUSY * processors:
            state = State.BROKEN
    slow = "try again when the machine is less busy"
    fix = {State.WORKS: "", State.SLOW: slow}.get(state, part.install)
    seconds = round(time.monotonic() - started, 1)
    return Finding(part.title, _version(part), state, note, fix, part.required, seconds)


def _version(part: Part) -> str:
    try:
        return importlib.metadata.version(part.distribution) if part.distribution else ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def _marked(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith(MARK)]
    return lines[-1].removeprefix(MARK) if lines else ""


def _death(status: int, errors: str) -> str:
    lines = errors.strip().splitlines()
    detail = f": {lines[-1]}" if lines else ""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}{detail}"
    return f"exit status {status}{detail}"


# Messages from a check to the process that started it.

MARK = "raysuite-trial: "
"""Prefix of the line with a check's note (stdout) or error (stderr)."""

MISSING, SLOW = 3, 4
"""Exit status of a check whose part is missing, and of a check that did not end in time."""
_STATES = {0: State.WORKS, MISSING: State.MISSING, SLOW: State.SLOW}


class PartMissingError(Exception):
    """The part is not on this machine; the message names what was looked for."""


def expect(found: object, expected: object) -> None:
    """Raise AssertionError, even under `python -O`, if a part computed a wrong result."""
    if found != expected:
        raise AssertionError(f"got {found}, expected {expected}")


_GATE_S = 120.0


def by_gate(name: str, options: StrategyOptions) -> str:
    """Check a strategy as `raysuite verify` does: two processes train a small network together."""
    if not installed(name):
        raise PartMissingError(f"no module named {part(name).module}")
    # _GATE_S is less than the part's deadline, which would not end the gate's processes
    began = time.monotonic()
    [(_, verdict)] = verify(Request([options], workers=2, settings={}, timeout_s=_GATE_S))
    if not verdict.passed and time.monotonic() - began > _GATE_S:
        raise TimeoutError(verdict.message)
    if not verdict.passed:
        raise RuntimeError(verdict.message)
    return "2 processes"


def torch() -> str:
    """Compute a gradient with torch."""
    import torch as t

    weight = t.ones(3, requires_grad=True)
    (weight**2).sum().backward()
    assert weight.grad is not None
    expect(weight.grad.tolist(), [2.0, 2.0, 2.0])
    return f"CUDA {t.version.cuda or 'not built in'}"


def torchvision() -> str:
    """Call an operator of torchvision's compiled library; a wrong build of torch makes it fail."""
    import torch as t
    import torchvision as tv

    boxes = t.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 2.0]])
    kept = tv.ops.nms(boxes, t.tensor([0.9, 0.8]), 0.5)
    expect(kept.tolist(), [0])
    return ""


def ray() -> str:
    """Start Ray in the same way as for runs, and run a task on it."""
    from raysuite.orchestrate.ray_cluster import connect

    with connect(None):
        import ray as r  # on use: `connect` sets variables that Ray reads on import

        expect(r.get(r.remote(_twice).remote(1), timeout=_GATE_S), 2)
    return ""


def dali() -> str:
    """Decode and resize a JPEG with a DALI pipeline on the CPU."""
    import io

    import numpy as np
    from nvidia.dali import fn, pipeline_def
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.zeros((32, 48, 3), np.uint8)).save(stream, "JPEG")
    encoded = np.frombuffer(stream.getvalue(), np.uint8)

    @pipeline_def(batch_size=2, num_threads=1, device_id=None)
    def pipeline() -> object:
        jpeg = fn.external_source(source=lambda _: encoded, batch=False)
        return fn.resize(fn.decoders.image(jpeg, device="cpu"), resize_x=16, resize_y=8)

    pipe = pipeline()
    pipe.build()
    (images,) = pipe.run()
    expect(tuple(images.at(0).shape), (8, 16, 3))
    return "CPU pipeline"


def timm() -> str:
    """Make an untrained model of timm."""
    import timm as models
    import torch as t

    with t.device("meta"):
        model = models.create_model("resnet18", pretrained=False, num_classes=5)
        expect(tuple(model(t.zeros(2, 3, 64, 64)).shape), (2, 5))
    return f"{len(models.list_models())} models"


def schedulefree() -> str:
    """Take one step of schedulefree's optimiser."""
    import torch as t
    from schedulefree import AdamWScheduleFree

    weight = t.nn.Parameter(t.ones(1))
    optimizer = AdamWScheduleFree([weight], lr=0.5)
    optimizer.train()
    weight.grad = t.ones(1)
    optimizer.step()
    expect(round(weight.item(), 4), 0.5)
    return "CPU"


def tensorflow() -> str:
    """Compute a gradient of a tf_keras layer."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf
    import tf_keras as keras

    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((None, 2))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(tf.constant([[1.0, 2.0]])))
    expect(tape.gradient(total, layer.kernel).numpy().tolist(), [[1.0], [2.0]])
    return "CPU"


def jax() -> str:
    """Compute a gradient with JAX."""
    import jax as j

    j.config.update("jax_platforms", "cpu")
    expect(float(j.grad(lambda x: x**2)(3.0)), 6.0)
    return "CPU"


def _twice(number: int) -> int:
    return 2 * number


def mlflow() -> str:
    """Write a metric to a new SQLite store of MLflow, and read it back."""
    from raysuite.track.store import quiet

    with tempfile.TemporaryDirectory() as folder, quiet():
        from mlflow import MlflowClient

        client = MlflowClient(sqlite_uri(Path(folder, "trial.db")))
        experiment = client.create_experiment("trial", artifact_location=Path(folder).as_uri())
        run = client.create_run(experiment).info.run_id
        client.log_metric(run, "loss", 0.5, step=1)
        expect(client.get_metric_history(run, "loss")[0].value, 0.5)
    return "SQLite store"


def gpu() -> str:
    """Query NVML, and compute a sum on the first GPU."""
    found = gpus()
    if not found:
        raise PartMissingError("NVML finds no NVIDIA GPU")
    if mistake := cuda_mistake_here():
        raise RuntimeError(mistake)
    import torch as t

    expect(t.ones(8, device="cuda").sum().item(), 8.0)
    return f"{len(found)} x {found[0]['name']}, driver {found[0]['driver']}"


TRIALS: dict[str, Callable[[], str]] = {
    "torch": torch,
    "torchvision": torchvision,
    "ray": ray,
    "gloo": partial(by_gate, "gloo", DdpOptions()),
    "horovod": partial(by_gate, "horovod", HorovodOptions()),
    "deepspeed": partial(by_gate, "deepspeed", DeepSpeedOptions(zero_stage=1)),
    "dali": dali,
    "timm": timm,
    "schedulefree": schedulefree,
    "fabric": partial(by_gate, "fabric", FabricOptions()),
    "accelerate": partial(by_gate, "accelerate", AccelerateOptions()),
    "tensorflow": tensorflow,
    "jax": jax,
    "mlflow": mlflow,
    "gpu": gpu,
}


def main(arguments: list[str]) -> int:
    """Run one check; print its note on stdout, or its error on stderr."""
    (name,) = arguments
    try:
        print(MARK + TRIALS[name]())
    except (PartMissingError, ModuleNotFoundError) as error:
        print(f"{MARK}{error}", file=sys.stderr)
        return MISSING
    except (RayStartError, TimeoutError) as error:
        print(f"{MARK}{error}", file=sys.stderr)
        return SLOW
    except Exception as error:  # any error shows that the part is broken
        print(f"{MARK}{type(error).__name__}: {error}".replace("\n", " "), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
