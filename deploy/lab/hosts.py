"""Hosts: each is a process that holds the namespaces; commands are run inside them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from lab import network
from lab.config import profile
from lab.layout import LOGIN, USERS, Lab, LabError, needed

PRIVATE = ("/tmp", "/dev/shm")


def program(name: str) -> str:
    """The path of a system program; raises LabError naming the package."""
    path = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    if path is None:
        raise LabError(f"{name} is missing; on Debian: apt-get install slurm-wlm munge uidmap")
    return path


def start(lab: Lab, host: str) -> None:
    """Start a host: its namespaces, its cable, its daemons; raises LabError."""
    config = lab.folder / "run" / f"{host}.json"
    config.write_text(json.dumps(_init_config(lab, host), indent=2))
    spaces = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
    if host != LOGIN:
        spaces.append("--net")
    init = (sys.executable, "-I", str(Path(__file__).with_name("init.py")), str(config))
    log = lab.folder / "log" / f"{host}.log"
    with log.open("ab") as errors:
        outer = subprocess.Popen(
            [program("unshare"), *spaces, "--", *init],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True, text=True, cwd="/",
        )  # fmt: skip
    assert outer.stdin is not None
    assert outer.stdout is not None
    lab.outer[host] = (outer.pid, psutil.Process(outer.pid).create_time())
    lab.save()
    if outer.stdout.readline() != "ready\n":
        raise LabError(f"host {host} did not start: {log.read_text()[-2000:]}")
    if host != LOGIN:
        network.plug(lab, host, inner_pid(lab, host))
    outer.stdin.write("go\n")
    outer.stdin.close()
    outer.stdout.close()


def _init_config(lab: Lab, host: str) -> dict[str, Any]:
    binds = [(str(lab.folder / "run" / "etc"), "/etc")]
    if Path("/dev/fuse").exists():
        binds.append((str(lab.folder / "run" / "fuse"), "/dev/fuse"))
    return {
        "name": host,
        "folder": str(lab.folder),
        "private": PRIVATE,
        "readable": [str(path) for path in needed()],
        "binds": binds,
        "environment": {"PATH": profile(lab, USERS[0])["PATH"], "SLURM_CONF": str(lab.slurm_conf)},
        "services": _services(lab, host),
    }


def _services(lab: Lab, host: str) -> list[dict[str, Any]]:
    log = lab.folder / "log"
    if host != LOGIN:
        argv = [program("slurmd"), "-D", "-N", host, "-f", str(lab.slurm_conf)]
        return [{"argv": argv, "log": str(log / f"{host}.log")}]
    run = lab.folder / "run"
    munged = [
        program("munged"), "--foreground", "--num-threads=2",
        f"--key-file={lab.folder}/etc/munge.key", f"--socket={lab.munge_socket}",
        f"--pid-file={run}/munged.pid", f"--seed-file={run}/munged.seed",
    ]  # fmt: skip
    slurmctld = [program("slurmctld"), "-D", "-f", str(lab.slurm_conf)]
    return [
        {"argv": munged, "log": str(log / "munged.log")},
        {"argv": slurmctld, "log": str(log / "login.log")},
    ]


def alive(lab: Lab, host: str) -> bool:
    """Whether the process of a host runs, and is the one that was started."""
    if host not in lab.outer:
        return False
    pid, began = lab.outer[host]
    try:
        process = psutil.Process(pid)
        return process.create_time() == began and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def inner_pid(lab: Lab, host: str) -> int:
    """The pid on this machine of a host's process 1; LabError if the host is off."""
    if alive(lab, host):
        children = psutil.Process(lab.outer[host][0]).children()
        if children:
            return children[0].pid
    raise LabError(f"host {host} is off; `power {host} on` starts it")


def stop(lab: Lab, names: Sequence[str], timeout_s: float = 30) -> None:
    """End hosts with all their processes, as by a power cut; raises LabError if that fails."""
    held = [psutil.Process(lab.outer[host][0]) for host in names if alive(lab, host)]
    whole = [*(child for process in held for child in process.children()), *held]
    for process in whole:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    _, left = psutil.wait_procs(whole, timeout=timeout_s)
    left = [p for p in left if _runs(p)]
    if left:
        raise LabError(f"these do not end: pids {', '.join(str(p.pid) for p in left)}")


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def entering(lab: Lab, host: str, argv: list[str], user: str | None = None) -> list[str]:
    """The command that runs `argv` on a host, as a user or as root, with a login's environment."""
    pid = inner_pid(lab, host)
    spaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
    enter = [program("nsenter"), "--target", str(pid), *spaces]
    values = profile(lab, user or USERS[0])
    become: list[str] = []
    if user is None:
        values |= {"HOME": "/root", "USER": "root", "LOGNAME": "root"}
    else:
        uid = str(lab.uid(user))
        become = [program("setpriv"), "--reuid", uid, "--regid", uid, "--init-groups"]
    start_in = values["HOME"]
    settings = [f"{name}={value}" for name, value in values.items()]
    if "TERM" in os.environ:
        settings.append(f"TERM={os.environ['TERM']}")
    clean = [program("env"), "-i", f"--chdir={start_in}", *settings]
    return [*enter, "--", *become, *clean, *argv]


def wait_ready(lab: Lab, timeout_s: float = 180) -> None:
    """Wait until SLURM counts all hosts as idle; raises LabError with the daemons' logs."""
    deadline = time.monotonic() + timeout_s
    command = entering(lab, LOGIN, ["sinfo", "-h", "-p", "lab", "-N", "-o", "%N %T"])
    said = ""
    while time.monotonic() < deadline:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        states = dict(line.split() for line in done.stdout.splitlines())
        if done.returncode == 0 and all(
            states.get(h) in ("idle", "mixed", "allocated") for h in lab.hosts
        ):
            return
        time.sleep(0.3)
    logs = "\n".join(
        f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}"
        for path in sorted((lab.folder / "log").glob("*.log"))
    )
    raise LabError(f"SLURM is not ready after {timeout_s:.0f} s: {said}\n{logs}")
