"""Runs whose workers ended without a result: why, as the driver of their group knows it."""

from __future__ import annotations

from raysuite.errors import StorageError, is_full
from raysuite.orchestrate.nodes import NodesGoneError
from raysuite.plan import RunPlan
from raysuite.records import FailReason, Journal, Results, RunFailed


def unwritten(error: Exception | None) -> Exception | None:
    """The error that Ray Train's controller ended with, where a full disk was it."""
    cause = getattr(error, "controller_failure", None)
    return cause if isinstance(cause, StorageError) or (cause and is_full(cause)) else None


def gone(error: Exception | None) -> NodesGoneError | None:
    """The error that Ray Train's controller ended with, where nodes that stayed away were it."""
    cause = getattr(error, "controller_failure", None)
    return cause if isinstance(cause, NodesGoneError) else None


def record_loss(plan: RunPlan, results: Results, error: Exception | None) -> None:
    """Record that a run was lost, with what Ray Train said of it."""
    missing = gone(error)
    text = str(error).strip() if error else "its workers ended without a result"
    message = text.splitlines()[-1] if text else type(error).__name__
    reason: FailReason = "node_lost" if missing else "lost"
    record_failure(plan, results, reason, missing.message if missing else message, text)


def record_failure(
    plan: RunPlan, results: Results, reason: FailReason, message: str, detail: str = ""
) -> None:
    """Record a failure where no worker is left to do so."""
    record = RunFailed(run_id=plan.run_id, reason=reason, message=message, detail=detail)
    Journal(results.journal_file(plan.run_id)).write(record)
