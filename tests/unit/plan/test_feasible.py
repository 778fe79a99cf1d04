"""What cannot be run is told by `plan`, with the key to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.errors import Mistake, SpecError
from raysuite.plan import make_plans
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
    return mistakes_of(BASE.format(MODEL=model, DATA=data, TRAINING=training) + text, gpus)


def mistakes_of(text: str, gpus: int = 0) -> list[Mistake]:
    try:
        make_plans(parse_document(text, "x.yaml"), gpus)
    except SpecError as error:
        return list(error.mistakes)
    return []


TWO = "resources: {workers: 2}\n"
PIPEDREAM = TWO + "strategy: {name: pipeline, schedule: pipedream}"
CPU = "resources: {device: cpu}\n"
NORM = "measure: {figures: gradient_norm}"
ZERO = "strategy: {name: deepspeed, zero_stage: "
DALI_ON_GPU = "loader: {name: dali, device: gpu}\n"


@pytest.mark.parametrize(
    ("text", "training", "key", "words"),
    [
        (TWO, "", "resources.workers", "one process"),
        ("resources: {workers: 2, device: gpu}\nstrategy: ddp", "", "resources.device", "are 1"),
        ("resources: {workers: 3}\nstrategy: ddp", "", "training.global_batch", "give 9"),
        ("loader: synthetic", "sampler: balanced", "loader.name", "training.sampler"),
        ("", "class_weights: [1, 2]", "training.class_weights", "has 10 classes"),
        ("", f"class_weights: {[0] * 10}", "training", "every weight is 0"),
        ("", "class_weights: auto, sampler: balanced", "training.class_weights", "leave one"),
        ("", "global_batch: 1438", "training.global_batch", "1,438 samples"),
        (f"{TWO}strategy: ddp", "batch_per_worker: 719", "training.batch_per_worker", "2 workers"),
        ("", "global_batch: 9, accumulate: 2", "training.global_batch", "give 8"),
        ("", "batch_per_worker: 9, accumulate: 2", "training.batch_per_worker", "give 8"),
        ("", "batch_per_worker: 1, accumulate: 4", "training.batch_per_worker", "give 4"),
        ("", "global_batch: 1, accumulate: 4", "training.global_batch", "give 4"),
        ("strategy: pipeline\nresources: {workers: 3}", "", "resources.workers", "among 2 workers"),
        ("strategy: fsdp\noptimizer: lars", "", "optimizer.name", "valid: sgd or adamw or"),
        (PIPEDREAM, "precision: fp16", "training.precision", "1f1b"),
        (PIPEDREAM, "ema_decay: 0.9", "training.ema_decay", "1f1b"),
        (f"{PIPEDREAM}\n{NORM}", "", "measure.figures", "1f1b"),
        ("measure: {figures: [gradient]}", "", "measure.figures", "mean 'gradient_norm'"),
        (f"{CPU}strategy: jax\n{NORM}", "", "measure.figures", "use strategy single, "),
        (
            f"{TWO}strategy: pipeline",
            "batch_per_worker: auto",
            *("training.batch_per_worker", "strategy.micro_batches: auto"),
        ),
        (
            f"{TWO}strategy: {{name: pipeline, micro_batches: 4}}",
            "global_batch: 6",
            *("training.global_batch", "give 8"),
        ),
        (
            "strategy: {name: pipeline, micro_batches: 4}\nresources: {workers: 4}",
            "global_batch: 13",
            *("training.global_batch", "13, which is not divisible by 2 copies of the"),
        ),
        (
            f"{TWO}strategy: {{name: pipeline, micro_batches: 4}}",
            "accumulate: 2",
            *("strategy.micro_batches", "both set the number of micro-batches"),
        ),
        (f"{ZERO}0, offload: optimizer}}", "", "strategy.offload", "zero_stage 1 or more"),
        (f"{ZERO}2, offload: parameters}}", "", "strategy.offload", "zero_stage 3 or more"),
        (f"optimizer: lars\n{ZERO}1}}", "", "optimizer.name", "whole weight tensor"),
        (f"optimizer: lamb\n{ZERO}3}}", "", "optimizer.name", "strategy.zero_stage to 0"),
        (f"{ZERO}3}}", "ema_decay: 0.99", "training.ema_decay", "strategy.zero_stage to 2"),
        (f"{DALI_ON_GPU}resources: {{device: cpu}}", "", "loader.device", "resources.device is"),
        (f"{DALI_ON_GPU}{TWO}strategy: ddp", "", "loader.device", "1 GPUs for 2"),
        (
            "measure: {profile: nsight}\nresources: {device: cpu}",
            "",
            *("measure.profile", "off and torch"),
        ),
    ],
)
def test_one_reason(text: str, training: str, key: str, words: str) -> None:
    batch = "" if "batch" in training else "global_batch: 8, "
    (found,) = mistakes(text, training=f"{{epochs: 1, {batch}{training}}}", gpus=1)
    assert found.key == key
    assert words in found.message
    assert found.line is not None


TEXT = "{name: text, path: TEXTS, sequence: 8}"
OF_TOKENS = "task: language_model\n"
TRAINED = "{epochs: 1, global_batch: 2, KEY}"


@pytest.fixture
def texts(tmp_path: Path) -> str:
    for split in ("train", "val"):
        (tmp_path / f"{split}.txt").write_text("a few words of text, more than a batch holds")
    return TEXT.replace("TEXTS", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "data", "training", "key", "words"),
    [
        ("", "", "", "task", "text are tokens; set task to language_model"),
        (OF_TOKENS, "digits", "", "data.name", "valid: text, python_topics, tokens, or"),
        (OF_TOKENS, "{name: digits, image_size: 16}", "", "data.name", "valid: text"),
        (f"{OF_TOKENS}loader: dali", "", "", "loader.name", "language_model: auto, native"),
        (OF_TOKENS, "", "label_smoothing: 0.1", "training.label_smoothing", "is language_model"),
        (OF_TOKENS, "", "class_weights: auto", "training.class_weights", "for classification"),
        (OF_TOKENS, "", "sampler: balanced", "training.sampler", "for classification"),
        (OF_TOKENS, "", "target_accuracy: 0.9", "training.target_accuracy", "for classification"),
        (OF_TOKENS, "", "memory_format: channels_last", "training.memory_format", "for images"),
        ("", "digits", "target: 0.9", "training.target", "set training.target_accuracy"),
        ("", "'my:Set'", "", "data", "my:Set needs `image_size`"),
        (
            "task: regression",
            "{name: 'my:Set', image_size: 8}",
            *(
                "",
                "data.image_size",
                "for the task regression, samples are passed to the network unchanged",
            ),
        ),
        (
            "task: regression",
            "{name: 'my:Set', bad_samples: skip}",
            *("", "data.bad_samples", "skip is for images"),
        ),
        (
            "optimizer: schedule_free",
            *("digits", "ema_decay: 0.9", "training.ema_decay", "schedule_free averages"),
        ),
    ],
)
def test_what_goes_with_another_task(
    text: str, data: str, training: str, key: str, words: str, texts: str
) -> None:
    model = "'my:Net'" if "regression" in text or "my:" in data else "resnet20"
    model = "gpt" if OF_TOKENS in text and data != "digits" else model
    found = mistakes(
        text, model, data or texts, TRAINED.replace("KEY", training).replace(", }", "}")
    )
    (mistake,) = [each for each in found if each.key == key]
    assert words in mistake.message
    others = {"data.name", "model.name", "task"} - {key}  # of what is not there to be imported
    assert {each.key for each in found} - {key} <= others


def test_text_goes_with_its_task(texts: str) -> None:
    assert mistakes(OF_TOKENS, "gpt", texts, "{epochs: 1, global_batch: 2}") == []
    augmented = "{name: 'my:Set', augment: none}"
    found = mistakes("task: regression", "'my:Net'", augmented)
    assert "data.augment" not in {each.key for each in found}, "of an image and its mask"


@pytest.mark.parametrize(
    ("more", "key", "words"),
    [
        ("", "", ""),
        ("script: {command: nothing.py}", "script.command", "nothing.py is not there"),
        ("script: {command: FOLDER}", "script.command", "is a folder"),
        ("script: {command: '-m a.module'}", "", ""),
        ("script: {command: [FILE, '{1 // 0}']}", "script.command", "{1 // 0}"),
        ("script: {command: FILE, environment: {A: '{b}'}}", "script.environment", "'b'"),
        (
            "script: {command: FILE, samples_per_step: '1 / 0'}",
            "script.samples_per_step",
            "{1 / 0}",
        ),
        ("measure: {profile: nsight}", "measure.profile", "valid: off and torch"),
        ("measure: {profile: torch}", "", ""),
        (NORM, "measure.figures", "leave it out"),
        ("resources: {elastic: true}", "resources.elastic", "leave it out"),
        ("resources: {device: gpu}", "resources.device", "there are 0"),
    ],
)
def test_what_a_script_cannot_have(more: str, key: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.touch()
    script = "" if "script:" in more else "script: {command: FILE}\n"
    text = f"name: a\n{script}{more}\n".replace("FILE", str(file))
    found = mistakes_of(text.replace("FOLDER", str(tmp_path)), gpus=int("nsight" in more))
    assert [each.key for each in found] == ([key] if key else [])
    assert all(words in each.message for each in found)


def test_a_step_may_take_the_whole_training_set() -> None:
    assert mistakes("", training="{epochs: 1, global_batch: 1437}") == []
    assert mistakes(f"{TWO}strategy: ddp", training="{epochs: 1, batch_per_worker: 718}") == []


@pytest.mark.parametrize(("share", "feasible"), [(6, True), (8, True), (5, False), (7, False)])
def test_the_batch_of_a_pipeline_is_that_of_all_its_stages(share: int, feasible: bool) -> None:
    pipeline = "strategy: {name: pipeline, schedule: gpipe, stages: 2, micro_batches: 4}"
    training = f"{{epochs: 1, batch_per_worker: {share}}}"
    found = mistakes(f"{TWO}{pipeline}", training=training)  # 2 * share in 4 micro-batches
    assert [each.key for each in found] == ([] if feasible else ["training.batch_per_worker"])


@pytest.mark.parametrize("loader", ["dali", "synthetic"])
def test_a_transform_where_no_python_is_called(loader: str) -> None:
    data = "{name: digits, transform: 'my:cutout'}"
    (found,) = mistakes(f"loader: {loader}", data=data)
    assert found.key == "loader.name"
    assert "native, memory, ray_data" in found.message
    assert mistakes("loader: memory", data=data) == []


@pytest.mark.parametrize(
    "text",
    [
        "strategy: {name: deepspeed, zero_stage: 3, offload: parameters}",
        "strategy: {name: deepspeed, zero_stage: 0}\noptimizer: lamb",
        "strategy: {name: deepspeed, zero_stage: 3}\noptimizer: adamw",
        "measure: {profile: nsight}",
        f"strategy: deepspeed\n{NORM}",
        f"{TWO}strategy: {{name: pipeline, micro_batches: 2}}",
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
        ("vit_b_16", "{name: digits, channels: 3, image_size: 30}", "data.image_size", "give 32"),
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
