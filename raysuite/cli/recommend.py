"""`raysuite recommend`: the best strategies, batch sizes and numbers of workers for a spec."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
import yaml

from raysuite.cli.console import print_json, print_text, stdout, table
from raysuite.cli.predict import DEFAULT, CalibrationFile
from raysuite.cli.run_options import (
    AsJson,
    CalibratedGpus,
    Overrides,
    Scale,
    SpecFile,
    file_to_write,
    numbers,
)
from raysuite.errors import SpecError, UserError
from raysuite.files import write_whole

if TYPE_CHECKING:
    from raysuite.perf.recommendation import Choice
    from raysuite.plan import RunPlan
    from raysuite.spec import Document


def recommend(
    spec: SpecFile,
    overrides: Overrides = None,
    workers: Annotated[
        str, typer.Option(metavar="N,N", help="Numbers of workers to consider.")
    ] = "1,2",
    batches: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Global batch sizes to consider. Default: that of the spec, because another batch "
            "size changes the training.",
        ),
    ] = None,
    accumulate: Annotated[
        str, typer.Option(metavar="N,N", help="Numbers of micro-batches per step to consider.")
    ] = "1",
    calibration: CalibrationFile = DEFAULT,
    least_efficiency: Annotated[
        float,
        typer.Option(min=0, help="Leave out candidates with a parallel efficiency below this."),
    ] = 0.0,
    memory_gib: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Leave out candidates that may need more memory per worker than this, and "
            "pipelines, whose memory is not predicted.",
        ),
    ] = None,
    goal: Annotated[
        Literal["time", "energy"], typer.Option(help="Minimise the time or the energy of an epoch.")
    ] = "time",
    node_hours: Annotated[
        float | None,
        typer.Option(
            min=0, help="Leave out candidates whose run may need more node-hours than this."
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            callback=file_to_write,
            help="File to which the best candidate's spec is written.",
        ),
    ] = Path("recommended.yaml"),
    probe: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=file_to_write,
            help="Also write a spec with five repeats of each tied candidate, to find the best by "
            "measurement.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of candidates to print.")] = 15,
    scale: Scale = None,
    gpus: CalibratedGpus = None,
    as_json: AsJson = False,
) -> None:
    """Rank strategies, batch sizes and numbers of workers by predicted time or energy of an epoch,
    and write a spec.

    Candidates with indistinguishable predictions share a rank; those that share the first rank are
    called tied. Candidates whose network, strategy or loader is missing in the calibration are not
    ranked; what is missing is listed. Candidates differ in strategy, number of workers, global
    batch size and number of micro-batches; of every other key in the spec's matrix, the first value
    is used.

    \b
    Examples:
      raysuite recommend experiments/quickstart.yaml --calibration this-machine.yaml
      raysuite recommend my_experiment.yaml --workers 1,2 --batches 64,128,256 --accumulate 1,2
      raysuite recommend my_experiment.yaml --least-efficiency 0.6 --probe probe.yaml
      raysuite recommend my_experiment.yaml --workers 1,2 --goal energy --node-hours 20
      raysuite run recommended.yaml
    """
    from raysuite.perf.calibration import Calibration
    from raysuite.perf.costs import work_name
    from raysuite.perf.prediction import predict
    from raysuite.perf.recommendation import choices, rank
    from raysuite.plan.simulation import pipeline_seconds
    from raysuite.spec import read_document
    from raysuite.spec.document import of_network
    from raysuite.units import GIB

    document = of_network(read_document(spec, overrides or [], scale))
    found = Calibration.read(calibration)
    given = numbers("--batches", batches) if batches else [_batch(document)]
    counts = numbers("--workers", workers)
    if least_efficiency and 1 not in counts:
        raise UserError(
            f"--workers: got {workers}; --least-efficiency compares candidates with one worker: "
            f"give --workers 1,{workers}"
        )
    made: list[tuple[dict[str, Any], RunPlan]] = []
    refused: SpecError | None = None
    for keys in choices(counts, given, numbers("--accumulate", accumulate)):
        try:
            made.append((keys, _plan(document, keys, found.gpus if gpus is None else gpus)))
        except SpecError as error:  # not every strategy fits every batch size and number of workers
            refused = error
    if refused and not made:
        raise refused
    plans = [plan.model_dump(mode="json") for _, plan in made]
    predicted = predict(plans, found, str(calibration), pipeline_seconds)
    limit = float("inf") if memory_gib is None else memory_gib * GIB
    hours = float("inf") if node_hours is None else node_hours
    ranked = rank(plans, predicted, least_efficiency, limit, hours, found.workers_per_node, goal)
    unseen = sorted({each.message for each in predicted if each.message})
    if not ranked:
        raise UserError(
            f"no candidate has a predicted {goal} and keeps to --least-efficiency, --memory-gib "
            "and --node-hours; change these limits, or calibrate with runs like those of the spec"
            + "".join(f"\n  {message}" for message in unseen)
        )
    _write(out, document, _keys(ranked[0], made), "recommended")
    tied = [each for each in ranked if each.tied]
    if probe is not None:
        _write(probe, document, _matrix([_keys(each, made) for each in tied]), "probe")
    if as_json:
        print_json([_data(each) for each in ranked])
        return
    _print(ranked[:top], len(ranked), tied)
    for message in unseen:
        print_text(f"- not ranked: {message}")
    for work in sorted({*map(work_name, plans)} & {*found.works_with_one_batch}):
        print_text(
            f"- all runs of {work} had the same batch size per worker: the costs of a sample, a "
            "pass and an update cannot be separated, so other batch sizes and pipelines may be "
            "ranked wrongly"
        )
    print_text(f"- {out}  (run it: raysuite run {out})")
    if probe is not None:
        print_text(f"- {probe}  measures the tied candidates ({len(tied)})")


def _batch(document: Document) -> int:
    training = document.data.get("training") or {}
    given = training.get("global_batch")
    if not isinstance(given, int):
        raise UserError("the spec has no number in training.global_batch; give --batches N,N")
    return given


def _plan(document: Document, keys: dict[str, Any], gpus: int) -> RunPlan:
    """The plan of one candidate. Raises SpecError if the candidate is not possible."""
    from raysuite.plan import make_plans
    from raysuite.spec.document import Document

    return make_plans(Document(_spec(document, keys), document.file), gpus, elsewhere=True)[0]


def _spec(document: Document, keys: dict[str, Any]) -> dict[str, Any]:
    """The spec of one candidate: `keys`, and the first value of each other key of the matrix."""
    from raysuite.spec.document import set_dotted, swept_keys

    data = copy.deepcopy(document.data)
    for written, values in (data.pop("matrix", None) or {}).items():
        together = swept_keys(written)
        first = values[0] if len(together) > 1 else [values[0]]
        for key, value in zip(together, first, strict=True):
            set_dotted(data, key, value)
    data.get("training", {}).pop("batch_per_worker", None)
    for key in ("scales", "scale", "repeats"):
        data.pop(key, None)
    for key, value in keys.items():
        set_dotted(data, key, value)
    return data


def _keys(choice: Choice, made: Sequence[tuple[dict[str, Any], RunPlan]]) -> dict[str, Any]:
    return next(keys for keys, plan in made if plan.run_id == choice.plan["run_id"])


def _matrix(several: Sequence[dict[str, Any]]) -> dict[str, Any]:
    names = list(several[0])
    lines = [[keys[name] for name in names] for keys in several]
    return {"repeats": 5, "matrix": {", ".join(names): lines}}


def _write(file: Path, document: Document, keys: dict[str, Any], name: str) -> None:
    data = _spec(document, keys)
    data["name"] = f"{data['name']}-{name}"
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    head = f"# Written by `raysuite recommend`, from {document.file}.\n"
    write_whole(file, f"{head}{text}".encode())


def _data(choice: Choice) -> dict[str, Any]:
    return {
        "label": _name(choice),
        "epoch_s": choice.epoch,
        "rank": choice.rank,
        "tied": choice.tied,
        **choice.predicted.model_dump(mode="json"),
        "efficiency": choice.efficiency,  # as in the table, not relative to `baseline`
    }


def _name(choice: Choice) -> str:
    from raysuite.perf.costs import strategy_kind
    from raysuite.records.names import workers_name

    plan = choice.plan
    batch = f"batch {plan['global_batch']}"
    cut = f" in {plan['accumulate']}" if plan["accumulate"] > 1 else ""
    return f"{strategy_kind(plan)} · {workers_name(plan['workers'])} · {batch}{cut}"


def _print(shown: Sequence[Choice], count: int, tied: Sequence[Choice]) -> None:
    from raysuite.records.names import task_of
    from raysuite.report import text
    from raysuite.report.predictions import interval, validations
    from raysuite.units import human_bytes

    rate = f"{task_of(shown[0].plan).unit.capitalize()}/s"
    figures = [rate, "Epoch", "Efficiency", "Energy, J", "Memory"]
    if not any(each.predicted.joules for each in shown):
        figures.remove("Energy, J")
    rows = []
    for each in shown:
        predicted = each.predicted
        cells = {
            rate: interval(predicted.throughput),
            "Epoch": interval(each.epoch, text.seconds),
            "Efficiency": text.optional(each.efficiency),
            "Energy, J": interval(predicted.joules),
            "Memory": interval(predicted.memory_bytes, human_bytes),
        }
        remarks = ["tied with the best"] if each.tied and len(tied) > 1 else []
        remarks += [f"out of range: {one}" for one in predicted.outside]
        rows.append(
            (str(each.rank), _name(each), *(cells[name] for name in figures), "; ".join(remarks))
        )
    header = ("Rank", "Candidate", *figures, "Remarks")
    stdout().print(table(header, rows, ("Rank", *figures)))
    print_text(f"- {count} candidates; predicted with 90 % intervals, not measured")
    for said in validations([each.predicted for each in shown]):
        print_text(f"- {said}")
