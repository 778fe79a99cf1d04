"""`raysuite calibrate` and `raysuite predict`: fit costs to journals, and predict with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli.console import print_json, print_sheet, print_text, stdout, table
from raysuite.cli.run_options import (
    AsJson,
    CalibratedGpus,
    Overrides,
    Scale,
    SeveralResults,
    file_to_write,
    numbers,
)
from raysuite.errors import UserError

if TYPE_CHECKING:
    from raysuite.perf.calibration import Model

CalibrationFile = Annotated[
    Path,
    typer.Option("--calibration", metavar="FILE", help="File written by `raysuite calibrate`."),
]
DEFAULT = Path("calibration.yaml")
PREDICTIONS = Path("predictions")


def calibrate(
    results: SeveralResults,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE", callback=file_to_write, help="File to which the costs are written."
        ),
    ] = DEFAULT,
    workers_per_node: Annotated[
        int | None,
        typer.Option(
            min=1, help="Workers per node in the results. Default: all workers on one node."
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Instead of fitting costs: predict the throughput on these numbers of workers "
            "from the results.",
        ),
    ] = None,
    most_other_cores: Annotated[
        float,
        typer.Option(
            min=0,
            help="Leave out epochs during which other programs used more CPU cores than this.",
        ),
    ] = 0.5,
    as_json: AsJson = False,
) -> None:
    """Fit a cost model of this machine to measured runs, and state its errors.

    Runs that failed, or that the gate stopped, are left out. Pipelines are not fitted: they are
    simulated with the costs fitted to the other runs, and the simulated times are compared with the
    pipelines' own measurements.

    With --workers, no costs are fitted. Instead, the throughput as a function of the number of
    workers is fitted, for each variant that was measured on at least two numbers of workers.
    RESULTS may then also be CSV files from elsewhere, with the columns workers, throughput, nodes
    (not needed with --workers-per-node), optionally batch, and columns that distinguish series.

    \b
    Examples:
      raysuite run experiments/calibration.yaml
      raysuite calibrate results/calibration --out this-machine.yaml
      raysuite calibrate results/calibration results/quickstart --out this-machine.yaml
      raysuite calibrate results/scaling --workers-per-node 4 --workers 256,1024
      raysuite calibrate published.csv --workers 256,1024
    """
    if workers is not None:
        _print_scaling(results, numbers("--workers", workers), workers_per_node, as_json)
        return
    from raysuite.perf.calibration import calibrate as fitted
    from raysuite.plan.simulation import pipeline_seconds
    from raysuite.records import Results, results_figures

    opened = [Results.open(folder) for folder in results]
    runs = [run for each in opened for run in results_figures(each)]
    found = fitted(runs, [*map(str, results)], workers_per_node, most_other_cores)
    found = found.with_pipelines(runs, pipeline_seconds, most_other_cores)
    found.write(out)
    if as_json:
        print_text(found.model_dump_json(indent=2))
        return
    print_text(f"{found.runs} of {len(runs)} runs")
    _print_fit("time of an epoch", found.seconds)
    if found.bytes is not None:
        _print_fit("peak memory of a worker", found.bytes)
    if found.repeats is not None:
        print_text(
            f"repeats differ from their mean by {found.repeats.median:.1%} in the median, "
            f"{found.repeats.p90:.1%} in the 90th percentile"
        )
    if found.pipelines is not None:
        print_text(
            f"{found.pipelines.runs} pipelines took {found.pipelines.factor:.2f} times as long as "
            f"simulated; error of the simulated times {found.pipelines.errors.median:.1%} (median)"
        )
    if found.works_with_one_batch:
        print_text(
            f"all runs of {', '.join(found.works_with_one_batch)} have the same batch size per "
            "worker: the cost of a sample cannot be separated from that of a pass and an update, "
            "and predictions for other batch sizes or for pipelines can be far off; add runs with "
            "another batch size"
        )
    print_text(str(out))


def _print_scaling(
    sources: Sequence[Path], workers: Sequence[int], per_node: int | None, as_json: bool
) -> None:
    """Print the predicted throughput of each series on each number in `workers`, with the error of
    each fit."""
    from raysuite.perf import scaling
    from raysuite.records import Results, results_figures

    folders = [source for source in sources if source.suffix != ".csv"]
    runs = [run for folder in folders for run in results_figures(Results.open(folder))]
    series = scaling.series_of(runs, per_node)
    for source in sources:
        if source.suffix == ".csv":
            for name, points in scaling.read_figures(source, per_node).items():
                series.setdefault(name, []).extend(points)
    scaling.check_batches(series, sources)
    few = {name for name, points in series.items() if not scaling.enough(points)}
    if len(few) == len(series):
        raise UserError(
            f"every variant of {', '.join(map(str, sources))} was measured on fewer than "
            f"{scaling.LEAST_SIZES} numbers of workers; measure more, as with "
            "matrix.resources.workers=[1,2,4]"
        )
    forecasts = [
        scaling.forecast(name, points, workers, per_node)
        for name, points in series.items()
        if name not in few
    ]
    if as_json:
        print_json([asdict(each) for each in forecasts])
        return
    lines = [
        (
            each.series,
            str(place.workers),
            _figure(place.throughput.value),
            f"{_figure(place.throughput.low)} to {_figure(place.throughput.high)}",
            f"{place.efficiency.value:.2f}",
            f"{place.efficiency.low:.2f} to {place.efficiency.high:.2f}",
        )
        for each in forecasts
        for place in each.places
    ]
    headings = ("Series", "Workers", "Throughput", "90 % interval", "Efficiency", "90 %")
    stdout().print(table(headings, lines, headings[1:]))
    for each in forecasts:
        print_text(f"{each.series}: {each.words}")
    if few:
        print_text(
            "not predicted, because measured on too few numbers of workers: "
            f"{', '.join(sorted(few))}"
        )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _print_fit(what: str, model: Model) -> None:
    used, apart = sum(cost > 0 for cost in model.costs.values()), model.left_out
    print_text(
        f"{what}: {used} costs; error of the fit {model.fit.median:.1%} (median), "
        f"{model.fit.p90:.1%} (90th percentile); "
        + (
            "not validated: no run shares all of its costs with runs of another batch size"
            if apart is None
            else "error for runs whose batch size was left out of the fit "
            f"{apart.median:.1%} (median), {apart.p90:.1%} (90th percentile), at most "
            f"{apart.largest:.1%}"
        )
    )


def predict(
    spec: Annotated[
        Path,
        typer.Argument(
            metavar="SPEC|RESULTS", help="An experiment's YAML file, or a results folder."
        ),
    ],
    overrides: Overrides = None,
    calibration: CalibrationFile = DEFAULT,
    scale: Scale = None,
    gpus: CalibratedGpus = None,
    root: Annotated[
        Path, typer.Option("--results", help="Folder in which NAME/DATE-TIME is created.")
    ] = PREDICTIONS,
    as_json: AsJson = False,
) -> None:
    """Predict throughput, times, speed-up and memory of each run, with 90 % intervals.

    For a spec, the predictions are written to a new results folder, which has no measurements. For
    a results folder, the predictions are added to it, and a report then shows both predictions and
    measurements. Nothing is started.

    \b
    Examples:
      raysuite predict experiments/quickstart.yaml --calibration this-machine.yaml
      raysuite predict my_experiment.yaml training.global_batch=128 --json
      raysuite predict results/quickstart && raysuite report results/quickstart
    """
    from raysuite.orchestrate.suite import create
    from raysuite.perf.calibration import Calibration
    from raysuite.perf.prediction import predict as predicted
    from raysuite.plan import make_plans
    from raysuite.plan.simulation import pipeline_seconds
    from raysuite.records import Results, results_figures
    from raysuite.report.predictions import predictions_sheet
    from raysuite.spec import read_document
    from raysuite.spec.document import of_network

    document = None
    if not spec.is_dir():
        document = of_network(read_document(spec, overrides or [], scale))
    found = Calibration.read(calibration)
    if document is None:
        if overrides or scale or gpus is not None or root != PREDICTIONS:
            raise UserError(
                f"{spec} is a results folder, whose runs are fixed: leave out overrides, --scale, "
                "--gpus and --results, or give a SPEC"
            )
        results = Results.open(spec)
    else:
        gpus = found.gpus if gpus is None else gpus
        results = create(document, make_plans(document, gpus, elsewhere=True), root)
    predictions = predicted(results.plans(), found, str(calibration), pipeline_seconds)
    results.write_predictions(predictions)
    if as_json:
        print_json([each.model_dump(mode="json") for each in predictions])
        return
    sheet = predictions_sheet(results_figures(results), results.predictions())
    if sheet is not None:
        empty = {
            title
            for place, title in enumerate(sheet.header)
            if all(cells[place] in ("", "–") for cells in sheet.cells)
        }
        print_sheet(sheet, without=empty)
    print_text(str(results.folder))
