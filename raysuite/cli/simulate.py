"""`raysuite simulate`: simulate one optimiser step of each run, on any machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysuite.cli.console import print_json, print_text, stdout, table
from raysuite.cli.run_options import AsJson, Overrides, Scale, SpecFile, file_to_write, numbers
from raysuite.errors import UserError
from raysuite.files import write_whole
from raysuite.units import human_seconds

if TYPE_CHECKING:
    from raysuite.perf.calibration import Calibration
    from raysuite.perf.simulator import Network, Step
    from raysuite.plan import RunPlan


def simulate(
    spec: SpecFile,
    overrides: Overrides = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N,N", help="Numbers of workers to simulate. Default: those of the spec."
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Network of the workers: ethernet-40g, hdr-fat-tree, juwels-booster, or a file "
            "like those in raysuite/perf/shipped_networks. Default: the links inside a node, as "
            "measured for the calibration.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File written by `raysuite calibrate`.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--per-second",
            min=1e-9,
            help="Throughput of a single worker, in images, samples or tokens/s; replaces "
            "--calibration.",
        ),
    ] = None,
    storage: Annotated[
        float | None,
        typer.Option(
            "--storage-per-second",
            min=1e-9,
            help="Throughput of storage for all workers together, in images, samples or tokens/s.",
        ),
    ] = None,
    jitter: Annotated[
        float, typer.Option(min=0, help="Relative standard deviation of a worker's compute time.")
    ] = 0.0,
    straggler: Annotated[
        float, typer.Option(min=1, help="Factor by which one worker is slower than the others.")
    ] = 1.0,
    mtbf_hours: Annotated[
        float | None,
        typer.Option(
            min=1e-9,
            help="Mean time between failures of a node, in hours; with it, the time of a whole run "
            "with failures is also estimated.",
        ),
    ] = None,
    checkpoint_s: Annotated[
        float, typer.Option(min=0.001, help="Seconds that a checkpoint takes.")
    ] = 30.0,
    restart_s: Annotated[float, typer.Option(min=0, help="Seconds that a restart takes.")] = 120.0,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=file_to_write,
            help="Write a trace of the first run's step, for Perfetto or chrome://tracing.",
        ),
    ] = None,
    gantt: Annotated[
        bool, typer.Option("--gantt", help="Draw each step as a Gantt chart of text.")
    ] = False,
    scale: Scale = None,
    as_json: AsJson = False,
) -> None:
    """Simulate one optimiser step of each run, task by task. Nothing is started.

    The simulated tasks are the forward and backward passes of layers or pipeline stages, the
    reductions of the strategy's gradient buckets, and the transfers between stages. The speed of a
    worker comes from a calibration or from --per-second; the bandwidth and latency between workers
    come from a calibration or from --network. Simulations are not measurements, and have no
    confidence interval. With --per-second and no --network, data parallelism is not simulated: only
    the range of published scaling efficiencies is shown.

    \b
    Examples:
      raysuite simulate experiments/quickstart.yaml --calibration this-machine.yaml
      raysuite simulate experiments/aach2023-throughput.yaml model=resnet152 --workers 4,64,1024 \\
        --network juwels-booster --per-second 300
      raysuite simulate my_experiment.yaml strategy=pipeline --calibration this-machine.yaml --gantt
      raysuite simulate my_experiment.yaml --workers 1024 --network hdr-fat-tree \\
        --per-second 800 --jitter 0.03 --mtbf-hours 20000
    """
    from raysuite.perf.calibration import Calibration
    from raysuite.perf.simulator import Network
    from raysuite.perf.validation import words
    from raysuite.plan.scale_out import reached
    from raysuite.plan.simulation import (
        beside_training,
        epoch_seconds,
        kind_of,
        measured_network,
        step_of,
        with_failures,
    )

    if (calibration is None) == (rate is None):
        raise UserError(
            "give the speed of a worker: either --calibration FILE or --per-second N, not both"
        )
    more = trace or gantt or mtbf_hours or storage or jitter or straggler > 1
    found = None if calibration is None else Calibration.read(calibration)
    stated = None if network is None else Network.read(network)
    lines: list[dict[str, Any]] = []
    for each in _plans(spec, overrides or [], scale, workers, found):
        if each.schedule is not None and (jitter, straggler, storage) != (0, 1, None):
            raise UserError(
                "--jitter, --straggler and --storage-per-second are for data-parallel strategies; "
                f"{each.title} is a pipeline"
            )
        if not each.task.units_are_known(each.dataset.sequence):
            raise UserError(
                f"{each.title}: the number of tokens in a sample of {each.spec.data.name} is not "
                "known, so tokens/s cannot be simulated; use a data set that has the key "
                "`sequence`, such as text or tokens"
            )
        line: dict[str, Any] = {"run": each.title, "workers": each.workers, "unit": each.task.unit}
        lines.append(line)
        if rate is not None and each.schedule is None:
            worst, best = reached(each.workers)
            line[f"ideal_{each.task.unit}_per_s"] = ideal = rate * each.workers
            line[f"published_{each.task.unit}_per_s"] = [
                part.efficiency * ideal for part in (worst, best)
            ]
            line["published"] = [part._asdict() for part in (worst, best)]
            if stated is None and each.workers > 1 and not more:
                line["validated"] = RANGE
                continue
        between = stated or measured_network(each, found)

        def simulated(run: RunPlan, between: Network = between) -> Step:
            return step_of(run, found, rate, between, jitter, straggler, storage)

        began = time.perf_counter()
        step = simulated(each)
        took = time.perf_counter() - began
        if trace is not None and len(lines) == 1:
            write_whole(trace, step.trace().encode())
        training = each.spec.training.epochs * epoch_seconds(each, step, simulated)
        validation, start = beside_training(each, step, found)
        line |= {
            "step_s": step.seconds,
            f"{each.task.unit}_per_s": each.units(each.global_batch) / step.seconds,
            "shares": step.shares,
            "idle": step.idle,
            "training_s": training,
            "run_s": training + validation + start,
            "simulated_in_s": took,
            "validated": words(kind_of(each, found, network)),
        }
        if mtbf_hours is not None:
            line |= with_failures(each, between, line["run_s"], mtbf_hours, checkpoint_s, restart_s)
        if gantt and not as_json:
            print_text(f"{each.title}: {step.seconds * 1e3:.3f} ms")
            for text in step.gantt():
                print_text(f"  {text}")
    if as_json:
        print_json(lines)
        return
    _print(lines)


RANGE = (
    "without a network, no step is simulated: the range is the ideal throughput times the scaling "
    "efficiencies of published systems; to simulate a step, give --network NAME, such as "
    "hdr-fat-tree"
)


def _cells(line: dict[str, Any]) -> Iterator[str]:
    """The cells of a run's table row; empty for values that are not known."""
    unit, shares = line["unit"], line.get("shares", {})
    known, published, fails = (key in line for key in ("step_s", "published", "expected_s"))
    low, high = line[f"published_{unit}_per_s"] if published else (0.0, 0.0)
    yield line["run"]
    yield f"{line['step_s'] * 1e3:,.2f} ms" if known else ""
    yield f"{line[f'{unit}_per_s']:,.0f}" if known else ""
    yield f"{line[f'ideal_{unit}_per_s']:,.0f}" if published else ""
    yield f"{low:,.0f} to {high:,.0f}" if published else ""
    yield ", ".join(f"{name} {part:.0%}" for name, part in shares.items())
    yield human_seconds(line["run_s"]) if known else ""
    if not fails:
        yield from ("", "")
        return
    expected = line["expected_s"]
    yield "never ends" if expected is None else human_seconds(expected)
    yield human_seconds(line["checkpoint_every_s"])


def _print(lines: Sequence[dict[str, Any]]) -> None:
    unit = " or ".join(sorted({line["unit"] for line in lines}))
    header = ["Run", "Step", f"{unit.capitalize()}/s", f"Ideal, {unit}/s", "Published systems"]
    header += ["Where the time goes", "Run time", "With failures", "Checkpoint every"]
    columns = zip(header, *map(_cells, lines), strict=True)
    headings, *cells = zip(*(column for column in columns if any(column[1:])), strict=True)
    stdout().print(table(headings, cells))
    published = [line for line in lines if "published" in line]
    if published:
        last = max(published, key=lambda line: line["workers"])
        told = " to ".join(
            f"{part['efficiency']:.2f} ({part['system']}, {part['workers']} workers)"
            for part in last["published"]
        )
        print_text(f"published systems reach this share of ideal scaling: {told}")
    for known, said in dict.fromkeys(("step_s" in line, line["validated"]) for line in lines):
        print_text(f"simulated, not measured; {said}" if known else said)


def _plans(
    spec: Path,
    overrides: list[str],
    scale: str | None,
    workers: str | None,
    calibration: Calibration | None,
) -> list[RunPlan]:
    """A plan of the first repeat of each variant. The number of GPUs is not limited; with a
    calibration from a machine without GPUs, the plans are for CPUs."""
    from raysuite.plan import make_plans
    from raysuite.spec import read_document
    from raysuite.spec.document import of_network

    counts = numbers("--workers", workers) if workers else []
    if counts:
        overrides = [*overrides, f"matrix.resources.workers={json.dumps(counts)}"]
    document = of_network(read_document(spec, overrides, scale))
    gpus = 2**21 if calibration is None else calibration.gpus
    plans = make_plans(document, gpus, elsewhere=True)
    return [plan for plan in plans if plan.repeat == 0]
