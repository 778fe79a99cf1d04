"""`raysuite register` and `raysuite sync`: MLflow's model registry, and its runs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli.console import print_json, print_text
from raysuite.cli.run_options import (
    AsJson,
    RunResults,
    SeveralResults,
    StoreExperiment,
    TrackingUri,
)
from raysuite.errors import UserError

if TYPE_CHECKING:
    from raysuite.plan import RunPlan
    from raysuite.records import Results
    from raysuite.track.register import Registration


def register(
    results: RunResults,
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN_ID", help="Which run; default: the only one, or a sweep's best."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The registered model; default: the spec's name."),
    ] = None,
    tracking_uri: TrackingUri = None,
    experiment: StoreExperiment = None,
    as_json: AsJson = False,
) -> None:
    """Register a trained network as a model in MLflow, with its signature and its spec.

    The model takes pixels (uint8, 0 to 255) and gives logits. It holds a graph and no code:
    `mlflow.pytorch.load_model` and `mlflow models predict` need neither raysuite nor your module.
    The same network is registered once, however often this is called.

    \b
    Examples:
      raysuite register results/quickstart --run ddp-native-2w-1a2b3c4d
      raysuite register results/quickstart --name digits-classifier
      raysuite register results/sweep-quickstart --json
    """
    from raysuite.records import Results

    opened = Results.open(results)
    if run is None and opened.search() is not None:
        done, note = register_best(opened, name, tracking_uri, experiment)
        if note:
            print_text(note, error=True)
    else:
        done = register_run(opened, run or only_run(opened), name, tracking_uri, experiment)
    if as_json:
        print_json({**asdict(done), "uri": done.uri if done.ok else None})
    else:
        print_text(str(done), error=not done.ok)
    if not done.ok:
        raise typer.Exit(1)


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
    from raysuite.track.register import Network, register
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
    told = "\n".join(
        f"  {run.run_id}  {run.name}"
        + (f"  {words}" if (words := run.task.main.words(run.final, 4)) else "")
        for run in kept
    )
    raise UserError(f"{len(kept)} runs kept their weights; choose one with --run:\n{told}")


def sync(
    results: SeveralResults,
    tracking_uri: TrackingUri = None,
    experiment: StoreExperiment = None,
) -> None:
    """Write the journals of a results folder into MLflow.

    `raysuite run` does so by itself. This is for results that were made while MLflow was
    unreachable, or that come from another machine. What is there already is not written again.

    \b
    Examples:
      raysuite sync results/quickstart
      raysuite sync results/*
      raysuite sync results/quickstart --tracking-uri http://mlflow.example.org:5000
    """
    from raysuite.records import Results
    from raysuite.track import sync as synchronize

    failed = False
    for folder in results:
        opened = Results.open(folder)
        summary = synchronize(opened, tracking_uri, experiment)
        print_text(f"{opened.folder}: {summary}", error=not summary.ok)
        failed = failed or not summary.ok
    if failed:
        raise typer.Exit(1)
