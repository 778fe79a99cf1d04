"""`raysuite data make`: a synthetic stand-in of a named data set."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysuite.cli.console import print_text
from raysuite.cli.data.of_spec import parse_size, stand_ins_of
from raysuite.cli.data.progress import cpus, progress
from raysuite.errors import RunError, UserError
from raysuite.spec.datasets import NAMED, default_path
from raysuite.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from raysuite.data.synthesis import Made, StandIn
    from raysuite.orchestrate.stand_ins import NodeEnd


SPEC_SUFFIXES = (".yaml", ".yml")


def make(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|SPEC", help=f"{', '.join(NAMED)}; or a spec: its `stand_ins`."
        ),
    ],
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="folder, tfrecord, idx (MNIST), binary or pickle (CIFAR-10); default: the "
            "set's own.",
        ),
    ] = None,
    fraction: Annotated[
        float | None, typer.Option(help="Of the paper's images; classes are kept if possible.")
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="Or: training images; validation keeps its proportion.")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="Default: the paper's, or fewer.")] = None,
    size: Annotated[
        str | None, typer.Option(metavar="PX|WxH", help="Pixels; default: the paper's.")
    ] = None,
    content: Annotated[
        str, typer.Option(help="natural (1/f spectrum, classes learnable) or noise (DDLBench's).")
    ] = "natural",
    seed: Annotated[int, typer.Option(help="Equal seeds make equal bytes.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Default: $RAYSUITE_DATA/NAME-FORMAT, where a spec looks for it."),
    ] = None,
    scale: Annotated[str | None, typer.Option(help="With a spec: a form of it.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes (on each node); default: all CPUs.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="Training files of TFRecords; default: 1,251 images each.")
    ] = None,
    quality: Annotated[int | None, typer.Option(help="Of JPEGs, 1 to 95.")] = None,
    address: Annotated[
        str | None,
        typer.Option(
            envvar="RAY_ADDRESS", help="Make it on every node of this Ray cluster, on its own disk."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be made; write nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a stand-in that was made or begun before.")
    ] = False,
) -> None:
    """Make a synthetic stand-in of a named data set, with its counts, sizes and layout.

    Nothing is downloaded. Labels can be learned. A command that was killed is gone on with by
    the same command; a set that is complete is left as it is.

    \b
    Examples:
      raysuite data make mnist
      raysuite data make cifar10 --format pickle --fraction 0.1
      raysuite data make imagenet --images 20000 --out /scratch/imagenet
      raysuite data make imagenet --format tfrecord --address 10.0.0.1:6379
      raysuite data make highres --fraction 0.01 --content noise --dry-run
      raysuite data make experiments/ddlbench.yaml --scale laptop
    """
    from raysuite.data.synthesis import plan_stand_in

    wanted: list[tuple[StandIn, Path | None]]
    if Path(name).suffix in SPEC_SUFFIXES:
        of_spec = (form, fraction, images, classes, size, out, shards, quality)
        if any(each is not None for each in of_spec):
            raise UserError(
                f"{name} says what its stand-ins are; with a spec, give --scale, --workers, "
                "--address, --dry-run, --json and --force alone"
            )
        wanted = [*stand_ins_of(Path(name), scale)]
        if not wanted and not as_json:
            print_text(f"{name} asks for no stand-ins; nothing was made")
    elif scale is not None:
        raise UserError(f"--scale {scale} is for a spec, and {name!r} is none; leave it out")
    else:
        stand_in = plan_stand_in(
            name,
            form,
            fraction=fraction,
            images=images,
            classes=classes,
            size=None if size is None else parse_size(size),
            content=content,
            seed=seed,
            quality=quality,
            shards=shards,
        )
        wanted = [(stand_in, out)]
    for stand_in, folder in wanted:
        if dry_run:
            _tell_plan(stand_in, folder or default_path(name, stand_in.form), as_json)
        elif address is None:
            _here(stand_in, folder, workers or cpus(), force, as_json)
        else:
            _on_nodes(stand_in, folder, workers, force, as_json, address)


def _tell_plan(stand_in: StandIn, folder: Path, as_json: bool) -> None:
    from raysuite.data.synthesis.making import expected_bytes

    size = expected_bytes(stand_in, stand_in.train + stand_in.val)
    if as_json:
        plan = {"path": str(folder), "bytes": size, **stand_in.parameters}
        print_text(json.dumps(plan, indent=2))
    else:
        print_text(
            f"{folder}: {stand_in.told()}, as {stand_in.form}, about {human_bytes(size)}"
            f"{_fewer(stand_in)}"
        )


def _fewer(stand_in: StandIn) -> str:
    """A line that tells of classes that are left out."""
    official = NAMED[stand_in.name].facts.classes
    if stand_in.classes == official:
        return ""
    return (
        f"\n{stand_in.classes:,} of {stand_in.name}'s {official:,} classes; --classes N makes "
        "another number"
    )


def _here(stand_in: StandIn, out: Path | None, workers: int, force: bool, as_json: bool) -> None:
    from raysuite.data.synthesis import make

    folder = out or default_path(stand_in.name, stand_in.form)

    def waiting() -> None:
        print_text(f"{folder} is being written by another process; waiting for it", error=True)

    total = stand_in.train + stand_in.val
    with progress(f"making {stand_in.name}", total, "images", hidden=as_json) as count:
        made = make(stand_in, folder, workers, force, count, waiting)
    if as_json:
        print_text(json.dumps(_as_data(stand_in, made), indent=2))
    else:
        print_text(f"{made.path}: {_told(stand_in, made)}{_fewer(stand_in)}")


def _told(stand_in: StandIn, made: Made) -> str:
    what = f"{stand_in.told()}, as {stand_in.form}, {human_bytes(made.bytes)}"
    if not made.written:
        return f"{what}; complete already, nothing was written"
    old = made.images - made.drawn
    again = f"{old:,} of them were there already; " if old else ""
    rate = f"{made.drawn / made.seconds:,.0f} images/s"
    return f"{what}; {again}made in {human_seconds(made.seconds)}, {rate}"


def _as_data(stand_in: StandIn, made: Made) -> dict[str, Any]:
    rate = made.drawn / made.seconds if made.drawn else None
    return {"stand_in": stand_in.parameters, **asdict(made), "images_per_s": rate}


def _on_nodes(
    stand_in: StandIn,
    out: Path | None,
    workers: int | None,
    force: bool,
    as_json: bool,
    address: str,
) -> None:
    from raysuite.orchestrate.cluster import connect
    from raysuite.orchestrate.stand_ins import make_on_nodes

    total = stand_in.train + stand_in.val
    folder = None if out is None else out.expanduser().absolute()
    with (
        connect(address) as capacity,
        progress(
            f"making {stand_in.name} on {capacity.nodes} nodes",
            total * capacity.nodes,
            "images",
            hidden=as_json,
        ) as count,
    ):
        ends = make_on_nodes(stand_in, folder, workers, force, count)
    _tell_nodes(stand_in, ends, as_json)
    failed = [end for end in ends if end.made is None]
    if failed:
        raise RunError(
            f"{len(failed)} of {len(ends)} nodes hold no complete set; mend what they say, and "
            "run the same command again"
        )
    digests = {end.made.digest for end in ends if end.made is not None}
    if len(digests) > 1:
        raise RunError(
            "the nodes' sets differ, though all parameters are equal: compare the versions of "
            "NumPy and Pillow on them, and make the set again with --force"
        )


def _tell_nodes(stand_in: StandIn, ends: list[NodeEnd], as_json: bool) -> None:
    if as_json:
        nodes = [
            {
                "node": end.node,
                "error": end.error,
                **({} if end.made is None else _as_data(stand_in, end.made)),
            }
            for end in ends
        ]
        print_text(json.dumps({"stand_in": stand_in.parameters, "nodes": nodes}, indent=2))
        return
    for end in ends:
        told = end.error if end.made is None else f"{end.made.path}: {_told(stand_in, end.made)}"
        print_text(f"{end.node}  {told}")
    if _fewer(stand_in):
        print_text(_fewer(stand_in).lstrip())
