"""`raysuite data convert`: an image folder as TFRecord shards."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raysuite.cli.console import print_text
from raysuite.cli.data.progress import cpus, progress

if TYPE_CHECKING:
    from raysuite.data.convert import Conversion, Summary


def convert(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="A folder with train/CLASS/* and val/CLASS/*.")
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="A new or an empty folder.")],
    shards: Annotated[
        int | None,
        typer.Option(min=1, max=99_999, help="Training shards; validation gets its share."),
    ] = None,
    shard_mb: Annotated[
        float, typer.Option(min=0.001, help="Or: images of a shard, in MB (10^6 bytes).")
    ] = 150,
    shorter_side: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="PX", help="Shrink larger images to this; all others keep their bytes."
        ),
    ] = None,
    quality: Annotated[
        int, typer.Option(min=1, max=100, help="Of the JPEGs that are shrunk.")
    ] = 95,
    order: Annotated[
        Literal["shuffled", "sorted"], typer.Option(help="Of the images over the shards.")
    ] = "shuffled",
    seed: Annotated[int, typer.Option(min=0, help="Of the shuffled order.")] = 0,
    first_label: Annotated[
        int | None,
        typer.Option(
            min=0, max=1, help="Number of the first class; default: 1 for synsets, else 0."
        ),
    ] = None,
    bad: Annotated[
        Literal["error", "skip"], typer.Option(help="What to do about unreadable images.")
    ] = "error",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: the CPUs of this machine.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Begin anew where a conversion was begun.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be written; write nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Convert an image folder to TFRecord shards, with an index for DALI beside each.

    JPEGs and PNGs keep their bytes unless --shorter-side shrinks them. A conversion that was
    killed is gone on with by the same command.

    \b
    Examples:
      raysuite data convert /data/imagenet /scratch/imagenet-tfrecord
      raysuite data convert photos shards --shards 16 --shorter-side 256 --bad skip
      raysuite data convert photos shards --dry-run
    """
    from raysuite.data.convert import Options, plan_conversion
    from raysuite.data.convert import convert as run

    options = Options(shards, shard_mb, order, seed, shorter_side, quality, first_label)
    conversion = plan_conversion(source, target, options, force)
    if dry_run:
        _tell_plan(conversion, as_json)
        return
    total = conversion.images("train") + conversion.images("val")
    with progress("converting", total, "images", hidden=as_json) as count:
        summary = run(conversion, workers or cpus(), bad, force, count)
    if as_json:
        print_text(json.dumps({"target": str(conversion.target), **asdict(summary)}, indent=2))
    else:
        _tell(conversion, summary)


def _tell_plan(conversion: Conversion, as_json: bool) -> None:
    if as_json:
        told = {**conversion.document, "first_label": conversion.first_label}
        told["passed_over"] = conversion.passed_over
        print_text(json.dumps({**told, "bytes": conversion.bytes}, indent=2))
        return
    counts = conversion.document["shards"]
    for split in ("train", "val"):
        images = conversion.images(split)
        print_text(f"{split}: {images:,} images into {counts[split]} shards")
    print_text(
        f"{conversion.bytes / 1e6:,.1f} MB of images, {len(conversion.classes)} classes from label "
        f"{conversion.first_label}; nothing was written"
    )
    _tell_passed_over(conversion)


def _tell_passed_over(conversion: Conversion) -> None:
    if conversion.passed_over:
        print_text(
            f"passed over, as they are no images: {conversion.passed_over} files or folders; "
            f"`raysuite data check {shlex.quote(str(conversion.source))}` names them"
        )


def _tell(conversion: Conversion, summary: Summary, shown: int = 20) -> None:
    target = conversion.target
    done = f"{summary.written} of {summary.shards} shards were written, the others were complete"
    if summary.written == summary.shards:
        done = f"{summary.shards} shards"
    if not summary.written:
        done = f"nothing to do: all {summary.shards} shards are complete"
    print_text(
        f"{target}: {done}\n{summary.train:,} training and {summary.val:,} validation images of "
        f"{summary.classes} classes, labels from {summary.first_label}, "
        f"{summary.bytes / 1e6:,.1f} MB"
    )
    if conversion.options.shorter_side is not None:
        print_text(f"{summary.shrunk:,} images were shrunk; the others kept their bytes")
    if summary.skipped:
        print_text(f"left out, as they cannot be read: {len(summary.skipped)}")
        for one in summary.skipped[:shown]:
            print_text(f"  {one.path}: {one.reason}")
        if len(summary.skipped) > shown:
            print_text(f"  and {len(summary.skipped) - shown} more, in {target / 'manifest.json'}")
    _tell_passed_over(conversion)
    print_text(f"in a spec: data: {_spec(conversion)}")


def _spec(conversion: Conversion) -> str:
    """The block that reads what was written."""
    path = json.dumps(str(conversion.target))
    if conversion.synsets and conversion.first_label == 1:
        return f"{{name: imagenet, format: tfrecord, path: {path}}}"
    first = f", features: {{first_label: {conversion.first_label}}}"
    return (
        f"{{name: tfrecord, path: {path}, classes: {len(conversion.classes)}, "
        f"image_size: {conversion.options.shorter_side or 224}"
        f"{first if conversion.first_label else ''}}}"
    )
