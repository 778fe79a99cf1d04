"""A population whose trials wait for each other (PBT). Trials are compared when all have reached
the end of an interval; then each trial is resumed from its own checkpoint or from the checkpoint of
a better trial.

The journals contain the population's whole state. No trial continues before the decisions on all
trials are written and all checkpoints from which trials continue are copied. So a driver that
replaces a killed driver makes the same decisions as the killed driver would have made.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from raysuite.errors import RunError, SpecError
from raysuite.files import flush_folder, flush_names
from raysuite.orchestrate.groups import Segment, checkpoint_folder
from raysuite.plan import RunPlan
from raysuite.plan.population import Standing, Turn, judge, with_values
from raysuite.plan.space import Values
from raysuite.records import EpochFinished, Journal, Record, Results, RunJudged
from raysuite.records.derive import current
from raysuite.records.judged import held_after, turns_of
from raysuite.spec import Document
from raysuite.spec.search import PbtScheduler, SearchOptions
from raysuite.train.checkpoint import LoopState, latest_checkpoint, remove_checkpoint

Journals = Mapping[str, Sequence[Record]]
"""Run id -> its Records."""


class Population:
    """The trials of a sweep that are trained as a population."""

    def __init__(self, document: Document, search: SearchOptions, results: Results) -> None:
        self._document, self._search, self._results = document, search, results

    def next_segment(self, plan: RunPlan) -> tuple[RunPlan, Segment | None]:
        """The plan of a trial with the values for its next segment, and that segment. If the sweep
        has no population, return the unchanged plan and None, which means the whole trial."""
        if not isinstance(self._search.scheduler, PbtScheduler):
            return plan, None
        turns = turns_of(self._results.records(plan.run_id))
        until = (turns[-1].epoch + 1 if turns else 0) + self._search.scheduler.interval_epochs
        segment = Segment(None, until if until < plan.spec.training.epochs else None, None)
        if (took := _took(turns)) is None:
            return plan, segment
        name, taken = _checkpoint_name(plan.run_id, took), _copy(self._results, plan.run_id, took)
        return (
            with_values(self._document, plan, took.values),
            replace(segment, checkpoint=name, taken=str(taken)),
        )

    def ready(self, plans: Sequence[RunPlan], left: Set[str]) -> set[str]:
        """The ids of the trials that wait at the end of an interval and may continue. No trial may
        continue before all trials to be compared have reached the end of the interval; then all
        may, and the decision on each trial is written to its journal. If checkpoints of some trials
        are missing or incomplete, only these trials may continue at first: they repeat their
        segment, and no decision is made before.

        `plans`: the plans of the whole population; `left`: the ids of trials whose workers and
        driver have ended. Decisions are only written to the journals of `left`, because a driver
        that still runs expects the end of its trial as the last line of the journal. Raises
        RunError if a checkpoint cannot be copied.
        """
        journals = {plan.run_id: self._results.records(plan.run_id) for plan in plans}
        unfinished = [plan for plan in plans if self._results.end_of(plan.run_id) is None]
        waiting = [at for run in journals.values() if (at := held_after(run)) is not None]
        epochs = min(waiting, default=0)
        if not waiting or any(_behind(journals[plan.run_id]) < epochs for plan in unfinished):
            return set()
        held = {run_id for run_id, run in journals.items() if held_after(run) == epochs}
        if not held <= left:
            return set()
        incomplete = {each for each in held if self._checkpoint(each, journals, epochs) is None}
        if incomplete:  # the driver was killed before: these trials repeat the segment
            return incomplete
        members = [plan for plan in plans if _stands(journals[plan.run_id], epochs)]
        standings = [_standing(plan, journals[plan.run_id], epochs) for plan in members]
        turns = judge(
            self._search, standings, epochs, lambda values: self._can_be(plans[0], values)
        )
        for turn in turns:
            if turn.trial.run_id in held:
                self._carry_out(turn, plans[0].task.main.sign, journals, epochs)
        return held

    def _can_be(self, plan: RunPlan, values: Values) -> bool:
        try:
            with_values(self._document, plan, values)
        except SpecError:
            return False
        return True

    def _carry_out(self, turn: Turn, sign: int, journals: Journals, epochs: int) -> None:
        """Copy the checkpoint with which the trial continues, record the decision, and remove the
        trial's own checkpoint, in this order. `sign`: 1 if larger values of the compared metric are
        better, else -1."""
        trial, source = turn.trial, turn.source
        record = RunJudged(
            run_id=trial.run_id,
            by=self._search.scheduler.name,
            epoch=epochs - 1,
            value=sign * trial.value if math.isfinite(trial.value) else None,
            place=turn.place,
            population=turn.population,
            source=None if source is None else source.run_id,
            source_trial=None if source is None else source.number,
            values=turn.values,
        )
        if source is not None:
            found = self._checkpoint(source.run_id, journals, epochs)
            _copy_whole(found, _copy(self._results, trial.run_id, record))
        Journal(self._results.journal_file(trial.run_id)).write(record)
        if source is not None:
            before = _took(turns_of(journals[trial.run_id]))
            name = _checkpoint_name(trial.run_id, before)
            remove_checkpoint(checkpoint_folder(self._results, name))
            if before is not None:
                old = _copy(self._results, trial.run_id, before)
                shutil.rmtree(old, ignore_errors=True)

    def _checkpoint(self, run_id: str, journals: Journals, epochs: int) -> Path | None:
        """The complete checkpoint of a run after `epochs` epochs; None if there is none."""
        took = _took(turns_of(journals[run_id]))
        if took is not None and took.epoch + 1 == epochs:
            return _copy(self._results, run_id, took)
        name = _checkpoint_name(run_id, took)
        found, _ = latest_checkpoint(checkpoint_folder(self._results, name), run_id, epochs)
        if found is None:
            return None
        state = LoopState.read(found)
        return found if state.epoch == epochs and not state.so_far.steps else None


def _behind(records: Sequence[Record]) -> int:
    """Number of epochs that a run had trained at the end of its last completed interval."""
    turns = turns_of(records)
    return held_after(records) or (turns[-1].epoch + 1 if turns else 0)


def _stands(records: Sequence[Record], epochs: int) -> bool:
    """Whether a run has trained exactly `epochs` epochs."""
    last = records[-1] if records else None
    judged = isinstance(last, RunJudged) and last.epoch + 1 == epochs
    return judged or held_after(records) == epochs


def _standing(plan: RunPlan, records: Sequence[Record], epochs: int) -> Standing:
    main = plan.task.main
    reached = [
        main.sign * record.validation[main.name]
        for record in current(records)
        if isinstance(record, EpochFinished)
        and record.epoch == epochs - 1
        and main.name in record.validation
    ]
    value = reached[0] if reached and math.isfinite(reached[0]) else -math.inf
    turns = turns_of(records)
    values = turns[-1].values if turns else plan.label
    return Standing(plan.index, plan.run_id, value, dict(values))


def _took(turns: Sequence[RunJudged]) -> RunJudged | None:
    """The last PBT step that gave a run another run's weights."""
    return next((turn for turn in reversed(turns) if turn.source is not None), None)


def _checkpoint_name(run_id: str, took: RunJudged | None) -> str:
    """The name of a run's checkpoint; it changes when the run continues with another run's weights,
    so that its earlier checkpoints are ignored."""
    return run_id + ("" if took is None else f"-after-{took.epoch + 1}")


def _copy(results: Results, run_id: str, took: RunJudged) -> Path:
    """The path of a run's copy of another run's checkpoint, from which it continues."""
    return checkpoint_folder(results, f"taken-{run_id}-after-{took.epoch + 1}")


def _copy_whole(found: Path | None, to: Path) -> None:
    """Copy a checkpoint; `to` exists only when the copy is complete."""
    assert found is not None, "found before the PBT step"
    partial = to.with_name(f"{to.name}.partial")
    try:
        for old in (partial, to):
            shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(found, partial)
        flush_folder(partial)
        partial.rename(to)
        flush_names(to.parent)
    except OSError as error:
        raise RunError(f"the checkpoint {found} could not be copied to {to}: {error}") from None
