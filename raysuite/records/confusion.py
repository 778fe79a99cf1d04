"""Figures of each class of a validation set: confusion matrix, recall, precision, F1."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.spec.base import Frozen

MOST_WITH_MATRIX = 100
"""Largest number of classes for which the whole matrix is kept."""


class ClassFigures(Frozen):
    """Figures of each class in a run's last validation, without unreadable samples."""

    names: tuple[str, ...]
    """Names of the classes, in the order of their labels."""
    samples: tuple[int, ...]
    """Number of samples of each class."""
    predicted: tuple[int, ...]
    """Number of samples, of any class, that were predicted as this class."""
    correct: tuple[int, ...]
    """Number of samples of each class that were predicted correctly."""
    confusion: tuple[tuple[int, ...], ...] | None = None
    """[classes][classes] samples by true class (row) and predicted class (column); None if there
    are more than 100 classes."""

    @property
    def recall(self) -> list[float | None]:
        """Recall of each class: correct / samples; None for a class without samples."""
        return _ratios(self.correct, self.samples)

    @property
    def precision(self) -> list[float | None]:
        """Precision of each class: correct / predicted; None if the class was never predicted."""
        return _ratios(self.correct, self.predicted)

    @property
    def f1(self) -> list[float | None]:
        """F1 of each class: 2 correct / (samples + predicted); None if both are 0."""
        both = [a + b for a, b in zip(self.samples, self.predicted, strict=True)]
        return _ratios([2 * each for each in self.correct], both)

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the classes that have samples."""
        known = [each for each in self.recall if each is not None]
        return sum(known) / len(known)


def class_figures(names: Sequence[str], matrix: Sequence[Sequence[int]]) -> ClassFigures:
    """Compute the figures of each class from the confusion matrix [true class][predicted class]."""
    return ClassFigures(
        names=tuple(names),
        samples=tuple(map(sum, matrix)),
        predicted=tuple(map(sum, zip(*matrix, strict=True))),
        correct=tuple(row[label] for label, row in enumerate(matrix)),
        confusion=tuple(map(tuple, matrix)) if len(names) <= MOST_WITH_MATRIX else None,
    )


def _ratios(parts: Sequence[int], wholes: Sequence[int]) -> list[float | None]:
    return [a / b if b else None for a, b in zip(parts, wholes, strict=True)]
