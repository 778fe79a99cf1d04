"""What the ranks of a worker module of this folder find, each launch made once a process of pytest.

A worker module is run as `python -m tests.contract.WORKER REQUEST FILE`, and each of its ranks
writes what it found as JSON: rank 3 into FILE.3.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from raysuite.spec.strategies import STRATEGY_OPTIONS
from tests.ranks import DEEPSPEED, ranks
from tests.require import require

LOADED = {"deepspeed": DEEPSPEED}
"""Framework -> what takes long to import; Horovod does not, and torch is there anyway."""


def found_by(
    framework: str, workers: int, worker: str, request: Any, timeout_s: float = 240
) -> list[Any]:
    """What each rank found; skips the calling test where the framework is missing.

    A launch that fails is not made again, but fails each test that asks for it.
    """
    if part := STRATEGY_OPTIONS[framework].part:
        require(part)
    found, failure = _launched(framework, workers, worker, json.dumps(request), timeout_s)
    assert not failure, failure
    return found


@functools.cache
def _launched(
    framework: str, workers: int, worker: str, request: str, timeout_s: float
) -> tuple[list[Any], str]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found"
        module = f"tests.contract.{worker}"
        try:
            loaded = LOADED.get(framework, ())
            ranks(workers, module, request, file, loaded=loaded, timeout_s=timeout_s)
        except AssertionError as error:
            return [], str(error)
        return [json.loads(Path(f"{file}.{rank}").read_text()) for rank in range(workers)], ""


def write(found: Any, file: Path, rank: int) -> None:
    """In a worker module: leave what this rank found."""
    file.with_name(f"{file.name}.{rank}").write_text(json.dumps(found))
