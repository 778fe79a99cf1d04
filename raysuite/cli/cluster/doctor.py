"""`raysuite cluster doctor`: look at a site from the login node."""

from __future__ import annotations

import json as json_text
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from raysuite.cli.console import print_text, stdout
from raysuite.cluster.findings import State

_COLOURS = {State.WORKS: "green", State.UNSURE: "yellow", State.WRONG: "red"}


def doctor(
    site: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="A site's name, or a file that describes it.")
    ] = "local",
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at a site from here: SLURM, partition, limits, accounts, image, folders.

    Nothing is queued. Exits with 1 where a cluster cannot start.

    \b
    Examples:
      raysuite cluster doctor --site mysite
      raysuite cluster doctor --site mysite --json | jq '.findings[] | select(.state == "wrong")'
    """
    from raysuite.cluster.site_check import check_site
    from raysuite.cluster.sites import find_site

    found = find_site(site)
    findings = list(check_site(found, sys.executable))
    bad = [finding.what for finding in findings if finding.state is State.WRONG]
    if json:
        rows = [asdict(finding) for finding in findings]
        print_text(json_text.dumps({"site": found.name, "ok": not bad, "findings": rows}, indent=2))
    else:
        from rich.table import Table  # here: --help needs none
        from rich.text import Text

        table = Table(title=f"site {found.name}")
        for heading in ("what", "state", "note", "mend"):
            table.add_column(heading, overflow="fold")
        for finding in findings:
            state = Text(finding.state, style=_COLOURS[finding.state])
            table.add_row(finding.what, state, Text(finding.note), Text(finding.mend))
        stdout().print(table)
        print_text(f"To mend: {', '.join(bad)}." if bad else "Nothing speaks against a start.")
    if bad:
        raise typer.Exit(1)
