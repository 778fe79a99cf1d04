"""Start a module of this repository on some ranks, as a person would; `tests.ranks` is faster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from raysuite.cluster.ports import held_port

ROOT = Path(__file__).parents[1]


def torchrun(
    workers: int, module: str, *arguments: object, timeout_s: float = 240, fails: bool = False
) -> str:
    """Run `python -m MODULE ARGUMENTS` on `workers` ranks; what all of them wrote."""
    with held_port() as port:
        launcher = ["torch.distributed.run", "--nproc-per-node", workers, "--master-port", port]
        done = subprocess.run(
            [sys.executable, *map(str, ["-m", *launcher, "-m", module, *arguments])],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    assert (done.returncode != 0) == fails, done.stdout[-6000:]
    return done.stdout
