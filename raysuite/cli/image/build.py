"""`raysuite image build`: both layers of an image, from the checkout's locked requirements."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from raysuite.cli.console import stderr
from raysuite.errors import UserError
from raysuite.images.layers import EXTRAS, Bootstrap, Choice, Variant
from raysuite.units import GIB


def chosen(variant: Variant, bootstrap: Bootstrap | None, extras: str | None) -> Choice:
    """The choice that the options name; `extras` are separated by commas, or `none`."""
    names = EXTRAS if extras is None else tuple(name.strip() for name in extras.split(","))
    return Choice(variant, bootstrap, () if names == ("none",) else names)


VARIANT = typer.Option(
    help="cuda and cuda12 compile Horovod with NCCL; cuda12 is for NVIDIA drivers before 580."
)
BOOTSTRAP = typer.Option(help="Where the base comes from; default: cpu debootstrap, cuda docker.")
EXTRAS_OPTION = typer.Option(help=f"Of {','.join(EXTRAS)}; `none` for none; default: all.")


def build(
    out: Annotated[Path, typer.Argument(metavar="OUT.sif", help="The image to write.")],
    variant: Annotated[Variant, VARIANT] = Variant.CPU,
    bootstrap: Annotated[Bootstrap | None, BOOTSTRAP] = None,
    extras: Annotated[str | None, EXTRAS_OPTION] = None,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="Debian's mirror; default: this machine's.")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Room for 20 GB; default: /tmp.")
    ] = None,
    compression: Annotated[str, typer.Option(help="zstd, or gzip for old systems.")] = "zstd",
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY.pem", help="Sign it with this private key.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Build the base layer anew too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.sif.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print definition files and commands, build nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Build an image from this checkout: what is locked, Horovod compiled inside, and raysuite.

    \b
    Examples:
      raysuite image build raysuite.sif
      raysuite image build raysuite.sif --variant cuda --scratch /local/me
      raysuite image build small.sif --extras horovod,deepspeed
      raysuite image build raysuite.sif --dry-run
    """
    from raysuite.images.build import Order, build, check, checkout, commands

    order = Order(
        choice=chosen(variant, bootstrap, extras),
        out=out.absolute(),
        root=checkout(),
        shelf=shelf(),
        scratch=None if scratch is None else scratch.absolute(),
        mirror=mirror,
        compression=compression,
        fresh=fresh,
    )
    check(order)
    if dry_run:
        for layer, text in order.texts.items():
            print(f"### {layer}.def\n{text}")
        for command in commands(order, Path("/tmp/raysuite-image-XXXX")).values():
            print(shlex.join(command))
        return
    if out.exists() and not force:
        raise UserError(f"{out} exists; name another file, or replace it with --force")
    if sign is not None and not sign.is_file():
        raise UserError(f"the key {sign} is not there")
    with stderr().status("starting") as status:

        def say(line: str) -> None:
            status.update(line[:100] or "…")
            if not sys.stderr.isatty():
                print(line, file=sys.stderr, flush=True)

        built = build(order, say)
        if sign is not None:
            from raysuite.images.verify import sign_image

            sign_image(built.path, sign)
    if as_json:
        print(json.dumps(asdict(built), indent=2, default=str))
    else:
        steps = ", ".join(f"{name} {took:.0f} s" for name, took in built.seconds.items())
        print(f"{built.path}: {built.size_bytes / GIB:.2f} GiB ({steps})")
        print(f"digest {built.digest}; log {built.log}")


def shelf() -> Path:
    """Where base layers and downloads are kept: images/ below $RAYSUITE_CACHE."""
    cache = os.environ.get("RAYSUITE_CACHE", "~/.cache/raysuite")
    return Path(cache).expanduser().absolute() / "images"
