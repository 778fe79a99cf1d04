"""`raysuite bench`: measure data loaders and batch sizes."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import yaml

from raysuite.cli.console import print_json, print_text, stdout, table
from raysuite.cli.data import SPEC_SUFFIXES, cpus, progress
from raysuite.cli.run_options import (
    Address,
    AsJson,
    DryRun,
    Mlflow,
    Overrides,
    Scale,
    SpecFile,
    TrackingUri,
    folder_to_write,
    gpus_before,
    group,
    numbers,
)
from raysuite.errors import UserError
from raysuite.spec.datasets import DATASETS
from raysuite.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from raysuite.plan import RunPlan
    from raysuite.plan.loading import LoadingPlan
    from raysuite.records import BatchFound
    from raysuite.records.loader_rates import LoadingBench
    from raysuite.spec.data_set import DataOptions

Out = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        callback=folder_to_write,
        help="Folder to write; default: results/loaders-NAME/DATE-TIME for loaders, and "
        "results/batches-NAME/DATE-TIME for batch sizes.",
    ),
]


def _folder(out: Path | None, name: str) -> Path:
    """Make the folder for the figures. Raises UserError if it cannot be written to."""
    folder = out or Path("results", name, time.strftime("%Y%m%d-%H%M%S"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written to: {error.strerror}; give another folder with --out"
        ) from error
    return folder


# `raysuite bench loaders`: time loaders, and report the comparison.


def print_plan(plan: LoadingPlan, as_json: bool) -> None:
    """Print the loaders to time, and the number and length of the timings."""
    if as_json:
        print_text(plan.model_dump_json(indent=2))
        return
    for each in plan.candidates:
        print_text(each.name)
    timings = plan.repeats * len(plan.candidates)
    length = f"{plan.images:,} images" if plan.images else f"{plan.seconds:g} s"
    least = (
        ""
        if plan.images
        else f": {human_seconds(timings * plan.seconds)}, plus the start of each process"
    )
    print_text(f"{timings} timings of {length} each on {plan.title}{least}")


def measure_and_print(
    plan: LoadingPlan,
    folder: Path,
    named: bool,
    as_json: bool,
    mlflow: bool,
    tracking_uri: str | None,
) -> LoadingBench:
    """Time loaders, report and log the figures. After Ctrl-C: report, raise KeyboardInterrupt."""
    from raysuite.orchestrate.loader_timings import compare
    from raysuite.records.loader_rates import FILE, LoadingBench

    def begun(name: str, repeat: int) -> None:
        advance(0, f"round {repeat + 1} of {plan.repeats}: {name}")

    interrupted, total, start = False, plan.repeats * len(plan.candidates), time.time()
    with progress("reading the images", total, "", hidden=as_json) as advance:
        try:
            measured = compare(plan, folder, cpus(), named, begun, lambda fact: advance(1))
        except KeyboardInterrupt:
            if not (folder / FILE).exists():
                raise
            measured = LoadingBench.model_validate_json((folder / FILE).read_bytes())
            if measured.time < start:  # those of an earlier command
                raise
            interrupted = True
    _report(measured, folder, as_json)
    if interrupted:
        raise KeyboardInterrupt
    if mlflow:
        from raysuite.track.loader_run import log_loaders

        error = log_loaders(measured, folder, tracking_uri)
        if error:
            print_text(f"{error}\nNothing is lost: all figures are in {folder}.", error=True)
    return measured


def _report(measured: LoadingBench, folder: Path, as_json: bool) -> None:
    from raysuite.records.loader_rates import loading_rows
    from raysuite.report.loader_page import (
        build,
        described,
        diagnose,
        loaders_sheet,
        summarize_loaders,
    )
    from raysuite.report.tables import terminal_sheet

    rows = loading_rows(measured)
    result, *others = summarize_loaders(measured, rows)
    build(measured, folder)
    if as_json:
        figures = {
            "folder": str(folder),
            "complete": measured.complete,
            "rows": [asdict(row) | {"candidate": row.candidate.name} for row in rows],
            "diagnosis": asdict(diagnose(measured)),
            "notes": [each.text for each in others],
        }
        print_json(figures)
        return
    out = stdout()
    out.print(f"{measured.name}: {described(measured)}")
    out.print(terminal_sheet(loaders_sheet(rows)))
    for each in (*others, result):
        out.print(f"- {each.text}")
    print_text(f"\n{folder / 'loaders.html'}")


def loaders(
    what: Annotated[
        str,
        typer.Argument(
            metavar="DATASET|SPEC",
            help=f"{', '.join(DATASETS)}, module:attribute, or a spec's YAML file.",
        ),
    ],
    loader: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|BLOCK",
            help="Time this loader: native, dali, memory, ray_data, synthetic, or a block such "
            "as '{name: native, decode: scaled}'. May be repeated.",
        ),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Numbers of threads (or Ray tasks) to try; default: 1, a quarter, half and all of "
            "the CPUs.",
        ),
    ] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Numbers of processes to try with the loader native, in addition to threads; 0: "
            "try only threads. Default: the number of CPUs.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 64,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Length of one timing, in seconds.")
    ] = 3.0,
    images: Annotated[
        int | None, typer.Option(min=1, help="Instead of --seconds: images per timing.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds over all loaders.")] = 5,
    split: Annotated[Literal["train", "val"], typer.Option(help="The split to load.")] = "train",
    augment: Annotated[
        str | None,
        typer.Option(
            help="Augmentation: none, pad_crop_flip or resized_crop_flip; default: that of the "
            "data set."
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option("--image-size", min=1, help="Side of the network's input images, in pixels."),
    ] = None,
    path: Annotated[str | None, typer.Option(help="The data set's path.")] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", help="Format of the images: folder, tfrecord, idx, binary or pickle."
        ),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "gpu"], typer.Option(help="Device to which batches are delivered.")
    ] = "auto",
    out: Out = None,
    mlflow: Mlflow = True,
    tracking_uri: TrackingUri = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Time every loader on a data set, and also decoding alone and reading alone.

    Loaders are timed in rounds, each time in new processes. A loader that cannot be timed has a row
    with the reason. The last line names the fastest loader and what limits it. If a spec is given,
    its data set is used; unless --loader is given, the loaders of the spec are timed in addition to
    the default loaders.

    \b
    Examples:
      raysuite bench loaders digits
      raysuite bench loaders image_folder --path photos --image-size 224 --augment resized_crop_flip
      raysuite bench loaders experiments/quickstart.yaml --loader native --loader dali
      raysuite bench loaders imagenet --loader '{name: native, decode: scaled}' --loader native
    """
    from raysuite.plan.loading import LoadingPlan, candidates, default_blocks, facts_of
    from raysuite.plan.loading import loader_blocks as blocks_of
    from raysuite.plan.resolve import local_gpus

    given = {"augment": augment, "image_size": image_size, "path": path, "format": form}
    data, own = _data(what, {key: value for key, value in given.items() if value is not None})
    gpus = local_gpus()
    if device == "gpu" and not gpus:
        raise UserError("--device gpu: there is no GPU here; use cpu, or auto")
    blocks = blocks_of(_parsed(loader)) if loader else [*own, *default_blocks(gpus)]
    several = numbers("--threads", threads) if threads else _spread(cpus())
    loading = numbers("--processes", processes, 0) if processes else [cpus()]
    plan = LoadingPlan(
        data=data,
        facts=facts_of(data),
        split=split,
        batch=batch,
        seconds=seconds,
        images=images,
        repeats=repeats,
        device="gpu" if gpus and device != "cpu" else "cpu",
        candidates=tuple(candidates(blocks, several, [each for each in loading if each])),
    )
    if dry_run:
        print_plan(plan, as_json)
        return
    stem = "".join(letter if letter.isalnum() else "-" for letter in data.name)
    folder = _folder(out, f"loaders-{stem}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # handled like Ctrl-C
    measured = measure_and_print(plan, folder, bool(loader), as_json, mlflow, tracking_uri)
    names = {each.name for each in measured.candidates if each.kind == "loader" and each.width}
    if names.isdisjoint(timing.candidate for timing in measured.timings):
        raise typer.Exit(1)


def _data(what: str, given: dict[str, Any]) -> tuple[DataOptions, list[dict[str, Any]]]:
    """The data set of `what`, and a spec's loaders. Raises UserError if a spec has several data
    sets."""
    from raysuite.plan import expand
    from raysuite.plan.loading import NAMES, checked_data
    from raysuite.spec import read_document
    from raysuite.spec.document import of_network

    if Path(what).suffix not in SPEC_SUFFIXES:
        return checked_data({"name": what, **given}), []
    specs = [spec for _, spec in expand(of_network(read_document(Path(what))))]
    sets = {each.data.model_dump_json(): each.data.model_dump() | given for each in specs}
    checked = {str(block): checked_data(block) for block in sets.values()}
    if len(checked) > 1:
        names = ", ".join(f"{each.name} {each.form or ''}".strip() for each in checked.values())
        raise UserError(
            f"{what} has {len(checked)} data sets ({names}); name one of them instead of the spec, "
            "or choose by --format, --path and --image-size"
        )
    loaders = [spec.loader for spec in specs if spec.loader.name in NAMES]
    own = [each.model_dump(exclude_defaults=True) | {"name": each.name} for each in loaders]
    return next(iter(checked.values())), own


def _parsed(loader: Sequence[str]) -> list[Any]:
    found: list[Any] = []
    for each in loader:
        try:
            block = yaml.safe_load(each)
        except yaml.YAMLError as error:
            raise UserError(f"--loader {each!r} is not YAML: {error}") from error
        found += block.split(",") if isinstance(block, str) else [block]
    return found


def _spread(most: int) -> list[int]:
    """Numbers of threads to try: 1, a quarter and a half of `most`, and `most`."""
    return sorted({1, most // 4, most // 2, most} - {0})


def batch(
    spec: SpecFile,
    overrides: Overrides = None,
    scale: Scale = None,
    at_most: Annotated[
        int | None, typer.Option(min=1, help="Largest micro-batch to try, in samples per worker.")
    ] = None,
    address: Address = None,
    out: Out = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Try batch sizes on the workers of each variant of a spec: which fit, and how fast they are.

    Random samples of the data set's shape are used. With `training.accumulate=auto`, the global
    batch of the spec is kept, and the sizes of micro-batches into which it can be cut are tried;
    otherwise each size has twice as many samples per worker as the size before. `raysuite run`
    finds a batch size automatically if the spec sets it to `auto`.

    \b
    Examples:
      raysuite bench batch experiments/quickstart.yaml --at-most 256
      raysuite bench batch experiments/quickstart.yaml 'matrix.strategy=[ddp, deepspeed]' --json
      raysuite bench batch SPEC training.accumulate=auto     # the same batch in micro-batches
    """
    from raysuite.cli.driver import search_batches
    from raysuite.orchestrate import preflight
    from raysuite.orchestrate.ray_cluster import connect
    from raysuite.orchestrate.stopping import StopWatch
    from raysuite.plan.batch_candidates import opened, same_search, sizes_of
    from raysuite.plan.dry_batch import unproven
    from raysuite.spec import read_document
    from raysuite.spec.document import of_network

    document = of_network(read_document(spec, overrides or [], scale))

    def wishes(gpus: int | None) -> list[RunPlan]:
        plans = [opened(plan, at_most) for plan in preflight.plans_here(document, gpus)]
        # one plan for each group of plans that can share a search
        return list({same_search(plan): plan for plan in reversed(plans)}.values())[::-1]

    first = wishes(gpus_before(address))
    if dry_run:
        tried = {_name(plan): sizes_of(plan).sizes for plan in first}
        if as_json:
            print_json(tried)
            return
        for name, sizes in tried.items():
            print_text(
                f"{name}: micro-batches of {', '.join(map(str, sizes))} samples, if they fit into "
                "memory"
            )
        return
    preflight.check_early(first, document, elsewhere=bool(address))
    folder = _folder(out, f"batches-{first[0].spec.name}")
    with (
        preflight.dry_batch(unproven(first), document) as check_batch,
        StopWatch(None, 0.0) as watch,
        connect(address) as capacity,
    ):
        check_batch()
        plans = wishes(int(capacity.gpus))
        preflight.check(plans, capacity, document)
        decision = search_batches(plans, folder, capacity.nodes, watch, silent=as_json)
    if decision.stop is not None:
        raise typer.Exit(os.EX_TEMPFAIL)
    found = list(decision.found.values())
    data = [_batch_data(plan, each) for plan, each in zip(decision.plans, found, strict=True)]
    (folder / "batches.json").write_text(json.dumps(data, indent=2), "utf-8")
    if as_json:
        print_json({"folder": str(folder), "searches": data})
        return
    console = stdout()
    for plan, each in zip(decision.plans, found, strict=True):
        for part in search_summary(plan, each):
            console.print(part)
    print_text(f"\n{folder / 'batches.json'}")


def _name(plan: RunPlan) -> str:
    """The variant's name without the loader and the batch sizes that the search replaces."""
    from raysuite.records.names import extras, strategy_name, workers_name

    data = plan.model_dump(mode="json")
    if not plan.batch_is_given:
        for key in ("training.global_batch", "training.batch_per_worker"):
            data["label"].pop(key, None)
    parts = (strategy_name(data), workers_name(plan.workers), *extras(data))
    return " · ".join([plan.spec.model.name, *parts])


def _batch_data(plan: RunPlan, found: BatchFound) -> dict[str, Any]:
    from raysuite.records.batch_trials import size_figures

    figures = size_figures(found.tried)
    rate = "images_per_second" if plan.task.unit == "images" else "samples_per_second"
    sizes = [asdict(each) for each in figures]
    for size in sizes:
        speed = size.pop("images_per_second")
        size[rate] = list(speed["values"]) if speed else []
    return {
        "name": _name(plan),
        "strategy": plan.spec.strategy.model_dump(mode="json"),
        "workers": plan.workers,
        "device": plan.device,
        "largest": max(each.micro_batch for each in figures if each.fits),
        "fastest": found.micro_batch,
        "seconds": found.seconds,
        "sizes": sizes,
    }


def search_summary(plan: RunPlan, found: BatchFound) -> tuple[Table, str]:
    """The result of a plan's search, as a table and a sentence."""
    from rich.text import Text

    from raysuite.records.batch_trials import size_figures
    from raysuite.report.text import stat

    figures = size_figures(found.tried)
    rows = [
        (
            str(each.micro_batch),
            Text("yes", "green") if each.fits else Text("no", "red"),
            human_bytes(each.peak_bytes) if each.peak_bytes is not None else "–",
            human_bytes(each.limit_bytes) if each.limit_bytes is not None else "–",
            stat(each.images_per_second),
            "fastest" if each.micro_batch == found.micro_batch else each.message,
        )
        for each in figures
    ]
    headings = ("micro-batch", "fits", "memory", "of", "samples/s", "")
    largest = max(each.micro_batch for each in figures if each.fits)
    return table(headings, rows, ("micro-batch", "memory", "of", "samples/s"), _name(plan)), (
        f"largest: {largest} samples per worker ({found.why_no_larger}); "
        f"fastest: {found.micro_batch}, {found.why_fastest}"
    )


bench = group(
    "Time data loaders, or try batch sizes, without a whole training run.", loaders, batch
)
