"""The JSON Schema of a spec, with which editors complete keys, describe them and mark mistakes."""

from __future__ import annotations

from typing import Any

from raysuite.spec.base import IMPORT_PATH
from raysuite.spec.batches import AUTO
from raysuite.spec.datasets import DATASETS
from raysuite.spec.descriptions import DescribedSchema
from raysuite.spec.experiment import FREE_FORM, NOT_IN_A_MATRIX, ExperimentSpec
from raysuite.spec.optimizers import UNNAMED_OPTIMIZER
from raysuite.spec.stems import MODELS
from raysuite.spec.tasks import TASKS

Schema = dict[str, Any]

SEARCH_BLOCKS = ("searcher", "scheduler")
"""Keys of `search` whose value is a block that is chosen by its name."""


def spec_schema() -> Schema:
    """JSON Schema (draft 2020-12) of a spec as users write it, including shorthand and matrix.

    It has the types of each key's value. Rules that involve several keys are checked only by
    `raysuite plan`.
    """
    schema = ExperimentSpec.model_json_schema(schema_generator=DescribedSchema)
    blocks, keys = schema["$defs"], schema["properties"]
    for block in [schema, *blocks.values()]:
        for prop in block["properties"].values():
            prop.pop("title", None)
    known_names = {"ModelOptions": MODELS, "DataOptions": DATASETS, "TaskOptions": TASKS}
    for block, known in known_names.items():
        name = blocks[block]["properties"]["name"]
        del name["type"]
        name["anyOf"] = [{"enum": list(known)}, {"type": "string", "pattern": IMPORT_PATH}]

    for block in ("TrainingOptions", "PipelineOptions"):
        for prop in blocks[block]["properties"].values():
            _with_auto(prop)
    for key, prop in keys.items():
        choices = blocks_under(schema, key)
        if choices and all("name" in block["properties"] for block in choices):
            keys[key] = _with_shorthand(prop, choices)
        elif choices:
            prop.setdefault("description", choices[0]["description"])
    search = blocks["SearchOptions"]["properties"]
    for key in SEARCH_BLOCKS:
        search[key] = _with_shorthand(search[key], blocks_of(schema, search[key]))
    keys["matrix"] = _matrix(schema)
    elsewhere = [key for key in schema["required"] if key not in NOT_IN_A_MATRIX]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "raysuite experiment",
        "required": [key for key in schema["required"] if key not in elsewhere],
        "allOf": [_given_or_swept(key) for key in elsewhere],
    }


def blocks_under(schema: Schema, key: str) -> list[Schema]:
    """The schemas of the blocks of options that are valid for a top-level key of the spec."""
    return blocks_of(schema, schema["properties"][key])


def blocks_of(schema: Schema, prop: Schema) -> list[Schema]:
    """The schemas of the blocks of options that are valid for a key with the schema `prop`."""
    choices = [prop, *prop.get("oneOf", []), *prop.get("anyOf", [])]
    names = [choice["$ref"].rpartition("/")[2] for choice in choices if "$ref" in choice]
    return [schema["$defs"][name] for name in names]


def _with_shorthand(prop: Schema, choices: list[Schema]) -> Schema:
    """Schema of a block that is chosen by its name. The name alone is valid too, if the block
    requires no other key."""
    if len(choices) > 1:
        for block in choices:  # the name chooses the block, so it is required
            if block["properties"]["name"].get("const") != UNNAMED_OPTIMIZER:
                block["required"] = ["name", *block.get("required", [])]
    alone = [block for block in choices if set(block.get("required", [])) <= {"name"}]
    names = [block["properties"]["name"] for block in alone]
    shorthand = [
        {word: name[word] for word in ("const", "enum", "anyOf") if word in name} for name in names
    ]
    shown: Schema = {"description": prop.get("description", choices[0].get("description", ""))}
    if "default" in prop:
        shown["default"] = prop["default"]
    refs = prop.get("oneOf") or [{"$ref": prop["$ref"]}]
    return {**shown, "anyOf": [*shorthand, *refs]}


def _with_auto(prop: Schema) -> None:
    """Allow `auto` in addition to a number and to the block of AutoBatch."""
    for options in [prop, *prop.get("anyOf", [])]:
        if "oneOf" in options:
            choices = [*options.pop("oneOf"), {"const": AUTO}]
            options["anyOf"] = choices


def _matrix(schema: Schema) -> Schema:
    """The JSON Schema of `matrix`: dotted key -> schema of the list of the key's values."""
    sweeps: dict[str, list[Schema]] = {}
    for key, prop in schema["properties"].items():
        if key not in NOT_IN_A_MATRIX:
            sweeps[key] = [prop]
            for block in blocks_under(schema, key):
                for below, value in block["properties"].items():
                    sweeps.setdefault(f"{key}.{below}", []).append(value)
    lists = {
        key: {
            "description": values[0].get("description", ""),
            "type": "array",
            "minItems": 1,
            "items": values[0] if len(values) == 1 else {"anyOf": values},
        }
        for key, values in sweeps.items()
    }
    free = "|".join(prefix.replace(".", r"\.") for prefix in FREE_FORM)
    return {
        "description": schema["properties"]["matrix"]["description"],
        "type": ["object", "null"],
        "properties": lists,
        "patternProperties": {
            f"^({free})[^,]*$": {"type": "array", "minItems": 1},
            "^[^,]+(,[^,]+)+$": {
                "description": "Keys that vary together; each item has one value per key.",
                "type": "array",
                "minItems": 1,
                "items": {"type": "array", "minItems": 2},
            },
        },
        "additionalProperties": False,
    }


def _given_or_swept(key: str) -> Schema:
    """Require a block, unless the matrix or the search space has it, or a script replaces it."""
    swept = {"properties": {"matrix": {"required": [key]}}, "required": ["matrix"]}
    space = {"properties": {"space": {"required": [key]}}, "required": ["space"]}
    searched = {"properties": {"search": space}, "required": ["search"]}
    return {"anyOf": [{"required": [key]}, {"required": ["script"]}, swept, searched]}
