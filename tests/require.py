"""Parts that some tests need: `require("horovod")` at the top of such a test.

Where the part is missing the test is skipped, unless RAYSUITE_REQUIRE names it (`.ci/run` names
them all): then it fails, so that CI never goes green by skipping.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from raysuite.parts import EXTRAS, installed


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


def _programs(*names: str) -> bool:
    return all(shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") for name in names)


def _lab() -> bool:
    wanted = ("slurmctld", "slurmd", "munged", "sbatch", "ip", "tc", "nsenter", "unshare")
    return os.geteuid() == 0 and _programs(*wanted) and _namespaces()


def _namespaces() -> bool:
    """Whether this root may make namespaces, and a bridge in one: many containers' may not."""
    spaces = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--net")
    bridge = ("ip", "link", "add", "trial", "type", "bridge")
    return subprocess.run((*spaces, *bridge), capture_output=True, check=False).returncode == 0


def _apptainer() -> bool:
    """Whether the lab can install it; tests that only use it look for the command itself."""
    wanted = ("apt-get", "patchelf", "mksquashfs", "squashfuse", "fuse-overlayfs", "newuidmap")
    return os.geteuid() == 0 and _programs(*wanted)


def postgres_programs() -> Path | None:
    """The folder of a PostgreSQL's programs; Debian keeps them apart from the others."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    elsewhere = shutil.which("initdb")
    return found[-1].parent if found else Path(elsewhere).parent if elsewhere else None


def _jpeglib() -> bool:
    """Whether libjpeg's header and a C compiler are there."""
    words = ("cc", "-E", "-include", "stdio.h", "-include", "jpeglib.h", "-x", "c", "/dev/null")
    if shutil.which(words[0]) is None:
        return False
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


PRESENT: dict[str, Callable[[], bool]] = {
    **{part.name: partial(installed, part.name) for part in EXTRAS},
    "transformers": _module("transformers"),
    "browser": lambda: chromium() is not None and _module("playwright")(),
    "npm": lambda: shutil.which("npm") is not None,
    "lightning": _module("lightning"),
    "compiler": lambda: shutil.which("g++") is not None,
    "jpeglib": _jpeglib,
    "slurm": lambda: shutil.which("sbatch") is not None,
    "shellcheck": lambda: shutil.which("shellcheck") is not None,
    "gpu": _gpu,
    "postgres": lambda: postgres_programs() is not None and installed("postgres"),
    "sshd": lambda: _programs("sshd", "ssh", "ssh-keygen"),
    "lab": _lab,
    "apptainer": _apptainer,
    "root": lambda: os.geteuid() == 0,
}


def require(part: str) -> None:
    """Skip the calling test where `part` is missing; fail it where RAYSUITE_REQUIRE names it."""
    if not PRESENT[part]():
        give_up(part)


def give_up(part: str) -> NoReturn:
    """Skip the calling test, or fail it, because `part` is missing."""
    wanted = os.environ.get("RAYSUITE_REQUIRE", "").split(",")
    if part in (name.strip() for name in wanted):
        pytest.fail(f"{part} is missing, and RAYSUITE_REQUIRE names it", pytrace=False)
    pytest.skip(f"{part} is missing")
