"""`raysuite doctor`: try every part and show how to repair what does not work."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import raysuite
from raysuite.measure.trials import TRIED, Finding, State, try_parts

_COLOURS = {State.WORKS: "green", State.MISSING: "yellow", State.BROKEN: "red"}


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Try every part (Ray, Horovod, DeepSpeed, DALI, ...) and show how to repair what is broken.

    Exits with 1 where a part is broken or a required one is missing.

    \b
    Examples:
      raysuite doctor
      raysuite doctor --json | jq '.parts[] | select(.state != "works")'
    """
    findings = []
    # Progress goes to stderr, so that --json can be piped.
    with Console(stderr=True).status(f"trying {len(TRIED)} parts, about a minute") as status:
        for finding in try_parts():
            findings.append(finding)
            status.update(f"{finding.name}: {finding.state}")
    healthy = not any(finding.bad for finding in findings)
    if json:
        print(json_text.dumps(as_data(findings, healthy), indent=2))
    else:
        console = Console()
        console.print(as_table(findings))
        console.print(summary(findings))
    if not healthy:
        raise typer.Exit(1)


def as_data(findings: Iterable[Finding], healthy: bool) -> dict[str, object]:
    """The findings as JSON holds them; `ok` is the exit status as a truth value."""
    parts = [asdict(finding) for finding in findings]
    return {"raysuite": raysuite.__version__, "ok": healthy, "parts": parts}


def as_table(findings: Iterable[Finding]) -> Table:
    """One row a part."""
    table = Table(title=f"raysuite {raysuite.__version__}")
    for heading in ("part", "version", "state", "note", "fix"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        state = Text(finding.state, style=_COLOURS[finding.state])
        table.add_row(finding.name, finding.version, state, Text(finding.note), Text(finding.mend))
    return table


def summary(findings: Iterable[Finding]) -> str:
    """One closing sentence."""
    findings = list(findings)
    bad = [finding.name for finding in findings if finding.bad]
    off = [f.name for f in findings if f.state is State.MISSING and not f.bad]
    if bad:
        return f"To fix: {', '.join(bad)}."
    if off:
        return f"Everything required works; optional and missing: {', '.join(off)}."
    return "Everything works."
