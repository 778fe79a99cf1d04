"""Verdicts of the gate that are kept: where, and for what they hold."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import zlib
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from raysuite import optim, parallel
from raysuite.data import cache_dir, order
from raysuite.measure.environment import fingerprint
from raysuite.parallel.base import StepSettings, World
from raysuite.parallel.comm import Comm
from raysuite.records import GateVerdict
from raysuite.spec import schedules
from raysuite.spec.optimizers import OptimizerOptions
from raysuite.spec.strategies import StrategyOptions


def places(comm: Comm, facts: dict[str, Any]) -> list[list[int]]:
    """[ranks, 3]: host, fingerprint, transport of each rank, as numbers. All ranks must call it.

    The transport: environment variables by which the libraries choose other algorithms.
    """
    transport = {
        name: value
        for name, value in os.environ.items()
        if (name.startswith("NCCL_") and not name.startswith("NCCL_DEBUG"))
        or name in _HOROVODS_ALGORITHMS
    }
    own = [
        zlib.crc32(socket.gethostname().encode()),
        int(fingerprint(facts), 16) >> 1,
        zlib.crc32(json.dumps(transport, sort_keys=True).encode()),
    ]
    gathered: list[list[int]] = comm.all_gather(torch.tensor(own)).tolist()
    return gathered


def cache_file(
    options: StrategyOptions,
    world: World,
    settings: StepSettings,
    places: list[list[int]],
    optimizer: OptimizerOptions | None = None,
    network: Any = None,
) -> Path:
    """Where a pass is kept: another file for other options, versions, machines or code, and for
    each of the runs' own networks (`own_network.key`).

    Which hosts they are does not matter; how many ranks lie on each does.
    """
    ours = [
        *Path(parallel.__file__).parent.rglob("*.py"),
        *Path(optim.__file__).parent.glob("*.py"),
        *(Path(__file__).with_name(f"{name}.py") for name in _JUDGES),
        Path(str(order.__file__)),
        Path(str(schedules.__file__)),
    ]
    content = [
        options.model_dump(mode="json"),
        world.size,
        world.device.type,
        asdict(replace(settings, micro_batch=1)),
        sorted(Counter(host for host, *_ in places).values()),
        sorted({tuple(machine) for _, *machine in places}),
        None if optimizer is None else optimizer.model_dump(mode="json"),
        network,
        [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(ours)],
    ]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "gate" / f"{options.name}-w{world.size}-{digest}.json"


_HOROVODS_ALGORITHMS = ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_TORUS_ALLREDUCE")
_JUDGES = ("gate", "examination", "small_network", "verdicts")


def known_pass(file: Path) -> GateVerdict | None:
    """The verdict in a file of `cache_file`; None where there is no pass to be read."""
    try:
        verdict = GateVerdict.model_validate_json(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return verdict if verdict.passed else None
