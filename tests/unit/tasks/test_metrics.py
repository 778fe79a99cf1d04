"""Metrics of tasks, added up over uneven batches, beside scikit-learn's over all samples."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn
from torch import Tensor

from raysuite.errors import DataError, UserError
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.tasks import TaskOptions
from raysuite.tasks import Metric, Task, make_task
from raysuite.tasks.base import Total, samples_in, sums_of, values_of
from raysuite.tasks.classification import MOST_CLASSES, Classification
from raysuite.tasks.language_model import LanguageModel
from raysuite.tasks.multi_label import THRESHOLDS, MultiLabel
from raysuite.tasks.regression import Regression
from raysuite.tasks.segmentation import Segmentation

FACTS = DatasetFacts(100, 97, 7, 1, 4)
TOKENS = DatasetFacts(1, 1, 7, 0, 0, sequence=8)
CUTS = [40, 7, 1, 49]


def validated(task: Task, output: Tensor, targets: Tensor) -> dict[str, float]:
    parts = list(zip(output.split(CUTS), targets.split(CUTS), strict=True))
    weight = float(sum(float(task.weight(t)) for _, t in parts))
    loss = float(sum(task.loss(y, t) for y, t in parts)) / weight
    found = {}
    for metric in task.metrics:
        sums: Any = [] if metric.sums is None else sum(metric.sums(y, t) for y, t in parts).tolist()
        found[metric.name] = metric.value(sums, Total(loss, weight, len(output)))
    return found


@pytest.fixture
def draw() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_classification(draw: torch.Generator) -> None:
    output, targets = torch.randn(97, 7, generator=draw), torch.randint(7, (97,), generator=draw)
    found = validated(Classification(FACTS), output, targets)
    y, t = output.numpy(), targets.numpy()
    assert found["accuracy"] == sklearn.accuracy_score(t, y.argmax(1))
    expected = sklearn.top_k_accuracy_score(t, y, k=5, labels=range(7))
    assert found["top5"] == pytest.approx(expected)


def test_regression(draw: torch.Generator) -> None:
    output, targets = torch.randn(2, 97, 3, generator=draw)
    targets += output
    found = validated(Regression(FACTS), output, targets)
    t, y = targets.flatten().numpy(), output.flatten().numpy()
    assert found["mae"] == pytest.approx(sklearn.mean_absolute_error(t, y), rel=1e-6)
    assert found["rmse"] == pytest.approx(sklearn.root_mean_squared_error(t, y), rel=1e-6)
    assert found["r2"] == pytest.approx(sklearn.r2_score(t, y), rel=1e-6)


def test_multi_label(draw: torch.Generator) -> None:
    output = torch.randn(97, 5, generator=draw)
    targets = (torch.rand(97, 5, generator=draw) < 0.3).float()
    targets[:, 4] = 0  # a label that does not occur
    found = validated(MultiLabel(FACTS), output, targets)
    steps, t = THRESHOLDS - 1, targets.numpy()
    scores = ((output.sigmoid().double() * steps).floor() / steps).numpy()
    expected = sklearn.average_precision_score(t[:, :4], scores[:, :4], average="macro")
    assert found["average_precision"] == pytest.approx(expected, abs=1e-6)
    chosen = (output > 0).numpy()
    assert found["f1"] == pytest.approx(sklearn.f1_score(t > 0, chosen, average="micro"))


def test_segmentation(draw: torch.Generator) -> None:
    """Of seven classes 3 is never found, 4 never wanted, 5 found where no pixel counts, and 6
    neither: 5 and 6 have no intersection over union, and are left out of the mean."""
    output = torch.randn(97, 7, 5, 5, generator=draw)
    targets = torch.randint(4, (97, 5, 5), generator=draw)
    targets[torch.rand(97, 5, 5, generator=draw) < 0.2] = 255
    output[:, [3, 5, 6]] = -torch.inf
    output[:, 5][targets == 255] = 9
    found = validated(Segmentation(FACTS), output, targets)
    kept = targets != 255
    t, y = targets[kept].numpy(), output.argmax(1)[kept].numpy()
    assert {*t} == {0, 1, 2, 3}
    assert {*y} == {0, 1, 2, 4}
    each = [((t == c) & (y == c)).sum() / ((t == c) | (y == c)).sum() for c in range(5)]
    assert each[3] == each[4] == 0 < min(each[:3])
    assert found["mean_iou"] == pytest.approx(sum(each) / 5)
    assert found["mean_iou"] == pytest.approx(sklearn.jaccard_score(t, y, average="macro"))
    assert found["pixel_accuracy"] == pytest.approx(sklearn.accuracy_score(t, y))
    none = torch.full((97, 5, 5), 255)
    sums = Segmentation.metrics[0].sums
    assert sums is not None
    assert Segmentation.metrics[0].value(sums(output, none).tolist(), Total(0.0, 0.0, 97)) == 0


def test_a_set_without_a_target_that_counts_is_refused() -> None:
    assert Total.of(3.0, 2.0, 1) == Total(1.5, 2.0, 1)
    with pytest.raises(DataError, match="weights of the evaluated samples"):
        Total.of(0.0, 0.0, 5)


def test_language_model(draw: torch.Generator) -> None:
    output = torch.randn(97, 6, 7, generator=draw)
    targets = torch.randint(7, (97, 6), generator=draw)
    targets[torch.rand(97, 6, generator=draw) < 0.3] = -100
    found = validated(LanguageModel(FACTS), output, targets)
    kept = targets != -100
    t, y = targets[kept].numpy(), output[kept].softmax(1).double().numpy()
    y /= y.sum(1, keepdims=True)  # of fp32 it is not exactly 1
    loss = sklearn.log_loss(t, y, labels=range(7))
    assert found["perplexity"] == pytest.approx(np.exp(loss), rel=1e-6)
    assert found["next_token"] == pytest.approx(sklearn.accuracy_score(t, y.argmax(1)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.int32])
@pytest.mark.parametrize("kind", [Segmentation, LanguageModel])
def test_targets_may_be_whole_numbers_of_every_dtype(
    kind: type[Task], dtype: torch.dtype, draw: torch.Generator
) -> None:
    task = kind(TOKENS)
    output = torch.randn(97, 7, 4, generator=draw)
    if kind is LanguageModel:
        output = output.transpose(1, 2)
    targets = torch.randint(7, (97, 4), generator=draw)
    task.check(output, targets.to(dtype))
    assert validated(task, output, targets.to(dtype)) == validated(task, output, targets)


@pytest.mark.parametrize(("classes", "names"), [(5, ["accuracy"]), (6, ["accuracy", "top5"])])
def test_top5_is_of_more_than_five_classes(classes: int, names: list[str]) -> None:
    task = Classification(replace(FACTS, classes=classes))
    assert [each.name for each in task.metrics] == names


def test_classes_are_counted_by_their_true_and_their_predicted_class() -> None:
    task = Classification(replace(FACTS, classes=3))
    tally = task.tally(torch.device("cpu"))
    assert tally is not None
    for targets, found in (([0, 0, 2], [1, 1, 2]), ([1, 2], [0, 1])):
        task.count(tally, torch.eye(3)[found], torch.tensor(targets))
    assert tally.tolist() == [[0, 2, 0], [1, 0, 0], [0, 1, 1]]
    for classes in (MOST_CLASSES, MOST_CLASSES + 1):
        made = Classification(replace(FACTS, classes=classes)).tally(torch.device("meta"))
        assert (made is None) == (classes > MOST_CLASSES)


def test_a_metric_has_a_value_where_its_divisor_is_0_and_where_its_power_is_infinite() -> None:
    total = Total(1000.0, 1.0, 3)
    r2, f1, perplexity = (
        task.metrics[place]
        for task, place in ((Regression, 2), (MultiLabel, 1), (LanguageModel, 0))
    )
    assert r2.value([1.0, 6.0, 12.0, 3.0], total) == 0.0  # targets of 2, 2 and 2
    equal = np.full(1000, np.float32(0.1), np.float64)
    sums = [1.0, float(equal.cumsum()[-1]), float((equal**2).cumsum()[-1]), 1000.0]
    assert sums[2] > sums[1] ** 2 / 1000  # by rounding
    assert r2.value(sums, total) == 0.0
    assert f1.value([0.0, 0.0], total) == 0.0
    assert perplexity.value([], total) == pytest.approx(np.exp(700.0))
    precision = MultiLabel.metrics[0]
    assert precision.sums is not None
    assert precision.value(precision.sums(torch.ones(2, 1), torch.zeros(2, 1)).tolist(), total) == 0


@pytest.mark.parametrize(("name", "loss"), [("mse", 10.0), ("mae", 3.0), ("huber", 2.5)])
def test_the_loss_of_a_regression_is_the_one_chosen_summed_over_samples(
    name: str, loss: float
) -> None:
    """Of errors 0 and 2, and 4 and 0: squares 2 + 8, sizes 1 + 2, Huber's 0.75 + 1.75."""
    task, output = Regression(FACTS, name), torch.tensor([[0.0, 2.0], [4.0, 0.0]])
    assert task.loss(output, torch.zeros(2, 2, dtype=torch.float64)).item() == loss
    assert task.loss(output[:0], output[:0]).item() == 0


def test_sums_go_to_the_metrics_that_have_sums() -> None:
    class Three(Classification):
        def __init__(self, facts: DatasetFacts) -> None:
            first, second = (
                Metric("", "", "", lambda s, t: s[0], s) for s in (first_of, second_of)
            )
            plain = Metric("loss", "", "", lambda sums, total: total.loss + len(sums))
            self.metrics = tuple(
                replace(each, name=name)
                for each, name in ((first, "a"), (plain, "b"), (second, "c"))
            )

    def first_of(output: Tensor, targets: Tensor) -> Tensor:
        return output[:1]

    def second_of(output: Tensor, targets: Tensor) -> Tensor:
        return output[1:]

    task = Three(FACTS)
    sums = sums_of(task, torch.tensor([3, 5]), torch.zeros(1))
    assert [each.dtype for each in sums] == [torch.float64] * 2
    assert values_of(task, sums, Total(0.5, 1.0, 1)) == {"a": 3.0, "b": 0.5, "c": 5.0}


def test_samples_are_counted_in_the_first_tensor() -> None:
    first, second = torch.zeros(3, 2), torch.zeros(5)
    for value in (first, (first, second), {"x": [first], "y": second}):
        assert samples_in(value) == 3


class Odd(Classification):
    def __init__(self, facts: DatasetFacts, **options: Any) -> None:
        raise {"user": UserError("its own"), "other": KeyError("depth")}[options["error"]]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Odd", {"error": "user"}, "^its own$"),
        ("Odd", {"error": "other"}, "error='other', it raised KeyError: 'depth'"),
        ("FACTS", {}, "it should be a class derived from"),
        ("Metric", {}, "it should be a class derived from"),
    ],
)
def test_a_task_that_cannot_be_made_is_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_task(TaskOptions(name=f"{__name__}:{name}", options=options), FACTS)


LOGITS = torch.zeros(2, 3, 7)
MASKS, TAGS = torch.full((2, 3, 3), 6), torch.tensor([[0.0, 0.5], [1.0, 1.0]])


@pytest.mark.parametrize(
    ("kind", "output", "targets", "message"),
    [
        (Classification, torch.zeros(2, 7), torch.zeros(2), ""),
        (Classification, {"x": torch.zeros(2, 7)}, torch.zeros(2), "a dict with 'x'"),
        (Classification, [torch.zeros(2, 7)] * 3, torch.zeros(2), "a list of 3"),
        (Classification, torch.zeros(2, 6), torch.zeros(2), "as many outputs as"),
        (Classification, torch.zeros(1, 7), torch.zeros(2), "keep the first dimension"),
        (Classification, torch.zeros(2, 7, 1), torch.zeros(2), "keep the first dimension"),
        (Classification, torch.zeros(2, 7).long(), torch.zeros(2), "torch.int64"),
        (Segmentation, torch.zeros(2, 7, 3, 3), MASKS, ""),
        (Segmentation, torch.zeros(2, 7, 3, 3), torch.full_like(MASKS, 255), ""),
        (Segmentation, torch.zeros(2, 6, 3, 3), MASKS, "targets contain 6"),
        (Segmentation, [torch.zeros(2, 7, 3, 3)], MASKS, "a list"),
        (Segmentation, torch.zeros(2, 7, 3), MASKS, "shape"),
        (Segmentation, torch.zeros(1, 7, 3, 3), MASKS, "shape"),
        (Segmentation, torch.zeros(2, 7, 3, 4), MASKS, "shape"),
        (MultiLabel, torch.zeros(2, 2), TAGS, ""),
        (MultiLabel, torch.zeros(2, 2), -TAGS, "contain -0.5"),
        (MultiLabel, torch.zeros(2, 2), 2 * TAGS, "contain 2"),
        (Regression, torch.zeros(2, 2), 2 * TAGS, ""),
        (Regression, torch.zeros(2, 1), TAGS, "shape"),
        (Regression, torch.zeros(2, 2).long(), TAGS, "torch.int64"),
        (Regression, (torch.zeros(2, 2),), TAGS, "a tuple"),
    ],
)
def test_an_output_fits_its_task_and_targets(
    kind: type[Task], output: Any, targets: Tensor, message: str
) -> None:
    with pytest.raises(UserError, match=message) if message else nullcontext():
        kind(FACTS).check(output, targets)


@pytest.mark.parametrize(
    ("task", "shape", "targets"),
    [
        (Classification(FACTS), (97, 7), torch.zeros(97, dtype=torch.int64)),
        (MultiLabel(FACTS), (97, 7), torch.ones(97, 7)),
        (Regression(FACTS), (97, 2), torch.ones(97, 2)),
        (Segmentation(FACTS), (97, 7, 2, 2), torch.zeros(97, 2, 2, dtype=torch.int64)),
        (LanguageModel(TOKENS), (97, 8, 7), torch.zeros(97, 8, dtype=torch.int64)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_metrics_of_a_network_that_diverged_are_computed(
    task: Task, shape: tuple[int, ...], targets: Tensor
) -> None:
    output = torch.full(shape, math.nan)
    assert task.loss(output, targets).isnan()
    assert validated(task, output, targets).keys() == {each.name for each in task.metrics}


@pytest.mark.parametrize(
    ("output", "targets", "fits"),
    [
        (LOGITS, [0, 6, -100], True),
        (LOGITS, [0, 7, 1], False),
        (LOGITS, [0, -1, 1], False),
        (LOGITS.long(), [0, 6, -100], False),
        (LOGITS[:, :, :6], [0, 5, -100], False),
        ([LOGITS], [0, 6, -100], False),
    ],
)
def test_a_language_models_output_is_logits_of_its_targets(
    output: Any, targets: list[int], fits: bool
) -> None:
    with nullcontext() if fits else pytest.raises(UserError):
        LanguageModel(FACTS).check(output, torch.tensor([targets, [1, 2, 3]]))


@pytest.mark.parametrize(
    ("kind", "output", "targets"),
    [
        (Classification, torch.zeros(2, 7), torch.zeros(2, dtype=torch.long)),
        (Regression, torch.zeros(2, 3), torch.zeros(2, 3)),
        (MultiLabel, torch.zeros(2, 5), torch.zeros(2, 5)),
        (LanguageModel, torch.zeros(2, 4, 7), torch.zeros(2, 4, dtype=torch.long)),
    ],
)
def test_sums_are_on_the_device_of_the_output(
    kind: type[Task], output: Tensor, targets: Tensor
) -> None:
    """On a GPU without a copy to the host; here, on torch's meta device."""
    output, targets = output.to("meta"), targets.to("meta")
    task = kind(FACTS)
    sums = [each.sums(output, targets) for each in task.metrics if each.sums is not None]
    assert {each.device.type for each in [task.loss(output, targets), *sums]} == {"meta"}


@pytest.mark.parametrize("task", [Classification(FACTS), LanguageModel(TOKENS)])
def test_samples_are_drawn_by_the_generator_on_its_device(
    task: Task, draw: torch.Generator
) -> None:
    with torch.device("meta"):  # the default of tensors that are made without a device
        drawn = task.draw(20, draw)
    assert drawn is not None
    assert {each.device.type for each in drawn} == {"cpu"}
    again = task.draw(20, torch.Generator().manual_seed(3))
    assert again is not None
    assert all(map(torch.equal, drawn, again))


@pytest.mark.parametrize(("sequence", "kept"), [(1, {1}), (2, {1, 2}), (5, {3, 4, 5})])
def test_up_to_half_of_drawn_targets_are_ignored(
    draw: torch.Generator, sequence: int, kept: set[int]
) -> None:
    drawn = LanguageModel(replace(TOKENS, sequence=sequence)).draw(200, draw)
    assert drawn is not None
    tokens, targets = drawn
    assert {*tokens.flatten().tolist()} == {*range(7)}
    known = targets != -100
    assert {*known.sum(1).tolist()} == kept
    assert known[:, 0].all()
    assert {*targets[known].tolist()} == {*range(7)}
    assert not (known[:, 1:] & ~known[:, :-1]).any()  # ignored at the end
