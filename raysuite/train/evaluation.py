"""Evaluate a trained network on a split of a data set: predictions, and metrics by class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysuite.data import Split, make_loader, prepare
from raysuite.data.formats import open_source
from raysuite.data.order import rank_slices
from raysuite.errors import UserError
from raysuite.nested import called, unpadded
from raysuite.parallel.base import World
from raysuite.parallel.comm import NoComm
from raysuite.plan import RunPlan
from raysuite.records.confusion import class_figures
from raysuite.tasks import make_task
from raysuite.tasks.base import Total, samples_in, sums_of, values_of
from raysuite.train.served import network_of
from raysuite.train.skipped_samples import Skipped, check_samples


@dataclass(frozen=True)
class Evaluation:
    """Predictions for all samples of a split that are not skipped, in the data set's own order."""

    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    """[samples]"""
    predicted: NDArray[np.int64]
    """[samples] the class of the largest logit."""
    probability: NDArray[np.float32]
    """[samples] the softmax probability of the predicted class."""
    loss: float
    """Mean cross-entropy, without label smoothing."""

    @property
    def accuracy(self) -> float:
        """Top-1, in [0, 1]."""
        return float((self.labels == self.predicted).mean())

    @property
    def confusion(self) -> NDArray[np.int64]:
        """[classes, classes] samples by true class (row) and predicted class (column)."""
        found = np.zeros((len(self.classes),) * 2, np.int64)
        np.add.at(found, (self.labels, self.predicted), 1)
        return found

    def by_class(self) -> list[dict[str, Any]]:
        """Per class: name, precision, recall, F1 (None if undefined) and number of samples."""
        found = class_figures(self.classes, self.confusion.tolist())
        names = ("class", "precision", "recall", "f1", "samples")
        columns = found.names, found.precision, found.recall, found.f1, found.samples
        return [dict(zip(names, each, strict=True)) for each in zip(*columns, strict=True)]


MOST_NUMBERS = 16
"""Predictions are kept only if a sample's output, and its targets, have at most this many
numbers."""


@dataclass(frozen=True)
class TaskEvaluation:
    """The metrics of a task over a split, and the predictions if requested."""

    samples: int
    loss: float
    """Summed loss, divided by the summed weight."""
    metrics: dict[str, float]
    predictions: tuple[NDArray[Any], NDArray[Any]] | None
    """[samples, n] targets and outputs, in the data set's own order."""


Advance = Callable[[int], None]


def left_out(plan: RunPlan, split: Split) -> Skipped | None:
    """The unreadable samples of a split, if the plan's run skips them; else None."""
    if plan.spec.data.bad_samples != "skip":
        return None
    prepared, alone = prepare(plan.spec.data, plan.dataset), World.alone(torch.device("cpu"))
    threads = plan.spec.resources.cpus_per_worker
    return check_samples(prepared, split, plan.run_id, alone, NoComm(), threads)


def evaluate(
    plan: RunPlan,
    weights: Path,
    split: Split,
    device: torch.device,
    advance: Advance = lambda samples: None,
    skipped: NDArray[np.bool_] | None = None,
) -> Evaluation:
    """Predict the samples of the plan's `split` in fp32, with the model state in `weights`.
    `skipped` [samples]: True for samples to leave out.

    `advance` is called with the number of samples of each batch. Raises UserError if the weights do
    not match the model, and DataError for an image that cannot be read.
    """
    found: list[list[NDArray[Any]]] = []
    loss = torch.zeros((), dtype=torch.float64)
    for logits, labels in _predicted(plan, weights, split, device, advance, skipped):
        loss += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").cpu()
        probability, predicted = logits.softmax(1).max(1)
        found.append([each.cpu().numpy() for each in (labels, predicted, probability)])
    labels_of, predictions, probabilities = map(np.concatenate, zip(*found, strict=True))
    mean, classes = float(loss) / len(labels_of), prepare(plan.spec.data, plan.dataset).classes
    return Evaluation(classes, labels_of, predictions, probabilities, mean)


def evaluate_task(
    plan: RunPlan,
    weights: Path,
    split: Split,
    device: torch.device,
    advance: Advance = lambda samples: None,
    keep: bool = False,
) -> TaskEvaluation:
    """Like `evaluate`, for any task: compute the task's loss and metrics, and keep the predictions
    if `keep` is set.

    Raises UserError at the first batch if predictions are kept and a sample's output or targets are
    not a single tensor of at most MOST_NUMBERS numbers.
    """
    task = make_task(plan.spec.task, plan.dataset)
    samples, sums, loss, weight = 0, None, 0.0, 0.0
    kept: list[list[NDArray[Any]]] = []
    for output, targets in _predicted(plan, weights, split, device, advance):
        samples += samples_in(targets)
        loss += float(task.loss(output, targets))
        weight += float(task.weight(targets))
        found = [each.cpu() for each in sums_of(task, output, targets)]
        sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
        if keep:
            name = plan.spec.task.name
            kept.append([_rows(each, samples_in(targets), name) for each in (targets, output)])
    total = Total.of(loss, weight, samples)
    values = values_of(task, sums or [], total)
    if not keep:
        return TaskEvaluation(samples, total.loss, values, None)
    wanted, outputs = (np.concatenate(each) for each in zip(*kept, strict=True))
    return TaskEvaluation(samples, total.loss, values, (wanted, outputs))


def _rows(value: Any, samples: int, task: str) -> NDArray[Any]:
    """A tensor with at most MOST_NUMBERS numbers per sample, as [samples, n]."""
    if isinstance(value, Tensor) and value.dim() and len(value) == samples:
        rows: NDArray[Any] = value.reshape(samples, -1).cpu().numpy()
        if rows.shape[1] <= MOST_NUMBERS:
            return rows
    raise UserError(
        f"--out needs one tensor with at most {MOST_NUMBERS} numbers per sample as the output, and "
        f"one as the targets, but those of the task {task} are different; omit --out"
    )


def _predicted(
    plan: RunPlan,
    weights: Path,
    split: Split,
    device: torch.device,
    advance: Advance,
    skipped: NDArray[np.bool_] | None = None,
) -> Iterator[tuple[Any, Any]]:
    """The network's outputs and the targets of each batch, without padding."""
    network = network_of(plan, weights).to(device)
    prepared = prepare(plan.spec.data, plan.dataset)
    order = np.arange(prepared.samples(split))
    # as in validation: without random augmentation
    steps = rank_slices(order, plan.micro_batch, 1, 0, skipped=skipped)
    with (
        closing(make_loader(prepared, split, plan.spec.loader, device)) as loader,
        torch.inference_mode(),
    ):
        for batch in loader.batches([part for step in steps for part in step]):
            output = unpadded(called(network, batch.images), batch.real)
            yield output, unpadded(batch.labels, batch.real)
            advance(batch.real)


def places(
    plan: RunPlan, split: Split, skipped: NDArray[np.bool_] | None = None
) -> list[tuple[int, str]]:
    """(number, location) of each sample of a split that is not `skipped`. Error messages contain
    these locations."""
    prepared = prepare(plan.spec.data, plan.dataset)
    samples = range(prepared.samples(split))
    with closing(open_source(prepared, split)) as source:
        return [(n, source.place(n)) for n in samples if skipped is None or not skipped[n]]
