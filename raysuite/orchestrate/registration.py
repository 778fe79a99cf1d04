"""Trained networks of a results folder, as models in MLflow's registry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from raysuite.errors import UserError

if TYPE_CHECKING:
    from raysuite.plan import RunPlan
    from raysuite.records import Results
    from raysuite.track.register import Registration


def register_run(
    results: Results,
    run_id: str,
    name: str | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
) -> Registration:
    """Register the network that a run trained.

    Raises UserError where there is no such run, where it kept no weights, or where its network
    cannot be exported.
    """
    from raysuite.track.register import Network, register  # here: they load MLflow and torch
    from raysuite.train.served import example, logits, served

    plan, weights = trained(results, run_id)
    module, images = served(plan, weights), example(plan)
    names = list(plan.dataset.class_names)
    network = Network(module, images, logits(module, images), names)
    return register(results, run_id, network, name, tracking_uri, experiment)


def register_best(
    results: Results,
    name: str | None = None,
    tracking_uri: str | None = None,
    experiment: str | None = None,
) -> tuple[Registration, str]:
    """Register the network of a sweep's best trial, by its first goal.

    A trial that was ended early keeps no weights. Where that is the best one, the best of those
    that did is registered, with a note on it as second value; it is empty otherwise.
    Raises UserError where no trial kept its weights, where none of those that did has a value of
    the goal, and as `register_run`.
    """
    from raysuite.records.sweep import best, trials, wanted_goals
    from raysuite.track.register import weights_of

    search = results.search()
    if search is None:
        raise UserError(f"{results.folder} holds no sweep; give the run with --run")
    found, goal = trials(results), wanted_goals(search["search"])[0]
    kept = [trial for trial in found if weights_of(results, trial.run_id).is_file()]
    if not kept:
        raise UserError(
            f"no trial of {results.folder} kept its weights: they are written when one finishes"
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
    return register_run(results, chosen.run_id, name, tracking_uri, experiment), note


def trained(results: Results, run_id: str) -> tuple[RunPlan, Path]:
    """The plan of a run, with the classes that it was trained on, and the file of its weights.

    Raises UserError where there is no such run, or it kept none.
    """
    from raysuite.plan import RunPlan
    from raysuite.records.journal import class_names
    from raysuite.track.register import weights_of

    plans = {plan["run_id"]: plan for plan in results.plans()}
    if run_id not in plans:
        raise UserError(f"{results.folder} has no run {run_id!r}; it has {', '.join(plans)}")
    weights = weights_of(results, run_id)
    if not weights.is_file():
        raise UserError(
            f"{run_id} kept no trained weights ({weights} is not there): they are written when a "
            "run finishes; take one that did"
        )
    plan = RunPlan.model_validate(plans[run_id])
    if not plan.spec.task.classifies:
        raise UserError(
            f"{run_id} has the task {plan.spec.task.name}; evaluate and register take "
            f"classification alone; its weights are a state_dict: {weights}"
        )
    names = class_names(results.journal_file(run_id)) or plan.dataset.class_names
    facts = replace(plan.dataset, class_names=names)
    return plan.model_copy(update={"dataset": facts}), weights


def only_run(results: Results) -> str:
    """The one run whose weights are there.

    Raises UserError where there are several, or none.
    """
    from raysuite.records import results_figures
    from raysuite.track.register import weights_of

    runs = results_figures(results)
    kept = [run for run in runs if weights_of(results, run.run_id).is_file()]
    if len(kept) == 1:
        return kept[0].run_id
    if not kept:
        raise UserError(
            f"no run of {results.folder} kept its weights: they are written when a run finishes"
        )
    choices = "\n".join(
        f"  {run.run_id}  {run.name}"
        + (f"  {words}" if (words := run.task.main.words(run.final, 4)) else "")
        for run in kept
    )
    raise UserError(f"{len(kept)} runs kept their weights; choose one with --run:\n{choices}")
