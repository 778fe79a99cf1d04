"""Which outputs of a task can be written as predictions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raysuite.errors import UserError
from raysuite.train.evaluation import MOST_NUMBERS, _rows


def test_predictions_are_one_row_of_numbers_for_each_sample() -> None:
    assert _rows(torch.arange(6.0).view(2, 3, 1), 2, "x").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert _rows(torch.zeros(2, MOST_NUMBERS), 2, "x").shape == (2, MOST_NUMBERS)


@pytest.mark.parametrize(
    "value",
    [torch.tensor(1.0), torch.zeros(2, 1), torch.zeros(1, MOST_NUMBERS + 1), [torch.zeros(1)]],
    ids=["mean", "other samples", "map", "boxes"],
)
def test_an_output_without_such_rows_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match="--out needs one tensor with at most"):
        _rows(value, 1, "x")
