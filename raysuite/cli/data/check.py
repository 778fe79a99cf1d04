"""`raysuite data check`: what lies in a data set, and what is wrong with it, and where."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from raysuite.cli.console import print_text, stdout
from raysuite.cli.data.progress import cpus, progress
from raysuite.errors import UserError
from raysuite.spec.datasets import NAMED, Format

if TYPE_CHECKING:
    from rich.table import Table

    from raysuite.data.check import Report, Target

_SPEC_SUFFIXES = (".yaml", ".yml")


def check(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PATH|SPEC|NAME",
            help="A folder, a spec's YAML file, or a named set where `make` writes it.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            help=f"What lies in PATH, where its files do not show it: {', '.join(NAMED)}, "
            "image_folder or tfrecord."
        ),
    ] = None,
    form: Annotated[
        Literal["folder", "tfrecord", "idx", "binary", "pickle"] | None,
        typer.Option("--format", help="And in what form."),
    ] = None,
    decode: Annotated[
        bool, typer.Option(help="Decode every pixel, or only look at headers and checksums.")
    ] = True,
    write_index: Annotated[
        bool,
        typer.Option("--write-index", help="Write missing and wrong indices of whole TFRecords."),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: the CPUs of this machine.")
    ] = None,
    limit_shown: Annotated[
        int, typer.Option(min=0, help="Things that are wrong, and notes, to print of each.")
    ] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Look through a data set: counts, classes, unreadable images, checksums, indices, labels.

    Says what is wrong and where: file and byte offset. Exits with 1 where anything is. Images of
    an odd kind (CMYK, 16 bits, grey among colour) are notes: every loader converts them.

    \b
    Examples:
      raysuite data check /data/imagenet
      raysuite data check experiments/quickstart.yaml
      raysuite data check mnist --format idx
      raysuite data check /scratch/shards --write-index --no-decode
    """
    from raysuite.data.check import check as look

    targets = _targets(what, name, form)
    reports = []
    for target in targets:
        with ExitStack() as stack:

            def begin(total: int, unit: str, stack: ExitStack = stack) -> Callable[[int], None]:
                bar = progress("checking", total, unit, hidden=as_json)
                return stack.enter_context(bar)

            reports.append(look(target, decode, write_index, workers or cpus(), begin))
    if as_json:
        told = [_as_data(report) for report in reports]
        print_text(json.dumps(told[0] if len(told) == 1 else told, indent=2))
    else:
        for report in reports:
            _tell(report, limit_shown)
    if not all(report.ok for report in reports):
        raise typer.Exit(1)


def _targets(what: str, name: str | None, form: Format | None) -> list[Target]:
    """The data sets that the command line names. Raises UserError where there is none."""
    from raysuite.data.check import Target, detect, stated
    from raysuite.plan import expand
    from raysuite.spec import read_document

    path = Path(what)
    if path.suffix in _SPEC_SUFFIXES:
        if name or form:
            raise UserError(f"--name and --format are for folders; {what} names its data set")
        blocks = [spec.data for _, spec in expand(read_document(path))]
        unique = {block.model_dump_json(): block for block in blocks}
        return [Target.of(block) for block in unique.values()]
    try:
        if what in NAMED and name is None:
            return [Target.of(stated(None, what, form))]
        if name or form:
            target = Target.of(stated(path.expanduser().resolve(), name, form))
            if not target.root.is_dir():
                raise UserError(f"no folder {target.root}")
            return [target]
    except ValueError as error:
        raise UserError(f"--name {name}, --format {form}: {_reason(error)}") from error
    return [detect(path.expanduser().resolve())]


def _reason(error: ValueError) -> str:
    found: Any = getattr(error, "errors", list)()
    return "; ".join(str(each["msg"]) for each in found) or str(error)


def _tell(report: Report, limit: int) -> None:
    out = stdout()
    print_text(f"{report.path}: {report.form}")
    if report.splits:
        out.print(_table(report))
    wrong = [finding for finding in report.findings if not finding.note]
    notes = [finding for finding in report.findings if finding.note]
    for title, found, count in (("note", notes, len(notes)), ("wrong", wrong, report.errors)):
        if count:
            print_text(f"{count} {title}{'s' if title == 'note' and count > 1 else ''}:")
        for finding in found[:limit]:
            print_text(f"  {finding}")
        if count > limit:
            print_text(f"  and {count - limit} more; --limit-shown or --json shows them")
    if report.ok:
        print_text("nothing is wrong")


def _table(report: Report) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for heading in ("split", "images", "unreadable", "classes", "images per class"):
        table.add_column(heading, justify="left" if heading == "split" else "right")
    for heading in ("pixels", "kinds"):
        table.add_column(heading)
    for split, found in report.splits.items():
        table.add_row(
            split,
            f"{found.images:,}",
            f"{found.unreadable:,}",
            f"{len(found.classes):,}",
            _span(found.classes.values()),
            _sizes(found.sizes),
            ", ".join(f"{count:,} {name}" for name, count in found.looks.items()),
        )
    return table


def _span(counts: Any) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _sizes(sizes: Mapping[tuple[int, int], int]) -> str:
    """`32 x 32`, or the smallest and the largest sides and the most common size."""
    if len(sizes) < 2:
        return "".join(f"{width} x {height}" for width, height in sizes)
    widths, heights = ([size[i] for size in sizes] for i in (0, 1))
    width, height = max(sizes, key=lambda size: (sizes[size], size))
    return f"{_span(widths)} x {_span(heights)}, most often {width} x {height}"


def _as_data(report: Report) -> dict[str, Any]:
    splits = {
        split: {
            **asdict(found),
            "sizes": [[*size, count] for size, count in sorted(found.sizes.items())],
        }
        for split, found in report.splits.items()
    }
    return {
        "path": str(report.path),
        "form": report.form,
        "ok": report.ok,
        "splits": splits,
        "errors": report.errors,
        "findings": [
            {**asdict(each), "offset": None if each.offset < 0 else each.offset}
            for each in report.findings
        ],
    }
