"""`raysuite data`: make, check and convert data sets."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from raysuite.cli.console import print_json, print_text, stderr, stdout, table
from raysuite.cli.run_options import AsJson, DryRun, Scale, Workers, group, head_to_join
from raysuite.errors import RunError, UserError
from raysuite.spec.base import IMPORT_PATH
from raysuite.spec.datasets import NAMED, Format, default_path
from raysuite.units import count, human_bytes, human_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from raysuite.data.convert import Conversion, Summary
    from raysuite.data.set_check import Report, Target
    from raysuite.data.synthesis import Made, SyntheticSet
    from raysuite.orchestrate.synthetic_data import NodeEnd
    from raysuite.spec.data_set import DataOptions


def cpus() -> int:
    """The number of CPUs that this process may use, which is the default of --workers."""
    return len(os.sched_getaffinity(0))


@contextmanager
def progress(title: str, total: int, unit: str, hidden: bool) -> Iterator[Callable[..., None]]:
    """Show a progress bar on stderr, unless `hidden` or stderr is not a terminal. Yields a function
    that reports progress; its arguments are the number of units done since its last call and,
    optionally, a new title."""
    console = stderr()
    if hidden or not console.is_terminal:
        yield lambda *_: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    done = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), done, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda more, now=None: bar.update(task, advance=more, description=now)


# The synthetic data sets of a spec, and the folders from which its runs read them.


def synthetic_sets_of(file: Path, scale: str | None) -> list[tuple[SyntheticSet, Path]]:
    """The synthetic data sets that the runs of a spec read, each with its folder. Only
    the data sets that the spec's `synthetic_data` names are synthetic.

    Raises SpecError for mistakes in the spec, and UserError for a data set that cannot be made.
    """
    from raysuite.data.synthesis import plan_synthetic_set
    from raysuite.plan import expand
    from raysuite.plan.trials import specs_of_space
    from raysuite.spec import read_document
    from raysuite.spec.data_set import root_of
    from raysuite.spec.search_check import read_search

    document = read_document(file, scale=scale)
    if document.data.get("search") is not None:
        specs = specs_of_space(document, read_search(document))
    else:
        specs = [spec for _, spec in expand(document)]

    found: dict[Path, SyntheticSet] = {}
    for spec in specs:
        data = spec.data
        wanted = spec.synthetic_data.get(data.name)
        if wanted is None or root_of(data) in found:
            continue
        size = None if wanted.size is None else parse_size(str(wanted.size))
        found[root_of(data)] = plan_synthetic_set(
            data.name, data.form, **{**wanted.model_dump(), "size": size}
        )
    return [(synthetic, folder) for folder, synthetic in found.items()]


def parse_size(given: str) -> tuple[int, int]:
    """`64` or `500x375` -> width and height in pixels. Raises UserError for any other text."""
    found = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", given)
    if found is None:
        raise UserError(f"size {given!r}; valid: pixels, such as 64, or 500x375 (width, height)")
    return int(found[1]), int(found[2] or found[1])


SPEC_SUFFIXES = (".yaml", ".yml")


def make(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|SPEC", help=f"{', '.join(NAMED)}; or a spec with `synthetic_data`."
        ),
    ],
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="folder, tfrecord, idx (MNIST), binary or pickle (CIFAR-10); default: the "
            "format of the original.",
        ),
    ] = None,
    fraction: Annotated[
        float | None,
        typer.Option(help="Share of the data set's images to make."),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(
            help="Number of training images, instead of --fraction; the number of validation "
            "images is in proportion."
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            help="Number of classes; default: that of the data set, or fewer if there are too few "
            "images."
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="PX|WxH", help="Image size in pixels; default: that of the data set."),
    ] = None,
    content: Annotated[
        str | None,
        typer.Option(
            help="natural (1/f spectrum, learnable classes) or noise (as in DDLBench); default: "
            "natural."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed; equal seeds give identical bytes; default: 0.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write; default: the folder from which runs read the data set, "
            "$RAYSUITE_DATA/NAME-FORMAT or, without RAYSUITE_DATA, datasets/NAME-FORMAT in "
            "raysuite's cache."
        ),
    ] = None,
    scale: Scale = None,
    workers: Workers = None,
    address: Annotated[
        str | None,
        typer.Option(
            envvar="RAY_ADDRESS",
            callback=head_to_join,
            help="Make the data set on each node of this Ray cluster, on the node's own disk.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing or unfinished synthetic data set.")
    ] = False,
) -> None:
    """Make a synthetic version of a named data set, with the original's numbers of images and
    classes, image sizes and file layout.

    Nothing is downloaded. A network can learn the labels, except with --content noise. To resume a
    command that was killed, repeat it; a complete data set is left unchanged.

    \b
    Examples:
      raysuite data make mnist
      raysuite data make imagenet --images 20000 --out /scratch/imagenet
      raysuite data make imagenet --format tfrecord --address 10.0.0.1:6379
      raysuite data make experiments/ddlbench.yaml --scale laptop
    """
    from raysuite.data.synthesis import plan_synthetic_set

    wanted: list[tuple[SyntheticSet, Path | None]]
    of_a_spec = Path(name).suffix in SPEC_SUFFIXES
    if of_a_spec:
        of_spec = (form, fraction, images, classes, size, content, seed, out)
        if any(each is not None for each in of_spec):
            raise UserError(
                f"{name}: a spec sets the options of its data sets in `synthetic_data`; with a "
                "spec, give only --scale, --workers, --address, --dry-run, --json and --force"
            )
        wanted = [*synthetic_sets_of(Path(name), scale)]
        if not wanted and not as_json:
            print_text(f"{name} has no `synthetic_data`; nothing was made")
    elif scale is not None:
        raise UserError(
            f"--scale {scale} is only for a spec, and {name!r} is not one; leave --scale out"
        )
    else:
        synthetic = plan_synthetic_set(
            name,
            form,
            fraction=fraction,
            images=images,
            classes=classes,
            size=None if size is None else parse_size(size),
            content="natural" if content is None else content,
            seed=seed or 0,
        )
        wanted = [(synthetic, out)]
    documents: list[dict[str, Any]] = []
    say = documents.append if as_json else None
    try:
        for synthetic, folder in wanted:
            if dry_run:
                _foretell(synthetic, folder or default_path(name, synthetic.form), say)
            elif address is None:
                _here(synthetic, folder, workers or cpus(), force, say)
            else:
                _on_nodes(synthetic, folder, workers, force, say, address)
    finally:
        if as_json and of_a_spec:
            print_json(documents)
        elif documents:
            print_json(documents[0])


_Say = Callable[[dict[str, Any]], None] | None
"""A function that receives results as data; None: results are printed as text."""


def _foretell(synthetic: SyntheticSet, folder: Path, say: _Say) -> None:
    from raysuite.data.synthesis.making import expected_bytes

    size = expected_bytes(synthetic, synthetic.train + synthetic.val)
    if say:
        say({"path": str(folder), "bytes": size, **synthetic.parameters})
    else:
        print_text(f"{folder}: {synthetic.told()}, as {synthetic.form}, about {human_bytes(size)}")


def _here(synthetic: SyntheticSet, out: Path | None, workers: int, force: bool, say: _Say) -> None:
    from raysuite.data.synthesis import make

    folder = out or default_path(synthetic.name, synthetic.form)

    def waiting() -> None:
        print_text(f"{folder} is being written by another process; waiting for it", error=True)

    total = synthetic.train + synthetic.val
    with progress(f"making {synthetic.name}", total, "images", hidden=bool(say)) as advance:
        made = make(synthetic, folder, workers, force, advance, waiting)
    if say:
        say(_as_data(synthetic, made))
    else:
        print_text(f"{made.path}: {_summary(synthetic, made)}")


def _summary(synthetic: SyntheticSet, made: Made) -> str:
    what = f"{synthetic.told()}, as {synthetic.form}, {human_bytes(made.bytes)}"
    if not made.written:
        return f"{what}; complete already, nothing was written"
    old = made.images - made.drawn
    again = f"{old:,} of them were there already; " if old else ""
    rate = f"{made.drawn / made.seconds:,.0f} images/s"
    return f"{what}; {again}made in {human_seconds(made.seconds)}, {rate}"


def _as_data(synthetic: SyntheticSet, made: Made) -> dict[str, Any]:
    rate = made.drawn / made.seconds if made.drawn else None
    return {"synthetic": synthetic.parameters, **asdict(made), "images_per_s": rate}


def _on_nodes(
    synthetic: SyntheticSet,
    out: Path | None,
    workers: int | None,
    force: bool,
    say: _Say,
    address: str,
) -> None:
    from raysuite.orchestrate.ray_cluster import connect
    from raysuite.orchestrate.synthetic_data import make_on_nodes

    folder = None if out is None else out.expanduser().absolute()
    with (
        connect(address) as capacity,
        progress(f"making {synthetic.name}", capacity.nodes, "nodes", hidden=bool(say)) as advance,
    ):
        ends = make_on_nodes(synthetic, folder, workers, force, advance)
    _print_nodes(synthetic, ends, say)
    made = [end.made for end in ends if end.made is not None]
    if len(made) < len(ends):
        raise RunError(
            f"{len(ends) - len(made)} of {len(ends)} nodes have no complete data set; fix the "
            "causes above, and run the same command again"
        )
    if len({each.digest for each in made}) > 1:
        raise RunError(
            "the nodes' data sets differ, although all parameters are equal: compare the versions "
            "of NumPy and Pillow on the nodes, and make the data set again with --force"
        )


def _print_nodes(synthetic: SyntheticSet, ends: list[NodeEnd], say: _Say) -> None:
    if say:
        nodes = [
            {"node": end.node, "error": end.error}
            | ({} if end.made is None else _as_data(synthetic, end.made))
            for end in ends
        ]
        say({"synthetic": synthetic.parameters, "nodes": nodes})
        return
    for end in ends:
        made = end.made
        shown = end.error if made is None else f"{made.path}: {_summary(synthetic, made)}"
        print_text(f"{end.node}  {shown}")


def check(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PATH|SPEC|NAME|MODULE:ATTRIBUTE",
            help="A folder, a spec's YAML file, a named data set in its default folder, or the "
            "MODULE:ATTRIBUTE of your own data set.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            help=f"The data set in PATH, if its files do not identify it: {', '.join(NAMED)}, "
            "image_folder or tfrecord."
        ),
    ] = None,
    form: Annotated[
        Literal["folder", "tfrecord", "idx", "binary", "pickle"] | None,
        typer.Option("--format", help="Format of the data set, if its files do not identify it."),
    ] = None,
    decode: Annotated[
        bool, typer.Option(help="Decode all pixels, or check only headers and checksums.")
    ] = True,
    write_index: Annotated[
        bool,
        typer.Option(
            "--write-index",
            help="Write the index of each intact TFRecord file whose index is missing or wrong.",
        ),
    ] = False,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Check a data set: counts, classes, unreadable images, checksums, indices, labels.

    Prints every defect with its file and byte offset. Exits with 1 if anything is wrong. If
    the argument is a spec, the data sets and their options are those of its runs. Each sample of
    your own data set is read from two instances of it. Lengths, shapes, types and labels are
    checked; a missing sample, or a sample that differs between the two instances, is an error. A
    MODULE:ATTRIBUTE is checked as a data set for image classification; for another task, give a
    spec that uses the data set.

    \b
    Examples:
      raysuite data check /data/imagenet
      raysuite data check experiments/quickstart.yaml
      raysuite data check my_data:Shapes
      raysuite data check /scratch/shards --write-index --no-decode
    """
    from raysuite.data.set_check import check as look

    reports = []
    for target in _targets(what, name, form):
        with ExitStack() as stack:

            def begin(total: int, unit: str, stack: ExitStack = stack) -> Callable[[int], None]:
                return stack.enter_context(progress("checking", total, unit, hidden=as_json))

            reports.append(look(target, decode, write_index, workers or cpus(), begin))
    if as_json:
        shown = [_report_as_data(report) for report in reports]
        print_json(shown[0] if len(shown) == 1 else shown)
    else:
        for report in reports:
            _print_report(report)
    if not all(report.ok for report in reports):
        raise typer.Exit(1)


def _targets(what: str, name: str | None, form: Format | None) -> list[Target]:
    """The data sets that the command line names. Raises UserError if there are none."""
    from raysuite.data.set_check import detect, stated, target_of
    from raysuite.plan import expand
    from raysuite.spec import read_document
    from raysuite.spec.data_set import DataOptions
    from raysuite.spec.document import of_network

    path = Path(what)
    of_user = re.fullmatch(IMPORT_PATH, what) and not path.exists()
    of_spec = path.suffix in SPEC_SUFFIXES
    if (of_user or of_spec) and (name or form):
        whose = "names its data set" if of_spec else "is your own data set"
        raise UserError(f"--name and --format are only for folders; {what} {whose}: leave them out")
    if of_user:
        return [target_of(DataOptions(name=what, image_size=1))]  # required, but not used
    if of_spec:
        specs = [spec for _, spec in expand(of_network(read_document(path)))]
        unique = {
            (spec.data.model_dump_json(), spec.task.classifies): (spec.data, spec.task.classifies)
            for spec in specs
        }
        return _with_files(unique.values())
    try:
        if what == "digits" and name is None and form is None and not path.exists():
            return _with_files([(DataOptions(name=what), True)])
        if what in NAMED and name is None:
            return [target_of(stated(None, what, form))]
        if name or form:
            target = target_of(stated(path.expanduser().resolve(), name, form))
            if not target.root.is_dir():
                raise UserError(f"no folder {target.root}")
            return [target]
    except ValueError as error:
        found: Any = getattr(error, "errors", list)()  # pydantic's errors, if it is one of those
        reason = "; ".join(str(each["msg"]) for each in found) or str(error)
        raise UserError(f"--name {name}, --format {form}: {reason}") from error
    return [detect(path.expanduser().resolve())]


def _with_files(blocks: Iterable[tuple[DataOptions, bool]]) -> list[Target]:
    """The data sets that consist of files or of a user's code. For each other data set, a message
    states why it is not checked. Each of `blocks`: the options of a data set, and whether the task
    is classification."""
    from raysuite.data.set_check import target_of

    found = []
    for data, classifies in blocks:
        if data.without_files:
            print_text(f"{data.name}: {data.without_files}; there is nothing to check", error=True)
        else:
            found.append(target_of(data, classifies))
    return found


MOST_SHOWN = 20
"""Largest number of errors, of notes and of skipped images that are printed."""


def _print_report(report: Report) -> None:
    print_text(f"{report.path}: {report.form}".removesuffix(": "))
    if report.splits:
        stdout().print(_table(report))
    wrong = [finding for finding in report.findings if not finding.note]
    notes = [finding for finding in report.findings if finding.note]
    of_notes = count(len(notes), "note"), notes, len(notes)
    for title, found, total in (of_notes, (f"{report.errors} wrong", wrong, report.errors)):
        if total:
            print_text(f"{title}:")
        for finding in found[:MOST_SHOWN]:
            print_text(f"  {finding}")
        if total > MOST_SHOWN:
            print_text(f"  and {total - MOST_SHOWN} more; --json shows them")
    if report.ok:
        print_text("no errors found")


def _table(report: Report) -> Table:
    if report.form == "tensors":
        columns = ("samples", "unreadable")
        counts = [
            (split, f"{found.images:,}", f"{found.unreadable:,}")
            for split, found in report.splits.items()
        ]
        return table(("split", *columns), counts, columns)
    figures = ("images", "unreadable", "classes", "images per class")
    rows = [
        (
            split,
            f"{found.images:,}",
            f"{found.unreadable:,}",
            f"{len(found.classes):,}",
            _span(found.classes.values()),
            _sizes(found.sizes),
        )
        for split, found in report.splits.items()
    ]
    return table(("split", *figures, "pixels"), rows, figures)


def _span(counts: Any) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _sizes(sizes: Mapping[tuple[int, int], int]) -> str:
    """Format sizes: `32 x 32` if all are equal, else the ranges of both sides and the commonest
    size."""
    if len(sizes) < 2:
        return "".join(f"{width} x {height}" for width, height in sizes)
    widths, heights = ([size[i] for size in sizes] for i in (0, 1))
    width, height = max(sizes, key=lambda size: (sizes[size], size))
    return f"{_span(widths)} x {_span(heights)}, most often {width} x {height}"


def _report_as_data(report: Report) -> dict[str, Any]:
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


def convert(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="A folder with train/CLASS/* and val/CLASS/*.")
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="A new or an empty folder.")],
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=99_999,
            help="Number of training shards; validation shards have about the same size. Default: "
            "150 MB of images per shard.",
        ),
    ] = None,
    shorter_side: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="PX",
            help="Maximum length of the shorter side of images in the shards: larger images are "
            "shrunk, others stay as they are.",
        ),
    ] = None,
    bad: Annotated[
        Literal["error", "skip"],
        typer.Option(
            help="error: fail at the end if images are unreadable, and keep only the shards "
            "without them; skip: leave out unreadable images."
        ),
    ] = "error",
    workers: Workers = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Convert an image folder to TFRecord shards, each with an index for DALI.

    JPEGs and PNGs keep their bytes unless --shorter-side shrinks them. The same command resumes a
    conversion that was killed.

    \b
    Examples:
      raysuite data convert /data/imagenet /scratch/imagenet-tfrecord
      raysuite data convert photos shards --shards 16 --shorter-side 256 --bad skip
    """
    from raysuite.data.convert import convert as run
    from raysuite.data.convert import plan_conversion

    conversion = plan_conversion(source, target, shards, shorter_side)
    if dry_run:
        _print_conversion_plan(conversion, as_json)
        return
    total = conversion.images("train") + conversion.images("val")
    with progress("converting", total, "images", hidden=as_json) as advance:
        summary = run(conversion, workers or cpus(), bad, advance)
    if as_json:
        print_json({"target": str(conversion.target), **asdict(summary)})
    else:
        _print_conversion(conversion, summary)


def _print_conversion_plan(conversion: Conversion, as_json: bool) -> None:
    if as_json:
        figures = {key: getattr(conversion, key) for key in ("first_label", "passed_over", "bytes")}
        print_json({**conversion.document, **figures})
        return
    for split in ("train", "val"):
        shards = conversion.document["shards"][split]
        print_text(f"{split}: {conversion.images(split):,} images into {shards} shards")
    print_text(
        f"{conversion.bytes / 1e6:,.1f} MB of images, {len(conversion.classes)} classes from label "
        f"{conversion.first_label}; nothing was written"
    )
    _print_passed_over(conversion)


def _print_passed_over(conversion: Conversion) -> None:
    if conversion.passed_over:
        print_text(
            f"skipped, because they are not images: {conversion.passed_over} files or folders; "
            f"`raysuite data check {shlex.quote(str(conversion.source))}` names them"
        )


def _print_conversion(conversion: Conversion, summary: Summary) -> None:
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
    if summary.skipped:
        print_text(f"skipped, because they cannot be read: {len(summary.skipped)}")
        for one in summary.skipped[:MOST_SHOWN]:
            print_text(f"  {one.path}: {one.reason}")
        if (more := len(summary.skipped) - MOST_SHOWN) > 0:
            print_text(f"  and {more} more, in {target / 'manifest.json'}")
    _print_passed_over(conversion)
    print_text(f"in a spec: data: {_spec(conversion)}")


def _spec(conversion: Conversion) -> str:
    """The `data` block of a spec that reads the shards."""
    path = json.dumps(str(conversion.target))
    if conversion.synsets:
        return f"{{name: imagenet, format: tfrecord, path: {path}}}"
    return (
        f"{{name: tfrecord, path: {path}, classes: {len(conversion.classes)}, "
        f"image_size: {conversion.shorter_side or 224}}}"
    )


data = group("Make, convert and check data sets.", make, convert, check)
