"""What a task cannot be trained with, or of, is refused before anything starts."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raysuite.errors import SpecError, UserError
from raysuite.plan.dry_batch import unproven
from raysuite.tasks import Metric, Task
from raysuite.train.trial_batch import mistakes
from tests.task_sets import BATCH, HERE, Copy, Samples
from tests.unit.tasks.conftest import plan_of

TRAINING = {"epochs": 1, "global_batch": BATCH}
TABLE = {"name": "torch.nn:Embedding", "options": {"num_embeddings": 5, "embedding_dim": 5}}
LINEAR = {"name": "torch.nn:Linear", "options": {"in_features": 3, "out_features": 1}}


@pytest.mark.parametrize(
    ("case", "changes", "key"),
    [
        ("language_model", {"task": "classification"}, "task"),
        ("language_model", {"model": {"name": "resnet20"}}, "model.name"),
        ("language_model", {"data": {"name": "digits"}}, "data.name"),
        ("language_model", {"loader": "dali"}, "loader.name"),
        ("regression", {"strategy": {"name": "pipeline"}}, "task.name"),
        ("language_model", {"strategy": "jax"}, "task.name"),
        (
            "language_model",
            {"training": TRAINING | {"label_smoothing": 0.1}},
            "training.label_smoothing",
        ),
        (
            "language_model",
            {"training": TRAINING | {"target_accuracy": 0.9}},
            "training.target_accuracy",
        ),
        (
            "language_model",
            {"training": TRAINING | {"early_stopping": {"metric": "val_accuracy", "patience": 1}}},
            "training.early_stopping.metric",
        ),
        ("regression", {"task": {"name": "regression", "options": {"loss": "cubic"}}}, "task"),
        ("regression", {"task": "tests.task_sets:Two"}, "task"),
        ("regression", {"task": f"{__name__}:Without"}, "task"),
        ("regression", {"data": {"name": f"{HERE}:numbers", "image_size": 8}}, "data.image_size"),
        ("regression", {"data": {"name": f"{__name__}:uneven"}}, "data.name"),
        (
            "regression",
            {"data": {"name": f"{HERE}:numbers", "augment": "pad_crop_flip"}},
            "data.name",
        ),
    ],
)
def test_a_spec_is_refused_with_its_key(
    case: str, changes: dict[str, Any], key: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as caught:
        plan_of(case, tmp_path, **changes)
    assert key in {mistake.key for mistake in caught.value.mistakes}


@pytest.mark.parametrize(
    ("case", "changes", "key", "message"),
    [
        ("regression", {"model": LINEAR}, "model.name", r"of shape \[2, 1\]; expected"),
        ("regression", {"data": {"name": f"{__name__}:unknown"}}, "data.name", "NaN"),
        (
            "segmentation",
            {"data": {"name": f"{__name__}:beyond"}},
            "data.name",
            "contain 3; .* 0 to 2",
        ),
        (
            "segmentation",
            {"data": {"name": f"{__name__}:tenths"}},
            "data.name",
            "torch.float32; exp",
        ),
        (
            "multi_label",
            {"data": {"name": f"{__name__}:twos"}},
            "data.name",
            r"contain 2\.0; .* 0 to 1",
        ),
        (
            "own",
            {"task": "language_model", "data": {"name": f"{__name__}:words"}, "model": TABLE},
            "data.name",
            "contain 9; .* 0 to 4, and -100",
        ),
        (
            "own",
            {"task": f"{__name__}:Own"},
            "task",
            "raised KeyError: 'answers'; correct the task",
        ),
        (
            "own-cubes",
            {"data": {"name": f"{__name__}:unknown"}},
            "data.name",
            "the targets contain NaN or infinity",
        ),
        (
            "language_model",
            {"model": {"name": "gpt", "options": {"sequence": 8}}},
            "model.name",
            "got 16 tokens, but the model has 8 positions; leave model.options.sequence out",
        ),
        (
            "language_model",
            {"model": {"name": f"{__name__}:short"}},
            "model.name",
            r"given tokens of shape \[2, 16\], it raised IndexError: .* or change data.sequence",
        ),
        ("segmentation", {"model": {"name": "torch.nn:Flatten"}}, "model.name", "all of its par"),
        ("multi_label", {"model": LINEAR}, "model.name", "raised TypeError"),
        ("regression", {"task": f"{__name__}:Unsummed"}, "task", r"; got shape \[2, 2\]"),
        ("own", {"task": "language_model"}, "model.name", "its output is dict"),
        (
            "language_model",
            {
                "strategy": {"name": "pipeline", "micro_batches": 2},
                "resources": {"workers": 2, "device": "cpu"},
            },
            "strategy.name",
            r"several blocks contain embedding\.token\.weight; weights cannot be tied",
        ),
    ],
)
def test_one_batch_names_what_is_wrong(
    case: str, changes: dict[str, Any], key: str, message: str, tmp_path: Path
) -> None:
    plan = plan_of(case, tmp_path, **changes)
    assert unproven([plan])
    (found,) = mistakes(plan)
    assert found.key == key

    assert re.search(message, found.message), found.message


@pytest.mark.parametrize(
    ("names", "primary", "chosen"),
    [
        (("one", "two"), "", "one"),
        (("one", "two"), "two", "two"),
        (("one", "two"), "three", None),
        (("one", "one"), "one", None),
        (("one", "loss"), "", None),  # val_loss is another figure
        (("F1",), "", None),
        (("f1/macro",), "", None),
    ],
)
def test_a_task_has_metrics_of_different_names_one_of_them_primary(
    names: tuple[str, ...], primary: str, chosen: str | None
) -> None:
    metrics = tuple(Metric(name, name, name, lambda sums, total: total.loss) for name in names)
    kind: type[Task] = type("Odd", (Unsummed,), {"metrics": metrics, "primary": primary})
    with nullcontext() if chosen else pytest.raises(UserError, match=r"task .*:Odd'"):
        facts = kind.facts()
        assert ([each.name for each in facts.metrics], facts.primary) == ([*names], chosen)
    kind.metrics = names  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"task .*:Odd' has no metrics"):
        kind.facts()


def uneven(split: str) -> Samples:
    return Samples(split, lambda draw: torch.zeros(2))


def unknown(split: str) -> Samples:
    return Samples(split, lambda draw: (torch.zeros(3), torch.full((2,), torch.nan)))


def beyond(split: str) -> Samples:
    return Samples(split, lambda draw: (torch.zeros(1, 6, 6), torch.full((6, 6), 3)))


def tenths(split: str) -> Samples:
    return Samples(split, lambda draw: (torch.zeros(1, 6, 6), torch.full((6, 6), 0.1)))


def twos(split: str) -> Samples:
    inputs = (torch.zeros(3), torch.zeros(2))
    return Samples(split, lambda draw: (inputs, torch.full((4,), 2.0)))


def words(split: str) -> Samples:
    return Samples(split, lambda draw: (torch.zeros(4, dtype=torch.int64), torch.full((4,), 9)))


class _Short(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.places, self.out = nn.Embedding(4, 2), nn.Linear(2, num_classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1]).expand_as(tokens)
        return self.out(self.places(places))


def short(num_classes: int) -> nn.Module:
    """It takes four tokens at most."""
    return _Short(num_classes)


class Own(Copy):
    """Its loss takes another output than the network's."""

    def loss(self, output: Any, targets: torch.Tensor) -> torch.Tensor:
        return super().loss(output["answers"], targets)


class Without(Task):
    """No metrics."""

    def loss(self, output: Any, targets: Any) -> torch.Tensor:
        return nn.functional.mse_loss(output, targets, reduction="sum")


class Unsummed(Task):
    """A loss for each number."""

    metrics = (Metric("mean_loss", "Loss", "The loss", lambda sums, total: total.loss),)

    def loss(self, output: Any, targets: Any) -> torch.Tensor:
        return nn.functional.mse_loss(output, targets, reduction="none")
