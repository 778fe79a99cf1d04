"""Train without Ray: in one process, or under torchrun.

python -m raysuite.train experiments/x.yaml [--results FOLDER] [key=value ...]
torchrun --nproc-per-node 2 -m raysuite.train experiments/x.yaml resources.workers=2

Like `raysuite run`, each call makes a results folder, FOLDER/NAME/DATE-TIME, and prints its path.
SIGTERM and SIGUSR1 stop a run between two steps, with a checkpoint in its folder. The exit code is
then 75, and --resume resumes the run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from raysuite.cluster.suites import sole_driver
from raysuite.ending import end_process
from raysuite.errors import RunError, StorageError, UserError
from raysuite.files import write_whole
from raysuite.parallel.base import World
from raysuite.parallel.comm import shared_store
from raysuite.plan import RunPlan, make_plans
from raysuite.plan.batch_candidates import decided, outcome
from raysuite.records import (
    STOPPED,
    EpochFinished,
    Journal,
    Record,
    Results,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    SamplesSkipped,
    StagesMeasured,
    TimeShares,
)
from raysuite.records.batch_trials import BatchFound, TriedFile
from raysuite.records.ends import RunEnd, is_left
from raysuite.records.journal import recorded_epochs
from raysuite.records.names import unnamed_differences
from raysuite.spec import Document, read_document
from raysuite.spec.document import of_network
from raysuite.train import trial_batch
from raysuite.train.batch_search import search_batch
from raysuite.train.checkpoint import (
    LoopState,
    latest_checkpoint,
    remove_checkpoint,
    remove_partial,
)
from raysuite.train.recording import recorded
from raysuite.train.resuming import left_alone
from raysuite.train.stop_together import RequestedEnd, Signals
from raysuite.train.world import is_peer_loss, world_from_environment

# Find the batch size of a run without Ray. The trials are recorded in the results folder.


def decide(wish: RunPlan, results: Results, resume: bool) -> RunPlan:
    """Find the batch size of a plan by trial on its ranks, and return the plan with this size.
    `resume` continues an earlier search.

    All ranks must call it. Raises RunError if no size fits, and if a rank runs out of memory in a
    complete step: the next start with `resume` then tries smaller sizes.
    """
    world = world_from_environment(wish.device)
    file = results.folder / "batches" / f"{wish.run_id}.jsonl"
    tried = TriedFile(file)
    if world.rank == 0 and not resume:
        file.unlink(missing_ok=True)
    began = time.monotonic()
    try:
        size = search_batch(wish, world, tried)
    except MemoryError as error:
        why = f"rank {world.rank}: {error}; repeat the command with --resume to try a smaller size"
        raise RunError(why) from error
    if world.rank:
        if not size:
            raise RunError(f"{wish.title}: no batch size was found that fits into memory")
        return decided(wish, size)
    plan, found = outcome(wish, tried.read(), time.monotonic() - began)
    known = [each for each in results.records(plan.run_id) if isinstance(each, BatchFound)]
    if not (resume and known):
        Journal(results.journal_file(plan.run_id)).write(found)
        print(f"{plan.title}: {found.words}", flush=True)
    return plan


# The results folder.


def begin(document: Document, parent: Path, arguments: Sequence[str]) -> Results:
    """Make a new results folder PARENT/DATE-TIME, on rank 0 for all ranks.

    All ranks must call it. Raises UserError if the folder cannot be made.
    """
    world = world_from_environment("cpu")
    store = shared_store("results", world.rank, world.size) if world.size > 1 else None
    if store is not None and world.rank:
        return Results(Path(store.get("folder").decode()))
    results = Results.create(parent)
    write_whole(results.folder / "spec.yaml", document.text.encode())
    results.write_plans([])  # written before the batch search, which can end this process
    results.add_command(shlex.join(["python", "-m", "raysuite.train", *arguments]))
    print(f"results: {results.folder}", flush=True)
    if store is not None:
        store.set("folder", str(results.folder))
    return results


def resumed(parent: Path, plans: Sequence[RunPlan], document: Document) -> Results:
    """Open the newest results below PARENT. Raises UserError if there are none, or if a key that
    determines what a run computes has another value in their runs than in `plans`: one table would
    then mix runs of two specs."""
    if not parent.exists():
        raise UserError(f"nothing to resume: {parent} does not exist; omit --resume")
    results = Results.open(parent.absolute())
    found = ("training.batch_per_worker", "training.accumulate")
    by_trial = found if any(plan.undecided for plan in plans) else ()
    known = results.plans()
    differing = unnamed_differences(
        [*known, *(plan.model_dump(mode="json") for plan in plans)], by_trial
    )
    if known and differing[0] != differing[-1]:
        changed = ", ".join(
            f"{key} was {value!r} and is now {differing[-1][key]!r}"
            for key, value in differing[0].items()
        )
        raise UserError(
            f"{document.file} with these overrides does not match the runs of {results.folder}: "
            f"{changed}; restore the earlier values, or omit --resume"
        )
    return results


def main(arguments: list[str] | None = None) -> int:
    """Run those plans of a spec whose number of workers is the world size of this launch."""
    parser = argparse.ArgumentParser(
        prog="raysuite.train", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("spec", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--scale", help="name of a form of the experiment in `scales` of the spec")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="FOLDER",
        help="folder under which NAME/DATE-TIME is made (default: results)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue in the newest results folder of this experiment; runs that have ended are "
        "not repeated",
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="with --resume: repeat the runs that failed"
    )
    given = parser.parse_intermixed_args(arguments)
    try:
        if given.retry_failed and not given.resume:
            raise UserError("--retry-failed needs --resume")
        document = of_network(read_document(given.spec, given.overrides, given.scale))
        plans = make_plans(document)
        size = world_from_environment("cpu").size
        ours = [plan for plan in plans if plan.workers == size]
        if not ours:
            sizes = sorted({plan.workers for plan in plans})
            raise UserError(
                f"raysuite.train was started with {size} processes, but the runs have {sizes} "
                "workers; start N processes, one per worker, by torchrun --nproc-per-node N, or "
                f"set resources.workers={size}"
            )
        parent = given.results / plans[0].spec.name
        opened = resumed(parent, plans, document) if given.resume else None

        def end_of(plan: RunPlan) -> RunEnd | None:
            return opened.end_of(plan.run_id) if opened else None

        left = [each for each in ours if is_left(end_of(each), given.retry_failed)]
        # Every rank makes this check: if only rank 0 did and failed, torchrun would end the waiting
        # ranks only after a delay.
        trial_batch.check(left, document)
        words = sys.argv[1:] if arguments is None else arguments
        results = opened or begin(document, parent, words)
        failed = False
        if given.resume and not given.retry_failed and world_from_environment("cpu").rank == 0:
            for line in left_alone(ours, results):
                print(line, file=sys.stderr, flush=True)
        first = world_from_environment("cpu").rank == 0
        with sole_driver(results.folder) if first else nullcontext(), Signals() as signals:
            for wish in ours:
                plan = decide(wish, results, given.resume) if wish.undecided else wish
                ended = end_of(plan)
                end: Record | None = ended
                if is_left(ended, given.retry_failed):
                    resumes = given.resume and is_left(ended)
                    end = _run(plan, results, resumes, signals.request)
                if isinstance(end, RunStopped):
                    return os.EX_TEMPFAIL
                failed |= not isinstance(end, RunFinished)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RunError, StorageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 1 if failed else 0


def _run(plan: RunPlan, results: Results, resume: bool, requested: RequestedEnd) -> Record | None:
    """Run a plan, and return its last Record."""
    world = world_from_environment(plan.device)
    kept = results.journal_file(plan.run_id).with_name("checkpoint")
    taken_up: Path | None = None
    unread = ""
    if resume:
        epochs = recorded_epochs(results.records(plan.run_id))
        taken_up, unread = latest_checkpoint(kept, plan.run_id, epochs)
    if taken_up is not None:  # before the run starts: a later error would count as the run's end
        LoopState.read(taken_up).check_classes(plan.dataset.class_names)
    if world.rank == 0:
        results.add_plan(plan.model_dump(mode="json"))
        results.settle_plans()
        # the partial checkpoint of ranks that died is removed in both cases
        (remove_checkpoint if taken_up is None else remove_partial)(kept)

    last, began = None, time.time()
    try:
        for record in recorded(
            plan, world, results, kept, resume=taken_up, requested_end=requested, unread=unread
        ):
            if world.rank == 0:
                _print(plan, record)
            last = record
    except Exception as error:
        failed = _end(plan, results, world, error, began)
        if not is_peer_loss(error):
            raise
        end = f"the run ended: {failed}" if failed else f"{error}; --resume continues the run"
        raise RunError(f"rank {world.rank} lost another rank: {end}") from error
    return last


def _print(plan: RunPlan, record: Record) -> None:
    match record:
        case RunStarted() if record.unread or record.not_loaded:
            print(f"{plan.title}: {record.words}", file=sys.stderr)
        case SamplesSkipped(words=words) if words:
            print(f"{plan.title}: {words}", flush=True)
        case EpochFinished():
            print(
                f"{plan.title}: epoch {record.epoch + 1}/{plan.spec.training.epochs}, "
                f"loss {record.train_loss:.4f}, {plan.task.main.words(record.validation, 4)}, "
                f"{record.images / record.seconds:.0f} {plan.task.unit}/s",
                flush=True,
            )
        case TimeShares(words=words) | StagesMeasured(words=words):
            print(f"{plan.title}: {words}", flush=True)
        case RunStopped():
            why = STOPPED[record.reason]
            print(f"{plan.title}: stopped ({why}) {record.words} with --resume", flush=True)
        case RunFailed():
            print(f"{plan.title}: failed: {record.message}", file=sys.stderr)


_ENDING_S = 10.0
"""Seconds that a rank which lost another rank waits for that rank to record its error."""


def _end(plan: RunPlan, results: Results, world: World, error: Exception, began: float) -> str:
    """Record `error` as the reason why the run that started at `began` failed, and return it. If
    `error` is only the loss of another rank, record nothing, and return the error that the other
    rank recorded. Returns an empty text if no rank recorded an error: a rank disappeared, and the
    run can be resumed.

    A rank that fails records its error itself, in the journal that ranks on a shared file system
    have in common, because ranks that wait in a collective are not notified. A rank that lost
    another rank waits for this record, because torchrun kills all ranks when the first rank ends.
    """

    def known() -> RunFailed | None:
        failed = [each for each in results.records(plan.run_id) if isinstance(each, RunFailed)]
        return failed[-1] if failed and failed[-1].time >= began else None

    if is_peer_loss(error):
        deadline = time.monotonic() + _ENDING_S
        while (found := known()) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        return found.message if found else ""
    message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    failed = RunFailed(
        run_id=plan.run_id,
        reason="error",
        message=message if world.size == 1 else f"rank {world.rank}: {message}",
        detail=traceback.format_exc(),
    )
    # If several ranks have an error, record only the first. If rank 0 has written a Record after
    # that failure, record the failure again: `end_of` takes only the last Record.
    end = results.end_of(plan.run_id)
    if end is None or end.time < began:
        Journal(results.journal_file(plan.run_id)).write(failed)
    return failed.message


if __name__ == "__main__":
    end_process(main())
