"""Why a cluster did not come up: the nodes that are missing, and what their logs end with."""

from __future__ import annotations

from pathlib import Path

from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.slurm import host_names
from raysuite.cluster.status import Status

_LINES = 12
_READ_BYTES = 20_000


def why_not(folder: ClusterFolder, status: Status) -> str:
    """The message for a cluster that did not come up in time, or that ended before."""
    cluster = status.cluster
    lines = [f"the cluster {cluster.name!r} did not come up: {_in_short(status)}"]
    failed = [node for node in status.nodes if node.state == "failed"]
    lines += [f"{node.host} failed: {node.message}" for node in failed]
    missing = missing_nodes(status)
    if missing:
        lines.append(f"missing: {', '.join(missing)}")
    logs = [folder.log_of(name) for name in missing]
    for log in (*logs, folder.slurm_log, folder.logs / "agent.log"):
        tail = last_lines(log)
        if tail:
            lines += [f"the end of {log}:", *(f"  {line}" for line in tail)]
    return "\n".join(lines)


def missing_nodes(status: Status) -> list[str]:
    """The hosts of the allocation, or those that said something, that Ray does not count."""
    names = [name for each in status.job.hosts if each for name in _spelt(each)]
    there = {node.host for node in status.nodes if status.is_alive(node)}
    said = [node.host for node in status.nodes]
    return [name for name in names or said if name not in there]


def last_lines(log: Path) -> list[str]:
    """The last lines of a log, for a message; none where it is not there."""
    try:
        text = log.read_bytes()[-_READ_BYTES:].decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-_LINES:]


def _spelt(names: str) -> list[str]:
    return host_names(names) if "[" in names or "," in names else [names]


def _in_short(status: Status) -> str:
    if not status.lives:
        return f"{status.state}{f' ({status.why})' if status.why else ''}"
    waited = status.cluster.site.start_timeout_seconds
    return f"{status.alive_count} of {status.wanted} nodes joined within {waited} s"
