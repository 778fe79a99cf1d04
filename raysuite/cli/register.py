"""`raysuite register` adds a model to MLflow's registry; `raysuite sync` sends runs to loggers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli.console import print_json, print_text
from raysuite.cli.run_options import (
    AsJson,
    BestRun,
    RunResults,
    SeveralResults,
    StoreExperiment,
    TrackingUri,
)
from raysuite.errors import UserError

if TYPE_CHECKING:
    from raysuite.track import SyncSummary
    from raysuite.track.loggers import LoggerSummary


def register(
    results: RunResults,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN_ID", help="The run to register; default: the only one, or a sweep's best."
        ),
    ] = None,
    best: BestRun = False,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the registered model; default: the spec's name."
        ),
    ] = None,
    tracking_uri: TrackingUri = None,
    experiment: StoreExperiment = None,
    as_json: AsJson = False,
) -> None:
    """Register a trained network as a model in MLflow, with its signature and its spec.

    The model of an image classifier has pixels (uint8, 0 to 255) as input and logits as output. A
    model is an exported graph, so `mlflow.pytorch.load_model` and `mlflow models predict` need
    neither raysuite nor your module. Weights of a run that are already registered are not added
    again.

    \b
    Examples:
      raysuite register results/quickstart --run ddp-native-2w-1a2b3c4d
      raysuite register results/quickstart --best --name digits-classifier
      raysuite register results/sweep-quickstart --json
    """
    from raysuite.orchestrate.registration import chosen_run, register_run
    from raysuite.records import Results

    opened = Results.open(results)
    of_sweep = run is None and opened.search() is not None
    run_id, note = chosen_run(opened, run, best or of_sweep)
    if note:
        print_text(note, error=True)
    done = register_run(opened, run_id, name, tracking_uri, experiment)
    if as_json:
        print_json({**asdict(done), "uri": done.uri if done.ok else None})
    else:
        print_text(str(done), error=not done.ok)
    if not done.ok:
        raise typer.Exit(1)


def sync(
    results: SeveralResults,
    tracking_uri: TrackingUri = None,
    experiment: StoreExperiment = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="mlflow, tensorboard or wandb; default: those in the spec's `track`.",
        ),
    ] = None,
) -> None:
    """Write the journals of a results folder to MLflow or another logger.

    `raysuite run` does this automatically. Use this command for results that were made while MLflow
    was unreachable, or that come from another machine. Runs that are up to date are not written
    again.

    \b
    Examples:
      raysuite sync results/quickstart
      raysuite sync results/*
      raysuite sync results/quickstart --tracking-uri http://mlflow.example.org:5000
      raysuite sync results/quickstart --to tensorboard --to wandb
    """
    from raysuite.records import Results
    from raysuite.spec.experiment import track_of
    from raysuite.track import sync as synchronize
    from raysuite.track.loggers import LOGGERS, write_logger

    valid = ("mlflow", *LOGGERS)
    if unknown := [name for name in to or () if name not in valid]:
        raise UserError(f"--to: got {', '.join(unknown)}; valid: {', '.join(valid)}")
    failed = False
    for folder in results:
        opened = Results.open(folder)
        plans = opened.plans()
        for name in to or track_of(plans[0]["spec"] if plans else {}):
            written: SyncSummary | LoggerSummary = (
                write_logger(opened, name)
                if name in LOGGERS
                else synchronize(opened, tracking_uri, experiment)
            )
            print_text(f"{opened.folder}: {written}", error=not written.ok)
            failed = failed or not written.ok
    if failed:
        raise typer.Exit(1)
