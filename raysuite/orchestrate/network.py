"""Time collectives between this machine's processes, without Ray: one launch of torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from raysuite.cluster.ports import held_port
from raysuite.errors import RunError


def time_collectives(
    request: dict[str, Any], workers: int, timeout_s: float
) -> list[dict[str, Any]]:
    """What `raysuite.train.network` wrote. Raises RunError where its processes fail or hang."""
    with tempfile.TemporaryDirectory(prefix="raysuite-network-") as folder, held_port() as port:
        file = Path(folder) / "times.jsonl"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--master-addr", "127.0.0.1"]
        launcher += ["--nproc-per-node", str(workers), "--master-port", str(port)]
        try:
            done = subprocess.run(
                [*launcher, "-m", "raysuite.train.network", str(file), json.dumps(request)],
                env={"OMP_NUM_THREADS": "1", **os.environ},
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RunError(
                f"no end within {timeout_s:g} s; ask for fewer bytes or repeats, or a longer "
                "--timeout"
            ) from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "Error" in line]
            raise RunError(f"the processes failed: {(lines or ['nothing was said'])[-1][:300]}")
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()]
