"""The JSON Schema accepts what raysuite accepts, and describes every key."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from raysuite.spec import load_spec, parse_document, read_document, spec_schema
from raysuite.spec.checking import dotted_keys
from raysuite.spec.experiment import NOT_IN_A_MATRIX

SCHEMA = spec_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
EXPERIMENTS = sorted((Path(__file__).parents[3] / "experiments").rglob("*.yaml"))
LEAST = "name: a\nmodel: resnet20\ndata: digits\ntraining: {epochs: 1, global_batch: 8}\n"


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["title"] == "raysuite experiment"
    assert SCHEMA["$schema"].startswith("https://json-schema.org/")
    assert "$id" not in SCHEMA


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda file: file.name)
def test_our_experiments_fit(file: Path) -> None:
    VALIDATOR.validate(read_document(file).data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "strategy: ddp\nloader: dali\noptimizer: sgd\nschedule: cosine\n",
        "strategy: {name: deepspeed, zero_stage: 3}\n",
        "strategy: {name: pipeline, schedule: gpipe, micro_batches: auto}\n",
        "schedule: {name: step, milestones: [1, 2.5]}\n",
        "strategy: {name: custom, target: 'a.b:C', options: {x: [1]}}\n",
        "optimizer: {lr: 1e-3}\n",
        "optimizer: {name: lamb, betas: [0.9, 0.99], lr_scaling: sqrt, lr_reference_batch: 256}\n",
    ],
)
def test_valid_specs_fit(text: str) -> None:
    document = parse_document(LEAST + text, "x")
    load_spec(document)
    VALIDATOR.validate(document.data)


@pytest.mark.parametrize(
    "text",
    [
        "matrix:\n",
        "matrix: {strategy: [ddp, {name: horovod, cycle_time_ms: 2}], resources.workers: [1, 2]}\n",
        "matrix: {model.options.width.deep: [1, 2], strategy.zero_stage: [1]}\n",
        "matrix: {'data.name, training.epochs': [[digits, 1], [mnist, 2]]}\n",
        "scales: {laptop: {training.epochs: 1, matrix: {seed: [1]}}}\n",
        "synthetic_data: {mnist: {images: 700}, imagenet: {size: 64x48, fraction: 0.1}}\n",
        "search: {trials: 3, space: {optimizer.lr: {loguniform: [0.1, 1]}}, scheduler: asha}\n",
        "search: {space: {seed: {grid: [0, 1]}}, searcher: {name: optuna, sampler: nsga2}}\n",
    ],
)
def test_a_matrix_fits(text: str) -> None:
    VALIDATOR.validate(parse_document(LEAST + text, "x").data)


def test_a_required_block_may_stand_in_the_matrix() -> None:
    text = LEAST.replace("model: resnet20\n", "matrix: {model: [resnet20, resnet32]}\n")
    VALIDATOR.validate(parse_document(text, "x").data)


def test_a_required_block_may_stand_in_the_space() -> None:
    text = LEAST.replace("model: resnet20\n", "search: {space: {model: {choice: [resnet20]}}}\n")
    VALIDATOR.validate(parse_document(text, "x").data)


@pytest.mark.parametrize(
    "text",
    [
        "strategy: dpp\n",
        "strategy: custom\n",
        "strategy: {bucket_mb: 3}\n",
        "strategy: {name: ddp, zero_stage: 1}\n",
        "workers: 2\n",
        "optimizer: {lr: -1}\n",
        "optimizer: {trust_coefficient: 0.1}\n",
        "optimizer: {lr: fast}\n",
        "matrix: {strategyy: [ddp]}\n",
        "matrix: {strategy: []}\n",
        "matrix: {strategy: [dpp]}\n",
        "matrix: {repeats: [1]}\n",
        "search: {trials: 3}\n",
        "search: {space: {seed: {uniform: [0]}}}\n",
        "search: {space: {seed: {grid: [0]}}, scheduler: ahsa}\n",
        "search: {space: {seed: {grid: [0]}}, goal: speed}\n",
    ],
)
def test_mistakes_do_not_fit(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(parse_document(LEAST + text, "x").data)


@pytest.mark.parametrize("gone", ["name", "model", "data", "training"])
def test_required_keys(gone: str) -> None:
    data = parse_document(LEAST, "x").data
    del data[gone]
    assert not VALIDATOR.is_valid(data)


def test_every_key_has_a_description() -> None:
    blocks = {"": SCHEMA, **SCHEMA["$defs"]}
    bare = [
        f"{title}.{key}"
        for title, block in blocks.items()
        for key, prop in block["properties"].items()
        if not prop.get("description") and "const" not in prop
    ]
    assert bare == []


def test_a_matrix_knows_every_key_of_a_run() -> None:
    single = set(SCHEMA["properties"]["matrix"]["properties"])
    others = {key.partition(".")[0] for key in set(dotted_keys()) - single}
    assert others == set(NOT_IN_A_MATRIX)
