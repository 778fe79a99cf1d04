"""The section `task` of a spec, and the description of a task in plans and Records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from raysuite.spec.base import IMPORT_PATH, Frozen, Options, suggest

TASKS = {
    "classification": "raysuite.tasks.classification:Classification",
    "language_model": "raysuite.tasks.language_model:LanguageModel",
    "multi_label": "raysuite.tasks.multi_label:MultiLabel",
    "regression": "raysuite.tasks.regression:Regression",
    "segmentation": "raysuite.tasks.segmentation:Segmentation",
}
"""Name of a built-in task -> `module:attribute` of its class."""

Unit = Literal["images", "samples", "tokens"]


class TaskOptions(Options):
    """The task of the network: its loss and its metrics."""

    name: str = "classification"
    """`classification`, `language_model`, `multi_label`, `regression`, `segmentation`, or your own
    `module:attribute`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed unchanged to the task's constructor."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name in TASKS or re.fullmatch(IMPORT_PATH, name):
            return name
        raise ValueError(
            f"no task is called {name!r}; {suggest(name, TASKS)}, or 'module:attribute' of your "
            "own task class"
        )

    @property
    def implementation(self) -> str:
        """`module:attribute` of the task's class."""
        return TASKS.get(self.name, self.name)

    @property
    def classifies(self) -> bool:
        """Whether the task is image classification, whose samples have one label each."""
        return self.name == "classification"


class MetricFacts(Frozen):
    """One validation metric of a task."""

    name: str
    """Name of the metric; MLflow and `early_stopping.metric` use `val_NAME`."""
    title: str
    """Title in tables and plots."""
    note: str
    """Definition of the metric, in a few words."""
    unit: str = ""
    """`share` for values in [0, 1], which are shown in percent; else empty."""
    higher_is_better: bool = True

    @property
    def sign(self) -> int:
        """1 if larger values of the metric are better, else -1: a larger product of sign and value
        is always better."""
        return 1 if self.higher_is_better else -1

    def words(self, values: Mapping[str, float], digits: int = 3) -> str:
        """Format this metric's value: `accuracy 0.951`; empty if `values` lacks this metric."""
        known = self.name in values
        return f"{self.title.lower()} {values[self.name]:.{digits}f}" if known else ""

    def reaches(self, value: float, goal: float) -> bool:
        """Whether a value is at least as good as the goal."""
        return self.sign * (value - goal) >= 0


class TaskFacts(Frozen):
    """What a task declares: its unit and its metrics."""

    name: str
    unit: Unit
    """The throughput is the number of these per second."""
    metrics: tuple[MetricFacts, ...]
    primary: str
    """Name of the metric of the training target and of sweeps, which early stopping may use too."""

    def metric(self, name: str) -> MetricFacts:
        return next(metric for metric in self.metrics if metric.name == name)

    @property
    def main(self) -> MetricFacts:
        return self.metric(self.primary)

    def units(self, samples: int, sequence: int) -> int:
        """Number of throughput units in `samples` samples of `sequence` tokens. For tokens the
        result is an upper limit, because the last sequence of a data set may be shorter."""
        return samples * (sequence or 1) if self.unit == "tokens" else samples

    def units_are_known(self, sequence: int | None) -> bool:
        """Whether the plan determines how many throughput units a sample has. False for
        tokens of a user's own data set, whose sequences have no fixed length."""
        return self.unit != "tokens" or bool(sequence)

    @property
    def one(self) -> str:
        """The unit in the singular: `image`."""
        return self.unit.removesuffix("s")


CLASSIFICATION = TaskFacts(
    name="classification",
    unit="images",
    metrics=(
        MetricFacts(name="accuracy", title="Accuracy", note="Top-1", unit="share"),
        MetricFacts(
            name="top5", title="Top-5", note="Top-5 (only for more than 5 classes)", unit="share"
        ),
    ),
    primary="accuracy",
)
"""The task of plans that name no task."""
SCRIPT = CLASSIFICATION.model_copy(update={"name": "script", "unit": "samples"})
"""The task of a training script's plan: its samples are counted, its metrics are unknown."""
