"""Detect errors that mean that the memory of the device or of the host ran out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from raysuite.units import human_bytes

if TYPE_CHECKING:
    from raysuite.parallel.base import World
    from raysuite.plan import RunPlan

_WORDS = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "MemoryError")
"""Messages of CUDA, of torch's CPU allocator (which has no exception class), of cuBLAS, and of a
loader's processes."""
_RAYS_WORDS = re.compile("OutOfMemoryError|running low on memory|OOM kill reason")
"""Messages of Ray's memory monitor, which ends a worker before the kernel's OOM killer would."""
_RAYS_FIGURES = re.compile(r"Memory on the node \(IP: ([^,)]+).*? was (\S+ used / \S+) limit")
_RAYS_SHARES = re.compile(r"Selected to kill: .*?memory used=([^,\s)]+)")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is, or was caused by, a failed allocation."""
    import torch  # not at the top: the driver uses only `ray_out_of_memory`, without torch

    found: BaseException | None = error
    while found is not None:
        if isinstance(found, MemoryError | torch.OutOfMemoryError):
            return True
        if isinstance(found, RuntimeError) and any(words in str(found) for words in _WORDS):
            return True
        found = found.__cause__ or found.__context__
    return False


def figures(plan: RunPlan, world: World) -> str:
    """A message with this rank's used and free memory, and the spec keys that lower the use."""
    import psutil
    import torch

    from raysuite.measure.peak_memory import available_bytes

    held = psutil.Process().memory_info().rss
    if world.device.type == "cuda":
        held = torch.cuda.max_memory_allocated(world.device)
    left = available_bytes(world.device)
    size = "data.sequence" if plan.dataset.sequence else "data.image_size"
    return (
        f"a micro-batch of {plan.micro_batch} {plan.dataset.samples_words} did not fit into "
        f"memory: rank {world.rank} used {human_bytes(held)}, and {human_bytes(left)} are free; "
        "lower training.global_batch or training.batch_per_worker, set training.accumulate to "
        f"auto, or lower {size}"
    )


def ray_out_of_memory(text: str) -> str:
    """Ray's error for a worker that its memory monitor ended, as one line with Ray's figures; empty
    for any other error."""
    if not _RAYS_WORDS.search(text):
        return ""
    told = "ended by Ray's memory monitor"
    if node := _RAYS_FIGURES.search(text):
        told += f"; {node[2]} on node {node[1]}"
    if held := _RAYS_SHARES.findall(text):
        told += f"; the workers that it ended used {', '.join(held)}"
    return told


def kernel_kills(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int | None:
    """Number of processes that the kernel's OOM killer ended in this process's cgroup and below it;
    on SLURM, in the whole job on this host. None if the kernel does not report it.

    (Linux, admin-guide/cgroup-v2, memory.events; cgroup-v1/memory, memory.oom_control.)
    """
    try:
        lines = own.read_text("utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        job = re.match(r".*?/job_\d+(?=/|$)", path)
        place = (job[0] if job else path).lstrip("/")
        if not controllers:
            file = cgroups / place / "memory.events"
        elif "memory" in controllers.split(","):
            file = cgroups / "memory" / place / "memory.oom_control"
        else:
            continue
        try:
            found = re.search(r"^oom_kill (\d+)$", file.read_text("utf-8"), re.MULTILINE)
        except OSError:
            continue
        if found:
            return int(found[1])
    return None
