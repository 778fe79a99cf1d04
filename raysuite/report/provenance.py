"""The origin of a report's figures: spec, plan, command, versions, seeds, gate, journals."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raysuite import __version__
from raysuite.records import Results, RunFigures, RunFinished
from raysuite.records.journal import SEARCH
from raysuite.report import text
from raysuite.report.raw_data import finite
from raysuite.report.tables import Sheet, sheet_from


def provenance(
    folder: Path, runs: Sequence[RunFigures], options: dict[str, Any], names: dict[str, str]
) -> dict[str, Any]:
    """The data that are needed to reproduce these figures: the content of provenance.json.

    `names`: run id -> name. Times are UTC. The SHA-256 of a journal is computed from the bytes that
    this report read; None if a run has no journal so far.
    """
    environments = _environments(runs)
    data = {
        "format": 1,
        "experiment": str(runs[0].plan["spec"]["name"]) if runs else folder.name,
        "report": {"raysuite": __version__, "options": options},
        "commands": Results(folder).commands(),
        "spec": _file(folder, "spec.yaml"),
        "plan": _file(folder, "plan.json"),
        **({"search": _file(folder, SEARCH)} if (folder / SEARCH).is_file() else {}),
        "environments": environments,
        "timings": _timings(Results(folder)),
        "runs": [_run(Results(folder), run, environments, names[run.run_id]) for run in runs],
    }
    cleaned: dict[str, Any] = finite(data)
    return cleaned


def _environments(runs: Sequence[RunFigures]) -> list[dict[str, Any]]:
    """Each distinct environment, without the time at which it was recorded."""
    found: list[dict[str, Any]] = []
    for run in runs:
        environment = _environment(run)
        if environment is not None and environment not in found:
            found.append(environment)
    return found


def _environment(run: RunFigures) -> dict[str, Any] | None:
    if run.started is None:
        return None
    return {key: value for key, value in run.started.environment.items() if key != "time"}


def _file(folder: Path, name: str) -> dict[str, Any]:
    file = folder / name
    content = file.read_bytes() if file.is_file() else None
    return {
        "file": name,
        "bytes": None if content is None else len(content),
        "sha256": None if content is None else hashlib.sha256(content).hexdigest(),
    }


def _timings(results: Results) -> list[dict[str, Any]]:
    """Seconds of each command by phase, without the phases `report` and `mlflow`, which only read
    journals."""
    return [
        {
            "began": _utc(command["began"]),
            **({"nodes": command["nodes"]} if command.get("nodes") else {}),
            "seconds": {
                name: seconds
                for name, seconds in command["seconds"].items()
                if name not in ("report", "mlflow")
            },
        }
        for command in results.timings()
    ]


def _run(
    results: Results, run: RunFigures, environments: Sequence[dict[str, Any]], name: str
) -> dict[str, Any]:
    environment = _environment(run)
    journal = results.journal_file(run.run_id).relative_to(results.folder)
    verdict = run.verdict
    return {
        "run_id": run.run_id,
        "name": name,
        "repeat": run.plan["repeat"],
        "seed": run.plan["seed"],
        "status": run.status,
        "started": run.started and _utc(run.started.time),
        "taken_up_at_epoch": run.started and run.started.first_epoch,
        "taken_up_at_step": run.started and run.started.first_step,
        "attempts": run.attempts,
        "ended": run.end and _utc(run.end.time),
        "parts_seconds": run.end.parts_seconds if isinstance(run.end, RunFinished) else {},
        "gate": run.gate,
        "verdict": verdict and verdict.model_dump(mode="json", exclude={"run_id", "kind"}),
        "environment": None if environment is None else environments.index(environment),
        "journal": _file(results.folder, journal.as_posix()),
    }


def _utc(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")


def provenance_sheets(data: dict[str, Any]) -> list[Sheet]:
    """The non-empty tables of the data that `provenance` returns."""
    return [*filter(None, [times_sheet(data), nodes_sheet(data)]), files_sheet(data)]


def files_sheet(data: dict[str, Any]) -> Sheet:
    read = [(what, data[what]) for what in ("spec", "plan", "search") if what in data]
    read += [(run["name"], run["journal"]) for run in data["runs"]]
    lines = [
        {
            "What": what,
            "File": file["file"],
            "Bytes": "–" if file["bytes"] is None else f"{file['bytes']:,}",
            "SHA-256": file["sha256"] or "none so far",
        }
        for what, file in read
    ]
    return sheet_from("provenance", "Files from which every figure is computed", lines, ("Bytes",))


def times_sheet(data: dict[str, Any]) -> Sheet | None:
    """The wall time by command and by run; None if neither a command nor a run has recorded it."""
    commands = [
        (f"command of {each['began'].replace('T', ' ')[:19]}", each["seconds"])
        for each in data["timings"]
    ]
    runs = [(run["name"], run["parts_seconds"]) for run in data["runs"] if run["parts_seconds"]]
    names = tuple(dict.fromkeys(name for _, seconds in commands + runs for name in seconds))
    if not names:
        return None
    return Sheet(
        name="times",
        title="Wall time in seconds, by phase of each command and by part of each run",
        header=("What", *names),
        cells=_in_seconds(commands + runs, names),
        numbers=frozenset(names),
    )


def _in_seconds(
    rows: Iterable[tuple[str, Mapping[str, float]]], names: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Lines of a table: the name of a command or run, then its seconds in each phase."""
    return tuple(
        (name, *(f"{seconds[each]:.2f}" if each in seconds else text.NONE for each in names))
        for name, seconds in rows
    )


_START = {"image": "Image", "python": "Imports", "head": "Wait for the head", "ray": "Ray"}
"""Phase of a node's start, as in `cluster.state_files.Node` -> title of its column."""


def nodes_sheet(data: dict[str, Any]) -> Sheet | None:
    """How long each node took to join the cluster of the last command; None without a cluster."""
    found = [each["nodes"] for each in data["timings"] if "nodes" in each]
    nodes: dict[str, dict[str, float]] = found[-1] if found else {}
    phases = [phase for phase in _START if any(phase in seconds for seconds in nodes.values())]
    if not phases:
        return None
    titles = tuple(_START[phase] for phase in phases)
    return Sheet(
        name="node-starts",
        title="Seconds until a node was in the cluster, by phase",
        header=("Node", *titles),
        cells=_in_seconds(sorted(nodes.items()), phases),
        numbers=frozenset(titles),
        notes=("Image: from the start of SLURM's task to the start of the agent in the image.",)
        if "image" in phases
        else (),
    )
