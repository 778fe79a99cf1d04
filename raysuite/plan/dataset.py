"""Find the facts about a plan's data set, from the table of named data sets or from the files."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from raysuite.errors import Mistake, UserError
from raysuite.plan.feasible import global_batch_of
from raysuite.plan.run_plan import RunPlan
from raysuite.spec import ExperimentSpec
from raysuite.spec.data_set import DataOptions, root_of
from raysuite.spec.datasets import KNOWN, NAMED, DatasetFacts

if TYPE_CHECKING:
    from raysuite.data.formats import Counts


class Datasets:
    """Counts of data sets on disk. The files of each set are listed only once, because this takes
    seconds for a large set.

    `elsewhere`: whether the runs will be on another machine. If so, a named data set without a
    folder on this machine is assumed to have its official numbers of samples and classes.
    """

    def __init__(self, elsewhere: bool = False) -> None:
        self._elsewhere = elsewhere
        self._seen: dict[str, Counts | str] = {}

    def look(self, data: DataOptions, tensors: bool = False) -> Counts | str:
        """The counts of the data set, or why it cannot be read. `tensors`: whether the user's own
        samples are passed to the network unchanged."""
        from raysuite.data import formats

        key = f"{tensors} {data.model_dump_json(include=_FILES)}"
        if key not in self._seen:
            try:
                counts = official_counts(data) if self._elsewhere else None
                count = formats.count_tensors if tensors else formats.count
                self._seen[key] = counts or count(data)
            except UserError as error:
                self._seen[key] = str(error)
        return self._seen[key]


_FILES = {
    "name",
    "format",
    "path",
    "root",
    "classes",
    "features",
    "bad_samples",
    "options",
    "sequence",
    "augment",
}
"""The keys of a `data` block that affect the counts."""


def official_counts(data: DataOptions) -> Counts | None:
    """The official counts of a named data set without a folder here; None for all other sets."""
    if data.name not in NAMED or root_of(data).exists():
        return None
    from raysuite.data.formats import Counts

    facts = NAMED[data.name].facts
    classes = tuple(str(label) for label in range(facts.classes))
    return Counts(facts.train_samples, facts.val_samples, classes)


def official(plans: Iterable[RunPlan]) -> list[str]:
    """The plans' named data sets that have no folder here, such as `imagenet as tfrecord`."""
    blocks = (plan.spec.data for plan in plans)
    absent = (f"{data.name} as {data.form}" for data in blocks if official_counts(data))
    return list(dict.fromkeys(absent))


def passed_over(plans: Iterable[RunPlan]) -> list[str]:
    """For each image folder with ignored files, one line of text that states their number."""
    counts = {
        str(root_of(plan.spec.data)): plan.dataset.passed_over
        for plan in plans
        if plan.dataset.passed_over
    }
    return [
        f"{root}: {count} files or folders are not images and are skipped; "
        f"`raysuite data check {shlex.quote(root)}` lists them"
        for root, count in counts.items()
    ]


def check_unchanged(plans: Iterable[RunPlan]) -> None:
    """Raise DataError if the counts of a data set differ from those in `plans`, the plans of the
    runs to resume."""
    from raysuite.data.prepared import check_as_planned

    seen = Datasets()
    for plan in plans:
        data = plan.spec.data
        counts = "" if data.name == "digits" else seen.look(data, bool(plan.dataset.inputs))
        if not isinstance(counts, str):  # data that is unreadable here is reported by the workers
            found = {"train": counts.train, "val": counts.val}
            root = Path(data.name) if data.own else root_of(data)
            check_as_planned(plan.dataset, found, counts.classes, root)


def dataset_facts(spec: ExperimentSpec, seen: Datasets) -> DatasetFacts:
    """Counts and shapes of the spec's data set, for which `dataset_mistakes` found no mistakes."""
    data = spec.data
    known = KNOWN.get(data.name, _OTHERS)
    facts = replace(
        known,
        channels=data.channels or known.channels,
        image_size=data.image_size or known.image_size,
    )
    if data.name == "digits":
        return facts
    counts = seen.look(data, _as_tensors(spec))
    assert not isinstance(counts, str)
    if data.of_tokens or _as_tensors(spec):
        return DatasetFacts(
            counts.train,
            counts.val,
            counts.vocabulary,
            channels=0,
            image_size=0,
            sequence=data.sequence or 0,
            inputs=counts.inputs,
        )
    return replace(
        facts,
        train_samples=counts.train,
        val_samples=counts.val,
        classes=len(counts.classes),
        passed_over=counts.passed_over,
        class_names=counts.classes,
    )


def _as_tensors(spec: ExperimentSpec) -> bool:
    """Whether samples of the user's own data set are passed to the network unchanged."""
    return spec.data.own and not spec.task.classifies


_OTHERS = DatasetFacts(0, 0, 0, channels=3, image_size=0)
"""Default facts of data sets that are not in KNOWN; the spec gives their image size."""


def dataset_mistakes(spec: ExperimentSpec, seen: Datasets) -> list[Mistake]:
    """Mistakes in the spec: its data set is missing or cannot be counted, or its batch or class
    weights do not fit the data set."""
    data = spec.data
    found = "" if data.name == "digits" else seen.look(data, _as_tensors(spec))
    if not isinstance(found, str) or not found:
        return _misfits(spec, dataset_facts(spec, seen))
    if data.name in spec.synthetic_data:
        scale = f" --scale {spec.scale}" if spec.scale else ""
        found += f", or make this spec's synthetic data set: `raysuite data make SPEC{scale}`"
    return [Mistake(found, key="data.name" if data.own or data.path is None else "data.path")]


def _misfits(spec: ExperimentSpec, facts: DatasetFacts) -> list[Mistake]:
    training, mistakes = spec.training, []
    weights, classes = training.class_weights, facts.classes
    if weights is not None and weights != "auto" and len(weights) != classes:
        message = f"got {len(weights)} weights; the data set has {classes} classes"
        message += "; give one for each, or auto"
        mistakes.append(Mistake(message, key="training.class_weights"))
    batch, samples = global_batch_of(spec), facts.train_samples
    if batch > samples:
        key, fewer = "training.global_batch", ""
        if training.global_batch is None:
            key = "training.batch_per_worker"
            fewer = f", or use fewer than {spec.resources.workers:,} workers"
        message = f"a step would need {batch:,} samples, and the training set has {samples:,}"
        mistakes.append(Mistake(f"{message}; lower it{fewer}", key=key))
    return mistakes
