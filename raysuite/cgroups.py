"""The memory that this process may still use within the limits of its control groups."""

from __future__ import annotations

import contextlib
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")
"""For cgroup v1 and v2: the file with a group's memory limit, the file with its memory use, and the
entry in memory.stat with the page cache that the kernel reclaims first."""


def memory_left(cgroups: Path = _CGROUPS, own: Path = _OWN) -> list[int]:
    """For each memory limit that applies to this process, the number of bytes that are still free
    below the limit. The limits are those of the process's own control group (such as the group of a
    SLURM step) and of the parent groups. Page cache that the kernel reclaims first
    (`inactive_file`) counts as free.

    (Linux, admin-guide/cgroup-v2, memory.max; cgroup-v1/memory, 5.2.)
    """
    lines = []
    with contextlib.suppress(OSError):  # not on Linux
        lines = own.read_text("utf-8").splitlines()
    left = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, (limit, use, dropped_first) = cgroups, _V2
        elif "memory" in controllers.split(","):
            top, (limit, use, dropped_first) = cgroups / "memory", _V1
        else:
            continue
        folder = top / path.strip("/")
        for each in (folder, *(above for above in folder.parents if above.is_relative_to(top))):
            with contextlib.suppress(OSError, ValueError, KeyError):  # no limit here
                most, used = (int((each / name).read_text()) for name in (limit, use))
                stat = (each / "memory.stat").read_text().splitlines()
                dropped = int(dict(line.split() for line in stat)[dropped_first])
                left.append(most - used + dropped)
    return left
