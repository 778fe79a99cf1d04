"""Record the failure of runs whose workers ended without a result; the driver does this."""

from __future__ import annotations

from collections.abc import Iterator

from raysuite.errors import StorageError, is_full
from raysuite.orchestrate.leaving_nodes import NodesGoneError
from raysuite.plan import RunPlan
from raysuite.records import FailReason, Journal, Results, RunFailed
from raysuite.train.out_of_memory import ray_out_of_memory


def storage_error(error: Exception | None) -> Exception | None:
    """The error that ended a group of runs, if it comes from a full or read-only file system; else
    None. If Ray Train's controller failed, the controller's own error is checked and returned
    instead of `error`."""
    cause = getattr(error, "controller_failure", error)
    return cause if isinstance(cause, StorageError) or (cause and is_full(cause)) else None


def record_lost(plan: RunPlan, results: Results, error: Exception | None) -> None:
    """Record a run whose workers ended without a result. The reason is taken from `error`, Ray
    Train's error."""
    text = str(error).strip() if error else "its workers ended without a result"
    message = text.splitlines()[-1] if text else type(error).__name__
    full = next((each for each in _causes(error) if ray_out_of_memory(str(each))), None)
    if isinstance(error, NodesGoneError):
        record_failure(plan, results, "node_lost", str(error), text)
    elif full:
        message = ray_out_of_memory(str(full))
        record_failure(plan, results, "out_of_memory", message, f"{text}\n{full}")
    else:
        record_failure(plan, results, "lost", message, text)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error of Ray Train, the errors of its controller and workers, and their causes."""
    if error is not None:
        yield error
        yield from _causes(getattr(error, "controller_failure", None) or error.__cause__)
        for each in getattr(error, "worker_failures", {}).values():
            yield from _causes(each)


def record_failure(
    plan: RunPlan, results: Results, reason: FailReason, message: str, detail: str = ""
) -> None:
    """Write a failure into the run's journal; the driver does this if no worker is left."""
    record = RunFailed(run_id=plan.run_id, reason=reason, message=message, detail=detail)
    Journal(results.journal_file(plan.run_id)).write(record)
