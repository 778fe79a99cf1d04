"""`raysuite models`: parameters, FLOPs and memory of networks, for images of a given size."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysuite.cli.console import print_json, stderr, stdout, table
from raysuite.cli.run_options import AsJson
from raysuite.errors import UserError
from raysuite.units import MIB

if TYPE_CHECKING:
    from raysuite.spec.datasets import DatasetFacts

CONVENTIONS = """\
GFLOP: 10^9 multiply-adds of one image's forward pass, each counted once, as the papers count.
activations: memory that one image's forward pass keeps for the backward pass. Both in fp32."""


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Model names as in a spec; default: the models of the reproduced papers.",
        ),
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="Side of the square images, in pixels.")] = 224,
    channels: Annotated[int, typer.Option(min=1, help="1 for grey images, 3 for RGB.")] = 3,
    classes: Annotated[int, typer.Option(min=1, help="Number of classes.")] = 1000,
    stem: Annotated[
        str | None,
        typer.Option(
            help="Stem of models that have two: small or large; default: chosen by --size."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print parameters, forward FLOPs and activation bytes of networks. Nothing is trained.

    \b
    Examples:
      raysuite models
      raysuite models --size 28 --channels 1 --classes 10
      raysuite models resnet50 timm:convnext_tiny my_models:TinyNet --size 64
      raysuite models --json | jq '.models[] | {name, parameters}'
    """
    from raysuite.spec.datasets import DatasetFacts
    from raysuite.spec.stems import PAPERS_MODELS, STEMS

    if stem is not None and stem not in STEMS:
        raise UserError(f"--stem: got {stem!r}; it should be small or large")
    facts = DatasetFacts(0, 0, classes, channels, size)
    rows = [_costs(name, facts, stem) for name in names or PAPERS_MODELS]
    if as_json:
        shape = {"image_size": size, "channels": channels, "classes": classes}
        print_json({**shape, "models": rows})
        return
    out = stdout()
    out.print(f"images of {channels} x {size} x {size}, {classes} classes")
    figures = ("parameters", "GFLOP", "activations, MiB", "gradients, MiB")
    cells = [
        (
            row["name"],
            row["family"],
            row["stem"] or "-",
            f"{row['parameters']:,}",
            _gflop(row["forward_flops"]),
            f"{row['activation_bytes'] / MIB:.1f}",
            f"{row['gradient_bytes'] / MIB:.1f}",
        )
        for row in rows
    ]
    out.print(table(("model", "family", "stem", *figures), cells, figures))
    out.print(CONVENTIONS)


def _costs(name: str, facts: DatasetFacts, wanted: str | None) -> dict[str, Any]:
    """The figures of a network; figures that grow with the batch size are for one image."""
    from pydantic import ValidationError

    with stderr().status(f"counting {name}"):
        from raysuite.models import cost_of  # imported here: it takes seconds
        from raysuite.spec.experiment import ModelOptions
        from raysuite.spec.stems import family, stem_of

        stem = stem_of(name, facts.image_size, wanted)
        options = {"stem": stem} if stem and wanted else {}
        try:
            model = ModelOptions(name=name, options=options)
        except ValidationError as error:
            raise UserError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
        try:
            cost = cost_of(model, facts)
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
    return {"name": name, "family": family(name), "stem": stem, **asdict(cost)}


def _gflop(flops: int) -> str:
    return f"{flops / 1e9:.3f}" if flops >= 1e6 else f"{flops / 1e9:.1e}"
