"""`raysuite run` and `raysuite sweep`: all runs of a spec, or trials over its search space."""

from __future__ import annotations

from pathlib import Path

from raysuite.cli.run_options import (
    Address,
    AsJson,
    Budget,
    DryRun,
    Mlflow,
    Overrides,
    Quiet,
    Resume,
    ResumeFrom,
    RetryFailed,
    Root,
    Scale,
    ShowTimings,
    Spec,
    StopWithin,
    TrackingUri,
    gpus_before,
)
from raysuite.errors import UserError


def run(
    spec: Spec = None,
    overrides: Overrides = None,
    scale: Scale = None,
    address: Address = None,
    root: Root = Path("results"),
    resume: Resume = False,
    resume_from: ResumeFrom = None,
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
    mlflow: Mlflow = True,
    tracking_uri: TrackingUri = None,
    stop_within: StopWithin = 60.0,
    quiet: Quiet = False,
    as_json: AsJson = False,
    timings: ShowTimings = False,
    budget: Budget = None,
) -> None:
    """Run every run of a spec and report what was measured.

    SIGTERM, SIGHUP, SIGUSR1 and the end of the cluster's time make it stop with a checkpoint: its
    exit code is then 75, and --resume-from resumes it.

    \b
    Examples:
      raysuite run experiments/quickstart.yaml
      raysuite run experiments/quickstart.yaml training.epochs=3 repeats=5
      raysuite run experiments/aach2023-throughput.yaml --scale laptop
      raysuite run experiments/quickstart.yaml --timings
      raysuite run experiments/quickstart.yaml --budget 5m
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
    from raysuite.cli.driver import Request, drive

    drive(
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
            timings=timings,
            budget_s=budget,
        )
    )


def sweep(
    spec: Spec = None,
    overrides: Overrides = None,
    scale: Scale = None,
    address: Address = None,
    root: Root = Path("results"),
    resume: Resume = False,
    resume_from: ResumeFrom = None,
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
    mlflow: Mlflow = True,
    tracking_uri: TrackingUri = None,
    stop_within: StopWithin = 60.0,
    quiet: Quiet = False,
    as_json: AsJson = False,
    timings: ShowTimings = False,
) -> None:
    """Search the space of a spec's `search` section, and report what was best there.

    Each trial is a whole run, on workers of its own; trials run concurrently where the cluster has
    free resources. Finished trials are kept: --resume continues with the rest. SIGTERM, SIGUSR1
    and the end of the cluster's time make all trials stop with a checkpoint, and the exit code is
    then 75; it is 1 where no trial gave a result.

    \b
    Examples:
      raysuite sweep experiments/sweep-quickstart.yaml
      raysuite sweep experiments/sweep-quickstart.yaml --dry-run
      raysuite sweep experiments/sweep-quickstart.yaml search.trials=30 search.scheduler=none
      raysuite sweep experiments/sweep-quickstart.yaml 'search.space.seed={choice: [0, 1]}'
      raysuite sweep experiments/sweep-quickstart.yaml --resume
      raysuite sweep --resume-from results/sweep-quickstart/20261122-101500
      raysuite sweep experiments/sweep-quickstart.yaml --address 10.0.0.1:6379
    """
    if dry_run:
        from raysuite.cli.sweep_progress import dry_run as foretell
        from raysuite.spec import read_document

        if spec is None:
            raise UserError("--dry-run prints the trials of a SPEC, and none was given")
        foretell(read_document(spec, overrides or [], scale), as_json, gpus_before(address))
        return
    from raysuite.cli.driver import Request, drive

    drive(
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
            verb="sweep",
            timings=timings,
        )
    )
