"""Tasks: what a network is trained for, as a plan and its Records know it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from raysuite.spec.base import IMPORT_PATH, Options, suggest

TASKS = {
    "classification": "raysuite.tasks.classification:Classification",
    "language_model": "raysuite.tasks.language_model:LanguageModel",
    "multi_label": "raysuite.tasks.multi_label:MultiLabel",
    "regression": "raysuite.tasks.regression:Regression",
    "segmentation": "raysuite.tasks.segmentation:Segmentation",
}
"""By name: `module:attribute` of each built-in `raysuite.tasks.base.Task`."""

Unit = Literal["images", "samples", "tokens"]


class TaskOptions(Options):
    """What the network is trained for: its loss and its metrics."""

    name: str = "classification"
    """`classification`, `language_model`, `multi_label`, `regression`, `segmentation`, or
    `module:attribute` of your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the task's constructor as they are."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name in TASKS or re.fullmatch(IMPORT_PATH, name):
            return name
        raise ValueError(
            f"no task is called {name!r}; {suggest(name, TASKS)}, or 'module:attribute' of your own"
        )

    @property
    def implementation(self) -> str:
        """`module:attribute` of its class."""
        return TASKS.get(self.name, self.name)

    @property
    def classifies(self) -> bool:
        """Whether it is the classification of images, whose samples have one label each."""
        return self.name == "classification"


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class MetricFacts(_Facts):
    """One metric of a task's validation."""

    name: str
    """In records: `val_NAME` of an epoch."""
    title: str
    """In tables and plots."""
    note: str
    """What it is, in a few words."""
    unit: str = ""
    """`share` for values in [0, 1], which are shown in percent; else nothing."""
    higher_is_better: bool = True

    @property
    def sign(self) -> int:
        """By which values are multiplied, so that a larger one is better."""
        return 1 if self.higher_is_better else -1

    def words(self, values: Mapping[str, float], digits: int = 3) -> str:
        """`accuracy 0.951`, of the values of a task's metrics; nothing where it is not among
        them."""
        known = self.name in values
        return f"{self.title.lower()} {values[self.name]:.{digits}f}" if known else ""

    def reaches(self, value: float, goal: float) -> bool:
        """Whether a value is as good as the goal, or better."""
        return self.sign * (value - goal) >= 0


class TaskFacts(_Facts):
    """What everything that reads figures knows of a task."""

    name: str
    unit: Unit
    """What the throughput counts."""
    metrics: tuple[MetricFacts, ...]
    primary: str
    """The metric of the target, of early stopping and of sweeps."""

    def metric(self, name: str) -> MetricFacts:
        """The metric of that name."""
        return next(metric for metric in self.metrics if metric.name == name)

    @property
    def main(self) -> MetricFacts:
        """The primary metric."""
        return self.metric(self.primary)

    def units(self, samples: int, sequence: int) -> int:
        """What the throughput counts in so many samples of `sequence` tokens; of tokens at most so
        many, as a data set's last sequence may be shorter."""
        return samples * (sequence or 1) if self.unit == "tokens" else samples

    @property
    def one(self) -> str:
        """One unit: `image`."""
        return self.unit.removesuffix("s")


CLASSIFICATION = TaskFacts(
    name="classification",
    unit="images",
    metrics=(
        MetricFacts(
            name="accuracy",
            title="Accuracy",
            note="Top-1",
            unit="share",
        ),
        MetricFacts(
            name="top5",
            title="Top-5",
            note="Top-5, of more than five classes",
            unit="share",
        ),
    ),
    primary="accuracy",
)
"""Plans without a task are of this one."""
