"""Describe the environment of a measured run: hardware, versions and commit, as plain data.

Packages such as torch are not imported: versions come from the installed packages' metadata.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import platform
import re
import socket
import subprocess
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

import raysuite
from raysuite.measure.transport import infiniband
from raysuite.parts import PARTS

PACKAGES = tuple(
    dict.fromkeys(
        [
            *(part.distribution for part in PARTS if part.distribution and part.in_images),
            "nvidia-nccl-cu12",
            "nvidia-nccl-cu13",
            "numpy",
            "pillow",
            "simplejpeg",
        ]
    )
)

LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Major version of the CUDA with which torch is built -> the oldest NVIDIA driver branch for it
(docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1)."""
DRIVER_FILE = Path("/proc/driver/nvidia/version")
"""File with the version of NVIDIA's kernel driver; a container can read it even without --nv."""

IMAGE_FACTS = Path("/etc/raysuite-image.json")
"""File with the facts about an image that `raysuite image build` has built."""

# Only these variables are read, because others may contain tokens and passwords.
VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "KMP_AFFINITY",
    "CUDA_VISIBLE_DEVICES",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "HOROVOD_GLOO_IFACE",
)


def environment(commits: bool = True) -> dict[str, Any]:
    """The environment of this process, JSON-serialisable; memory in bytes, `time` in s since 1970.

    A value that cannot be found is None or left out. Takes some tens of milliseconds, most of them
    for git, which is called only if `commits` is True.
    """
    found: dict[str, Any] = {
        "time": time.time(),
        "hostname": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus(),
        "python": platform.python_version(),
        "versions": _versions(),
        "git": _commit(Path.cwd()) if commits else None,
        "source": _own_commit() if commits else None,
        "infiniband": infiniband(),
        "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
        "container": _container(),
        "image": _image(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }
    return {**found, "fingerprint": fingerprint(found)}


def fingerprint(env: dict[str, Any]) -> str:
    """A hash of the hardware and of the software versions, as 16 hex digits.

    Host name, commit, job, the host's memory and the number of cores are left out, so that nodes of
    one kind, and differently sized jobs on them, have the same fingerprint.
    """
    cpu = env.get("cpu") or {}
    hardware = {
        "cpu": [cpu.get("model"), cpu.get("architecture")],
        **{key: env.get(key) for key in ("gpus", "python", "versions")},
    }
    return hashlib.sha256(json.dumps(hardware, sort_keys=True).encode()).hexdigest()[:16]


def _cpu() -> dict[str, Any]:
    return {
        "model": _cpu_model(),
        "architecture": platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def nvml() -> Any:
    """NVML's module, initialised, or None without a driver. The caller calls `nvmlShutdown`."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver or no library: NVML raises a different exception for each cause
        return None
    return pynvml


def amdsmi() -> Any:
    """AMD SMI's module, initialised, or None. The caller calls `amdsmi_shut_down`."""
    try:
        import amdsmi as found

        found.amdsmi_init()
    except Exception:  # the import loads ROCm's library, which raises many kinds of errors
        return None
    return found


def _amd_gpus() -> list[dict[str, Any]]:
    """This host's AMD GPUs, with the same keys as in `gpus`. Untested: written from AMD SMI's
    documentation."""
    if (smi := amdsmi()) is None:
        return []
    try:
        return [
            {
                "name": smi.amdsmi_get_gpu_asic_info(handle)["market_name"],
                "memory_bytes": int(
                    smi.amdsmi_get_gpu_memory_total(handle, smi.AmdSmiMemoryType.VRAM)
                ),
                "driver": smi.amdsmi_get_gpu_driver_info(handle)["driver_version"],
            }
            for handle in smi.amdsmi_get_processor_handles()
        ]
    except smi.AmdSmiException:
        return []
    finally:
        smi.amdsmi_shut_down()


def gpus() -> list[dict[str, Any]]:
    """Name, bytes of memory and driver version of each GPU of this host: of its NVIDIA GPUs, or of
    its AMD GPUs if NVML cannot be loaded."""
    if (pynvml := nvml()) is None:
        return _amd_gpus()
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return [
            {
                "name": pynvml.nvmlDeviceGetName(handle),
                "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                "driver": driver,
            }
            for handle in handles
        ]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def cuda_mistake(built: str | None, offered: int | None, driver: str) -> str:
    """Why torch cannot use this host's NVIDIA GPUs; empty if no reason is known.

    `built` is the CUDA version with which torch is built, such as 13.2. `offered` is the newest
    CUDA version that libcuda supports, in the notation of cuDriverGetVersion (12020: 12.2); None
    without libcuda. `driver` is the version of the kernel driver; empty without a driver.
    """
    least = LEAST_DRIVER.get(int((built or "0").partition(".")[0]))
    needs = f"torch is built with CUDA {built}, which needs driver {least} or newer"
    if built is None:
        return "torch is built without CUDA; `make setup` installs a build with CUDA"
    if not driver:
        return f"there is no NVIDIA driver here; {needs}"
    if offered is None:
        return (
            f"NVIDIA's driver {driver} is installed, but its libcuda.so.1 cannot be loaded; in an "
            "image, this library is visible only with apptainer's option --nv, which raysuite adds "
            "if the site sets gpus_per_node"
        )
    if offered // 1000 >= int(built.partition(".")[0]):
        return ""
    return (
        f"NVIDIA's driver {driver} supports CUDA {offered // 1000}.{offered % 1000 // 10} at "
        f"most, and {needs}: have a newer driver installed, build an image with `--variant "
        "cuda12`, or on data-centre GPUs put the folder of the package cuda-compat first in "
        "LD_LIBRARY_PATH"
    )


def cuda_mistake_here() -> str:
    """Why torch cannot use this host's GPUs; empty if no reason is known. Does not load torch."""
    if hip := torch_built_with("hip"):
        return (
            f"torch is built with ROCm {hip} and sees no AMD GPU: in an image, GPUs are visible "
            "only with --rocm (a site's `rocm: true`), and /dev/kfd must be readable"
        )
    return cuda_mistake(torch_built_with("cuda"), _offered_cuda(), driver_version())


def driver_version() -> str:
    """The version of NVIDIA's kernel driver, such as 535.129.03; empty without a driver."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", DRIVER_FILE.read_text("utf-8"))
    except OSError:
        return ""
    return found[1] if found else ""


def torch_built_with(name: str) -> str | None:
    """The version of `cuda` or `hip` that torch is built with, read without importing torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text("utf-8")
    found = re.search(rf"^{name}\b.*=\s*'([\w.-]+)'", text, re.MULTILINE)
    return found[1] if found else None


def _offered_cuda() -> int | None:
    """The newest CUDA version that libcuda, from the driver or from cuda-compat, supports."""
    number = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed else number.value


def _versions() -> dict[str, str]:
    found = {"raysuite": raysuite.__version__}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _commit(folder: Path) -> dict[str, Any] | None:
    """Commit of the checkout around `folder`, and whether a tracked file there was changed."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def _own_commit() -> dict[str, Any] | None:
    """raysuite's commit; None for an installed package, even inside another project's checkout."""
    source = Path(raysuite.__file__)
    tracked = _git(source.parent, "ls-files", "--error-unmatch", source.name)
    return None if tracked is None else _commit(source.parent)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=2,
            check=True,
            # git status would otherwise lock the index, and block the user's own git
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _container() -> str | None:
    """Path of Apptainer's image, or else the container engine's name; None outside a container."""
    image = os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER")
    if image:
        return image
    marks = {
        "/.dockerenv": "docker",
        "/run/.containerenv": "podman",
        "/.singularity.d": "apptainer",
    }
    return next((name for mark, name in marks.items() if Path(mark).exists()), None)


def _image() -> dict[str, Any] | None:
    """Facts about the image in which this process runs: digest of the recipe, variant,
    architecture, commit and build time. None outside an image of raysuite."""
    try:
        facts = json.loads(IMAGE_FACTS.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return {key: facts.get(key) for key in ("digest", "variant", "arch", "commit", "built")}
