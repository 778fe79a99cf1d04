"""Segmentation: one of several classes for each pixel. The loss is the cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from raysuite.errors import UserError
from raysuite.spec.datasets import IGNORED_PIXEL
from raysuite.tasks.base import Metric, Task, Total, within


def _overlaps(output: Tensor, targets: Tensor) -> Tensor:
    """Numbers of pixels [3 * classes]: pixels of each class, pixels predicted as each class, and
    correctly predicted pixels of each class."""
    classes, targets = output.shape[1], targets.long()
    counted = targets != IGNORED_PIXEL
    wanted, found = targets[counted], output.argmax(1)[counted]
    both = wanted[wanted == found]
    parts = [each.bincount(minlength=classes) for each in (wanted, found, both)]
    return torch.cat(parts)


def _mean_iou(sums: Sequence[float], total: Total) -> float:
    """The mean of intersection / union over the classes that occur or are predicted."""
    classes = len(sums) // 3
    wanted, found, both = sums[:classes], sums[classes : 2 * classes], sums[2 * classes :]
    unions = [w + f - b for w, f, b in zip(wanted, found, both, strict=True)]
    each = [b / union for b, union in zip(both, unions, strict=True) if union]
    return sum(each) / max(1, len(each))


class Segmentation(Task):
    """Output: logits [b, classes, h, w]. Targets: classes [b, h, w], or IGNORED_PIXEL.

    The loss of a step is the mean over the targets of the global batch that are not
    IGNORED_PIXEL.
    """

    unit = "images"
    metrics = (
        Metric(
            "mean_iou",
            "Mean IoU",
            "Mean over classes of intersection over union",
            _mean_iou,
            _overlaps,
            unit="share",
        ),
        Metric(
            "pixel_accuracy",
            "Pixels right",
            "Share of the pixels whose class is right",
            value=lambda sums, total: sum(sums[2 * len(sums) // 3 :]) / total.weight,
            sums=_overlaps,
            unit="share",
        ),
    )
    weighted = True

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(
            output, targets.long(), reduction="sum", ignore_index=IGNORED_PIXEL
        )

    def weight(self, targets: Tensor) -> Tensor:
        return (targets != IGNORED_PIXEL).sum()

    def check(self, output: Any, targets: Tensor) -> None:
        wanted = [len(targets), "classes", *targets.shape[1:]]
        told = f"expected logits as one tensor of shape [{', '.join(map(str, wanted))}]"
        if not isinstance(output, Tensor):
            raise UserError(f"its output is a {type(output).__name__}; {told}")
        shape = [*output.shape[:1], *output.shape[2:]]
        if output.dim() != targets.dim() + 1 or shape != list(targets.shape):
            raise UserError(f"its output has the shape {list(output.shape)}; {told}")
        within(targets, 0, output.shape[1] - 1, IGNORED_PIXEL)
