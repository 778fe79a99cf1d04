"""Figures by class, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import (
    balanced_accuracy_score,
    confusion_matrix,
    precision_recall_fscore_support,
)

from raysuite.records import RunFinished
from raysuite.records.confusion import class_figures
from raysuite.track.entries import class_metrics

END = RunFinished(
    run_id="x",
    peak_process_bytes=[1],
    start_process_bytes=[1],
    peak_device_bytes=[0],
    time_to_accuracy=None,
    seconds=1.0,
    first_step_seconds=0.1,
)


def test_figures_are_those_of_scikit_learn() -> None:
    draws = np.random.default_rng(0)
    labels, predicted = draws.integers(0, 5, 200), draws.integers(0, 4, 200)  # never the last
    matrix = confusion_matrix(labels, predicted, labels=range(5))
    found = class_figures("abcde", matrix.tolist())
    expected = precision_recall_fscore_support(labels, predicted, zero_division=np.nan)
    for values, wanted in zip((found.precision, found.recall, found.f1), expected, strict=False):
        assert values == pytest.approx([None if np.isnan(x) else x for x in wanted])
    assert found.samples == tuple(expected[3])
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert found.confusion == tuple(map(tuple, matrix.tolist()))


def test_of_many_classes_the_sums_are_kept() -> None:
    found = class_figures([str(each) for each in range(101)], np.eye(101, dtype=int).tolist())
    assert found.confusion is None
    assert found.recall == [1.0] * 101
    least = class_figures([str(each) for each in range(100)], np.eye(100, dtype=int).tolist())
    assert least.confusion is not None


def test_mlflow_gets_each_class() -> None:
    end = END.model_copy(update={"classes": class_figures(["a/b", "c"], [[3, 1], [0, 0]])})
    assert dict(class_metrics(end)) == {
        "run/balanced_accuracy": 0.75,
        "precision/a_b_c14cddc033f64b9d": 1.0,
        "precision/c": 0.0,
        "recall/a_b_c14cddc033f64b9d": 0.75,
        "f1/a_b_c14cddc033f64b9d": pytest.approx(6 / 7),
        "f1/c": 0.0,
    }
    assert dict(class_metrics(END)) == {}
