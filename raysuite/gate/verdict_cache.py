"""The cache of the gate's verdicts: its files, and the conditions under which a verdict holds."""

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

from raysuite.data import cache_dir
from raysuite.files import code_digest, write_whole
from raysuite.gate.small_network import RATES, TOLERANCE
from raysuite.measure.environment import fingerprint
from raysuite.parallel.base import StepSettings, World
from raysuite.parallel.comm import Comm
from raysuite.records import GateVerdict
from raysuite.spec.optimizers import OptimizerOptions
from raysuite.spec.strategies import StrategyOptions

_HOROVODS_ALGORITHMS = ("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_TORUS_ALLREDUCE")


def places(comm: Comm, facts: dict[str, Any]) -> list[list[int]]:
    """Hashes [ranks, 3] of each rank's host, environment and transport. All ranks must call this
    function.

    The transport's hash covers the environment variables by which NCCL and Horovod choose
    algorithms.
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


class VerdictCache:
    """Passed checks of a strategy in rank 0's cache folder: one file per combination of options,
    settings, versions, machine types, code and own network.

    A file's name depends on how many ranks each host has, but not on the names of hosts.
    """

    def __init__(
        self, options: StrategyOptions, world: World, comm: Comm, places: list[list[int]]
    ) -> None:
        self._options, self._world, self._comm, self._places = options, world, comm, places

    def file(
        self, settings: StepSettings, optimizer: OptimizerOptions | None = None, network: Any = None
    ) -> Path:
        """The file for a passed check; `network` is a result of `own_network.key`."""
        options, world = self._options, self._world
        content = [
            options.model_dump(mode="json"),
            world.size,
            world.device.type,
            asdict(replace(settings, micro_batch=1)),
            sorted(Counter(host for host, *_ in self._places).values()),
            sorted({tuple(machine) for _, *machine in self._places}),
            None if optimizer is None else optimizer.model_dump(mode="json"),
            network,
            code_digest(),
        ]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
        return cache_dir() / "gate" / f"{options.name}-w{world.size}-{digest}.json"

    def find(self, *key: Any) -> GateVerdict | None:
        """The verdict in rank 0's cache for `key`: the arguments of `self.file`. All ranks must
        call this method."""
        file = self.file(*key)
        known = known_pass(file) if self._world.rank == 0 else None
        if not self._comm.all_reduce(torch.tensor([float(known is not None)]), "max").item():
            return None
        return known or known_pass(file) or self._unread()

    def keep(self, verdict: GateVerdict, *key: Any) -> None:
        """Store a passed check on rank 0; `key`: the arguments of `self.file`."""
        if self._world.rank == 0:
            write_whole(self.file(*key), verdict.model_dump_json().encode())

    def _unread(self) -> GateVerdict:
        """The placeholder that a rank returns in place of the verdict if it cannot read rank 0's
        cache. It is never stored, because only rank 0 stores records."""
        return GateVerdict(
            run_id="",
            strategy="",
            workers=self._world.size,
            steps=len(RATES),
            passed=True,
            ranks_equal=True,
            error=0.0,
            error_batchnorm=0.0,
            tolerance=TOLERANCE,
            rule="known to rank 0",
        )


def known_pass(file: Path) -> GateVerdict | None:
    """The verdict in a file of the cache; None if the file has no verdict that passed."""
    try:
        verdict = GateVerdict.model_validate_json(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return verdict if verdict.passed else None
