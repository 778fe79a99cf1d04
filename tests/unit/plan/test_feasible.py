"""What cannot be run is told by `plan`, with the key to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.errors import Mistake, SpecError
from raysuite.plan import dataset, make_plans
from raysuite.spec import parse_document

BASE = """\
name: a
model: {MODEL}
data: {DATA}
training: {TRAINING}
"""


def mistakes(
    text: str,
    model: str = "resnet20",
    data: str = "digits",
    training: str = "{epochs: 1, global_batch: 8}",
    gpus: int = 0,
) -> list[Mistake]:
    base = BASE.format(MODEL=model, DATA=data, TRAINING=training)
    try:
        make_plans(parse_document(base + text, "x.yaml"), gpus)
    except SpecError as error:
        return list(error.mistakes)
    return []


@pytest.mark.parametrize(
    ("text", "training", "key", "words"),
    [
        ("resources: {workers: 2}", "", "resources.workers", "'single' is one process"),
        (
            "resources: {workers: 2, device: gpu}\nstrategy: ddp",
            "",
            "resources.device",
            "2 GPUs; there are 1",
        ),
        ("resources: {workers: 3}\nstrategy: ddp", "", "training.global_batch", "9 would do"),
        ("", "{epochs: 1, global_batch: 9, accumulate: 2}", "training.global_batch", "8 would do"),
        (
            "",
            "{epochs: 1, batch_per_worker: 9, accumulate: 2}",
            "training.batch_per_worker",
            "8 would do",
        ),
        (
            "strategy: {name: horovod, backward_passes_per_step: 4}",
            "{epochs: 1, global_batch: 8, accumulate: 2}",
            "strategy.backward_passes_per_step",
            "they are one thing",
        ),
        (
            "strategy: {name: deepspeed, zero_stage: 0, offload: optimizer}",
            "",
            "strategy.offload",
            "zero_stage 1 or more",
        ),
        (
            "strategy: {name: deepspeed, zero_stage: 2, offload: parameters}",
            "",
            "strategy.offload",
            "zero_stage 3 or more",
        ),
        (
            "optimizer: lars\nstrategy: {name: deepspeed, zero_stage: 1}",
            "",
            "optimizer.name",
            "lars needs the norm of each whole weight tensor",
        ),
        (
            "optimizer: lamb\nstrategy: {name: deepspeed, zero_stage: 3}",
            "",
            "optimizer.name",
            "set strategy.zero_stage to 0, another strategy, or optimizer to sgd or adamw",
        ),
        (
            "strategy: {name: deepspeed, zero_stage: 3}",
            "{epochs: 1, global_batch: 8, ema_decay: 0.99}",
            "training.ema_decay",
            "set strategy.zero_stage to 2 or less",
        ),
        (
            "loader: {name: dali, device: gpu}\nresources: {device: cpu}",
            "",
            "loader.device",
            "resources.device is cpu",
        ),
        (
            "loader: {name: dali, device: gpu}\nresources: {workers: 2}\nstrategy: ddp",
            "",
            "loader.device",
            "there are 1 GPUs for 2 workers",
        ),
    ],
)
def test_one_reason(text: str, training: str, key: str, words: str) -> None:
    (found,) = mistakes(text, training=training or "{epochs: 1, global_batch: 8}", gpus=1)
    assert found.key == key
    assert words in found.message
    assert found.line is not None


@pytest.mark.parametrize(
    "text",
    [
        "strategy: {name: horovod, backward_passes_per_step: 4}",
        "strategy: {name: deepspeed, zero_stage: 3, offload: parameters}",
        "strategy: {name: deepspeed, zero_stage: 0}\noptimizer: lamb",
        "strategy: {name: deepspeed, zero_stage: 3}\noptimizer: adamw",
        "loader: {name: dali, device: gpu}",
        "loader: {name: dali, device: cpu}\nresources: {device: cpu}",
    ],
)
def test_what_is_feasible(text: str) -> None:
    assert mistakes(text, gpus=1) == []


@pytest.mark.parametrize(
    ("model", "data", "key", "words"),
    [
        ("alexnet", "{name: digits, image_size: 64}", "data.channels", "set data.channels to 3"),
        ("alexnet", "{name: digits, channels: 3}", "data.image_size", "63 pixels or more"),
        ("vit_b_16", "{name: digits, channels: 3, image_size: 30}", "data.image_size", "32 would"),
        ("{name: vgg11, options: {stem: large}}", "digits", "model.options.stem", "stem to small"),
        ("{name: resnet18, options: {stem: tall}}", "digits", "model.options.stem", "'tall'"),
        ("{name: resnet20, options: {stem: small}}", "digits", "model.options.stem", "leave stem"),
    ],
)
def test_images_that_a_model_does_not_take(model: str, data: str, key: str, words: str) -> None:
    (found,) = mistakes("", model=model, data=data)
    assert found.key == key
    assert words in found.message
    assert found.line is not None


@pytest.mark.parametrize(
    "model", ["resnet18", "vgg16", "mobilenet_v2", "'my.own:Net'", "'timm:vit_tiny_patch16_224'"]
)
def test_images_that_a_model_takes(model: str) -> None:
    assert mistakes("", model=model) == []


def test_all_reasons_of_all_runs_each_once_and_at_the_line_of_the_value() -> None:
    text = """\
repeats: 3
matrix:
  resources.workers:
    - 1
    - 2
    - 3
  strategy:
    - single
    - ddp
"""
    found = [(mistake.key, mistake.line) for mistake in mistakes(text)]
    assert found == [
        ("training.global_batch", 4),
        ("resources.workers", 9),
        ("resources.workers", 10),
    ]


def image_folder(root: Path, images: dict[str, int]) -> Path:
    for place, count in images.items():
        (root / place).mkdir(parents=True)
        for number in range(count):
            (root / place / f"{number}.{'PNG' if number % 2 else 'jpeg'}").touch()
        (root / place / "notes.txt").touch()
    return root


def look(root: Path) -> list[Mistake]:
    return mistakes("", data=f"{{name: image_folder, path: '{root}', image_size: 8}}")


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ({}, "no folder ROOT; expected is PATH/train/CLASS"),
        ({"train/a": 1}, "no folder ROOT/val; expected"),
        ({"other/a": 1}, "no folder ROOT/train and no folder ROOT/val; expected"),
        ({"train/a": 0, "val/a": 0}, "no images in train and val of ROOT"),
        ({"train/a": 1, "val/a": 0}, "no images in val of ROOT"),
        ({"train/a": 1, "val/a": 1, "val/b": 1}, "in ROOT that fails for b"),
        ({"train/a": 1, "train/b": 0, "val/a": 1, "val/b": 1}, "in ROOT that fails for b"),
    ],
)
def test_folders_that_are_no_data_set(tmp_path: Path, images: dict[str, int], words: str) -> None:
    (found,) = look(image_folder(tmp_path / "set", images))
    assert found.key == "data.path"
    assert found.line == 3
    assert words.replace("ROOT", str(tmp_path / "set")) in found.message


def test_a_folder_is_looked_into_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder(tmp_path / "s", {"train/a": 5, "train/b": 4, "val/a": 2, "val/b": 1})
    seen: list[Path] = []
    count = dataset._classes
    monkeypatch.setattr(dataset, "_classes", lambda split: (seen.append(split), count(split))[1])
    text = BASE.format(
        MODEL="resnet20",
        DATA=f"{{name: image_folder, path: '{root}', image_size: 16}}",
        TRAINING="{epochs: 1, global_batch: 2}",
    )
    plans = make_plans(parse_document(text + "repeats: 3\nmatrix: {seed: [0, 9]}", "x"), 0)
    assert len(plans) == 6
    assert len(seen) == 2
    facts = plans[0].dataset
    assert (facts.train_samples, facts.val_samples, facts.classes) == (9, 3, 2)
    assert (facts.channels, facts.image_size) == (3, 16)
    assert plans[0].steps_per_epoch == 5
