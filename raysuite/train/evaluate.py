"""A trained network over a split of a data set: predictions, and figures by class."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from raysuite.data import Split, make_loader, prepare
from raysuite.data.formats import open_source
from raysuite.data.order import rank_slices
from raysuite.plan import RunPlan
from raysuite.train.served import network_of


@dataclass(frozen=True)
class Evaluation:
    """Predictions for every sample of a split, in the data set's own order."""

    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    """[samples]"""
    predicted: NDArray[np.int64]
    """[samples] the class of the largest logit."""
    probability: NDArray[np.float32]
    """[samples] the softmax of that logit."""
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
        """For each class its samples, precision, recall and F1 score, by scikit-learn; None where
        one is not defined."""
        from sklearn.metrics import precision_recall_fscore_support

        found = precision_recall_fscore_support(
            self.labels,
            self.predicted,
            labels=np.arange(len(self.classes)),
            zero_division=np.nan,
        )
        names = ("precision", "recall", "f1")
        return [
            {"class": name}
            | {key: None if np.isnan(x) else x.item() for key, x in zip(names, row, strict=True)}
            | {"samples": int(samples)}
            for name, *row, samples in zip(self.classes, *found, strict=True)
        ]


def evaluate(
    plan: RunPlan,
    weights: Path,
    split: Split,
    device: torch.device,
    advance: Callable[[int], None] = lambda samples: None,
) -> Evaluation:
    """Predict every sample of `split` of the plan's data set, in fp32, by the state in `weights`.

    `advance` is called with the number of samples of each batch. Raises UserError where the weights
    are not the model's, and DataError for an image that cannot be read.
    """
    network = network_of(plan, weights).to(device)
    prepared = prepare(plan.spec.data, plan.dataset)
    order = np.arange(prepared.samples(split))
    found: list[list[NDArray[Any]]] = []
    loss = torch.zeros((), dtype=torch.float64)
    # as validation sees images: nothing is drawn
    steps = rank_slices(order, plan.micro_batch, 1, 0)
    with (
        closing(make_loader(prepared, split, plan.spec.loader, device)) as loader,
        torch.inference_mode(),
    ):
        for batch in loader.batches([part for step in steps for part in step]):
            logits = network(batch.images)[: batch.real].float()
            labels = batch.labels[: batch.real]
            loss += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").cpu()
            probability, predicted = logits.softmax(1).max(1)
            found.append([each.cpu().numpy() for each in (labels, predicted, probability)])
            advance(batch.real)
    labels_of, predictions, probabilities = map(np.concatenate, zip(*found, strict=True))
    mean = float(loss) / len(order)
    return Evaluation(prepared.classes, labels_of, predictions, probabilities, mean)


def places(plan: RunPlan, split: Split) -> list[str]:
    """The place of each sample of a split, as errors name it."""
    prepared = prepare(plan.spec.data, plan.dataset)
    with closing(open_source(prepared, split)) as source:
        return [source.place(sample) for sample in range(prepared.samples(split))]
