"""Parts that some tests need: `require("horovod")` at the top of such a test.

Where the part is missing the test is skipped, unless RAYSUITE_REQUIRE names it (`.ci/run` names
them all): then it fails, so that CI never goes green by skipping.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable

import pytest


def chromium() -> str | None:
    """The path of a Chromium or Chrome on this machine."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


def _module(name: str) -> Callable[[], bool]:
    def present() -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            return False

    return present


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


PRESENT: dict[str, Callable[[], bool]] = {
    "horovod": _module("horovod.torch"),
    "deepspeed": _module("deepspeed"),
    "dali": _module("nvidia.dali"),
    "browser": lambda: chromium() is not None and _module("playwright")(),
    "compiler": lambda: shutil.which("g++") is not None,
    "slurm": lambda: shutil.which("sbatch") is not None,
    "shellcheck": lambda: shutil.which("shellcheck") is not None,
    "timm": _module("timm"),
    "gpu": _gpu,
}


def require(part: str) -> None:
    """Skip the calling test where `part` is missing; fail it where RAYSUITE_REQUIRE names it."""
    if PRESENT[part]():
        return
    wanted = os.environ.get("RAYSUITE_REQUIRE", "").split(",")
    if part in (name.strip() for name in wanted):
        pytest.fail(f"{part} is missing, and RAYSUITE_REQUIRE names it", pytrace=False)
    pytest.skip(f"{part} is missing")
