"""`raysuite image inspect` and `raysuite image verify`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from raysuite.cli.console import print_text, stderr
from raysuite.units import human_bytes

_IMAGE = typer.Argument(metavar="IMAGE.sif", help="An image built by `raysuite image build`.")
_JSON = typer.Option("--json", help="Print it as JSON.")


def inspect(
    image: Annotated[Path, _IMAGE],
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Print what an image holds: versions, digest of its recipe, commit, labels.

    \b
    Examples:
      raysuite image inspect raysuite.sif
      raysuite image inspect raysuite.sif --json | jq -r .facts.digest
    """
    from raysuite.images.inspect import describe

    found = describe(image)
    if as_json:
        print_text(json.dumps(asdict(found), indent=2))
        return
    facts: dict[str, Any] = dict(found.facts)
    versions = facts.pop("versions", {})
    rows = {"image": found.path, "size": human_bytes(found.size_bytes), **facts, **versions}
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        shown = " ".join(value) if isinstance(value, list) else value
        print_text(f"{name:{width}}  {shown}")


def verify(
    image: Annotated[Path, _IMAGE],
    key: Annotated[
        Path | None,
        typer.Option(metavar="KEY.pem", help="The public key that it must be signed by."),
    ] = None,
    signature: Annotated[
        bool, typer.Option("--signature", help="Ask for a signature by a key of the keyring.")
    ] = False,
    test: Annotated[bool, typer.Option(help="Run the image's own test too.")] = True,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Check that an image is of this checkout's recipe, that it works, and who signed it.

    Exits with 1 where one of them fails.

    \b
    Examples:
      raysuite image verify raysuite.sif
      raysuite image verify raysuite.sif --key site-public.pem --no-test
    """
    from raysuite.images import verify as checks
    from raysuite.images.build import checkout

    with stderr().status("reading the image"):
        found = [checks.recipe(image, checkout())]
        if key is not None or signature:
            found.append(checks.signature(image, key))
        if test:
            found.append(checks.test(image))
    if as_json:
        print_text(json.dumps([asdict(check) for check in found], indent=2))
    else:
        for check in found:
            print_text(f"{'ok    ' if check.passed else 'FAILED'}  {check.name}: {check.note}")
    if not all(check.passed for check in found):
        raise typer.Exit(1)
