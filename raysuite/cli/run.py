"""`raysuite run`: every run of a spec, its records, its report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysuite.cli.run_suite import Request, carry_out
from raysuite.errors import UserError


def run(
    spec: Annotated[
        Path | None, typer.Argument(help="The experiment, as YAML.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Override keys of the spec."),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="A form under the spec's `scales`, such as laptop.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(envvar="RAY_ADDRESS", help="Join this Ray cluster instead of starting one."),
    ] = None,
    root: Annotated[
        Path, typer.Option("--results", help="Folder under which NAME/DATE-TIME is made.")
    ] = Path("results"),
    resume: Annotated[
        bool, typer.Option(help="Go on with the newest results of this experiment.")
    ] = False,
    resume_from: Annotated[
        Path | None,
        typer.Option(metavar="RESULTS", help="Go on with the results in this folder."),
    ] = None,
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", help="When going on: run the failed runs again."),
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Print the runs and stop, like `plan`.")] = False,
    mlflow: Annotated[bool, typer.Option(help="Send the records to MLflow.")] = True,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            envvar="MLFLOW_TRACKING_URI", help="MLflow's store; default sqlite:///mlflow.db."
        ),
    ] = None,
    stop_within: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="Time for a checkpoint after SIGTERM or SIGUSR1."
        ),
    ] = 60.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every record as a line of JSON.")
    ] = False,
) -> None:
    """Run every run of a spec and report what was measured.

    SIGTERM, SIGUSR1 and the end of the cluster's time make it stop with a checkpoint: its exit
    code is then 75, and --resume-from goes on.

    \b
    Examples:
      raysuite run experiments/quickstart.yaml
      raysuite run experiments/quickstart.yaml training.epochs=3 repeats=5
      raysuite run experiments/aach2023-throughput.yaml --scale laptop
      raysuite run experiments/quickstart.yaml --resume
      raysuite run --resume-from results/quickstart/20261122-101500
      raysuite run experiments/quickstart.yaml --address 10.0.0.1:6379
    """
    if dry_run:
        from raysuite.cli.plan import plan

        if spec is None:
            raise UserError("--dry-run prints the runs of a SPEC, and none was given")
        plan(spec, overrides, scale, as_json=as_json)
        return
    carry_out(
        Request(
            spec=spec,
            overrides=overrides or [],
            scale=scale,
            address=address,
            root=root,
            resume=resume,
            resume_from=resume_from,
            retry_failed=retry_failed,
            mlflow=mlflow,
            tracking_uri=tracking_uri,
            quiet=quiet,
            as_json=as_json,
            stop_within_s=stop_within,
        )
    )
