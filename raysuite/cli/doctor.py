"""`raysuite doctor`: test every part, or check a site, and show how to repair what is broken."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

import raysuite
from raysuite.cli.console import print_json, print_text, stderr, stdout, table
from raysuite.cli.run_options import AsJson

_COLOURS = {"works": "green", "broken": "red", "wrong": "red"}
"""State -> colour; any other state is yellow."""


def doctor(
    site: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Instead of the parts, check this site, from its login node: SLURM, partition, "
            "limits, accounts, image, folders. Nothing is queued.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Test every part (Ray, Horovod, DeepSpeed, DALI, ...) and show how to repair the broken ones.

    Exits with 1 if a part is broken, or if a required part is missing or its test exceeds its time
    limit; with --site, if a cluster cannot start there.

    \b
    Examples:
      raysuite doctor
      raysuite doctor --json | jq '.parts[] | select(.state != "works")'
      raysuite doctor --site mysite
      raysuite doctor --site mysite --json | jq '.findings[] | select(.state == "wrong")'
    """
    bad = _try_parts(as_json) if site is None else _check_site(site, as_json)
    if bad:
        raise typer.Exit(1)


def _try_parts(as_json: bool) -> list[str]:
    """Test every part. Returns the names of the parts that must be repaired."""
    from raysuite.orchestrate.part_trials import TRIED, State, try_parts

    findings = []
    # Progress goes to stderr, so that --json can be piped.
    with stderr().status(f"testing {len(TRIED)} parts; this takes about a minute") as status:
        for finding in try_parts():
            findings.append(finding)
            status.update(f"{finding.name}: {finding.state}")
    bad = [finding.name for finding in findings if finding.bad]
    if as_json:
        parts = [asdict(finding) for finding in findings]
        print_json({"raysuite": raysuite.__version__, "ok": not bad, "parts": parts})
        return bad
    rows = [(f.name, f.version, _coloured(f.state), f.note, f.fix) for f in findings]
    title = f"raysuite {raysuite.__version__}"
    stdout().print(table(("part", "version", "state", "note", "fix"), rows, title=title))
    off = [f.name for f in findings if f.state is State.MISSING and not f.bad]
    well = f"All required parts work; missing optional parts: {', '.join(off)}."
    _print_end(bad, well if off else "Everything works.")
    return bad


def _check_site(site: str, as_json: bool) -> list[str]:
    """Check a site. Returns the names of the checks that failed."""
    from raysuite.cluster.backend import State
    from raysuite.cluster.sites import check_site, find_site

    found = find_site(site)
    findings = list(check_site(found, sys.executable))
    bad = [finding.what for finding in findings if finding.state is State.WRONG]
    if as_json:
        checks = [asdict(finding) for finding in findings]
        print_json({"site": found.name, "ok": not bad, "findings": checks})
        return bad
    rows = [(f.what, _coloured(f.state), f.note, f.fix) for f in findings]
    stdout().print(table(("what", "state", "note", "fix"), rows, title=f"site {found.name}"))
    _print_end(bad, "No problems found; the cluster can be started.")
    return bad


def _coloured(state: str) -> Text:
    return Text(state, _COLOURS.get(state, "yellow"))


def _print_end(bad: list[str], well: str) -> None:
    print_text(f"To fix: {', '.join(bad)}." if bad else well)
