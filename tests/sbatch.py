"""Batch scripts in tests: how sbatch reads one, and bash that runs one with another srun."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SPACE = b" \t\n\v\f\r"
TOOLS = ("bash", "env", "id", "date", "mv", "rm", "cat", "touch")


def read_options(script: str) -> list[str]:
    """The options of a script's #SBATCH lines, read as Slurm's src/sbatch/opt.c reads them."""
    found = []
    for line in script.encode().split(b"\n"):
        if line and not line.startswith(b"#"):
            break
        if line.startswith(b"#SBATCH"):
            found += _arguments(line.removeprefix(b"#SBATCH"))
    return [option.decode() for option in found]


def _arguments(line: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while True:
        while at < len(line) and line[at : at + 1] in (b" ", b"\t", b"\v", b"\f", b"\r"):
            at += 1
        argument, quote, plain = b"", b"", False
        while at < len(line):
            char = line[at : at + 1]
            at += 1
            if plain:
                plain = False
                argument += char
            elif char == b"\\":
                plain = True
            elif quote:
                if char == quote:
                    quote = b""
                else:
                    argument += char
            elif char in b"\"'":
                quote = char
            elif char == b"#":
                at = len(line)
            elif char in SPACE:
                break
            else:
                argument += char
        if not argument:
            return found
        found.append(argument)


@dataclass
class Bench:
    """A folder with the commands that a script may use, and records of those that are ours."""

    path: Path

    def __post_init__(self) -> None:
        for name in ("bin", "work", "records", "cluster", "cluster/suites", "cluster/logs"):
            (self.path / name).mkdir()
        (self.cluster / "environment").touch()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None
            (self.path / "bin" / tool).symlink_to(found)
        # the second between two looks at the step is shorter here
        sleep = self.path / "bin" / "sleep"
        sleep.write_text(f'#!/bin/bash\nexec {shutil.which("sleep")} "${{1/#1/0.05}}"\n')
        sleep.chmod(0o755)
        for name in ("srun", "scontrol", "module"):
            self.command(name)
        self.command("squeue", "echo 4")

    @property
    def cluster(self) -> Path:
        return self.path / "cluster"

    def command(self, name: str, then: str = "exit 0") -> None:
        """A command that writes down its arguments, one file a call, and then does `then`."""
        records = self.path / "records"
        file = self.path / "bin" / name
        file.write_text(
            "#!/bin/bash\nn=0\n"
            f'while [[ -e "{records}/{name}.$n" ]]; do n=$((n + 1)); done\n'
            f'printf "%s\\0" "$@" >"{records}/{name}.$n"\n{then}\n'
        )
        file.chmod(0o755)

    def calls(self, name: str) -> list[list[str]]:
        """The arguments of each call so far."""
        found = []
        while (file := self.path / "records" / f"{name}.{len(found)}").exists():
            found.append(file.read_bytes().decode().split("\0")[:-1])
        return found

    def start(
        self, script: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Bash with the script, in the folder `work`, where nothing else lies."""
        file = self.path / "job.sh"
        file.write_text(script, encoding="utf-8")
        return subprocess.Popen(
            ["bash", str(file)],  # not as a login shell: profiles set PATH
            cwd=self.path / "work",
            env={
                "PATH": str(self.path / "bin"),
                "HOME": "/nonexistent",
                "LC_ALL": os.environ.get("LC_ALL", "C.UTF-8"),
                "SLURM_JOB_ID": "17",
                "SLURM_JOB_NODELIST": "node[1-4]",
                "SLURM_JOB_NUM_NODES": "4",
                **(variables or {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str, variables: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Exit status and output of the script."""
        process = self.start(script, variables)
        try:
            output, _ = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, output
