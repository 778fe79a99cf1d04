"""One small trial of each part: `python -m raysuite.measure.trials ray`.

A trial runs in a process of its own. It ends quietly where its part works, raises PartMissingError
or ModuleNotFoundError where the part is not there, and anything else where it is broken. Trials use
the CPU and the loopback address alone.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable

from raysuite.measure.environment import cuda_mistake_here
from raysuite.measure.rank_trials import (
    RANK_TRIALS,
    deepspeed,
    gloo,
    horovod,
)
from raysuite.measure.trial_protocol import MARK, MISSING, PartMissingError, expect


def torch() -> str:
    """A gradient."""
    import torch as t

    weight = t.ones(3, requires_grad=True)
    (weight**2).sum().backward()
    assert weight.grad is not None
    expect(weight.grad.tolist(), [2.0, 2.0, 2.0])
    return f"CUDA {t.version.cuda or 'not built in'}"


def torchvision() -> str:
    """An operator of its compiled library, which a torch of another build breaks."""
    import torch as t
    import torchvision as tv

    boxes = t.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 2.0]])
    kept = tv.ops.nms(boxes, t.tensor([0.9, 0.8]), 0.5)
    expect(kept.tolist(), [0])
    return ""


def ray() -> str:
    """A task on a cluster of one process, with a folder of its own: /tmp/ray may be another's.

    Ray gives its folder mode 0777, so it lies in one of mode 0700.
    """
    import ray as r

    with tempfile.TemporaryDirectory(prefix="rs-", ignore_cleanup_errors=True) as folder:
        r.init(
            address="local",
            num_cpus=1,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=f"{folder}/r",
        )
        try:
            task = r.remote(_twice)
            expect(r.get(task.remote(1), timeout=60), 2)
        finally:
            r.shutdown()
    return ""


def dali() -> str:
    """A JPEG decoded and resized by a pipeline on the CPU."""
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
    """A model of its table, untrained."""
    import timm as models
    import torch as t

    with t.device("meta"):
        model = models.create_model("resnet18", pretrained=False, num_classes=5)
        expect(tuple(model(t.zeros(2, 3, 64, 64)).shape), (2, 5))
    return f"{len(models.list_models())} models"


def _twice(number: int) -> int:
    return 2 * number


def mlflow() -> str:
    """A metric written to a new SQLite store and read back."""
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory() as folder:
        client = MlflowClient(f"sqlite:///{folder}/trial.db")
        experiment = client.create_experiment("trial", artifact_location=folder)
        run = client.create_run(experiment).info.run_id
        client.log_metric(run, "loss", 0.5, step=1)
        expect(client.get_metric_history(run, "loss")[0].value, 0.5)
    return "SQLite store"


def gpu() -> str:
    """NVML's answer, and a sum on the first GPU."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        raise PartMissingError(f"no NVIDIA GPU ({error})") from error
    if count == 0:
        raise PartMissingError("no NVIDIA GPU")
    names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]
    driver = pynvml.nvmlSystemGetDriverVersion()

    if mistake := cuda_mistake_here():
        raise RuntimeError(mistake)
    import torch as t

    expect(t.ones(8, device="cuda").sum().item(), 8.0)
    return f"{count} x {names[0]}, driver {driver}"


TRIALS: dict[str, Callable[[], str]] = {
    "torch": torch,
    "torchvision": torchvision,
    "ray": ray,
    "gloo": gloo,
    "horovod": horovod,
    "deepspeed": deepspeed,
    "dali": dali,
    "timm": timm,
    "mlflow": mlflow,
    "gpu": gpu,
}


def main(arguments: list[str]) -> int:
    """Run one trial and print its note; the last line on stderr says what went wrong."""
    name, *rest = arguments
    try:
        if rest:
            RANK_TRIALS[name](int(rest[-1]))
        else:
            print(MARK + TRIALS[name]())
    except (PartMissingError, ModuleNotFoundError) as error:
        print(f"{MARK}{error}", file=sys.stderr)
        return MISSING
    except Exception as error:  # whatever a broken part raises is the finding
        print(f"{MARK}{type(error).__name__}: {error}".replace("\n", " "), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
