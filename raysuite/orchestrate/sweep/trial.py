"""One trial of a sweep, in an actor of Ray Tune's: the driver of its run's worker group."""

from __future__ import annotations

import json
import os
import sys
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
from raysuite.orchestrate.groups import Segment, make_trainer, work_config
from raysuite.plan import RunPlan, groups
from raysuite.plan.batch_candidates import NothingFitsError
from raysuite.records import EpochFinished, FailReason, Journal, Results
from raysuite.records.judged import held_after

# A trial whose batch is to be found: on the trial's own workers, before its run begins.

FOLDER = "batches"
"""In the results folder, while a batch is searched."""


def find_batch(plan: RunPlan, results: Results, deadline: float | None) -> RunPlan | None:
    """The plan with all its numbers, with the search in its journal; None where none was found.

    The reason is recorded then, unless the sweep was asked to stop. `deadline`: when the
    search is ended, in seconds since 1970.
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
        return "deadline", "its batch was not found within the sweep's deadline_s"
    return ("out_of_memory" if isinstance(error, NothingFitsError) else "error"), str(error)


# Workers that are used by one trial after the other, in the process of Ray Tune that drives them.
#
# Ray Tune reuses that process for the next trial. Its worker group stays for as long as trials
# alike come within a few seconds; it ends with a trial that fails, and when none comes.

_SERVE = "raysuite.orchestrate.worker:serve"
_IDLE_S = 5.0
"""How long workers without a trial keep their resources, for which another trial may wait."""
_POLL_S = 0.1
"""Between two looks into the Mailbox, which is in this process."""


class WarmWorkers:
    """A worker group for trials with equal resources, one after the other."""

    def __init__(self, plan: RunPlan, results: Path) -> None:
        from raysuite.orchestrate.mailbox import Mailbox

        self._first, self._results = plan, results
        self._lock = threading.Lock()
        self._mailbox = Mailbox.serve()
        self._number = -1
        """Of the last job; see `worker.serve`."""
        self._ends = False
        self.error: Exception | None = None
        """What ended the workers, if anything did."""
        self._trainer = make_trainer([plan], results, work=_SERVE, more=self._jobs)
        self._thread = threading.Thread(target=self._fit, name="ray-train", daemon=True)

    def start(self, plan: RunPlan, segment: Segment | None, deadline: float | None) -> bool:
        """Begin a run, or a segment of it; False where these workers are not for it.

        A `deadline`, in seconds since 1970, ends the workers.
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
        """Lines of the journal of the run that was begun, until it ends or the workers do: its
        epochs, without what grows with their steps. None ten times a second while there is none.
        """
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
        """Let the workers end, where that job was the last one."""
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
        """Where new workers find their jobs, and which is the first: that of the last workers."""
        with self._lock:
            return {"mailbox": self._mailbox.address, "first": self._number}


_ENDING_S = 30.0
"""How long Ray Train may take to end workers that took too long, before its process is ended."""


class Request(BaseModel):
    """What is asked of a trial's process: a run, or a segment of it."""

    model_config = ConfigDict(frozen=True)

    plan: RunPlan
    segment: Segment | None = None
    left_s: float | None = None
    """How long it may still take; None: for ever."""


def as_text(model: BaseModel) -> str:
    """A model as JSON: Ray Tune would give the values of a nested one other names. (Pydantic's own
    JSON is UTF-8, which not all names of files are.)"""
    return json.dumps(model.model_dump(mode="json"))


@dataclass(frozen=True)
class Setting:
    """What all trials of a sweep have in common."""

    results: str
    path: str
    """The driver's working folder."""
    environment: dict[str, str] = field(default_factory=dict)
    """Ray's settings, and the driver's own: a cluster that was joined has others."""


def run_trial(config: dict[str, Any], setting: Setting) -> None:
    """Do what `config["request"]` asks, a Request as JSON, and report each epoch as the line that
    its journal has.

    Its end is recorded when this returns: it does not raise.
    """
    import ray.tune

    os.environ.update(setting.environment)
    if os.path.isdir(setting.path):
        os.chdir(setting.path)
    if setting.path not in sys.path:
        sys.path.insert(0, setting.path)
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
        # when this returns, the driver has replaced the plan by the new one
        ray.tune.report({"plan": as_text(plan)})
    for line in _epochs(plan, results, deadline, request.segment):
        ray.tune.report({"epoch": line})


def epochs_of(results: Results, run_id: str) -> list[EpochFinished]:
    """Every epoch in a run's journal, those that were made again too, in the order of writing."""
    return [record for record in results.records(run_id) if isinstance(record, EpochFinished)]


def _epochs(
    plan: RunPlan, results: Results, deadline: float | None, segment: Segment | None
) -> Iterator[str]:
    """Make the run, or a segment of it; the lines of its epochs, as they come."""
    workers = _start(plan, results, deadline, segment)
    for line in workers.epochs():
        if line is not None:
            yield line
        if deadline is not None and time.time() > deadline + _ENDING_S:
            if results.end_of(plan.run_id) is None:
                record_deadline(plan, results)
            os._exit(1)  # with this process Ray ends its controller and its workers
    _settle(plan, results, workers.error)


_workers: WarmWorkers | None = None
"""Of this process, which drives one trial after the other."""


def _start(
    plan: RunPlan, results: Results, deadline: float | None, segment: Segment | None
) -> WarmWorkers:
    """Begin the run on the workers of the trial before, or on new ones."""
    global _workers
    if _workers is None or not _workers.start(plan, segment, deadline):
        _release()
        _workers = WarmWorkers(plan, results.folder)
        _workers.start(plan, segment, deadline)
    return _workers


def _release() -> None:
    """End the workers of the previous trial."""
    global _workers
    if _workers is not None:
        _workers.end()
        _workers = None


def _settle(plan: RunPlan, results: Results, error: Exception | None) -> None:
    """Record the end of a run that has none, unless it was asked to stop, or waits for others."""
    if results.end_of(plan.run_id) is not None or held_after(results.records(plan.run_id)):
        return
    if storage_error(error):
        return
    if isinstance(error, DeadlineError):
        record_deadline(plan, results)
    elif stopping.requested_stop(results.folder) is None:
        record_lost(plan, results, error)


def record_deadline(plan: RunPlan, results: Results) -> None:
    """Record that a run took longer than it may."""
    epochs = len({record.epoch for record in epochs_of(results, plan.run_id)})
    message = f"took longer than the sweep's deadline_s allows; {epochs} epoch(s) were finished"
    record_failure(plan, results, "deadline", message)
