"""`raysuite image`: build and verify Apptainer images."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli.console import print_json, print_text, stderr
from raysuite.cli.run_options import AsJson, DryRun, folder_to_write, group
from raysuite.errors import UserError
from raysuite.images.recipe import EXTRAS, Choice, Variant
from raysuite.spec.datasets import cache_dir
from raysuite.units import GIB

if TYPE_CHECKING:
    from raysuite.images.builder import Order

VariantOption = Annotated[
    Variant,
    typer.Option(
        help="cuda and cuda12 compile Horovod with NCCL; cuda12 is for NVIDIA drivers before 580."
    ),
]
Extras = Annotated[
    str | None,
    typer.Option(
        help=f"Optional parts to install, separated by commas: any of {','.join(EXTRAS)}; or "
        "`none`; default: all."
    ),
]


def _choice(variant: Variant, extras: str | None) -> Choice:
    names = EXTRAS if extras is None else tuple(name.strip() for name in extras.split(","))
    return Choice(variant, () if names == ("none",) else names)


def build(
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="The image to write, NAME.sif; with --dockerfile, a folder."
        ),
    ],
    variant: VariantOption = Variant.CPU,
    extras: Extras = None,
    mirror: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Debian mirror; default: the one that this machine uses."),
    ] = None,
    scratch: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Temporary folder with 20 GB of free space; default: /tmp."
        ),
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY.pem", help="Sign the image with this private key.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT if it exists.")] = False,
    dockerfile: Annotated[
        bool,
        typer.Option(
            "--dockerfile",
            help="Instead of an image, write a folder with a Dockerfile, which is made from the "
            "images' definition files, and with the files that the Dockerfile copies.",
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Build an image from this checkout, with the locked packages, Horovod (compiled inside the
    image) and raysuite.

    \b
    Examples:
      raysuite image build raysuite.sif
      raysuite image build raysuite.sif --variant cuda --scratch /local/me
      raysuite image build small.sif --extras horovod,deepspeed
      raysuite image build /tmp/image --dockerfile && docker build /tmp/image
    """
    from raysuite.images.builder import Order, build, check, checkout, commands

    order = Order(
        choice=_choice(variant, extras),
        out=out.absolute(),
        root=checkout(),
        shelf=shelf(),
        scratch=None if scratch is None else scratch.absolute(),
        mirror=mirror,
    )
    if dockerfile:
        given: dict[str, object] = {"--mirror": mirror, "--scratch": scratch, "--sign": sign}
        given |= {"--force": force, "--dry-run": dry_run, "--json": as_json}
        if unused := [name for name, value in given.items() if value]:
            raise UserError(f"--dockerfile builds no image; leave {', '.join(unused)} out")
        _write_dockerfile(order)
        return
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
        raise UserError(f"there is no key {sign}; give a private key, as PEM")
    with stderr().status("starting") as status:

        def say(line: str) -> None:
            status.update(line[:100])
            if not sys.stderr.isatty():
                print(line, file=sys.stderr, flush=True)

        built = build(order, say)
        if sign is not None:
            from raysuite.images.inspect import sign_image

            sign_image(built.path, sign)
    if as_json:
        print_json({**asdict(built), "path": str(built.path), "log": str(built.log)})
    else:
        steps = ", ".join(f"{name} {took:.0f} s" for name, took in built.seconds.items())
        print(f"{built.path}: {built.size_bytes / GIB:.2f} GiB ({steps})")
        print(f"digest {built.digest}; log {built.log}")


def _write_dockerfile(order: Order) -> None:
    from raysuite.images.builder import write_context
    from raysuite.images.recipe import dockerfile

    folder_to_write(order.out)
    order.out.mkdir(parents=True, exist_ok=True)
    write_context(order, order.out / "context")
    file = order.out / "Dockerfile"
    file.write_text(dockerfile(order.choice, order.root), "utf-8")
    print_text(str(file))


def shelf() -> Path:
    """The folder of base layers and downloads: images/ below $RAYSUITE_CACHE."""
    return cache_dir().absolute() / "images"


Image = Annotated[
    Path, typer.Argument(metavar="IMAGE.sif", help="An image built by `raysuite image build`.")
]


def verify(
    image: Image,
    key: Annotated[
        Path | None,
        typer.Option(metavar="KEY.pem", help="Public key with which the signature is verified."),
    ] = None,
    signature: Annotated[
        bool,
        typer.Option(
            "--signature", help="Require a signature by a key in this machine's PGP keyring."
        ),
    ] = False,
    test: Annotated[bool, typer.Option(help="Also run the image's own test.")] = True,
    as_json: AsJson = False,
) -> None:
    """Check that an image's recipe digest equals that of this checkout, that the image works and,
    with --key or --signature, that its signature is valid.

    Exits with 1 if a check fails.

    \b
    Examples:
      raysuite image verify raysuite.sif
      raysuite image verify raysuite.sif --key site-public.pem --no-test
    """
    from raysuite.images import inspect as checks
    from raysuite.images.builder import checkout

    with stderr().status("reading the image"):
        found = [checks.recipe(image, checkout())]
        if key is not None or signature:
            found.append(checks.signature(image, key))
        if test:
            found.append(checks.test(image))
    if as_json:
        print_json([asdict(check) for check in found])
    else:
        for check in found:
            print_text(f"{'ok    ' if check.passed else 'FAILED'}  {check.name}: {check.note}")
    if not all(check.passed for check in found):
        raise typer.Exit(1)


image = group("Build and verify Apptainer images.", build, verify)
