"""`raysuite sync`: journals into MLflow, again and again without harm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysuite.cli.console import print_text
from raysuite.cli.run_options import Store, StoreExperiment


def sync(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS...", help="Folders that `raysuite run` printed."),
    ],
    tracking_uri: Store = None,
    experiment: StoreExperiment = None,
) -> None:
    """Write the journals of a results folder into MLflow.

    `raysuite run` does so by itself. This is for results that were made while MLflow was out of
    reach, or that come from another machine. What is there already is not written again.

    \b
    Examples:
      raysuite sync results/quickstart
      raysuite sync results/*
      raysuite sync results/quickstart --tracking-uri http://mlflow.example.org:5000
    """
    from raysuite.records import Results
    from raysuite.track import sync as synchronize

    failed = False
    for folder in results:
        opened = Results.open(folder)
        summary = synchronize(opened, tracking_uri, experiment)
        print_text(f"{opened.folder}: {summary}", error=not summary.ok)
        failed = failed or not summary.ok
    if failed:
        raise typer.Exit(1)
