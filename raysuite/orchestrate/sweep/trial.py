"""Run one trial of a sweep in an actor of Ray Tune, which drives the trial's worker group."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from raysuite.errors import RunError
from raysuite.orchestrate import stopping
from raysuite.orchestrate.controller import DeadlineError
from raysuite.orchestrate.failures import record_failure, record_lost, storage_error
from raysuite.orchestrate.groups import Segment, make_trainer, work_config, work_in
from raysuite.plan import RunPlan, groups
from raysuite.plan.batch_candidates import NothingFitsError
from raysuite.records import EpochFinished, FailReason, Journal, Results
from raysuite.records.judged import held_after

# A batch size that is not known is searched for on the trial's own workers, before its run.

FOLDER = "batches"
"""Subfolder of the results folder into which searches for batch sizes write their trials; empty
when no search is running."""


def find_batch(plan: RunPlan, results: Results, deadline: float | None) -> RunPlan | None:
    """Search for a plan's batch size, write the result to the run's journal, and return the plan
    with the size. If no size was found, record the reason and return None. If the sweep was
    stopped, return None.

    `deadline`: time at which the search is ended, in seconds since 1970.
    """
    from raysuite.orchestrate.found_batches import decide
    from raysuite.orchestrate.suite import Listener

    listener = Listener(lambda: stopping.requested_stop(results.folder))
    try:
        decision = decide([plan], results.folder / FOLDER, 1, listener, deadline)
    except RunError as error:
        record_failure(plan, results, *_why(error))
        return None
    if decision.stop is not None:
        return None
    made = decision.plans[0]
    Journal(results.journal_file(made.run_id)).write(decision.found[made.run_id])
    return made


def _why(error: RunError) -> tuple[FailReason, str]:
    if isinstance(error, DeadlineError):
        return "deadline", "its batch size was not found within the sweep's deadline_s"
    return ("out_of_memory" if isinstance(error, NothingFitsError) else "error"), str(error)


# Ray Tune reuses the process that drives a trial for the next trial. This process keeps its worker
# group, as long as trials with equal resources follow within a few seconds. The worker group ends
# when a trial fails, or when no trial follows.

_SERVE = "raysuite.orchestrate.worker:serve"
_IDLE_S = 5.0
"""Seconds for which idle workers keep their resources; then a waiting trial can use the
resources."""
_POLL_S = 0.1
"""Seconds between two queries of the Mailbox, which is in this process."""


class WarmWorkers:
    """A worker group for consecutive trials with equal resources."""

    def __init__(self, plan: RunPlan, results: Path) -> None:
        from raysuite.orchestrate.mailbox import Mailbox

        self._first, self._results = plan, results
        self._lock = threading.Lock()
        self._mailbox = Mailbox.serve()
        self._number = -1
        """Number of the last job; see `worker.serve`."""
        self._ends = False
        self.error: Exception | None = None
        """The error that ended the workers, if any."""
        self._trainer = make_trainer([plan], results, work=_SERVE, more=self._jobs)
        self._thread = threading.Thread(target=self._fit, name="ray-train", daemon=True)

    def start(self, plan: RunPlan, segment: Segment | None, deadline: float | None) -> bool:
        """Start a run, or a segment of it; return False if these workers have ended or the run
        needs other resources.

        The workers are ended at `deadline`, in seconds since 1970.
        """
        is_new = self._thread.ident is None
        if not is_new and len(groups([self._first, plan], one_node=False)) > 1:
            return False
        with self._lock:
            if self._ends or not (is_new or self._thread.is_alive()):
                return False
            self._trainer.follow([plan], deadline)
            self._put(work_config([plan], self._results, segment))
        if is_new:
            self._thread.start()
        return True

    def epochs(self) -> Iterator[str | None]:
        """The epochs of the started run as lines of its journal, without values per step, until the
        run or its workers end. Yields None ten times per second while there is no new line."""
        number = self._number
        for place in count():
            key = f"report/{number}/{place}"
            while self._thread.is_alive() and not self._mailbox.has(key):
                time.sleep(_POLL_S)
                yield None
            line = self._mailbox.get(key) if self._mailbox.has(key) else None
            if line is None:
                break
            yield line
        idle = threading.Timer(_IDLE_S, self._end_after, (number,))
        idle.daemon = True
        idle.start()

    def end(self) -> None:
        """End the workers, and wait until their resources are free."""
        self._end_after(self._number)
        self._thread.join()

    def _end_after(self, number: int) -> None:
        """End the workers, unless a job after job `number` has been started."""
        with self._lock:
            if self._number == number and not self._ends:
                self._ends = True
                self._put(None)

    def _put(self, job: dict[str, Any] | None) -> None:
        self._number += 1
        self._mailbox.put(f"job/{self._number}", job)

    def _fit(self) -> None:
        try:
            self._trainer.fit()
        except Exception as error:
            self.error = error

    def _jobs(self) -> dict[str, Any]:
        """Arguments of new workers: the address of the Mailbox with their jobs, and the number of
        the current job, with which they begin."""
        with self._lock:
            return {"mailbox": self._mailbox.address, "first": self._number}


_ENDING_S = 30.0
"""Seconds that Ray Train has after the deadline to end the workers; after that, the trial's process
exits."""


class Request(BaseModel):
    """What a trial's process has to do: a run, or a segment of it."""

    model_config = ConfigDict(frozen=True)

    plan: RunPlan
    segment: Segment | None = None
    left_s: float | None = None
    """Seconds that the run may still take; None: no limit."""


def as_text(model: BaseModel) -> str:
    """A pydantic model as JSON text, because Ray Tune flattens nested dictionaries and so renames
    their keys. (Pydantic's own JSON would fail for file names that are not UTF-8.)"""
    return json.dumps(model.model_dump(mode="json"))


@dataclass(frozen=True)
class Setting:
    """The settings that all trials of a sweep share."""

    results: str
    path: str
    """The driver's working folder."""
    environment: dict[str, str] = field(default_factory=dict)
    """The driver's environment variables for Ray and raysuite. They are passed on, because the
    processes of an existing cluster have other values."""


def run_trial(config: dict[str, Any], setting: Setting) -> None:
    """Carry out `config["request"]`, a Request as JSON; report each epoch to Ray Tune, as a line of
    the journal without values per step.

    If the run has ended, its end is recorded before this function returns. A failed run raises no
    exception.
    """
    import ray.tune

    os.environ.update(setting.environment)
    work_in(setting.path)
    results = Results(Path(setting.results))
    request = Request.model_validate(json.loads(config["request"]))
    plan = request.plan
    deadline = None if request.left_s is None else time.time() + request.left_s
    if plan.undecided:
        _release()
        decided = find_batch(plan, results, deadline)
        if decided is None:
            return
        plan = decided
        # when `report` returns, the driver has replaced its plan by `plan`
        ray.tune.report({"plan": as_text(plan)})
    for line in _epochs(plan, results, deadline, request.segment):
        ray.tune.report({"epoch": line})


def trainable(setting: Setting) -> Any:
    """The class with which Ray Tune runs trials: it calls `run_trial`, and ends idle workers before
    Tune ends the process that drives them.

    Ray would end the workers with the process, but it would keep their placement group, and so
    their CPUs and GPUs, until the sweep ends.
    """
    from ray.tune import with_parameters
    from ray.tune.trainable import wrap_function

    class Trial(wrap_function(with_parameters(run_trial, setting=setting))):  # type: ignore[misc]
        def cleanup(self) -> None:
            """Called by Ray Tune in this process, which Tune ends afterwards."""
            super().cleanup()
            _release()

    return Trial


def epochs_of(results: Results, run_id: str) -> list[EpochFinished]:
    """Every epoch in a run's journal, including repeated ones, in the order of writing."""
    return [record for record in results.records(run_id) if isinstance(record, EpochFinished)]


def _epochs(
    plan: RunPlan, results: Results, deadline: float | None, segment: Segment | None
) -> Iterator[str]:
    """Execute the run, or a segment of it; yield each epoch's line as soon as it is written."""
    workers = _start(plan, results, deadline, segment)
    for line in workers.epochs():
        if line is not None:
            yield line
        if deadline is not None and time.time() > deadline + _ENDING_S:
            if results.end_of(plan.run_id) is None:
                record_deadline(plan, results)
            os._exit(1)  # when this process ends, Ray ends its controller and workers
    _settle(plan, results, workers.error)


_workers: WarmWorkers | None = None
"""The current worker group; this process drives one trial after the other."""


def _start(
    plan: RunPlan, results: Results, deadline: float | None, segment: Segment | None
) -> WarmWorkers:
    """Start the run on the workers of the previous trial if possible, else on new workers."""
    global _workers
    if _workers is None or not _workers.start(plan, segment, deadline):
        _release()
        _workers = WarmWorkers(plan, results.folder)
        _workers.start(plan, segment, deadline)
    return _workers


def _release() -> None:
    global _workers
    if _workers is not None:
        _workers.end()
        _workers = None


def _settle(plan: RunPlan, results: Results, error: Exception | None) -> None:
    """Record the end of a run whose journal has none, unless the run was stopped, waits for other
    trials, or could not write its results."""
    if results.end_of(plan.run_id) is not None or held_after(results.records(plan.run_id)):
        return
    if storage_error(error):
        return
    if isinstance(error, DeadlineError):
        record_deadline(plan, results)
    elif stopping.requested_stop(results.folder) is None:
        record_lost(plan, results, error)


def record_deadline(plan: RunPlan, results: Results) -> None:
    """Record that a run exceeded its deadline."""
    epochs = len({record.epoch for record in epochs_of(results, plan.run_id)})
    message = f"took longer than the sweep's deadline_s allows; {epochs} epoch(s) were finished"
    record_failure(plan, results, "deadline", message)
