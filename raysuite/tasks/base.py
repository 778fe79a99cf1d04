"""Task: the loss and the metrics of a training, and the unit of its throughput.

A task is one class in one file. Everything else (the training loop, the gate, records, tables,
MLflow, plots) reads its declarations:

    loss(output, targets)    the summed loss of a batch
    weight(targets)          the divisor of that sum; both are first summed over the global batch
    metrics                  each metric with the sums from which it is computed
    unit                     images, samples or tokens: the throughput is their number per second

The loss of a step is sum / weight over the *global* batch. It therefore does not depend on how
samples and tokens are split over ranks and micro-batches, even in a smaller last batch.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from raysuite.errors import DataError, UserError
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.tasks import MetricFacts, TaskFacts, Unit

Sums = Callable[[Any, Any], Tensor]
"""(output, targets) of a batch -> [k] numbers, which are summed over batches and ranks."""


TAKEN = ("loss", "samples", "split", "run_id", "throughput", "speed_up", "efficiency")
"""Names that a metric may not have, because other figures have them in MLflow, in
`evaluate --json` or in `--against`."""
_NAME = re.compile("[a-z0-9_]+")


@dataclass(frozen=True)
class Total:
    """The mean loss of a validation set, and its totals of weight and samples."""

    loss: float
    """The summed loss, divided by `weight`."""
    weight: float
    samples: int

    @classmethod
    def of(cls, loss: float, weight: float, samples: int) -> Total:
        """Make a Total from the summed loss and weight. Raises DataError if the weight is 0."""
        if not weight:
            raise DataError(
                "the weights of the evaluated samples' targets add up to 0, so the loss and the "
                "metrics are undefined; the split needs targets with a weight above 0"
            )
        return cls(loss / weight, weight, samples)


@dataclass(frozen=True)
class Metric:
    """A validation metric."""

    name: str
    """Consists of lower-case letters, digits and underscores, and is not in `TAKEN`. MLflow and
    `early_stopping.metric` use `val_NAME`."""
    title: str
    """The name in tables and plots."""
    note: str
    """A description in a few words."""
    value: Callable[[Sequence[float], Total], float]
    """(sums [k] of the validation set, its totals) -> the metric's value."""
    sums: Sums | None = None
    """Computes the sums of one batch, which are added over all batches. None if `value` needs only
    the totals."""
    unit: str = ""
    """`share` for values in [0, 1], which are shown in percent; otherwise empty."""
    higher_is_better: bool = True

    @property
    def facts(self) -> MetricFacts:
        names = MetricFacts.model_fields
        return MetricFacts(**{name: getattr(self, name) for name in names})


class Task(ABC):
    """The loss and the metrics of a training. The constructor takes a data set's facts and
    `task.options`.

    `output` is whatever the network returns, with tensors in fp32. `targets` are the targets of the
    batch, without padding.
    """

    unit: ClassVar[Unit] = "samples"
    """The throughput is the number of these per second: `tokens`, whose number is the sum of
    `weight`; or `images` or `samples`, both of which count the samples."""
    metrics: tuple[Metric, ...] = ()
    """The metrics, at least one, declared by the class; an instance may keep only some of them."""
    primary: ClassVar[str] = ""
    """Name of the metric of the training target and of sweeps, which early stopping may use too; by
    default the first metric."""
    weighted: ClassVar[bool] = False
    """Whether `weight` differs from the number of samples."""

    def __init__(self, facts: DatasetFacts) -> None:
        self.dataset = facts

    @abstractmethod
    def loss(self, output: Any, targets: Any) -> Tensor:
        """The sum of the samples' losses, a scalar."""

    def weight(self, targets: Any) -> Tensor | int:
        """The divisor of the summed loss: the number of samples, unless `weighted`."""
        return samples_in(targets)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Any, Any] | None:
        """Random inputs and targets of `count` samples on the generator's device, with padding and
        ignored values if a data set can have them. None: use training samples instead."""
        return None

    def tally(self, device: torch.device) -> Tensor | None:
        """A tensor of zeros to which `count` adds the counts of each batch in the last validation;
        None if the task counts nothing."""
        return None

    def count(self, tally: Tensor, output: Any, targets: Any) -> None:  # noqa: B027
        """Add a batch's counts to `tally`, in place."""

    def check(self, output: Any, targets: Any) -> None:  # noqa: B027 - a loss may accept any output
        """Raise UserError if the loss cannot be computed from this output."""

    @classmethod
    def facts(cls) -> TaskFacts:
        """The task's declarations, as data. Raises UserError if metrics are missing or misnamed."""
        name = f"{cls.__module__}:{cls.__qualname__}"
        metrics = getattr(cls, "metrics", ())
        if not metrics or not all(isinstance(each, Metric) for each in metrics):
            raise UserError(
                f"task {name!r} has no metrics; declare `metrics`, a tuple of at least one "
                "raysuite.tasks.Metric"
            )
        names = [each.name for each in metrics]
        if wrong := [each for each in names if each in TAKEN or not _NAME.fullmatch(each)]:
            raise UserError(
                f"task {name!r}: its metrics cannot have the names {', '.join(map(repr, wrong))}; "
                f"valid: lower-case letters, digits and underscores, but not {', '.join(TAKEN)}"
            )
        primary = cls.primary or names[0]
        if primary not in names or len(set(names)) < len(names):
            raise UserError(
                f"task {name!r}: its metrics are {', '.join(names)}, and its primary metric is "
                f"{primary!r}; the names must be distinct, and primary must be one of them"
            )
        return TaskFacts(
            name=name, unit=cls.unit, metrics=tuple(each.facts for each in metrics), primary=primary
        )


def sums_of(task: Task, output: Any, targets: Any) -> list[Tensor]:
    """A batch's sums for each metric that has sums, in fp64."""
    return [each.sums(output, targets).double() for each in task.metrics if each.sums]


def values_of(task: Task, sums: Sequence[Tensor], total: Total) -> dict[str, float]:
    """The metrics of a split, by name. `sums`: the results of `sums_of`, added over the batches of
    the split."""
    added = iter(sums)
    return {
        each.name: each.value(next(added).tolist() if each.sums else [], total)
        for each in task.metrics
    }


def same_shape(output: Any, targets: Tensor, what: str) -> None:
    """Raise UserError unless the output is a floating-point tensor with the targets' shape. `what`
    names the output in the message."""
    wanted = (
        f"expected {what} as one floating-point tensor with the shape of the targets, "
        f"{list(targets.shape)}"
    )
    if not isinstance(output, Tensor):
        raise UserError(f"its output is a {type(output).__name__}; {wanted}")
    if output.shape != targets.shape or not output.is_floating_point():
        raise UserError(f"its output is {output.dtype} of shape {list(output.shape)}; {wanted}")


def within(targets: Tensor, least: int, most: float, ignored: int | None = None) -> None:
    """Raise UserError unless all targets other than `ignored` are in [least, most]. If `ignored` is
    None, targets may be fractions."""
    wanted = f"{least} to {most:g}"
    if ignored is not None:
        wanted = f"whole numbers {wanted}, and {ignored} for targets that do not count"
        if targets.is_floating_point() or targets.is_complex():
            raise UserError(f"data.name: its targets are {targets.dtype}; expected {wanted}")
        targets = targets.long()  # torch does not compare unsigned numbers of more than 8 bits
        targets = targets[targets != ignored]
    beyond = targets[(targets < least) | (targets > most)]
    if len(beyond):
        raise UserError(f"data.name: its targets contain {beyond[0].item()}; expected {wanted}")


def samples_in(value: Any) -> int:
    """The number of samples in a batch's tensor, or in the first tensor of a tuple or
    dictionary."""
    if isinstance(value, Tensor):
        return len(value)
    parts = value.values() if isinstance(value, dict) else value
    return samples_in(next(iter(parts)))
