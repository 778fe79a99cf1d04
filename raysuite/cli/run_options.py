"""Options that several verbs have in common."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from raysuite.errors import UserError

Spec = Annotated[Path | None, typer.Argument(help="The experiment, as YAML.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Override keys of the spec."),
]
Scale = Annotated[
    str | None, typer.Option(help="A form under the spec's `scales`, such as laptop.")
]
Address = Annotated[
    str | None,
    typer.Option(envvar="RAY_ADDRESS", help="Join this Ray cluster instead of starting one."),
]
Root = Annotated[Path, typer.Option("--results", help="Folder under which NAME/DATE-TIME is made.")]
Resume = Annotated[bool, typer.Option(help="Resume the newest results of this experiment.")]
ResumeFrom = Annotated[
    Path | None,
    typer.Option(metavar="RESULTS", help="Resume the results in this folder."),
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="When resuming: repeat the runs that failed.")
]
DryRun = Annotated[bool, typer.Option(help="Print what would be made, and stop.")]
Mlflow = Annotated[bool, typer.Option(help="Send the records to MLflow.")]
TrackingUri = Annotated[
    str | None,
    typer.Option(envvar="MLFLOW_TRACKING_URI", help="MLflow's store; default sqlite:///mlflow.db."),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        metavar="URI",
        help="MLflow's store; default: MLFLOW_TRACKING_URI, else mlflow.db in this folder.",
    ),
]
StoreExperiment = Annotated[
    str | None,
    typer.Option(
        "--experiment", metavar="NAME", help="MLflow's experiment; default: the spec's name."
    ),
]
StopWithin = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=0, help="Time for a checkpoint after SIGTERM or SIGUSR1."),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print failures, and at the end the results folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print every record as a line of JSON.")]

ShowTimings = Annotated[
    bool, typer.Option("--timings", help="Show where the wall time went, by phase and by run.")
]

Budget = Annotated[
    float | None,
    typer.Option(
        metavar="TIME",
        parser=lambda text: budget_seconds(text),
        help="Such as 90s, 5m or 1h: repeat runs, at most 30 times, until that is over or their "
        "intervals are within 5 %.",
    ),
]


def budget_seconds(text: str) -> float:
    """Seconds of `90s`, `5m`, `1.5h`. Raises UserError for anything else."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh])", text.strip())
    if found is None or float(found[1]) == 0:
        raise UserError(f"--budget: given was {text!r}; valid are such as 90s, 5m and 1h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def gpus_before(address: str | None) -> int | None:
    """The number of GPUs to plan with before Ray is asked. None: those of this machine; any number
    where a cluster is joined."""
    return sys.maxsize if address else None
