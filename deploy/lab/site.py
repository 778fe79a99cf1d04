"""Start and end a whole lab."""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from lab import hosts, network
from lab.config import account_files, slurm_conf
from lab.layout import LOGIN, USERS, Lab, LabError, load


@contextmanager
def locked() -> Iterator[None]:
    """Hold a lock: only one process at a time changes a lab, or searches for a free subnet."""
    with Path("/run/raysuite-lab.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def up(folder: Path, nodes: int, cpus: int) -> Lab:
    """Start the parts of a lab that are not running; raises LabError."""
    if os.geteuid() != 0:
        raise LabError("the lab makes network namespaces and users: run this as root")
    with locked():
        lab = load(folder)
        new = lab is None
        if lab is None:
            lab = _plan(folder, nodes, cpus)
        elif len(lab.hosts) != nodes:
            raise LabError(f"the lab in {folder} has {len(lab.hosts)} hosts; take it down first")
        try:
            if new:
                _furnish(lab)
            if not hosts.alive(lab, LOGIN):
                hosts.stop(lab, lab.hosts)
                network.remove_bridge(lab)
                network.add_bridge(lab)
            for host in (LOGIN, *lab.hosts):
                if not hosts.alive(lab, host):
                    hosts.start(lab, host)
            hosts.wait_ready(lab)
        except BaseException:
            if new:
                _remove(lab)
            raise
    return lab


def down(folder: Path) -> bool:
    """End the lab in a folder and remove its files; False if there was none."""
    with locked():
        lab = load(folder)
        if lab is None:
            return False
        _remove(lab)
    return True


def _plan(folder: Path, nodes: int, cpus: int) -> Lab:
    for name in ("slurmctld", "slurmd", "munged", "newuidmap", "nsenter", "unshare", "ip", "tc"):
        hosts.program(name)
    if folder.exists() and any(folder.iterdir()):
        raise LabError(f"{folder} is no lab and not empty; RAYSUITE_LAB=FOLDER names another")
    bridge, subnet = network.free_names()
    memory_mb = psutil.virtual_memory().total // 2**20 // nodes
    names = [f"node{index + 1}" for index in range(nodes)]
    return Lab(folder, names, bridge, subnet, _free_uids(), cpus, memory_mb)


def _furnish(lab: Lab) -> None:
    lab.folder.mkdir(parents=True, exist_ok=True)
    lab.folder.chmod(0o755)
    lab.save()
    for part in ("etc", "run", "log", "home", "state", *(f"state/{host}" for host in lab.hosts)):
        (lab.folder / part).mkdir()
        (lab.folder / part).chmod(0o755)
    (lab.folder / "state" / "slurmctld").mkdir(mode=0o700)
    _write_etc(lab)
    if Path("/dev/fuse").exists():
        device = lab.folder / "run" / "fuse"
        os.mknod(device, stat.S_IFCHR | 0o666, Path("/dev/fuse").stat().st_rdev)
        device.chmod(0o666)
    for user in USERS:
        lab.home(user).mkdir(mode=0o700)
        os.chown(lab.home(user), lab.uid(user), lab.uid(user))


def _write_etc(lab: Lab) -> None:
    """Write SLURM's and munge's files, and the hosts' /etc: this machine's, with two more users.

    The whole folder is copied, because a file that is bound over another one is lost when the
    machine replaces that one, as package managers do.
    """
    lab.slurm_conf.write_text(slurm_conf(lab))
    key = os.open(lab.folder / "etc" / "munge.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    os.write(key, secrets.token_bytes(128))
    os.close(key)
    etc = lab.folder / "run" / "etc"
    network.sh("cp", "--archive", "/etc", str(etc))
    for name, text in account_files(lab).items():
        (etc / name).unlink(missing_ok=True)
        (etc / name).write_text(text)


def _free_uids() -> int:
    """The first of two successive uids that no user of this machine has."""
    used = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(21001, 60000, 10) if not used & {uid, uid + 1})


def _remove(lab: Lab) -> None:
    hosts.stop(lab, [*lab.hosts, LOGIN])
    network.remove_bridge(lab)
    shutil.rmtree(lab.folder)
