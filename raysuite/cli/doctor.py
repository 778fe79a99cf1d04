"""`raysuite doctor`: try every part and show how to repair what does not work."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.text import Text

import raysuite
from raysuite.cli.console import print_json, print_text, stderr, stdout, table
from raysuite.cli.run_options import AsJson

_COLOURS = {"works": "green", "missing": "yellow", "slow": "yellow", "broken": "red"}


def doctor(
    as_json: AsJson = False,
) -> None:
    """Try every part (Ray, Horovod, DeepSpeed, DALI, ...) and show how to repair the broken ones.

    Exits with 1 if a part is broken, or if a required part is missing or too slow to be tested.

    \b
    Examples:
      raysuite doctor
      raysuite doctor --json | jq '.parts[] | select(.state != "works")'
    """
    from raysuite.orchestrate.part_trials import TRIED, State, try_parts

    findings = []
    # Progress goes to stderr, so that --json can be piped.
    with stderr().status(f"trying {len(TRIED)} parts, about a minute") as status:
        for finding in try_parts():
            findings.append(finding)
            status.update(f"{finding.name}: {finding.state}")
    bad = [finding.name for finding in findings if finding.bad]
    off = [f.name for f in findings if f.state is State.MISSING and not f.bad]
    if as_json:
        parts = [asdict(finding) for finding in findings]
        print_json({"raysuite": raysuite.__version__, "ok": not bad, "parts": parts})
    else:
        rows = [
            (f.name, f.version, Text(f.state, _COLOURS[f.state]), f.note, f.fix) for f in findings
        ]
        title = f"raysuite {raysuite.__version__}"
        stdout().print(table(("part", "version", "state", "note", "fix"), rows, title=title))
        if bad:
            print_text(f"To fix: {', '.join(bad)}.")
        elif off:
            print_text(f"Everything required works; optional and missing: {', '.join(off)}.")
        else:
            print_text("Everything works.")
    if bad:
        raise typer.Exit(1)
