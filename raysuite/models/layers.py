"""The costs of a network's layers, counted once for each network and kept in the cache folder, so
that simulations need not import torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from raysuite.files import code_digest, write_whole
from raysuite.spec.datasets import DatasetFacts, cache_dir
from raysuite.spec.experiment import ModelOptions


@dataclass(frozen=True)
class LayerCost:
    """The cost of one image in a module, without the cost of its submodules."""

    name: str
    parameters: int
    trained: int
    """Number of the parameters that are not frozen."""
    forward_flops: int
    """Multiply-adds, counted as in `ModelCost.forward_flops`."""
    output_bytes: int
    """Bytes of the output in fp32."""


def kept(
    model: ModelOptions, facts: DatasetFacts, count: Callable[[], list[LayerCost]]
) -> list[LayerCost]:
    """The costs that an earlier process has written to the cache, or else the result of `count()`.
    The costs of a user's own network are not cached, because its code may change."""
    file = _file(model, facts)
    with contextlib.suppress(OSError, ValueError, TypeError):
        return [LayerCost(**each) for each in json.loads(file.read_text("utf-8"))]
    found = count()
    if ":" not in model.name or model.name.startswith("timm:"):
        with contextlib.suppress(OSError):  # the folder may not be writable
            write_whole(file, json.dumps([asdict(each) for each in found]).encode())
    return found


def _file(model: ModelOptions, facts: DatasetFacts) -> Path:
    shape = [facts.classes, facts.channels, facts.image_size, facts.sequence, facts.inputs]
    content = [model.model_dump(mode="json"), shape, code_digest(), *map(_version, _LIBRARIES)]
    told = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "layers" / f"{told}.json"


_LIBRARIES = ("torch", "torchvision", "timm")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
