"""Register trained networks of a results folder as models in MLflow's registry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysuite.errors import UserError

if TYPE_CHECKING:
    from raysuite.plan import RunPlan
    from raysuite.records import Results, RunFigures
    from raysuite.track.model_registry import Network, Registration


def register_run(
    results: Results,
    run_id: str,
    name: str | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
) -> Registration:
    """Register the network that a run trained.

    Raises UserError if there is no such run, or no weights, or if the network cannot be exported.
    """
    from raysuite.track.model_registry import register  # imported on use: it imports MLflow

    network = network_of(*trained(results, run_id))
    return register(results, run_id, network, name, tracking_uri, experiment)


def network_of(plan: RunPlan, weights: Path) -> Network:
    """The network that is registered for a run. Raises UserError if it is not exportable."""
    from raysuite.track.model_registry import Network
    from raysuite.train.served import example, outputs, served

    module, inputs = served(plan, weights), example(plan)
    network = Network(module, inputs, outputs(module, inputs), list(plan.dataset.class_names))
    if not plan.spec.task.classifies:
        task = plan.spec.task.name
        return network._replace(takes="inputs of the data set", gives=f"outputs of the {task}")
    if transform := plan.spec.data.transform:
        return network._replace(takes=f"{network.takes}, as {transform} returns them")
    return network


def best_run(results: Results) -> tuple[str, str]:
    """The id of the best run with stored weights: in a sweep by the first goal, otherwise by the
    primary metric after the last epoch.

    A trial that was ended early stores no weights. If a sweep's best trial was ended early, the
    second value is a note about that; otherwise it is empty. Raises UserError if no run has stored
    weights, if no run with weights has a value of the goal or metric, or if the tasks or data sets
    of these runs differ.
    """
    search = results.search()
    if search is not None:
        return _best_trial(results, search)
    runs = _kept(results)
    found = _best(runs)
    if found is None:
        raise UserError(
            f"{results.folder} has no best run: its runs have different tasks or data sets, or no "
            f"result of a validation; choose a run with --run, such as --run {runs[0].run_id}"
        )
    return found.run_id, ""


def _best(runs: Sequence[RunFigures]) -> RunFigures | None:
    """The first of the best runs by the primary metric; None if no run has a value of it, or if the
    runs' tasks or data sets differ."""
    kinds = {
        (r.task.name, r.plan["spec"]["data"]["name"], r.plan["dataset"]["classes"]) for r in runs
    }
    main = runs[0].task.main
    valued = [run for run in runs if not math.isnan(run.final.get(main.name, math.nan))]
    if len(kinds) > 1:
        return None
    return max(valued, key=lambda run: main.sign * run.final[main.name], default=None)


def _best_trial(results: Results, search: dict[str, Any]) -> tuple[str, str]:
    from raysuite.records.sweep import best, trials, wanted_goals
    from raysuite.track.model_registry import weights_of

    found, goal = trials(results), wanted_goals(search["search"])[0]
    kept = [trial for trial in found if weights_of(results, trial.run_id).is_file()]
    if not kept:
        raise UserError(
            f"no trial of {results.folder} kept its weights: they are written when a trial finishes"
        )
    top, chosen = best(found, goal), best(kept, goal)
    if chosen is None or top is None:
        raise UserError(
            f"no trial of {results.folder} that kept its weights has a value of {goal}; "
            f"choose one with --run, such as --run {kept[0].run_id}"
        )
    note = ""
    if top.number != chosen.number:
        note = (
            f"trial {top.number}, the best, was ended early and kept no weights; "
            f"trial {chosen.number} is the best of those that finished"
        )
    return chosen.run_id, note


def trained(results: Results, run_id: str) -> tuple[RunPlan, Path]:
    """The plan of a run, with the classes on which it was trained, and the file of its weights.

    Raises UserError if there is no such run, or if it kept no weights.
    """
    from raysuite.plan import RunPlan
    from raysuite.records.journal import class_names
    from raysuite.track.model_registry import weights_of

    plans = {plan["run_id"]: plan for plan in results.plans()}
    if run_id not in plans:
        raise UserError(f"{results.folder} has no run {run_id!r}; it has {', '.join(plans)}")
    weights = weights_of(results, run_id)
    if not weights.is_file():
        raise UserError(
            f"{run_id} kept no trained weights ({weights} does not exist): they are written when a "
            "run finishes; choose a run that has finished"
        )
    plan = RunPlan.model_validate(plans[run_id])
    names = class_names(results.journal_file(run_id)) or plan.dataset.class_names
    facts = replace(plan.dataset, class_names=names)
    return plan.model_copy(update={"dataset": facts}), weights


def only_run(results: Results) -> str:
    """The only run that kept its weights.

    Raises UserError if no run or several runs kept weights; the message marks the best run.
    """
    kept = _kept(results)
    if len(kept) == 1:
        return kept[0].run_id
    best = _best(kept)
    told = "\n".join(
        f"  {run.run_id}  {run.name}"
        + (f"  {words}" if (words := run.task.main.words(run.final, 4)) else "")
        + ("  (best)" if run is best else "")
        for run in kept
    )
    options = "--run" if best is None else "--run or --best"
    raise UserError(f"{len(kept)} runs kept their weights; choose one with {options}:\n{told}")


def _kept(results: Results) -> list[RunFigures]:
    """The runs with stored weights. Raises UserError if there are none."""
    from raysuite.records import results_figures
    from raysuite.track.model_registry import weights_of

    runs = results_figures(results)
    kept = [run for run in runs if weights_of(results, run.run_id).is_file()]
    if not kept:
        raise UserError(
            f"no run of {results.folder} kept its weights: they are written when a run finishes"
        )
    return kept


def chosen_run(results: Results, run: str | None, best: bool) -> tuple[str, str]:
    """The run for the options `--run` and `--best`, and the note of `best_run`.

    Raises UserError if both options are given, and in the same cases as `best_run` or `only_run`.
    """
    if run is not None and best:
        raise UserError("--run and --best both choose a run; give one of them")
    return best_run(results) if best else (run or only_run(results), "")
