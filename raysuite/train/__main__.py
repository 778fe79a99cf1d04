"""Train without Ray: in one process, or under torchrun.

python -m raysuite.train experiments/x.yaml [--results DIR] [key=value ...]
torchrun --nproc-per-node 2 -m raysuite.train experiments/x.yaml resources.workers=2
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

from raysuite.errors import UserError
from raysuite.plan import RunPlan, make_plans
from raysuite.records import EpochFinished, Journal, Results, RunFailed, RunFinished
from raysuite.spec import read_document
from raysuite.train.run import execute
from raysuite.train.world import world_from_environment


def main(arguments: list[str] | None = None) -> int:
    """Run every plan of a spec whose world size is the one this process was started with."""
    parser = argparse.ArgumentParser(
        prog="raysuite.train", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("spec", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument(
        "--results", type=Path, help="folder for the journals (default: results/NAME)"
    )
    given = parser.parse_intermixed_args(arguments)
    try:
        document = read_document(given.spec, given.overrides)
        plans = make_plans(document)
        size = world_from_environment("cpu").size
        ours = [plan for plan in plans if plan.workers == size]
        if not ours:
            sizes = sorted({plan.workers for plan in plans})
            raise UserError(
                f"this was started with {size} processes, and the runs have {sizes} workers; "
                f"start it with torchrun --nproc-per-node N, or set resources.workers={size}"
            )
        results = Results(given.results or Path("results") / plans[0].spec.name)
        failed = [plan for plan in ours if not _run(plan, results)]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if failed else 0


def _run(plan: RunPlan, results: Results) -> bool:
    world = world_from_environment(plan.device)
    if world.rank == 0:
        results.add_plan(plan.model_dump(mode="json"))
    journal = Journal(results.journal_file(plan.run_id)) if world.rank == 0 else None
    done = False
    try:
        for record in execute(plan, world):
            if journal is not None:
                journal.write(record)
                if isinstance(record, EpochFinished):
                    print(
                        f"{plan.title}: epoch {record.epoch + 1}/{plan.spec.training.epochs}, "
                        f"loss {record.train_loss:.4f}, accuracy {record.val_accuracy:.4f}, "
                        f"{record.images / record.seconds:.0f} images/s",
                        flush=True,
                    )
                elif isinstance(record, RunFailed):
                    print(f"{plan.title}: failed: {record.message}", file=sys.stderr)
            done = isinstance(record, RunFinished)
    except UserError:
        raise
    except Exception as error:
        if journal is not None:
            journal.write(
                RunFailed(
                    run_id=plan.run_id,
                    reason="error",
                    message=f"{type(error).__name__}: {error}",
                    detail=traceback.format_exc(),
                )
            )
        raise
    return done


if __name__ == "__main__":
    sys.exit(main())
