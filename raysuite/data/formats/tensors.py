"""The user's own data set for any task but classification: `data_set[i]` -> (inputs, targets).

Inputs and targets are each a tensor, an array, a number, or a tuple or dictionary of these. They
are used unchanged, except that `data.augment` may change images with masks: see
raysuite.data.masks.

A batch is stacked by torch's `default_collate`, or by the data set's own method `collate`, which
gets a list of samples and returns (inputs, targets).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from operator import index
from pathlib import Path
from typing import Any

import torch

from raysuite.data import masks
from raysuite.data.findings import Finding, Listed, Part, Target, reason
from raysuite.data.formats.base import Counts, TensorSource
from raysuite.data.formats.own import DIFFERS, check_tasks, length, open_split
from raysuite.data.prepared import Prepared, Split, check_as_planned, unchanged_images
from raysuite.data.processes import Count
from raysuite.errors import DataError, UserError
from raysuite.nested import leaves, mapped
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import SPLITS, DatasetFacts


def count(data: DataOptions) -> Counts:
    """The number of samples in each split, the number of classes (0 if unknown), and the dtypes and
    shapes of a sample's inputs.

    Raises DataError if a split is empty, or if its first sample is not (inputs, targets).
    """
    splits = {split: open_split(data, split) for split in SPLITS}
    counts = [length(data, split, made) for split, made in splits.items()]
    for split, made, samples in zip(SPLITS, splits.values(), counts, strict=True):
        if not samples:
            raise DataError(f"{data.name}: no samples in {split}; both splits need some")
        source = _Samples(made, f"{data.name}(split={split!r})")
        if data.augment not in ("auto", "none"):
            masks.check(source.sample(0), source.place(0))
        found = source.stacked([source.sample(0)], 0)
        if split == "train":
            inputs = json.dumps(mapped(found[0], _described))
    own: Any = getattr(splits["train"], "classes", 0)
    try:
        classes = data.classes or index(own)
    except TypeError:
        classes = len(own)
    return Counts(counts[0], counts[1], classes=(), vocabulary=classes, inputs=inputs)


def _described(batch: torch.Tensor) -> str:
    """The dtype and shape of one sample of the batch, such as `float32[3, 8]`."""
    return f"{str(batch.dtype).removeprefix('torch.')}{list(batch.shape[1:])}"


def prepare(data: DataOptions, facts: DatasetFacts, cache: Path) -> Prepared:
    """Get the counts from the data set; nothing is kept in `cache`."""
    found = count(data)
    files = Path(data.name)
    check_as_planned(facts, {"train": found.train, "val": found.val}, (), files)
    own = unchanged_images() | ({} if data.augment == "auto" else {"augment": data.augment})
    return Prepared(data, facts, (), "tensors", files, None, **own)


class _Samples:
    def __init__(self, made: Any, name: str, prepared: Prepared | None = None) -> None:
        self._set, self._name, self._prepared = made, name, prepared

    def place(self, number: int) -> str:
        return f"{self._name}[{number}]"

    def sample(self, number: int) -> tuple[Any, Any]:
        place = self.place(number)
        try:
            found = self._set[number]
        except (Exception, SystemExit) as error:  # the user's code may raise any error
            why = f"{type(error).__name__}: {error}"
            raise DataError(f"{place} raised {why}; correct the data set") from error
        if not isinstance(found, tuple | list) or len(found) != 2:
            parts = f" of {len(found)}" if isinstance(found, tuple | list) else ""
            what = f"{type(found).__name__}{parts}"
            raise DataError(f"{place} is a {what}; expected (inputs, targets)")
        return found[0], found[1]

    def shown(
        self, samples: list[Any], numbers: Sequence[int], draw: tuple[int, int] | None
    ) -> list[Any]:
        if draw is None or self._prepared is None or self._prepared.augment == "none":
            return samples
        for number, each in zip(numbers, samples, strict=True):
            masks.check(each, self.place(number))
        return masks.augmented(self._prepared, samples, numbers, draw)

    def stacked(self, samples: list[Any], first: int) -> tuple[Any, Any]:
        try:
            collate = getattr(self._set, "collate", torch.utils.data.default_collate)
            inputs, targets = collate(samples)
        except (Exception, SystemExit) as error:  # the user's code may raise any error
            raise DataError(
                f"{self.place(first)} and {len(samples) - 1} others cannot be stacked "
                f"({type(error).__name__}: {error}); give all samples the same shape, or give the "
                "data set a method `collate` that pads them"
            ) from error
        # torch's default_collate turns tuples into lists
        inputs, targets = (mapped(each, lambda value: value) for each in (inputs, targets))
        for each in leaves((inputs, targets)):
            if not isinstance(each, torch.Tensor):
                what = f"{self.place(first)} has a {type(each).__name__}"
                raise DataError(f"{what}; valid: tensors, arrays and numbers")
        return inputs, targets


class Source(_Samples, TensorSource):
    """Reads samples by `data_set[i]`."""

    def __init__(self, prepared: Prepared, split: Split) -> None:
        name = f"{prepared.data.name}(split={split!r})"
        super().__init__(open_split(prepared.data, split), name, prepared)


def to_check(target: Target, decode: bool, write_index: bool) -> Listed:
    """Tasks that read each sample of both splits twice."""
    data = target.data
    try:
        counts = count(data)
    except UserError as error:
        wrong = Finding(data.name, -1, "file", reason(error, data.name))
        return Listed((), 0, "samples", {}, (wrong,))
    tasks = check_tasks(counts, partial(_check, data))
    return Listed(tasks, counts.train + counts.val, "samples", {}, ())


def _check(data: DataOptions, split: Split, samples: range, done: Count) -> Part:
    """Read all samples, stack each with the split's first sample, and read them again in reverse
    order from a second instance of the data set. A sample that differs is an error."""
    part, first = Part(split), dict[int, int]()
    source = _Samples(open_split(data, split), f"{data.name}(split={split!r})")
    zero = source.sample(0)
    for number in samples:
        place = source.place(number)
        part.images += 1
        try:
            found = source.sample(number)
            source.stacked([zero, found], number)
            first[number] = _digest(source, found, number)
        except DataError as error:
            part.unreadable += 1
            part.wrong("image", place, reason(error, place))
        finally:
            done(1)
    source = _Samples(open_split(data, split), f"{data.name}(split={split!r})")
    for number in reversed(first):
        place = source.place(number)
        try:
            again = _digest(source, source.sample(number), number)
        except DataError as error:
            part.wrong("image", place, f"at the second reading: {reason(error, place)}")
            continue
        if again != first[number]:
            part.wrong("image", place, f"it {DIFFERS}")
    return part


def _digest(source: _Samples, sample: tuple[Any, Any], number: int) -> int:
    parts = (each.reshape(-1) for each in leaves(source.stacked([sample], number)))
    return hash(tuple((each.dtype, each.view(torch.uint8).numpy().tobytes()) for each in parts))
