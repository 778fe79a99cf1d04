"""Train on one process: the baseline of speed-ups, and the reference of the gate."""

from __future__ import annotations

from raysuite.parallel.base import BaseStrategy, FrameworkEngine, TorchEngine, World
from raysuite.parallel.comm import Comm, NoComm


class SingleEngine(FrameworkEngine, TorchEngine):
    """A plain training step."""

    def make_comm(self, world: World) -> Comm:
        return NoComm()


class Single(BaseStrategy):
    """Training on one process; no gradients are exchanged."""

    engine = SingleEngine
