"""Build Horovod against the torch of the environment, once, and keep the wheel.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATCH = ROOT / "containers" / "horovod-0.28.1.patch"
SOURCE = ROOT / "containers" / "requirements" / "horovod-source.txt"
BUILD_FLAGS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
}
PROGRESS_S = 15.0
"""Seconds between two lines of progress."""


class HorovodError(Exception):
    """Horovod cannot be built here; the message says why and what to do."""


@dataclass(frozen=True)
class Environment:
    """The environment and the options for which Horovod is built."""

    python: Path
    """Interpreter of the environment that holds torch."""
    torch_version: str
    python_tag: str
    """Such as `cp311`."""
    gpu: str
    """`NCCL` for a build with CUDA, or empty for one without."""


def gpu_choice() -> str:
    """The GPU build asked for in RAYSUITE_HOROVOD_GPU; raises HorovodError on an unknown one."""
    choice = os.environ.get("RAYSUITE_HOROVOD_GPU", "").upper()
    if choice not in ("", "NCCL"):
        raise HorovodError(f"RAYSUITE_HOROVOD_GPU={choice} is unknown; it is NCCL, or empty (CPU)")
    return choice


def cache_key(environment: Environment) -> str:
    """A hash over everything that affects the compiled wheel."""
    options = repr(BUILD_FLAGS).encode()
    recipe = hashlib.sha256(PATCH.read_bytes() + SOURCE.read_bytes() + options).hexdigest()[:10]
    gpu = environment.gpu.lower() or "cpu"
    torch = environment.torch_version
    return f"horovod-{environment.python_tag}-torch{torch}-{gpu}-{platform.machine()}-{recipe}"


def missing_tools(gpu: str) -> str:
    """A message on missing build tools and how to install them, or an empty text."""
    lacking = []
    if not shutil.which(os.environ.get("CXX", "g++")):
        lacking.append(("a C++ compiler", "g++"))
    if not shutil.which("make"):
        lacking.append(("make", "make"))
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        lacking.append(("Python's headers", f"python{sysconfig.get_python_version()}-dev"))
    if gpu and not shutil.which("nvcc") and "HOROVOD_CUDA_HOME" not in os.environ:
        lacking.append(("nvcc", "nvidia-cuda-toolkit"))
    if not lacking:
        return ""
    names = " and ".join(name for name, _ in lacking)
    packages = " ".join(package for _, package in lacking)
    return f"this machine lacks {names}; on Debian or Ubuntu: apt-get install {packages}"


def wheel(
    environment: Environment,
    uv: Path,
    cache: Path,
    uv_env: dict[str, str],
    say: Callable[[str], None] = print,
) -> Path:
    """The wheel for `environment`, from the cache or else built; `say` prints a
    line of progress from time to time.

    Raises HorovodError, with the log's path, if the build fails.
    """
    shelf = cache / "wheels" / cache_key(environment)
    if built := sorted(shelf.glob("*.whl")):
        return built[0]
    if lacking := missing_tools(environment.gpu):
        raise HorovodError(lacking)
    shelf.mkdir(parents=True, exist_ok=True)
    log = shelf / "build.log"
    with log.open("w") as output, tempfile.TemporaryDirectory(prefix="raysuite-") as scratch:
        try:
            with _progress(log, say):
                made = _build(environment, uv, Path(scratch), uv_env, output.fileno())
        except (OSError, subprocess.CalledProcessError) as error:
            raise HorovodError(f"its build failed ({_short(error)}); see {log}") from error
        # Copied under another name first: a concurrent set-up must not read an incomplete wheel.
        half = shelf / f"{made.name}.{os.getpid()}"
        shutil.copyfile(made, half)
        half.replace(shelf / made.name)
    return shelf / made.name


@contextmanager
def _progress(log: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Print CMake's progress: the last percentage in its log."""
    began, ended = time.monotonic(), threading.Event()

    def watch() -> None:
        while not ended.wait(PROGRESS_S):
            shares = re.findall(r"^\[ *(\d+)%\]", log.read_text(errors="replace"), re.MULTILINE)
            seconds = time.monotonic() - began
            say(f"Horovod: {shares[-1] if shares else 0} % of its steps after {seconds:.0f} s")

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _build(
    environment: Environment, uv: Path, scratch: Path, uv_env: dict[str, str], log: int
) -> Path:
    def run(*command: str | Path, cwd: Path = scratch, env: dict[str, str] | None = None) -> None:
        subprocess.run(command, cwd=cwd, env=env, stdout=log, stderr=log, check=True)

    # pip, of the private uv's environment: uv cannot download a source release.
    pip = (uv.parent / "python", "-m", "pip", "--disable-pip-version-check")
    no_isolation = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation")
    run(*pip, "download", *no_isolation, "--require-hashes", "-r", SOURCE, "-d", scratch)
    (archive,) = scratch.glob("horovod-*.tar.gz")
    # Not tarfile: Debian 12's Python 3.11.2 lacks extraction filters, and 3.14 requires one.
    run("tar", "--no-same-owner", "-xzf", archive)
    source = scratch / archive.name.removesuffix(".tar.gz")
    # git must not apply the patch to a repository above the scratch folder.
    run(
        "git",
        "apply",
        PATCH,
        cwd=source,
        env=os.environ | {"GIT_CEILING_DIRECTORIES": scratch.as_posix()},
    )

    flags = dict(BUILD_FLAGS)
    if environment.gpu:
        flags["HOROVOD_GPU_OPERATIONS"] = environment.gpu
    path = f"{environment.python.parent}{os.pathsep}{os.environ['PATH']}"
    build_env = uv_env | flags | {"PATH": path, "MAKEFLAGS": f"-j{os.cpu_count() or 1}"}
    command = (uv, "build", "--wheel", "--no-build-isolation", "--python", environment.python)
    run(*command, "--out-dir", scratch / "out", source, env=build_env)
    (made,) = (scratch / "out").glob("*.whl")
    return made


def _short(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        command = [Path(str(part)).name for part in error.cmd[:4]]
        return f"`{' '.join(command)} …` ended with {error.returncode}"
    return f"{type(error).__name__}: {error}"
