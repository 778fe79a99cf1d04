"""Process 1 of a host, in its own namespaces: mounts, starts services, then reaps processes.

Called as `init.py CONFIG`, a JSON file (hosts.py writes it). It prints `ready`
when its mounts are done, and starts the services when it reads a line (the
network exists then). Standard library only.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 32, 4096, 16384
LIBC = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)


def mount(source: str, target: Path, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2); raises OSError."""
    arguments = (source.encode(), str(target).encode(), kind.encode() if kind else None)
    if LIBC.mount(*arguments, ctypes.c_ulong(flags), data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def closed_to_others(path: Path) -> Path | None:
    """The first folder on the way to `path` that ordinary users may not enter."""
    for folder in (*reversed(path.parents), path):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


def covers(private: list[Path], readable: list[Path]) -> list[Path]:
    """The folders to hide: private ones, and those that ordinary users may not enter."""
    closed = {folder for path in readable if (folder := closed_to_others(path))}
    inside = {folder for folder in closed if any(folder.is_relative_to(p) for p in private)}
    return [*private, *sorted(closed - inside)]


def arrange(private: list[Path], readable: list[Path], writable: list[Path]) -> None:
    """Hide folders by empty file systems, and bind the folders that users may read into these."""
    hidden = covers(private, readable)
    shown = [path for path in (*readable, *writable) if any(path.is_relative_to(h) for h in hidden)]
    # Held open, so that they can be bound after their parent folders are hidden.
    handles = {path: os.open(path, os.O_PATH) for path in shown}
    for folder in hidden:
        mode = "1777" if folder in private else "755"
        mount("tmpfs", folder, "tmpfs", MS_NOSUID, f"mode={mode}")
    for path, handle in handles.items():
        path.mkdir(parents=True, exist_ok=True)
        mount(f"/proc/self/fd/{handle}", path, None, MS_BIND | MS_REC)
        if path in readable:
            mount("none", path, None, MS_REMOUNT | MS_BIND | MS_RDONLY)
        os.close(handle)


def main(config_path: str) -> None:
    """Become the host that the configuration describes; never returns."""
    config = json.loads(Path(config_path).read_text())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o022)
    socket.sethostname(config["name"])
    paths = {key: [Path(path) for path in config[key]] for key in ("private", "readable")}
    arrange(paths["private"], paths["readable"], [Path(config["folder"])])
    for source, target in config["binds"]:
        mount(source, Path(target), None, MS_BIND)
    mount("proc", Path("/proc"), "proc", MS_NOSUID | MS_NODEV)
    print("ready", flush=True)
    sys.stdin.readline()
    for service in config["services"]:
        with Path(service["log"]).open("ab") as log:
            subprocess.Popen(
                service["argv"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env=config["environment"],
            )  # fmt: skip
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1])
