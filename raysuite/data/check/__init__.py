"""Look through a data set on disk: what is there, and what is wrong with it, and where."""

from __future__ import annotations

from collections.abc import Callable

from raysuite.data.check.arrays import list_arrays
from raysuite.data.check.folders import list_folder
from raysuite.data.check.listed import Listed
from raysuite.data.check.report import Finding, Report, SplitReport, Tally
from raysuite.data.check.shards import label_findings, list_shards
from raysuite.data.check.targets import Target, detect, stated
from raysuite.data.processes import Count, each
from raysuite.spec.datasets import NAMED

__all__ = ["Finding", "Report", "SplitReport", "Target", "check", "detect", "stated"]


def check(
    target: Target,
    decode: bool = True,
    write_index: bool = False,
    workers: int = 1,
    begin: Callable[[int, str], Count] = lambda total, unit: lambda more: None,
) -> Report:
    """Look at every file of a data set, at every pixel if `decode`.

    What is wrong is in the report, never raised. `write_index` writes the missing and the wrong
    indices of TFRecords that are whole. `begin` is told how much there is to do, in images or
    bytes; what it returns is told of the progress.

    Raises RunError where a process was killed.
    """
    listed = _listed(target, decode, write_index)
    tally = Tally()
    tally.found(listed.findings)
    count = begin(listed.total, listed.unit)
    for part in each(listed.work, listed.tasks, workers, count):
        tally.add(part)
    names = listed.names
    if target.data.form == "tfrecord" and target.first_label is None:
        labels = (label for part in tally.splits.values() for label in part.labels)
        first, findings = label_findings(target, labels)
        tally.found(findings)
        names = {} if first is None else dict(enumerate(target.names, first))
    tally.found(_against_official(target, tally))
    return tally.report(target.root, target.data.form or "", names)


def _listed(target: Target, decode: bool, write_index: bool) -> Listed:
    if target.data.form == "folder":
        return list_folder(target, decode)
    if target.data.form == "tfrecord":
        return list_shards(target, decode, write_index)
    return list_arrays(target)


def _against_official(target: Target, tally: Tally) -> list[Finding]:
    """A note where a named set has other counts than its official files: a stand-in, or a part."""
    known = NAMED.get(target.data.name)
    found = tuple(
        tally.splits[split].images if split in tally.splits else 0 for split in ("train", "val")
    )
    if known is None or found == (known.facts.train_samples, known.facts.val_samples):
        return []
    message = (
        f"{found[0]:,} training and {found[1]:,} validation images; the official {target.data.name}"
        f" has {known.facts.train_samples:,} and {known.facts.val_samples:,}"
    )
    return [Finding(str(target.root), -1, "file", message, note=True)]
