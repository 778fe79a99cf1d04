"""A suite: every run of a spec, in order, on one cluster, into one results folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from raysuite.errors import SpecError, UserError
from raysuite.orchestrate.cluster import Capacity, connect
from raysuite.orchestrate.groups import make_trainer
from raysuite.orchestrate.preflight import lacking, too_large
from raysuite.plan import RunPlan, groups, placed
from raysuite.records import Journal, Results, RunFailed
from raysuite.spec import Document

Poll = Callable[[], None]
"""Called about twice a second while runs are going on."""

_POLL_SECONDS = 0.5

__all__ = ["check", "connect", "create", "forget_failures", "latest", "planned", "run"]


def create(document: Document, plans: Sequence[RunPlan], root: Path) -> Results:
    """A results folder ROOT/NAME/DATE-TIME for a suite that begins now, with its spec and plans."""
    parent = (root / plans[0].spec.name).absolute()
    while True:
        folder = parent / time.strftime("%Y%m%d-%H%M%S")
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            time.sleep(0.2)
    results = Results(folder)
    (folder / "spec.yaml").write_text(document.text, "utf-8")
    results.write_plans([plan.model_dump(mode="json") for plan in plans])
    return results


def latest(name: str, root: Path) -> Results:
    """The newest results of an experiment. Raises UserError where there are none."""
    folders = sorted(file.parent for file in (root / name).absolute().glob("*/plan.json"))
    if not folders:
        raise UserError(f"nothing to resume: {root / name} holds no results; leave --resume out")
    return Results(folders[-1])


def planned(results: Results) -> list[RunPlan]:
    """The runs that were decided when the suite began."""
    return [RunPlan.model_validate(plan) for plan in results.plans()]


def check(plans: Sequence[RunPlan], capacity: Capacity, document: Document) -> None:
    """Raise SpecError with everything that stands in the way of the plans, at once."""
    mistakes = []
    for plan in plans:
        for mistake in [*lacking(plan), *too_large(plan, capacity)]:
            mistakes.append(placed(document, mistake, plan.label))
    if mistakes:
        raise SpecError(mistakes)


def forget_failures(plans: Sequence[RunPlan], results: Results) -> None:
    """Let runs that failed be run again; their journals are kept beside the new ones."""
    for plan in plans:
        if isinstance(results.end_of(plan.run_id), RunFailed):
            file = results.journal_file(plan.run_id)
            file.rename(file.with_name(f"journal.failed-{int(time.time())}.jsonl"))


def run(
    plans: Sequence[RunPlan],
    results: Results,
    poll: Poll,
    between: Callable[[], None],
) -> None:
    """Run what has not finished yet. `between` is called when no worker is at work.

    A group whose workers cannot be kept alive has its unfinished runs recorded as lost, and the
    next group goes on.
    """
    for group in groups(plans):
        pending = [plan for plan in group if results.end_of(plan.run_id) is None]
        if not pending:
            continue
        error = _fit(group, results, poll)
        for plan in pending:
            if results.end_of(plan.run_id) is None:
                text = str(error).strip() if error else "its workers ended without a result"
                message = text.splitlines()[-1] if text else type(error).__name__
                Journal(results.journal_file(plan.run_id)).write(
                    RunFailed(run_id=plan.run_id, reason="lost", message=message, detail=text)
                )
        poll()
        between()


def _fit(group: Sequence[RunPlan], results: Results, poll: Poll) -> Exception | None:
    """Run one group to its end; the error that ended it, if any."""
    trainer = make_trainer(group, results.folder)
    raised: list[Exception] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:
            raised.append(error)

    # in a thread: Ray's own handler of Ctrl-C waits for the workers, ours ends them
    thread = threading.Thread(target=fit, name="ray-train", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
        poll()
    return raised[0] if raised else None
