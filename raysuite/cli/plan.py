"""`raysuite plan`: print all runs of a spec, and start none."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from raysuite.cli.console import print_json, print_text, stdout, table
from raysuite.cli.run_options import AsJson, Gpus, Overrides, Scale, SpecFile
from raysuite.units import count

if TYPE_CHECKING:
    from raysuite.measure.topology import Topology
    from raysuite.plan import RunPlan
    from raysuite.spec.schedules import Operation, Schedule


def _print_schema(of: str | None) -> None:
    from raysuite.records.schema import record_schema
    from raysuite.spec import spec_schema

    if of is not None:
        print_json(record_schema() if of == "records" else spec_schema())
        raise typer.Exit


def plan(
    spec: SpecFile,
    overrides: Overrides = None,
    scale: Scale = None,
    gpus: Gpus = None,
    deep: Annotated[
        bool,
        typer.Option(
            help="Also run one batch through each network, and read an image of each split."
        ),
    ] = False,
    schedule: Annotated[
        bool,
        typer.Option(
            "--schedule",
            help="Draw each pipeline's schedule, and print the share of time in its bubble.",
        ),
    ] = False,
    schema: Annotated[  # noqa: ARG001  its callback prints
        Literal["spec", "records"] | None,
        typer.Option(
            callback=_print_schema,
            is_eager=True,
            help="Print a JSON Schema instead of a plan, without SPEC: that of specs (spec), with "
            "which editors complete and check them, or that of journal lines (records).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print every run of a spec, with its workers, batch sizes, learning rate and numbers of steps.
    Nothing is started.

    Whatever makes `raysuite run` fail at its start on this machine is an error here too: models,
    data and parts that cannot be imported, or more workers than CPUs or GPUs. With --gpus, only the
    spec is checked and, with --deep, one batch of each network.

    \b
    Examples:
      raysuite plan experiments/quickstart.yaml
      raysuite plan experiments/aach2023-throughput.yaml --gpus 1024
      raysuite plan my_experiment.yaml --deep
      raysuite plan my_experiment.yaml strategy=pipeline strategy.schedule=gpipe --schedule
      raysuite plan --schema spec > spec.schema.json
    """
    from raysuite.orchestrate.preflight import check_here, dry_batch, plans_here
    from raysuite.plan import official
    from raysuite.spec import read_document

    document = read_document(spec, overrides or [], scale)
    plans = plans_here(document, gpus, elsewhere=gpus is not None)
    if gpus is None:
        check_here(plans, document, deep)
    elif deep:
        with dry_batch(plans, document) as check:
            check()
    show(plans, as_json, schedule)
    for line in () if as_json else document.ended_sweeps():
        print_text(line)
    absent = official(plans) if gpus is not None and not as_json else []
    if absent:
        print_text(
            "official counts are used for data sets that are not on this machine: "
            f"{', '.join(absent)}"
        )


def show(plans: Sequence[RunPlan], as_json: bool, schedule: bool = False) -> None:
    from raysuite.measure.topology import read_topology
    from raysuite.plan import passed_over

    if as_json:
        print_json([_data(each) for each in plans])
        return
    if not plans:
        print_text("nothing is left to run: all runs have ended")
        return
    rows = [
        _row(each, number, warm) if each.spec.script is None else _script_row(each)
        for each, number, warm in _with_groups(plans)
    ]
    same = [key for key in rows[0] if len({row[key] for row in rows}) == 1 and key not in _OWN]
    shown = [key for key in rows[0] if key not in same]
    lines = ([row[key] for key in shown] for row in rows)
    out = stdout()
    out.print(table(shown, lines, set(shown) - {"run"}))
    if same:
        shared = " · ".join(f"{key} {rows[0][key]}" for key in same)
        out.print(f"{'each run' if len(rows) > 1 else 'the run'}: {shared}")
    if all(each.spec.script is None for each in plans):
        out.print(summary(plans))
    for line in _schedules(plans) if schedule else ():
        print_text(line)
    for line in (*bindings(plans, read_topology()), *passed_over(plans)):
        out.print(line)


def bindings(plans: Sequence[RunPlan], topology: Topology) -> Iterator[str]:
    """Lines that state to which CPUs of this host `binding: auto` would bind each worker. Workers
    on GPUs are left out, because their CPUs are known only on the nodes."""
    from raysuite.measure.topology import bound_cpus, cpu_list

    found = {each.workers: None for each in plans if each.device == "cpu"
             and each.spec.resources.binding == "auto"}  # fmt: skip
    for workers in found:
        own = [bound_cpus("auto", each, workers, (), topology) for each in range(workers)]
        if any(own):
            cpus = " | ".join(cpu_list(each) for each in own)
            yield f"{count(workers, 'worker')} on this host would be bound to CPUs {cpus}"


def _schedules(plans: Sequence[RunPlan]) -> Iterator[str]:
    """Lines that draw each distinct schedule; a backward pass is drawn with twice the length of a
    forward pass."""
    from raysuite.spec.schedules import bubble, in_flight, timeline, versions_held

    drawn: dict[Any, list[int]] = {}
    for number, each in enumerate(plans, 1):
        if each.schedule is not None:
            drawn.setdefault(each.schedule, []).append(number)
    if not drawn:
        yield "no run is a pipeline"
    for schedule, runs in drawn.items():
        steps = schedule.steps_to_fill + 2 if schedule.asynchronous else 1
        operations = schedule.operations(steps)
        slots = timeline(operations)
        width = max(len(_passed(slot.operation, schedule)) for own in slots for slot in own)
        which = ", ".join(map(str, runs))
        of = "step" if steps == 1 else f"first {steps} steps"
        yield (
            f"{of} of run{'s' if len(runs) > 1 else ''} {which}, {schedule.name}: f forward, "
            "b backward, . idle"
        )
        for worker, own in enumerate(slots):
            line = ""
            for slot in own:
                line += "." * (round(slot.begin) * width - len(line))
                if text := _passed(slot.operation, schedule):
                    line += text.ljust(round(slot.end - slot.begin) * width, "-")
            yield f"  worker {worker}  {line}"
        held = ", ".join(str(in_flight(own)) for own in operations)
        yield (
            f"  largest number of micro-batches whose activations a worker holds: {held} (by "
            "worker)"
        )
        if schedule.asynchronous:
            kept = ", ".join(str(versions_held(own)) for own in operations)
            yield (
                f"  largest number of versions of the weights that a worker holds: {kept} (by "
                "worker); no bubble once the pipeline is full"
            )
        else:
            yield (
                f"  bubble {bubble(slots):.1%} of the workers' time, if stages are equally fast "
                "and transfers cost nothing"
            )


def _passed(operation: Operation, schedule: Schedule) -> str:
    """A pass as text: `f3` is the forward pass of micro-batch 3. If a worker has several stages, a
    letter names the stage: `f3a`. The text of an update is empty."""
    if operation.kind == "update":
        return ""
    part = chr(ord("a") + operation.stage // len(schedule.replicas)) if schedule.chunks > 1 else ""
    return f"{operation.kind[0]}{operation.micro_batch}{part}"


_OWN = ("#", "run")


def _with_groups(plans: Sequence[RunPlan]) -> Iterator[tuple[RunPlan, int, bool]]:
    """Each run, the number of its group, and whether the processes of an earlier run of the group
    are used again."""
    from raysuite.plan import groups

    for number, group in enumerate(groups(plans), 1):
        for place, each in enumerate(group):
            yield each, number, place > 0


_OPEN = ("run_id", "micro_batch", "accumulate")
_OPEN_WITH_THE_BATCH = (*_OPEN, "global_batch", "steps_per_epoch", "total_steps", "peak_lr")


def _data(each: RunPlan) -> dict[str, Any]:
    """A plan as plain data; None for numbers that are found by a batch search before the run."""
    return {**each.model_dump(mode="json"), **dict.fromkeys(_open(each), None)}


def _open(each: RunPlan) -> tuple[str, ...]:
    """The keys of the numbers that are found by a batch search."""
    if not each.undecided:
        return ()
    return _OPEN if each.batch_is_given else _OPEN_WITH_THE_BATCH


def _row(each: RunPlan, group: int, warm: bool) -> dict[str, str]:
    still_open = _open(each)

    def figure(key: str, style: str = "") -> str:
        return "auto" if key in still_open else format(getattr(each, key), style)

    return {
        "#": str(each.index + 1),
        "run": each.title,
        "workers": _placement(each),
        "group": f"{group} warm" if warm else str(group),
        "seed": str(each.seed),
        "batch": figure("global_batch"),
        "micro x acc.": "auto" if still_open else f"{each.micro_batch} x {each.accumulate}",
        "peak rate": figure("peak_lr", "g"),
        "steps/epoch": figure("steps_per_epoch"),
        "steps": figure("total_steps"),
        "epochs": str(each.spec.training.epochs),
    }


def _script_row(each: RunPlan) -> dict[str, str]:
    from raysuite.spec.script import numbers_of

    script = each.spec.script
    assert script is not None
    names = numbers_of(each.workers)
    set_here = (f"{key}={value}" for key, value in script.variables(names).items())
    return {
        "#": str(each.index + 1),
        "run": each.title,
        "workers": _placement(each),
        "command": shlex.join([*set_here, *script.words(names)]),
    }


def _placement(each: RunPlan) -> str:
    resources = each.spec.resources
    gpu = "1 GPU + " if each.device == "gpu" else ""
    cpus = "CPU" if resources.cpus_per_worker == 1 else "CPUs"
    return f"{each.workers} x {gpu}{resources.cpus_per_worker} {cpus}"


def summary(plans: Sequence[RunPlan]) -> str:
    """The number of runs, the number of groups of runs with the same workers, and the largest
    numbers of CPUs and GPUs of a run."""
    from raysuite.plan import groups

    runs, teams = len(plans), len(groups(plans))
    cpus = max(each.workers * each.spec.resources.cpus_per_worker for each in plans)
    gpus = max(each.workers if each.device == "gpu" else 0 for each in plans)
    return (
        f"{count(runs, 'run')} in {count(teams, 'group')} of warm workers; "
        f"at most {count(cpus, 'CPU')} and {count(gpus, 'GPU')} at a time"
    )
