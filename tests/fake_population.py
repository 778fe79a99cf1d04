"""Made-up results of a population, written through the real Journal: no figure was measured."""

from __future__ import annotations

import math
from pathlib import Path

import yaml

from raysuite.plan.population import Standing, judge, with_values
from raysuite.plan.run_plan import RunPlan
from raysuite.plan.space import drawn
from raysuite.plan.trials import trial_plan
from raysuite.plan.trials import write_sweep as record_sweep
from raysuite.records import Journal, Results, RunFinished, RunJudged, RunStopped
from raysuite.spec import parse_document
from raysuite.spec.search_check import read_search
from tests.fake_results import START, epoch, run_records
from tests.fake_sweeps import BASE

INTERVAL, LENGTH = 3, 1000.0
SPACE = {
    "optimizer.lr": {"loguniform": [0.001, 1.0]},
    "optimizer.momentum": {"uniform": [0.5, 0.95]},
}


def write_population(folder: Path, trials: int = 8) -> Results:
    """A results folder of trials of nine epochs that are compared after the third and the sixth."""
    scheduler = {"name": "pbt", "interval_epochs": INTERVAL}
    asked = {"trials": trials, "space": SPACE, "scheduler": scheduler}
    document = parse_document(yaml.safe_dump(BASE | {"search": asked}, sort_keys=False), "s.yaml")
    results, search = Results(folder), read_search(document)
    record_sweep(document, results)
    plans = [
        trial_plan(document, values, number, gpus=0) for number, values in enumerate(drawn(search))
    ]
    for plan in plans:
        results.add_plan(plan.model_dump(mode="json"))
    journals = {plan.run_id: Journal(results.journal_file(plan.run_id)) for plan in plans}
    reached = dict.fromkeys(journals, 0.1)
    for first in range(0, 9, INTERVAL):
        now, done = START + LENGTH * (1 + first), first + INTERVAL
        for plan in plans:
            write = journals[plan.run_id].write
            started, verdict, *_, end = run_records(plan)
            begun = {"time": now, "first_epoch": first, "plan": plan.model_dump(mode="json")}
            write(started.model_copy(update=begun))
            write(verdict.model_copy(update={"time": now + 1}))
            for number in range(first, done):
                reached[plan.run_id] += _gain(plan) * (0.98 - reached[plan.run_id])
                write(epoch(plan, number, now, 10.0 * number, reached[plan.run_id]))
            assert isinstance(end, RunFinished)
            held = RunStopped(
                run_id=plan.run_id, time=now + 100, reason="interval", epoch=done, step=9 * done
            )
            write(held if done < 9 else end.model_copy(update={"time": now + 100}))
        if done == 9:
            break
        standings = [
            Standing(plan.index, plan.run_id, reached[plan.run_id], plan.label) for plan in plans
        ]
        turns = {turn.trial.run_id: turn for turn in judge(search, standings, done)}
        after = dict(reached)
        for place, plan in enumerate(plans):
            turn = turns[plan.run_id]
            journals[plan.run_id].write(
                RunJudged(
                    run_id=plan.run_id,
                    time=now + 200,
                    by="pbt",
                    epoch=done - 1,
                    value=reached[plan.run_id],
                    place=turn.place,
                    population=turn.population,
                    source=turn.source.run_id if turn.source else None,
                    source_trial=turn.source.number if turn.source else None,
                    values=turn.values,
                )
            )
            if turn.source is not None:
                after[plan.run_id] = reached[turn.source.run_id]
                plans[place] = with_values(document, plan, turn.values)
        reached = after
    return results


def _gain(plan: RunPlan) -> float:
    """How much nearer to its best an epoch brings it."""
    return 0.5 / (1 + abs(math.log10(plan.spec.optimizer.lr) + 1) ** 2)
