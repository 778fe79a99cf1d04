"""Make the RunPlan of a trial from a sweep's document and the trial's values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raysuite.errors import Mistake, SpecError, UserError
from raysuite.files import write_whole
from raysuite.plan.dataset import Datasets, dataset_facts, dataset_mistakes
from raysuite.plan.feasible import infeasible
from raysuite.plan.matrix import Where, located, spec_with
from raysuite.plan.resolve import local_gpus, resolve
from raysuite.plan.run_plan import RunPlan
from raysuite.plan.space import Values, active, count
from raysuite.records import Results
from raysuite.records.journal import SEARCH, Decided, began
from raysuite.spec import Document, ExperimentSpec
from raysuite.spec.search import (
    AshaScheduler,
    Dimension,
    MedianScheduler,
    OptunaSearch,
    SearchOptions,
    name_of,
)
from raysuite.spec.search_check import read_search

_NOT_A_TRIALS = ("search", "matrix", "scales", "repeats")


def trial_plan(
    document: Document,
    values: Mapping[str, Any],
    number: int,
    gpus: int | None = None,
    seen: Datasets | None = None,
) -> RunPlan:
    """The plan of trial `number`, counted from 0.

    `gpus` is the number of GPUs of the cluster; None: of this machine. `seen`: the data sets
    whose files were already listed.

    Raises SpecError with everything that makes the trial infeasible.
    """
    gpus = local_gpus() if gpus is None else gpus
    spec = trial_spec(document, values)
    seen = seen or Datasets()
    mistakes = [*infeasible(spec, gpus), *dataset_mistakes(spec, seen)]
    if mistakes:
        raise SpecError([located(document, mistake, _where(values)) for mistake in mistakes])
    return resolve(spec, dict(values), dataset_facts(spec, seen), 0, number, gpus)


def trial_spec(document: Document, values: Mapping[str, Any]) -> ExperimentSpec:
    """The spec of one trial. Raises SpecError if a value is invalid for its key."""
    data = {key: value for key, value in document.data.items() if key not in _NOT_A_TRIALS}
    return spec_with(document, data, values, _where(values))


def specs_of_space(document: Document, search: SearchOptions) -> list[ExperimentSpec]:
    """A spec for each end of a range and for each listed value, in which the other keys have fixed
    values. Together, the specs have every block that a trial can have. Raises SpecError if a spec
    is invalid."""
    return [trial_spec(document, values) for values, _ in _probes(search.space)]


def plans_of_space(
    document: Document, search: SearchOptions, gpus: int | None = None
) -> list[RunPlan]:
    """The plans of those specs in `specs_of_space` that are feasible; `gpus`: see `trial_plan`."""
    found = []
    for number, (values, _) in enumerate(_probes(search.space)):
        try:
            found.append(trial_plan(document, values, number, gpus))
        except SpecError:
            continue  # values that are infeasible only together are reported with their trial
    return found


def check_space(document: Document, search: SearchOptions) -> None:
    """Raise SpecError with every mistake that can be found before the first trial: values that are
    invalid for their keys, and a data set that cannot be read.

    Each end of a range and each listed value is tried, while the other keys have a fixed value.
    Mistakes that arise only from several values together are reported with the trial that has them.
    """
    space, seen = search.space, Datasets()
    found = {(each.key, each.message): each for each in _idle_brackets(document, search)}
    for values, tried in _probes(space):
        try:
            spec = trial_spec(document, values)
            wrong = [
                located(document, each, _where(values)) for each in dataset_mistakes(spec, seen)
            ]
        except SpecError as error:
            wrong = list(error.mistakes)
        for mistake in wrong:
            if tried is None or _concerns(mistake.key, tried):
                found.setdefault((mistake.key, mistake.message), mistake)
    if found:
        raise SpecError(list(found.values()))


def _idle_brackets(document: Document, search: SearchOptions) -> Iterator[Mistake]:
    """A mistake if ASHA has a bracket whose first rung no trial reaches before its last epoch."""
    asha = search.scheduler
    if not isinstance(asha, AshaScheduler) or asha.brackets == 1:
        return
    epochs = most_epochs(document, search)
    rungs = [asha.grace_epochs * asha.reduction_factor**number for number in range(asha.brackets)]
    useful = sum(rung < epochs for rung in rungs)
    if useful < asha.brackets:
        yield document.mistake(
            f"got {asha.brackets} brackets; the first rung of the last bracket is after "
            f"{rungs[-1]:g} epochs, and trials have {epochs}: the trials of this bracket would "
            f"never be compared; give at most {max(useful, 1)}, or more epochs",
            *("search", "scheduler", "brackets"),
        )


def idle_parts(document: Document, search: SearchOptions) -> Iterator[str]:
    """Warnings: that the scheduler cannot end any trial, and that the searcher never uses the
    results of trials."""
    scheduler, searcher = search.scheduler, search.searcher
    epochs, trials = most_epochs(document, search), count(search)
    if isinstance(scheduler, AshaScheduler | MedianScheduler):
        if scheduler.grace_epochs >= epochs:
            given = f"grace_epochs is {scheduler.grace_epochs}, and trials have {epochs} epochs"
            yield f"search.scheduler: {scheduler.name} ends no trial: {given}"
        elif isinstance(scheduler, MedianScheduler) and scheduler.min_trials >= trials:
            given = (
                f"min_trials is {scheduler.min_trials}, and each trial can be compared with only "
                f"{trials - 1} others"
            )
            yield f"search.scheduler: median ends no trial: {given}"
    if not isinstance(searcher, OptunaSearch) or searcher.sampler == "random":
        return
    if searcher.startup_trials >= trials:
        given = f"startup_trials is {searcher.startup_trials}, and there are {trials} trials"
        yield f"search.searcher: optuna draws all trials at random: {given}"


def most_epochs(document: Document, search: SearchOptions) -> int:
    """The largest number of epochs that a trial may have: from the search space of
    `training.epochs` or of the block `training`, or else from the spec."""
    name = "training.epochs"
    key, block = search.space.get(name), search.space.get("training")
    counts = [*key.edges()] if key else []
    if key is None or key.when:
        blocks = [*block.arguments] if block else []
        if block is None or block.when:
            blocks.append(document.data.get("training") or {})
        given = document.settings.get(name)
        counts += [given] if given is not None else [each.get("epochs", 1) for each in blocks]
    return int(max(counts))


def _probes(space: Mapping[str, Dimension]) -> Iterator[tuple[Values, str | None]]:
    """(values to check, key that they test). The first values test no key (None). The others
    differ from the first in the tested key and in the keys on which its condition depends."""
    first = {key: dimension.edges()[0] for key, dimension in space.items()}
    yield active(space, first), None
    for key, dimension in space.items():
        for value in dimension.edges():
            yield active(space, {**first, **_needed(space, key), key: value}), key


def _needed(space: Mapping[str, Dimension], key: str) -> Values:
    """Values of other keys with which the condition of `key` holds."""
    needed: Values = {}
    for other, wanted in space[key].when.items():
        listed = space[other].arguments
        needed[other] = next(each for each in listed if name_of(each) == name_of(wanted))
        needed |= _needed(space, other)
    return needed


def _concerns(wrong: str, key: str) -> bool:
    """Whether `wrong`, the key of a mistake, is `key`, lies below `key`, or is a block that
    contains `key`."""
    return wrong == key or wrong.startswith(f"{key}.") or key.startswith(f"{wrong}.")


def _where(values: Mapping[str, Any]) -> Where:
    """Key of a trial -> the key path of its distribution in the document; None if not searched."""
    return lambda key: ("search", "space", key) if key in values else None


# Write a sweep into its results folder, and read it.


def create_sweep(document: Document, root: Path) -> Results:
    """Create a results folder ROOT/NAME/DATE-TIME for a new sweep."""
    results = Results.create(root / str(document.data["name"]))
    write_sweep(document, results)
    return results


def latest_sweep(document: Document, root: Path) -> Results:
    """The newest results of a sweep. Raises UserError if there are none."""
    parent = root / str(document.data["name"])
    files = list(parent.absolute().glob(f"*/{SEARCH}"))
    if not files:
        raise UserError(f"nothing to resume: {parent} contains no sweep; leave --resume out")
    return Results(max(files, key=began).parent)


def write_sweep(document: Document, results: Results) -> None:
    """Write the search options, the spec and the empty lists of a sweep's trials and plans into a
    new results folder."""
    search = read_search(document).model_dump(mode="json")
    spec = {key: value for key, value in document.data.items() if key != "search"}
    results.write_search(search, str(spec["name"]), spec, document.settings)
    results.write_decided(Decided([], is_all=False))
    results.write_plans([])
    write_whole(results.folder / "spec.yaml", document.text.encode())


def sweep_document(results: Results) -> Document:
    """The document of an earlier sweep. Raises UserError if the folder has none."""
    found = results.search()
    if found is None:
        raise UserError(
            f"{results.folder} contains no sweep (no search.json); "
            "if it contains an experiment, resume that by: raysuite run --resume-from "
            f"{results.folder}"
        )
    data: dict[str, Any] = {**found["spec"], "search": found["search"]}
    file = str(results.folder / "search.json")
    return Document(data=data, file=file, scaled=found.get("settings", {}))


TRIALS = "search.trials"
"""The key that may be changed with --resume."""


def set_more_trials(document: Document, wanted: Document) -> None:
    """Set the number of trials in the document of an earlier sweep to the number in `wanted`.

    Raises UserError if the sweep cannot have more trials, or if `wanted` has no larger number.
    """
    search, trials = read_search(document), read_search(wanted).trials
    if search.trials is None or search.scheduler.name == "pbt":
        raise UserError(
            f"{TRIALS} was given, but the number of trials of a grid, or of a population (pbt), is "
            "decided when the sweep begins; begin a larger sweep, without --resume"
        )
    if trials is None or trials <= search.trials:
        raise UserError(
            f"{TRIALS}={trials} was given, and this sweep has {search.trials}; give more, or leave "
            "it out"
        )
    document.data["search"]["trials"] = trials


def write_more_trials(document: Document, results: Results) -> None:
    """Write the number of trials in `document` into the results of the sweep to continue."""
    decided, found = results.decided(), results.search()
    assert found is not None
    if decided is not None:
        results.write_decided(decided._replace(is_all=False))  # harmless if the next write fails
    results.write_search(
        document.data["search"], found["name"], found["spec"], found.get("settings")
    )


def check_retry(document: Document) -> None:
    """Raise UserError if the sweep is population-based training. Its failed trials cannot be
    repeated, because the population has continued without them."""
    if read_search(document).scheduler.name == "pbt":
        raise UserError(
            "--retry-failed was given, and these trials are a population (scheduler: pbt), which "
            "has continued without those that failed; leave --retry-failed out: --resume continues "
            "the other trials"
        )
