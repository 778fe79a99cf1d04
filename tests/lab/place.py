"""A running lab as tests use it: who runs what where."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lab import hosts, network
from lab.layout import LOGIN, ROOT, Lab, load


class LabPlace:
    """A lab that is up, and commands inside it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def run(
        self,
        *argv: str,
        user: str | None = "hpc1",
        host: str = LOGIN,
        text_in: str | None = None,
        check: bool = True,
        timeout_s: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user (None: root) on a host; a failure shows what it said."""
        command = hosts.entering(self.lab, host, list(argv), user)
        done = subprocess.run(
            command, input=text_in, capture_output=True, text=True, check=False, timeout=timeout_s
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"{shlex.join(argv)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def out(self, *argv: str, user: str | None = "hpc1", host: str = LOGIN) -> str:
        """What a command printed."""
        return self.run(*argv, user=user, host=host).stdout.strip()

    def batch(self, script: str, *options: str) -> str:
        """Submit a batch script as hpc1 and return the job's number."""
        text = f"#!/bin/bash\n{script}\n"
        done = self.run("sbatch", "--parsable", "-o", "%j.out", *options, text_in=text)
        return done.stdout.strip()

    def job_state(self, job: str) -> str:
        """SLURM's word for a job's state."""
        words = self.out("scontrol", "show", "job", job, "--oneliner").split()
        return next(word for word in words if word.startswith("JobState=")).split("=")[1]

    def end_soon(self, job: str) -> None:
        """Move the time limit of a job that runs to one or two minutes from now."""
        used = reversed(self.out("squeue", "-h", "-j", job, "-o", "%M").split(":"))
        minutes = sum(int(part) * 60**place for place, part in enumerate(used)) // 60 + 2
        self.set_limit(job, minutes)

    def set_limit(self, job: str, minutes: int) -> None:
        """Set a job's time limit; soon after a requeue SLURM says to try again in a bit."""
        words = ("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")
        self.wait(lambda: self.run(*words, user=None, check=False).returncode == 0, 120)

    def node_state(self, host: str) -> str:
        """SLURM's word for a node's state, its marks included."""
        return self.out("sinfo", "-h", "-p", "lab", "-n", host, "-o", "%T")

    def link(self, host: str, *, up: bool) -> None:
        """Cut or fix a cable."""
        network.set_link(self.lab, host, up=up)

    def power(self, host: str, *, on: bool) -> None:
        """Pull a host's plug, or start it again."""
        words = ("power", host, "on" if on else "off")
        done = lab_command(self.lab.folder, *words)
        assert done.returncode == 0, done.stderr
        renewed = load(self.lab.folder)
        assert renewed is not None
        self.lab = renewed

    def fill_home(self) -> None:
        """Leave no room on the users' file system; see `campaign.py`, which makes it."""
        used = self.out("df", "--output=used", "-B1", str(self.lab.folder / "home"), user=None)
        self._resize_home(used.split()[-1])

    def empty_home(self) -> None:
        """End that."""
        self._resize_home("4g")

    def _resize_home(self, size: str) -> None:
        words = ("mount", "-o", f"remount,size={size}", str(self.lab.folder / "home"))
        subprocess.run(words, check=True)

    def shape(self, host: str, *words: str) -> None:
        """Shape a cable; no words end that."""
        network.shape(self.lab, host, hosts.inner_pid(self.lab, host), list(words))

    def fix(self) -> None:
        """Whatever a test did to cables, undo it; end all jobs and wait for idle hosts."""
        for host in self.lab.hosts:
            self.shape(host)
            self.link(host, up=True)
        for user in ("hpc1", "hpc2"):
            self.run("scancel", "--user", user, user=None)
        hosts.wait_ready(self.lab)
        self.wait(lambda: all(self.node_state(h) == "idle" for h in self.lab.hosts), 120)

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Poll until a condition holds; fail after a deadline."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not so after {timeout_s:.0f} s: {condition}")
            time.sleep(0.5)


def lab_command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python deploy/lab ...` for the lab in a folder."""
    return subprocess.run(
        [sys.executable, "deploy/lab", *arguments],
        cwd=ROOT, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "RAYSUITE_LAB": str(folder)},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
