"""What SLURM's own commands say of a site, as plain values. Nothing here changes anything."""

from __future__ import annotations

import getpass
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from raysuite.errors import RaysuiteError
from raysuite.spec.site_values import slurm_seconds

TIMEOUT_S = 30.0
"""A controller that is busy takes some seconds to answer; one that is gone, for ever."""


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition that are alike: one row of `sinfo`."""

    partition: str
    default: bool
    """Whether the partition is taken by jobs that name none."""
    up: bool
    limit_s: float
    """The longest time limit, in seconds."""
    nodes: int
    cpus: int
    """Of each node, as all below."""
    memory_mb: int
    gpus: int


class SlurmError(RaysuiteError):
    """A command of SLURM's that failed; the text is the last line of what it said."""

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said or message
        """All of it."""


class NoSlurmError(SlurmError):
    """A command of SLURM's that is not here."""


def ask(words: Sequence[str], text: str | None = None, timeout_s: float = TIMEOUT_S) -> str:
    """Standard output of a command.

    Raises NoSlurmError where it is missing, SlurmError where it fails or hangs.
    """
    try:
        done = subprocess.run(
            words, input=text, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except OSError as error:
        raise NoSlurmError(f"{words[0]} is not on PATH") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{words[0]} did not answer within {timeout_s:.0f} s") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        last = said.splitlines()[-1] if said else f"{words[0]} ended with status {done.returncode}"
        raise SlurmError(last, said)
    return done.stdout + done.stderr if text is not None else done.stdout


def node_groups() -> list[NodeGroup]:
    """Every partition's nodes. Raises SlurmError where sinfo does not answer."""
    rows = ask(["sinfo", "--noheader", "--all", "--format=%P|%a|%l|%D|%c|%m|%G"]).splitlines()
    return [_group(row.split("|")) for row in rows if row.count("|") == 6]


def accounts() -> tuple[set[str], set[str]]:
    """The user's accounts and QOS, as the site's books have them; both empty where it keeps none.

    Raises SlurmError where the books do not answer.
    """
    columns = "format=Account%80,QOS%400"
    user = f"user={getpass.getuser()}"
    rows = ask(["sacctmgr", "--noheader", "--parsable2", "show", "associations", user, columns])
    pairs = [row.split("|") for row in rows.splitlines() if row.count("|") == 1]
    qos = {name for _, names in pairs for name in names.split(",") if name}
    return {account for account, _ in pairs if account}, qos


def megabytes(memory: str) -> int:
    """SLURM's notation of memory -> megabytes; without a letter it is megabytes."""
    number, letter = re.fullmatch(r"([0-9]+)([KMGT]?)", memory.upper()).groups()  # type: ignore[union-attr]
    return int(int(number) * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}[letter])


def _group(row: Sequence[str]) -> NodeGroup:
    name, available, limit, nodes, cpus, memory, gres = row
    return NodeGroup(
        partition=name.rstrip("*"),
        default=name.endswith("*"),
        up=available.startswith("up"),
        limit_s=_limit(limit),
        nodes=int(nodes),
        cpus=int(cpus.rstrip("+")),  # `+`: the least of nodes that differ
        memory_mb=int(memory.rstrip("+")),
        gpus=_gpus(gres),
    )


def _limit(text: str) -> float:
    try:
        return slurm_seconds(text)
    except ValueError:
        return float("inf")  # "infinite", "n/a"


def _gpus(gres: str) -> int:
    """`gpu:a100:4(S:0-1),nvme:1` -> 4."""
    parts = re.sub(r"\([^)]*\)", "", gres).split(",")
    return sum(
        int(part.rpartition(":")[2]) for part in parts if re.fullmatch(r"gpu(:.+)*:\d+", part)
    )
