"""`raysuite schema`: the JSON Schema of a spec."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from raysuite.cli.console import print_json, print_text

if TYPE_CHECKING:
    from raysuite.spec.json_schema import Schema

# The keys of a spec as Markdown tables, from the JSON Schema; docs/conf.py adds them to a page.


def spec_tables(schema: Schema) -> str:
    """One table for the whole spec, and one for each block of options."""
    from raysuite.spec.json_schema import SEARCH_BLOCKS, blocks_of, blocks_under

    required = {"name", "model", "data", "training"}
    parts = ["## The whole spec", _table(schema, required)]
    for key in schema["properties"]:
        parts += _blocks(key, blocks_under(schema, key))
    search = schema["$defs"]["SearchOptions"]["properties"]
    parts += _blocks("search.space.KEY", [schema["$defs"]["Dimension"]])
    for key in SEARCH_BLOCKS:
        parts += _blocks(f"search.{key}", blocks_of(schema, search[key]))
    return "\n\n".join(parts)


def _blocks(key: str, blocks: list[Schema]) -> list[str]:
    parts = []
    for block in blocks:
        name = block["properties"].get("name", {})
        chosen = len(blocks) > 1 or "const" in name
        title = f"`{key}: {name['const']}`" if chosen else f"`{key}`"
        parts += [f"## {title}", block["description"]]
        parts.append(_table(block, set(block.get("required", []))))
    return parts


def _table(block: Schema, required: set[str]) -> str:
    rows = ["| key | values | default | meaning |", "| --- | --- | --- | --- |"]
    for key, prop in block["properties"].items():
        if "const" in prop:
            continue  # the title has it
        default = "required" if key in required else _default(prop)
        meaning = " ".join(prop.get("description", "").split())
        cells = (f"`{key}`", _values(prop), default, meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) if len(rows) > 2 else "No further keys."


def _default(prop: Schema) -> str:
    value = prop.get("default")
    if isinstance(value, dict) and "name" in value:
        value = value["name"]
    if value is None or value == "" or isinstance(value, dict):
        return ""
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`"


def _values(prop: Schema) -> str:
    """The valid values, in a few words."""
    if "$ref" in prop:
        return "block"
    if "enum" in prop:
        return ", ".join(f"`{value}`" for value in prop["enum"])
    if "const" in prop:
        return f"`{prop['const']}`"
    if "anyOf" in prop:
        options = [option for option in prop["anyOf"] if option.get("type") != "null"]
        if any(len(option.get("enum", [])) > 20 for option in options):
            return "name"
        words = dict.fromkeys(_values(option) for option in options)
        return ", ".join(words)
    kind = prop["type"] if isinstance(prop["type"], str) else prop["type"][0]
    name = {"integer": "whole number", "array": "list", "object": "mapping", "string": "text"}
    return name.get(kind, {"boolean": "`true`, `false`"}.get(kind, kind)) + _limits(prop)


def _limits(prop: Schema) -> str:
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    limits = [f"{sign} {prop[word]:g}" for word, sign in signs.items() if word in prop]
    return " " + " and ".join(limits) if limits else ""


def schema(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print tables for people instead.")
    ] = False,
    records: Annotated[
        bool, typer.Option("--records", help="Of a line of a journal and of --json instead.")
    ] = False,
) -> None:
    """Print the JSON Schema of a spec, with which an editor completes and checks it.

    \b
    Examples:
      raysuite schema > spec.schema.json
      raysuite schema --markdown
      raysuite schema --records > records.schema.json
    """
    from raysuite.records.schema import record_schema
    from raysuite.spec import spec_schema

    if markdown and not records:
        print_text(spec_tables(spec_schema()))
    else:
        print_json(record_schema() if records else spec_schema())
