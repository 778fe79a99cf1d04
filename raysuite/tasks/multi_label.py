"""Any number of labels for each sample. The loss is the binary cross-entropy of each label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from raysuite.tasks.base import Metric, Task, Total, same_shape, within

THRESHOLDS = 201
"""Number of thresholds, evenly spaced from 0 to 1, for the probability in average precision."""


def _counts(output: Tensor, targets: Tensor) -> Tensor:
    """One vector with the numbers of true positives and of false positives at each threshold (each
    [THRESHOLDS, labels], flattened), and of positive targets [labels]."""
    steps = THRESHOLDS - 1
    # the highest threshold reached; the outputs of a network that diverged reach only the first
    level = (output.sigmoid().nan_to_num(0.0).double() * steps).floor().long()
    labels = targets.shape[1]
    found = []
    for chosen in (targets > 0, targets <= 0):
        at = torch.zeros(THRESHOLDS, labels, dtype=torch.float64, device=output.device)
        at.scatter_add_(0, level, chosen.double())
        found.append(at.flip(0).cumsum(0).flip(0).flatten())
    return torch.cat([*found, (targets > 0).sum(0).double()])


def _average_precision(sums: Sequence[float], total: Total) -> float:
    """The mean average precision of the labels that occur. The average precision of one label is
    the sum over thresholds of (R_n - R_{n-1}) P_n, with recall R and precision P, as in
    scikit-learn's `average_precision_score` for probabilities rounded down to the thresholds. 0 if
    no label occurs."""
    values = np.array(sums)
    labels = len(values) // (2 * THRESHOLDS + 1)
    true, false = values[: 2 * THRESHOLDS * labels].reshape(2, THRESHOLDS, labels)[:, ::-1]
    positives = values[-labels:]
    known = positives > 0
    precision = true / np.maximum(true + false, 1)
    recall = true / np.maximum(positives, 1)
    each = (np.diff(recall, axis=0, prepend=0.0) * precision).sum(0)
    return float(each[known].mean()) if known.any() else 0.0


def _decided(output: Tensor, targets: Tensor) -> Tensor:
    """Numbers of true positives, and of predicted plus actual positives, at a threshold of 0.5."""
    chosen, wanted = output > 0, targets > 0
    return torch.stack([(chosen & wanted).sum(), chosen.sum() + wanted.sum()])


class MultiLabel(Task):
    """Output: logits [b, labels]. Targets: 0 or 1, [b, labels]."""

    metrics = (
        Metric(
            "average_precision",
            "Average precision",
            "Mean over labels of the area under the precision-recall curve",
            _average_precision,
            _counts,
            unit="share",
        ),
        Metric(
            "f1",
            "F1",
            "2 TP / (2 TP + FP + FN) over all labels, at a probability threshold of 0.5",
            value=lambda sums, total: 2 * sums[0] / sums[1] if sums[1] else 0.0,
            sums=_decided,
            unit="share",
        ),
    )

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """The sum over the samples; the loss of a sample is the mean over its labels."""
        each = functional.binary_cross_entropy_with_logits(
            output, targets.to(output.dtype), reduction="sum"
        )
        return each / targets.shape[1]

    def check(self, output: Any, targets: Tensor) -> None:
        same_shape(output, targets, "logits")
        within(targets, 0, 1)
