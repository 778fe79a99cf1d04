"""Classification: one of several classes for each image. The loss is the cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from raysuite.errors import UserError
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.tasks import CLASSIFICATION
from raysuite.tasks.base import Metric, Task, Total

_FIVE = 5


def _correct(output: Tensor, targets: Tensor) -> Tensor:
    return (output.argmax(1) == targets).sum().reshape(1)


def _among_five(output: Tensor, targets: Tensor) -> Tensor:
    first = output.topk(1 if output.shape[1] <= _FIVE else _FIVE).indices
    return (first == targets.unsqueeze(1)).sum().reshape(1)


def _share(sums: Sequence[float], total: Total) -> float:
    return sums[0] / total.weight


_SUMS = {"accuracy": _correct, "top5": _among_five}
_METRICS = tuple(
    Metric(**dict(each), value=_share, sums=_SUMS[each.name]) for each in CLASSIFICATION.metrics
)
MOST_CLASSES = 1000
"""With more classes, no confusion matrix is counted; with this many, the matrix takes 8 MB per
device."""


class Classification(Task):
    """Output: logits [b, classes]. Targets: labels [b], int64.

    `training.label_smoothing` and `training.class_weights` affect only the training loss.
    """

    unit = CLASSIFICATION.unit
    metrics = _METRICS
    primary = CLASSIFICATION.primary

    def __init__(self, facts: DatasetFacts) -> None:
        super().__init__(facts)
        if facts.classes <= _FIVE:  # top-5 would always be 1
            self.metrics = _METRICS[:1]

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output, targets, reduction="sum")

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Standard normal images [count, channels, size, size], and random labels."""
        facts, device = self.dataset, generator.device
        shape = (count, facts.channels, facts.image_size, facts.image_size)
        images = torch.randn(shape, generator=generator, device=device)
        labels = torch.randint(facts.classes, (count,), generator=generator, device=device)
        return images, labels

    def tally(self, device: torch.device) -> Tensor | None:
        """Zeros for the confusion matrix [true classes, predicted classes]."""
        classes = self.dataset.classes
        if classes > MOST_CLASSES:
            return None
        return torch.zeros(classes, classes, dtype=torch.int64, device=device)

    def count(self, tally: Tensor, output: Tensor, targets: Tensor) -> None:
        # not bincount: it makes the host wait for the device
        places = targets * self.dataset.classes + output.argmax(1)
        tally.view(-1).scatter_add_(0, places, torch.ones_like(targets))

    def check(self, output: Any, targets: Tensor) -> None:
        count, classes = len(targets), self.dataset.classes
        wanted = f"expected logits as one tensor of shape [{count}, {classes}] for {count} images"
        if not isinstance(output, Tensor):
            parts = ""
            if isinstance(output, Mapping):
                parts = f" with {', '.join(map(repr, output))}"
            elif isinstance(output, tuple | list):
                parts = f" of {len(output)}"
            raise UserError(
                f"its output is a {type(output).__name__}{parts}; {wanted}; return only the "
                "logits, or set model.name to a function that wraps the network in a module with "
                "only this output"
            )
        if output.shape != (count, classes):
            hint = "its last layer must have as many outputs as the data set has classes: give "
            hint += "its constructor a parameter num_classes, or set the number in model.options"
            if output.dim() != 2 or output.shape[0] != count:
                hint = "keep the first dimension for the images, and flatten the others"
            raise UserError(f"its output has the shape {list(output.shape)}; {wanted}; {hint}")
        if not output.is_floating_point():
            raise UserError(f"its output is {output.dtype}; {wanted}, before argmax and softmax")
