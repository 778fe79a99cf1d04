"""Tables and caveats in the report of a training script: the work of its steps, and the duration of
its start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from raysuite.records import Row, ScriptMeasured
from raysuite.report import text
from raysuite.report.tables import Column, Sheet, sheet_from, sheet_of


def measured(row: Row) -> list[ScriptMeasured]:
    return [run.script for run in row.timed if run.script is not None]


def _mean(row: Row, of: Callable[[ScriptMeasured], float | None]) -> float | None:
    values = [of(each) for each in measured(row)]
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _column(title: str, of: Callable[[ScriptMeasured], float | None]) -> Column[Row]:
    return Column(title, lambda row: text.optional(_mean(row, of)), lambda row: _mean(row, of))


_SOURCES = {
    "given": "--samples-per-step",
    "loader": "the batches of its DataLoader",
    "mark": "raysuite.mark.step",
    "": "not known: steps/s only",
}


def script_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """Tables of the work of each row's steps and of the duration of its start; empty without
    scripts."""
    shown = [row for row in rows if measured(row)]
    if not shown:
        return []
    phases = list(measured(shown[0])[0].start_seconds)
    name: Column[Row] = Column("Variant", lambda row: row.name)
    work = sheet_of(
        "script-work",
        "Work of the script",
        (
            name,
            _column("Samples a step", lambda each: each.samples_per_step),
            _column("Tokens a step", lambda each: each.tokens_per_step),
            _column("Parameters", lambda each: each.parameters),
            _column("Steps/s", lambda each: each.steps_per_second),
            _column("Steps", lambda each: each.steps),
            _column("Left out", lambda each: each.left_out),
            Column("Samples from", lambda row: _SOURCES[measured(row)[0].samples_source]),
            Column("Nodes", _nodes),
        ),
        shown,
        (
            "Steps: steps that all ranks took with the script's first optimiser; if another "
            "optimiser steps twice in a row, its steps count instead. "
            "Left out: steps after the warm-up that came after an evaluation or a pause, such as a "
            "checkpoint.",
            *_without_energy(shown),
        ),
    )
    start = sheet_of(
        "script-start",
        "Seconds until the end of the first step",
        (
            name,
            *(_column(phase.capitalize(), _slowest(phase)) for phase in phases),
            _column("All", lambda each: sum(map(max, each.start_seconds.values()))),
        ),
        shown,
        (
            "Each phase on its slowest rank, mean over repeats. Launcher: from the start of "
            "torch's launcher to the start of the script's process.",
        ),
    )
    return [work, start, *_start_by_node(shown, phases)]


def _nodes(row: Row) -> str:
    """Number of nodes on which the workers ran; several numbers if repeats differ."""
    return ", ".join(map(str, sorted({len(each.starts_by_host) for each in measured(row)})))


def _without_energy(rows: Sequence[Row]) -> Iterator[str]:
    found = (each.without_energy for row in rows for each in measured(row))
    yield from (f"{why[0].upper()}{why[1:]}." for why in dict.fromkeys(found) if why)


def _start_by_node(rows: Sequence[Row], phases: Sequence[str]) -> list[Sheet]:
    """Duration of the start on each node, for rows with several nodes."""
    lines = []
    for row in rows:
        repeats = [each.starts_by_host for each in measured(row)]
        if max(map(len, repeats)) < 2:
            continue
        for host in dict.fromkeys(host for starts in repeats for host in starts):
            own = [starts[host] for starts in repeats if host in starts]
            means = {
                phase.capitalize(): text.number(fmean(each[phase] for each in own))
                for phase in phases
            }
            lines.append({"Variant": row.name, "Node": host, **means})
    note = "Each phase on the node's slowest rank, mean over the repeats that used the node."
    title = "Seconds until the end of the first step, by node"
    numbers = [phase.capitalize() for phase in phases]
    return [sheet_from("script-start-nodes", title, lines, numbers, (note,))] if lines else []


def _slowest(phase: str) -> Callable[[ScriptMeasured], float | None]:
    return lambda each: max(each.start_seconds[phase])


def script_caveats(rows: Sequence[Row]) -> Iterator[str]:
    unknown = [row.name for row in rows if any(not each.samples_per_step for each in measured(row))]
    if unknown:
        yield (
            f"The number of samples in a step is not known for {text.listed(unknown)}, so only "
            "steps/s is reported, and no speed-up. Give --samples-per-step, or call "
            "raysuite.mark.step(samples=...) in the script."
        )
    for row in rows:
        if row.differs_in_work:
            base = row.baseline
            yield (
                f"{row.name} and its baseline {base} train different numbers of parameters: no "
                "speed-up."
            )
    notes: dict[str, list[str]] = {}
    for row in rows:
        for each in measured(row):
            for note in each.notes:
                notes.setdefault(note, []).append(row.name)
    for note, names in notes.items():
        yield f"{text.listed(list(dict.fromkeys(names)))}: {note}."
