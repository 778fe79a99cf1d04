"""A person's own data set, `module:attribute`."""

from __future__ import annotations

from pathlib import Path

from raysuite.data.prepared import Prepared, counted
from raysuite.data.sets import treatment
from raysuite.layouts import own
from raysuite.spec.data import DataOptions
from raysuite.spec.datasets import DatasetFacts


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """Ask the data set for its counts; nothing is kept in `cache`."""
    found = own.count(data)
    prepared = Prepared(
        data=data,
        facts=facts,
        classes=found.classes,
        form="own",
        files=Path(data.name),
        listing=None,
        exact=False,
        **treatment(data, facts.channels),
    )
    return counted(prepared, {"train": found.train, "val": found.val})
