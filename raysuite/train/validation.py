"""One exact pass over the validation set, shared among all ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysuite.data import Loader
from raysuite.data.order import rank_slices, step_sizes
from raysuite.optim.average import WeightAverage
from raysuite.parallel.base import Engine, World
from raysuite.parallel.comm import average_buffers
from raysuite.parallel.precision import Autocast
from raysuite.plan import RunPlan
from raysuite.train.stopping import Asked, Watch

_FIVE = 5
MOST_CLASSES = 1000
"""Up to which validation counts by class: that takes 8 MB on each device."""


@dataclass(frozen=True)
class Validated:
    """Of a whole validation set."""

    loss: float
    """Mean over samples."""
    top1: float
    """In [0, 1], as top-5."""
    top5: float | None
    """None where there are no more than five classes: it would always be 1."""
    confusion: Tensor | None
    """[classes, classes] of this rank's samples, by true class (row) and predicted class (column),
    on the device; None where there are too many classes."""


def validate(
    plan: RunPlan,
    world: World,
    engine: Engine,
    loader: Loader,
    average: WeightAverage | None,
    skipped: NDArray[np.bool_] | None,
    watch: Watch,
) -> Validated | Asked:
    """Over every validation sample but `skipped`, from all ranks, unless asked to stop meanwhile.

    Of the averaged weights where there is an `average`. All ranks must call it.
    """
    engine.average_buffers()
    engine.model.eval()
    forward = engine.forward
    if average is not None:
        engine.complete(average.model)
        average_buffers(average.model, engine.comm)
        settings = engine.settings
        forward = Autocast(average.model, settings.precision, world.device, settings.memory_format)
    replicas, replica = engine.replicas, engine.replica
    order, global_batch = np.arange(plan.dataset.val_samples), plan.micro_batch * replicas
    steps = rank_slices(order, global_batch, replicas, replica, skipped=skipped)
    # on the device: to read it at every batch would have the host wait for each
    sums = torch.zeros(3, dtype=torch.float64, device=world.device)
    classes = plan.dataset.classes
    few = classes <= _FIVE
    confusion = None
    if classes <= MOST_CLASSES:
        confusion = torch.zeros(classes * classes, dtype=torch.int64, device=world.device)
    watch.anew()
    with torch.no_grad():
        for batch in loader.batches([part for step in steps for part in step]):
            logits = forward(batch.images)[: batch.real].float()
            labels = batch.labels[: batch.real]
            loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            predicted = logits.argmax(1)
            correct = (predicted == labels).sum()
            if confusion is not None:  # not by bincount, for which the host waits
                confusion.scatter_add_(0, labels * classes + predicted, torch.ones_like(labels))
            first = logits.topk(1 if few else _FIVE).indices
            among = (first == labels.unsqueeze(1)).sum()
            sums += torch.stack([loss.double(), correct.double(), among.double()])
            if stop := watch.step():
                return stop
    if not engine.counts:
        sums.zero_()
        confusion = None if confusion is None else confusion.zero_()
    samples = sum(step_sizes(order, global_batch, skipped))
    loss, top1, top5 = (engine.comm.all_reduce(sums.cpu(), "sum") / samples).tolist()
    square = None if confusion is None else confusion.view(classes, classes)
    return Validated(loss, top1, None if few else top5, square)
