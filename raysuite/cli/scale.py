"""`raysuite scale`: measure how the user's own, unchanged training script scales."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from raysuite.cli import run_options as given
from raysuite.errors import UserError


def scale(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS]...",
            help="The script, or -m MODULE, and its arguments, after `--`.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        str,
        typer.Option(metavar="N,...", help="Numbers of workers; the smallest is the baseline."),
    ] = "1,2",
    repeats: Annotated[
        int,
        typer.Option(
            min=1, help="Number of rounds; each round runs the script once per number of workers."
        ),
    ] = 3,
    name: Annotated[
        str | None, typer.Option(help="Name of the experiment; default: the script's name.")
    ] = None,
    samples_per_step: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Samples per optimiser step over all workers, such as 256 or '32 * workers'; "
            "default: counted in the batches that the script reads from its DataLoader.",
        ),
    ] = None,
    warmup_steps: Annotated[
        int,
        typer.Option(
            min=0, help="Number of steps at the start that are left out of the throughput."
        ),
    ] = 10,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Compare the ranks' parameters after each of the first 10 steps."
        ),
    ] = False,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Profile 20 steps after the warm-up: shares of computation, communication and "
            "loading in their time, and a trace.",
        ),
    ] = False,
    cpus_per_worker: Annotated[int, typer.Option(min=1, help="CPUs and threads per worker.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or gpu.")] = "auto",
    stall_s: Annotated[
        float,
        typer.Option(
            "--stall",
            min=1,
            metavar="SECONDS",
            help="End a run if no rank makes a step within this time.",
        ),
    ] = 1800.0,
    placement: Annotated[
        str, typer.Option(help="On a cluster: pack workers on few nodes, or spread them over all.")
    ] = "pack",
    address: given.Address = None,
    root: given.Root = Path("results"),
    resume: given.Resume = False,
    resume_from: given.ResumeFrom = None,
    retry_failed: given.RetryFailed = False,
    dry_run: given.DryRun = False,
    mlflow: given.Mlflow = True,
    tracking_uri: given.TrackingUri = None,
    stop_within_s: given.StopWithin = 60.0,
    quiet: given.Quiet = False,
    as_json: given.RecordsAsJson = False,
) -> None:
    """Measure how a training script scales: throughput, speed-up and efficiency, with intervals.

    The script is started unchanged, by torch's launcher or, with --address or in `ray job submit`,
    by the workers of a Ray cluster. A step is a step of the script's torch optimiser. A placeholder
    in an argument, such as `{256 // workers}`, is replaced by its value for each number of workers.
    The file spec.yaml in the results folder is an equivalent spec for `raysuite run`.

    \b
    Examples:
      raysuite scale --workers 1,2 -- train.py --epochs 1
      raysuite scale --workers 1,2,4 --repeats 5 -- train.py --batch '{256 // workers}'
      raysuite scale --workers 1,2 --check -- -m package.train --lr '{0.1 * workers}'
      ray job submit -- raysuite scale --workers 4,8 --placement spread -- train.py
      raysuite scale --resume-from results/train/20261122-101500
    """
    from raysuite.cli.driver import run_suite
    from raysuite.cli.request import RunRequest

    document = None
    if command:
        if resume_from is not None:
            raise UserError("--resume-from already determines the script; leave SCRIPT out")
        document = _document(
            {
                "name": name or _name(command),
                "repeats": repeats,
                "script": {
                    "command": command,
                    "stall_s": stall_s,
                    **({"samples_per_step": samples_per_step} if samples_per_step else {}),
                    **({"check": CHECKED_STEPS} if check else {}),
                },
                "resources": {
                    "cpus_per_worker": cpus_per_worker,
                    "device": device,
                    "placement": placement,
                },
                "measure": {
                    "warmup_steps": warmup_steps,
                    **({"profile": "torch"} if profile else {}),
                },
                "matrix": {"resources.workers": given.numbers("--workers", workers)},
            }
        )
    elif resume_from is None:
        raise UserError(
            "no SCRIPT was given; give it after --, such as `raysuite scale --workers 1,2 -- "
            "train.py`"
        )
    request = RunRequest(
        address=address,
        root=root,
        resume=resume,
        resume_from=resume_from,
        retry_failed=retry_failed,
        mlflow=mlflow,
        tracking_uri=tracking_uri,
        stop_within_s=stop_within_s,
        quiet=quiet,
        as_json=as_json,
        document=document,
        script_options=_options(
            {
                "--workers": workers,
                "--repeats": repeats,
                "--name": name,
                "--samples-per-step": samples_per_step,
                "--warmup-steps": warmup_steps,
                "--check": check,
                "--profile": profile,
                "--cpus-per-worker": cpus_per_worker,
                "--device": device,
                "--stall": stall_s,
                "--placement": placement,
            }
        ),
    )
    run_suite(request, dry_run)


CHECKED_STEPS = 10
"""Number of steps at the start of a run, after each of which `--check` compares parameters."""


def _options(values: dict[str, str | bool | float | None]) -> list[str]:
    """The options as words of a command line, without those that are not set."""
    words = []
    for option, value in values.items():
        if isinstance(value, bool):
            words += [option] if value else []
        elif value is not None:
            words += [option, str(value)]
    return words


def _name(command: list[str]) -> str:
    """A name for the results, made from the script's name."""
    import re

    script = command[1] if command[0] == "-m" and len(command) > 1 else Path(command[0]).stem
    return re.sub(r"[^A-Za-z0-9._-]", "-", script).lstrip("._-") or "script"


def _document(content: dict[str, Any]) -> Any:
    """The spec that describes the same experiment as the options."""
    import yaml

    from raysuite.spec import parse_document

    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return replace(parse_document(text, "command line"), lines={})
