"""Check a data set on disk: count its images, and find unreadable or inconsistent files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from raysuite.data import formats
from raysuite.data.findings import Finding, Part, Report, SplitReport, Target
from raysuite.data.formats import tfrecord
from raysuite.data.processes import Count, each
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions, root_of
from raysuite.spec.datasets import CLASSES_FILE, NAMED, SPLITS, Format

_UNKNOWN = 1
"""Placeholder for a size or a count that a spec requires but a check does not use."""


def target_of(data: DataOptions, classifies: bool = True) -> Target:
    """The Target for the data set of a spec. `classifies`: whether the spec's task is
    classification."""
    if data.own:
        return Target(data, tensors=not classifies)
    names: tuple[str, ...] = ()
    if data.form == "tfrecord":
        known = NAMED[data.name].facts.classes if data.name in NAMED else data.classes
        names = _names(root_of(data)) or tuple(map(str, range(known or 0)))
    return Target(data, names, tfrecord.first_label(data))


def detect(path: Path) -> Target:
    """The data set in a folder, recognised by its files. Raises DataError if none is recognised."""
    path = path.expanduser()
    if not path.is_dir():
        what = "is a file" if path.exists() else "is not there"
        raise DataError(
            f"{path} {what}; give a folder of a data set, the YAML file of a spec, or one of "
            f"{', '.join(NAMED)}"
        )
    form = _form(path)
    if form is None:
        raise DataError(
            f"{path} contains no data set that can be recognised; valid: train/CLASS/* and "
            "val/CLASS/*, TFRecord shards (train-00000-of-00016), MNIST's IDX files and "
            "CIFAR-10's batches; name the data set with --name and --format, or give a spec"
        )
    data = stated(path, {"idx": "mnist", "binary": "cifar10", "pickle": "cifar10"}.get(form), form)
    if form != "tfrecord":
        return Target(data)
    return Target(data, _names(path), _first_label(path))


def stated(path: Path | None, name: str | None, form: Format | None, **more: Any) -> DataOptions:
    """The options of a set on disk. Required fields that a check does not use get placeholders."""
    if name is None:
        name = "tfrecord" if form == "tfrecord" else "image_folder"
    if name in ("image_folder", "tfrecord"):
        more.setdefault("image_size", _UNKNOWN)
    if name == "tfrecord":
        more.setdefault("classes", _UNKNOWN)
    return DataOptions(name=name, format=form, path=None if path is None else str(path), **more)


def _form(path: Path) -> Format | None:
    names = {each.name for where in ("*", "*/*", "*/*/*") for each in path.glob(where)}
    found = (formats.module_of(form).detect(path, names) for form in formats.DETECTED)
    return next((form for form in found if form is not None), None)


def _names(root: Path) -> tuple[str, ...]:
    """The names in classes.txt; empty without this file."""
    try:
        return tuple((root / CLASSES_FILE).read_text("utf-8-sig", "replace").splitlines())
    except OSError:
        return ()


def _first_label(root: Path) -> int | None:
    try:
        first = tfrecord.manifest_of(root).get("first_label")
    except DataError:
        return None  # reported when shards are checked
    return first if isinstance(first, int) else None


__all__ = ["Finding", "Report", "SplitReport", "Target", "check", "detect", "stated", "target_of"]


def check(
    target: Target,
    decode: bool = True,
    write_index: bool = False,
    workers: int = 1,
    begin: Callable[[int, str], Count] = lambda total, unit: lambda more: None,
) -> Report:
    """Check every file of a data set; with `decode`, also decode every image.

    Errors of the data are in the report; they are not raised. `write_index`: whether missing and
    wrong indices of intact TFRecord shards are written. `begin` is called with the amount of work
    and its unit (images or bytes), and returns a function that is called with the progress.

    Raises RunError if a process was killed.
    """
    form = "tensors" if target.tensors else target.data.form
    listed = formats.module_of(form).to_check(target, decode, write_index)
    splits: dict[str, Part] = {}
    findings = list(listed.findings)
    count = begin(listed.total, listed.unit)
    for part in each(listed.tasks, workers, count):
        splits.setdefault(part.split, Part(part.split)).add(part)
        findings += part.findings
    names = listed.names
    if target.data.form == "tfrecord" and target.first_label is None:
        first, wrong = tfrecord.label_findings(
            target, {label for part in splits.values() for label in part.labels}
        )
        findings += wrong
        names = {} if first is None else dict(enumerate(target.names, first))
    named = {pair for part in splits.values() for pair in part.names}
    findings += tfrecord.name_findings(target.root, names, named)
    findings += _against_official(target, splits)
    reports = {
        split: SplitReport(
            images=part.images,
            unreadable=part.unreadable,
            classes={
                # an invalid label is shown as `label N`, because a class may be called N
                names.get(label, f"label {label}" if names else str(label)): n
                for label, n in sorted(part.labels.items())
            },
            sizes=dict(part.sizes),
        )
        for split, part in sorted(splits.items(), key=lambda each: SPLITS.index(each[0]))
    }
    findings.sort(key=lambda each: (each.note, _by_number(each.place), each))
    return Report(target.root, form or "", reports, tuple(findings))


def _by_number(place: str) -> list[tuple[int, str]]:
    """A sort key that compares numbers in text by value: sample [2] comes before sample [10]."""
    return [(int(part) if part.isdecimal() else -1, part) for part in re.split(r"(\d+)", place)]


def _against_official(target: Target, splits: Mapping[str, Part]) -> Iterator[Finding]:
    """A note if the numbers of images of a named set differ from those of the official set: the set
    is then synthetic, or a part of the official set."""
    known = NAMED.get(target.data.name)
    found = tuple(splits[split].images if split in splits else 0 for split in SPLITS)
    if known is not None and found != (known.facts.train_samples, known.facts.val_samples):
        message = (
            f"{found[0]:,} training and {found[1]:,} validation images; the official "
            f"{target.data.name} has {known.facts.train_samples:,} and "
            f"{known.facts.val_samples:,}"
        )
        yield Finding(str(target.root), -1, "file", message, note=True)
