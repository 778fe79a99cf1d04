"""`raysuite run` executes all runs of a spec; `raysuite sweep` searches a spec's search space."""

from __future__ import annotations

from pathlib import Path

from raysuite.cli import run_options as given
from raysuite.cli.request import RunRequest, SweepRequest
from raysuite.errors import UserError


def run(
    spec: given.Spec = None,
    overrides: given.Overrides = None,
    scale: given.Scale = None,
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
    timings: given.ShowTimings = False,
    budget_s: given.Budget = None,
) -> None:
    """Execute every run of a spec and report the measurements.

    On SIGTERM, SIGHUP or SIGUSR1, and shortly before the cluster's time limit, the current run
    writes a checkpoint, and the command stops with exit code 75; --resume-from resumes the runs.

    \b
    Examples:
      raysuite run experiments/quickstart.yaml
      raysuite run experiments/quickstart.yaml training.epochs=3 repeats=5
      raysuite run experiments/aach2023-throughput.yaml --scale laptop
      raysuite run experiments/quickstart.yaml --budget 5m
      raysuite run --resume-from results/quickstart/20261122-101500
      raysuite run experiments/quickstart.yaml --address 10.0.0.1:6379
    """
    from raysuite.cli.driver import run_suite

    request = RunRequest(
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
        stop_within_s=stop_within_s,
        quiet=quiet,
        as_json=as_json,
        timings=timings,
        budget_s=budget_s,
    )
    run_suite(request, dry_run)


def sweep(
    spec: given.Spec = None,
    overrides: given.Overrides = None,
    scale: given.Scale = None,
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
    timings: given.ShowTimings = False,
) -> None:
    """Search the space of a spec's `search` section, and report the best trials.

    Each trial is a whole run, on its own workers; trials run concurrently if the cluster has free
    resources. Finished trials are kept: --resume continues with the others. On SIGTERM, SIGHUP or
    SIGUSR1, and shortly before the cluster's time limit, all trials write a checkpoint and stop;
    the exit code is then 75. The exit code is 1 if no trial gave a result.

    \b
    Examples:
      raysuite sweep experiments/sweep-quickstart.yaml
      raysuite sweep experiments/sweep-quickstart.yaml --dry-run
      raysuite sweep experiments/sweep-quickstart.yaml search.trials=30 search.scheduler=none
      raysuite sweep experiments/sweep-quickstart.yaml --resume search.trials=30
      raysuite sweep --resume-from results/sweep-quickstart/20261122-101500
    """
    from raysuite.cli.driver import SweepWork, drive

    request = SweepRequest(
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
        stop_within_s=stop_within_s,
        quiet=quiet,
        as_json=as_json,
        timings=timings,
    )
    if not dry_run:
        drive(SweepWork(request))
        return
    request.check()
    if request.again or request.spec is None:
        raise UserError(
            "--dry-run shows the trials of a new sweep; leave --dry-run out, or leave out --resume "
            "and --resume-from (`raysuite watch RESULTS` shows the trials of an earlier sweep)"
        )
    from raysuite.cli.sweep_progress import print_expected
    from raysuite.spec import read_document

    document = read_document(request.spec, request.overrides, request.scale)
    print_expected(document, request.as_json, given.gpus_before(request.address))
