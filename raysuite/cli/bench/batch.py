"""`raysuite bench batch`: which batches fit, and how fast they are, for each strategy of a spec."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysuite.cli.console import print_text, stdout
from raysuite.cli.run_options import gpus_before
from raysuite.errors import UserError
from raysuite.units import human_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from raysuite.plan import RunPlan
    from raysuite.records import BatchFound
    from raysuite.records.batch_figures import SizeFigures


def batch(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="The experiment's YAML file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Override keys of the spec."),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="A form under the spec's `scales`, such as laptop.")
    ] = None,
    at_most: Annotated[
        int | None, typer.Option(min=1, help="The largest micro-batch that is tried.")
    ] = None,
    memory_share: Annotated[
        float | None,
        typer.Option(min=0.01, max=1.0, help="What of the free memory may be used; 0.9."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(envvar="RAY_ADDRESS", help="Join this Ray cluster instead of starting one."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Default: results/batches-NAME/DATE-TIME."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be tried; start nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Try batch sizes on the workers of each variant of a spec: what fits, and how fast it is.

    Random images of the data set's shape are used. A spec with `accumulate: auto` has its batch
    cut; any other has the samples of each worker doubled. `raysuite run` finds a batch by itself
    where the spec says auto.

    \b
    Examples:
      raysuite bench batch experiments/quickstart.yaml --at-most 256
      raysuite bench batch experiments/quickstart.yaml 'matrix.strategy=[ddp, deepspeed]' --json
      raysuite bench batch SPEC training.accumulate=auto     # the batch as it is, cut
    """
    from raysuite.cli.run_batches import search_batches
    from raysuite.orchestrate import suite
    from raysuite.orchestrate.preflight import dry_batch, unproven
    from raysuite.orchestrate.stopping import StopWatch
    from raysuite.plan import make_plans
    from raysuite.plan.batches import opened
    from raysuite.spec import read_document

    document = read_document(spec, overrides or [], scale)

    def wishes(gpus: int | None) -> list[RunPlan]:
        plans = make_plans(document, gpus)
        return _distinct([opened(plan, at_most, memory_share) for plan in plans])

    first = wishes(gpus_before(address))
    if dry_run:
        _tell_plan(first, as_json)
        return
    folder = _folder(out, first[0].spec.name)
    with (
        dry_batch(unproven(first), document) as check_batch,
        StopWatch(None, 0.0) as watch,
        suite.connect(address) as capacity,
    ):
        check_batch()
        plans = wishes(int(capacity.gpus))
        suite.check(plans, capacity, document)
        decision = search_batches(plans, folder, capacity.nodes, watch, silent=as_json)
    if decision.stop is not None:
        raise typer.Exit(os.EX_TEMPFAIL)
    found = list(decision.found.values())
    data = [_data(plan, each) for plan, each in zip(decision.plans, found, strict=True)]
    (folder / "batches.json").write_text(json.dumps(data, indent=2), "utf-8")
    if as_json:
        print_text(json.dumps({"folder": str(folder), "searches": data}, indent=2))
        return
    console = stdout()
    for plan, each in zip(decision.plans, found, strict=True):
        for part in told(plan, each):
            console.print(part)
    print_text(f"\n{folder / 'batches.json'}")


def _distinct(plans: Sequence[RunPlan]) -> list[RunPlan]:
    """One plan for each search: repeats and loaders share one."""
    from raysuite.plan.batches import same_search

    return list({same_search(plan): plan for plan in reversed(plans)}.values())[::-1]


def _folder(out: Path | None, name: str) -> Path:
    folder = out or Path("results", f"batches-{name}", time.strftime("%Y%m%d-%H%M%S"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be written to: {error.strerror}; give --out") from error
    return folder


def _tell_plan(plans: Sequence[RunPlan], as_json: bool) -> None:
    from raysuite.plan.batches import sizes_of

    tried = {_name(plan): sizes_of(plan).sizes for plan in plans}
    if as_json:
        print_text(json.dumps(tried, indent=2))
        return
    for name, sizes in tried.items():
        print_text(f"{name}: micro-batches of {', '.join(map(str, sizes))}, as far as they fit")


def _name(plan: RunPlan) -> str:
    """The variant without its loader, of which random images have none."""
    from raysuite.records.names import extras, strategy_name, workers_name

    data = plan.model_dump(mode="json")
    batch_keys = ("training.global_batch", "training.batch_per_worker")
    data["label"] = {key: each for key, each in data["label"].items() if key not in batch_keys}
    parts = (strategy_name(data), workers_name(plan.workers), *extras(data))
    return " · ".join([plan.spec.model.name, *parts])


def _data(plan: RunPlan, found: BatchFound) -> dict[str, Any]:
    figures = _figures(found)
    return {
        "name": _name(plan),
        "strategy": plan.spec.strategy.model_dump(mode="json"),
        "workers": plan.workers,
        "device": plan.device,
        "largest": max(each.micro_batch for each in figures if each.fits),
        "fastest": found.micro_batch,
        "seconds": found.seconds,
        "sizes": [
            {
                "micro_batch": each.micro_batch,
                "fits": each.fits,
                "peak_bytes": each.peak_bytes,
                "limit_bytes": each.limit_bytes,
                "images_per_second": list(speed.values)
                if (speed := each.images_per_second)
                else [],
                "message": each.message,
            }
            for each in figures
        ],
    }


def _figures(found: BatchFound) -> list[SizeFigures]:
    from raysuite.records.batch_figures import size_figures

    return size_figures(found.tried)


def told(plan: RunPlan, found: BatchFound) -> tuple[Table, str]:
    """What was found for a plan, as a person reads it."""
    return _table(plan, found), _summary(found)


def _table(plan: RunPlan, found: BatchFound) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from raysuite.report.text import stat

    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=Text(_name(plan)), title_justify="left"
    )
    for heading in ("micro-batch", "fits", "memory", "of", "images/s", ""):
        table.add_column(heading, justify="left" if heading in ("fits", "") else "right")
    for each in _figures(found):
        note = "fastest" if each.micro_batch == found.micro_batch else each.message
        table.add_row(
            str(each.micro_batch),
            Text("yes", "green") if each.fits else Text("no", "red"),
            human_bytes(each.peak_bytes) if each.peak_bytes is not None else "–",
            human_bytes(each.limit_bytes) if each.limit_bytes is not None else "–",
            stat(each.images_per_second),
            Text(note),
        )
    return table


def _summary(found: BatchFound) -> str:
    largest = max(each.micro_batch for each in _figures(found) if each.fits)
    why = {
        "memory": "no larger one fits",
        "at_most": "no larger one was asked for",
        "samples": "the training set holds no more",
        "batch": "it is the whole batch of a worker",
    }[found.bound]
    return (
        f"largest: {largest} samples a worker ({why}); fastest: {found.micro_batch}, the smallest "
        "whose mean is within 5 % of the highest" + _unclear(found)
    )


def _unclear(found: BatchFound) -> str:
    others = ", ".join(map(str, found.not_told_apart))
    return f"; the timings vary so much that {others} may be as fast or faster" if others else ""
