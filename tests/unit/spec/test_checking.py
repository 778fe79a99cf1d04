"""Plain data -> ExperimentSpec, and every mistake in it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from raysuite.errors import Mistake, SpecError
from raysuite.spec import ExperimentSpec, load_spec, parse_document, suggest
from raysuite.spec.checking import dotted_keys
from raysuite.spec.data_set import DataOptions

BASE = """\
name: a
model: resnet20
data: digits
training: {epochs: 1, global_batch: 8}
"""


def load(text: str) -> ExperimentSpec:
    return load_spec(parse_document(BASE + text, "x.yaml"))


def mistakes(text: str, base: str = BASE) -> tuple[Mistake, ...]:
    with pytest.raises(SpecError) as caught:
        load_spec(parse_document(base + text, "x.yaml"))
    return caught.value.mistakes


def test_the_least_spec_has_all_defaults() -> None:
    spec = load("")
    assert spec.strategy.name == "single"
    assert spec.loader.name == "native"
    assert spec.optimizer.name == "sgd"
    assert spec.schedule.name == "constant"
    assert (spec.repeats, spec.seed, spec.resources.workers) == (1, 0, 1)


def test_a_name_stands_for_its_block() -> None:
    text = "strategy: {S}\nloader: {L}\nschedule: {C}\n"
    short = load(text.format(S="ddp", L="dali", C="cosine"))
    long = load(text.format(S="{name: ddp}", L="{name: dali}", C="{name: cosine}"))
    assert short == long


def test_a_spec_survives_json() -> None:
    spec = load("strategy: {name: deepspeed, zero_stage: 3}\nschedule: step\n")
    assert ExperimentSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load("").training.epochs = 3  # type: ignore[misc]


def test_all_mistakes_at_once_in_the_order_of_their_lines() -> None:
    text = """\
name: a b
model: resnet21
training: {epochs: 0, global_batch: x}
strateggy: ddp
optimizer: {lr: -1, momentum: 1}
loader: {name: nativ}
resources: {workers: 0, device: tpu}
"""
    found = mistakes(text, base="")
    assert [(mistake.key, mistake.line) for mistake in found] == [
        ("data", None),
        ("name", 1),
        ("model.name", 2),
        ("training.epochs", 3),
        ("training.global_batch", 3),
        ("strateggy", 4),
        ("optimizer.lr", 5),
        ("optimizer.momentum", 5),
        ("loader", 6),
        ("resources.workers", 7),
        ("resources.device", 7),
    ]
    assert {mistake.file for mistake in found} == {"x.yaml"}


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("workers: 2", "workers", "did you mean 'resources.workers'?"),
        ("epochs: 2", "epochs", "did you mean 'training.epochs'?"),
        ("optimiser: sgd", "optimiser", "'optimizer'"),
        ("strategy: dpp", "strategy", "'ddp'"),
        (
            "strategy: {name: ddp, bucket: 3}",
            "strategy.bucket",
            "did you mean 'strategy.bucket_mb'?",
        ),
        (
            "search: {space: {seed: {randint: [1, 9]}}, trials: 2, "
            "scheduler: {name: asha, gracee: 2}}",
            "search.scheduler.gracee",
            "did you mean 'search.scheduler.",
        ),
        ("strategy: {name: ddp, zero_stage: 1}", "strategy.zero_stage", "a key of deepspeed, but"),
        ("strategy: {name: single, bucket_mb: 3}", "strategy.bucket_mb", "valid: name"),
        ("strategy: 5", "strategy", "`name`: single, ddp"),
        ("strategy: {bucket_mb: 3}", "strategy", "`name`: single, ddp"),
        ("strategy: custom", "strategy.target", "is missing"),
        ("strategy: {name: custom, target: foo}", "strategy.target", "module:attribute"),
        ("optimizer: adam", "optimizer", "'adamw'"),
        (
            "optimizer: {name: lars, nesterov: true}",
            "optimizer.nesterov",
            "a key of sgd, muon, but not",
        ),
        ("optimizer: {lr_scaling: sqrt}", "optimizer", "lr_scaling `sqrt` needs lr_reference"),
        ("optimizer: {name: lamb, betas: [0.9, 1]}", "optimizer.betas.1", "less than 1"),
        ("optimizer: {lr: .inf}", "optimizer.lr", "finite"),
        ("schedule: {name: polynomial, power: 0}", "schedule.power", "greater than 0"),
        ("optimizer: {momentum: 0, nesterov: true}", "optimizer", "nesterov needs a momentum"),
        ("loader: {name: dali, threads: two}", "loader.threads", "got 'two'"),
        ("schedule: {name: step, milestones: [1, x]}", "schedule.milestones.1", "got 'x'"),
        ("schedule: {name: exponential, gamma: 1.5}", "schedule.gamma", "equal to 1"),
        ("seed:", "seed", "got None"),
        (f"seed: 1{'0' * 23}", "seed", "less than"),
        ("resources: {workers: true}", "resources.workers", "got 'true'"),
        ("resources: 4", "resources", "block of keys"),
        ("repeats: " + "9" * 100 + "x", "repeats", "…"),
    ],
)
def test_one_mistake(text: str, key: str, words: str) -> None:
    (found,) = mistakes(text)
    assert found.key == key
    assert found.line == 5
    assert words in found.message


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("training: {epochs: 1}", "global_batch and batch_per_worker"),
        ("training: {epochs: 1, global_batch: 8, batch_per_worker: 8}", "exactly one of"),
        ("data: {name: image_folder}", "needs `path`; image_folder needs `image_size`"),
        (
            "data: {name: image_folder, path: p, image_size: 8, format: tfrecord}",
            "valid: folder",
        ),
        ("data: {name: digits, path: p}", "sets on disk"),
        ("model: 'mine:'", "import path"),
        ("model: 'm y:x'", "import path"),
        ("model: resnet-20", "did you mean resnet20"),
    ],
)
def test_blocks_that_contradict_themselves(block: str, words: str) -> None:
    key = block.partition(":")[0]
    base = "".join(line for line in BASE.splitlines(True) if not line.startswith(key))
    (found,) = mistakes(block, base=base)
    assert words in found.message
    assert found.line == 4


IMAGES = {"name": "image_folder", "path": "p", "image_size": 8}
TOKENS = {"name": "tokens", "path": "p", "sequence": 4, "classes": 9}
OF_IMAGES = {"image_size": 8, "channels": 1, "augment": "none", "mean": [0.1], "std": [0.1]}


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (IMAGES | {"classes": 3}, ["`classes` is not for image_folder"]),
        (IMAGES | {"root": "r"}, ["`root` is only for mnist"]),
        (IMAGES | {"options": {"a": 1}}, ["`options` is only for"]),
        (IMAGES | {"sequence": 4}, ["`sequence` is only for text"]),
        (IMAGES | {"mean": [0.1]}, ["give `mean` and `std` together"]),
        (IMAGES | {"std": [0.1]}, ["give `mean` and `std` together"]),
        (IMAGES | {"mean": [0.1], "std": [0.1, 0.2]}, ["give `mean` and `std` together"]),
        (IMAGES | {"mean": [0.1, 0.2, 0.3], "std": [0.1, 0.2, 0.3]}, []),
        (
            {"name": "tfrecord"},
            ["tfrecord needs `path`", "needs `image_size`", "needs `classes`"],
        ),
        (IMAGES | {"name": "tfrecord", "classes": 3, "format": "tfrecord"}, []),
        ({"name": "text"}, ["text needs `path`", "text needs `sequence`"]),
        ({"name": "tokens"}, ["needs `path`", "needs `sequence`", "needs `classes`"]),
        (TOKENS | OF_IMAGES, [f"`{key}` is for images" for key in OF_IMAGES]),
        (TOKENS | {"transform": "a:b"}, ["`transform` is for images, but tokens has sequences"]),
        (TOKENS, []),
        ({"name": "text", "path": "p", "sequence": 4, "classes": 3}, ["`classes` is not for text"]),
        ({"name": "python_topics"}, ["needs `sequence`"]),
        ({"name": "python_topics", "sequence": 4, "path": "p"}, ["is a part of Python"]),
        ({"name": "digits", "path": "p", "root": "r"}, ["raysuite's cache", "`root` is only for"]),
        ({"name": "digits", "format": "idx"}, ["valid: folder or tfrecord"]),
        ({"name": "mnist", "root": "r"}, []),
        ({"name": "mnist", "root": "r", "path": "p"}, ["`root` is only for"]),
        ({"name": "mnist", "format": "pickle"}, ["valid: idx or folder or tfrecord"]),
        ({"name": "a:b", "classes": 3, "options": {"a": 1}}, []),
        ({"name": "a:b", "path": "p"}, ["give the path of your data in `options`"]),
        ({"name": "a:b", "format": "idx"}, ["valid: none"]),
    ],
)
def test_keys_of_a_data_set_belong_together(data: dict[str, Any], wrong: list[str]) -> None:
    try:
        DataOptions.model_validate(data)
        found = []
    except ValidationError as error:
        [only] = error.errors()
        found = only["msg"].split("; ")
    hints = (
        "leave it out",
        "valid: ",
        "give the path of your data",
        "digits is",
        "python_topics is",
    )
    told = [word for word in found if not word.startswith(hints)]
    assert len(told) == len(wrong), found
    assert all(word in "; ".join(found) for word in wrong), found


def test_a_set_has_its_usual_format_unless_another_is_given() -> None:
    for data, form in (
        (TOKENS, "tokens"),
        (IMAGES, "folder"),
        ({"name": "cifar10"}, "binary"),
        ({"name": "cifar10", "format": "pickle"}, "pickle"),
        ({"name": "imagenet"}, "folder"),
        ({"name": "digits"}, "folder"),
        ({"name": "a:b"}, None),
    ):
        assert DataOptions.model_validate(data).form == form


def test_a_model_of_your_own_is_an_import_path() -> None:
    text = BASE.replace("resnet20", "{name: 'my.models:Net', options: {width: 3}}")
    spec = load_spec(parse_document(text, "x"))
    assert (spec.model.name, spec.model.options) == ("my.models:Net", {"width": 3})


def test_dotted_keys() -> None:
    found = dotted_keys()
    assert {"strategy", "strategy.zero_stage", "resources.workers"} <= set(found)
    assert found == sorted(set(found), key=lambda key: ("." in key, key))


def test_suggest_prefers_what_looks_alike() -> None:
    assert suggest("ddq", ["ddp", "horovod"]) == "did you mean 'ddp'? valid: ddp, horovod"
    assert suggest("xyz", ["ddp"]) == "valid: ddp"


def test_off_is_a_profile_whichever_yaml_reads_it() -> None:
    for word in ("off", "'off'"):
        assert load(f"measure: {{profile: {word}}}\n").measure.profile == "off"
    (mistake,) = mistakes("measure: {profile: on}\n")
    assert mistake.key == "measure.profile"
    assert "nsight" in mistake.message


@pytest.mark.parametrize(
    ("training", "key", "words"),
    [
        ("batch_per_worker: 0", "training.batch_per_worker", "got 0"),
        ("batch_per_worker: many", "training.batch_per_worker", "a valid integer"),
        ("batch_per_worker: {auto: fast}", "training.batch_per_worker.auto", "largest, fastest"),
        ("batch_per_worker: {at_mos: 3}", "training.batch_per_worker.at_mos", "worker.at_most'"),
        ("global_batch: auto", "training.global_batch", "accumulate: auto"),
    ],
)
def test_a_number_or_auto_has_one_mistake(training: str, key: str, words: str) -> None:
    text = f"name: a\nmodel: resnet20\ndata: digits\ntraining: {{epochs: 1, {training}}}\n"
    with pytest.raises(SpecError) as caught:
        load_spec(parse_document(text, "x"))
    (mistake,) = caught.value.mistakes
    assert mistake.key == key
    assert words in mistake.message
