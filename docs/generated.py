"""The pages and tables of docs/reference that are made from the code: `python docs/generated.py`
writes them.

A test compares the committed pages with what this makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

REFERENCE = Path(__file__).parent / "reference"
NOTE = "\n<!-- Made by `python docs/generated.py`. -->\n"


def pages() -> dict[str, str]:
    """The content of each page, by its name in docs/reference."""
    from raysuite.spec.loaders import LOADER_OPTIONS
    from raysuite.spec.strategies import STRATEGY_OPTIONS

    made = {"cli": cli(), "records": records(), "metrics": metrics(), "keys": keys()}
    return {
        **{f"{name}.md": text + NOTE for name, text in made.items()},
        "strategies.md": _with_table("strategies.md", "strategy", STRATEGY_OPTIONS),
        "data.md": _with_table("data.md", "loader", LOADER_OPTIONS),
    }


def _with_table(page: str, kind: str, classes: Mapping[str, Any]) -> str:
    """A page written by hand, with a new table of all strategies or loaders."""
    from raysuite.parts import part

    rows = [f"| {kind} | what happens | needs |", "| --- | --- | --- |"]
    for name, each in classes.items():
        needs = [f"`{part(each.part).install}`"] if each.part else []
        needs += ["CPUs"] if getattr(each, "only", {}).get("resources.device") == ("cpu",) else []
        rows.append(f"| `{name}` | {' '.join(each.__doc__.split())} | {'; '.join(needs)} |")
    text = (REFERENCE / page).read_text("utf-8")
    before, after = re.split(rf"(?m)^\| {kind} \|(?:.*\n\|)*.*\n", text)
    return before + "\n".join(rows) + "\n" + after


def cli() -> str:
    """Every verb with its arguments and options, as Markdown."""
    from click import Context
    from typer.cli import get_docs_for_click

    from raysuite.cli import load_all

    command = load_all()
    text = get_docs_for_click(obj=command, ctx=Context(command), name="raysuite")
    # removed: the sections that follow have the complete descriptions
    text = re.sub(r"(?m)^\*\*Commands\*\*:\n\n(\* .*\n)+\n", "", text)
    text = re.sub(r"(?m)^\* `([^`]*)`", _value, text)
    # examples are indented by two spaces: Markdown's code blocks need four
    text = re.sub(r"(?m)^  (?=\S)", "    ", re.sub(r"\x08\n(Examples?:)\n", r"\1\n\n", text))
    return text.replace("# `raysuite`\n", "# Command line\n", 1)


def _value(line: re.Match[str]) -> str:
    """An option or an argument as the terminal's help writes it."""
    from raysuite.cli.run_options import with_words

    words = line[1]
    if not words.startswith("-"):
        name = words.partition(" <")[0]
        words = name if name != name.lower() else name.upper()
    return f"* `{with_words(words)}`"


def records() -> str:
    """Every kind of line in a journal with its fields, as Markdown."""
    from raysuite.records.schema import Record
    from raysuite.spec.descriptions import descriptions

    parts = [
        "# Records",
        "Each run appends its Records to `RESULTS/runs/RUN_ID/journal.jsonl`, one JSON object a "
        "line. `raysuite run --json` prints the same lines, after a line of kind `results` "
        "(folder, versions of raysuite and of the schema) and before a line of kind `summary` "
        "(folder, number of runs by status). Times are seconds, `time` is seconds "
        "since 1970 (UTC), memory is bytes. Every Record has `kind`, `run_id` and `time`.",
    ]
    for record in get_args(get_args(Record)[0]):
        kind = record.model_fields["kind"].default
        parts += [
            f"## {kind}",
            record.__doc__ or "",
            "| key | type | meaning |\n| --- | --- | --- |",
        ]
        texts = descriptions(record)
        for name, field in record.model_fields.items():
            if name not in ("kind", "run_id", "time"):
                meaning = " ".join(texts.get(name, "").split()).replace("|", "\\|")
                kind = getattr(field.annotation, "__name__", "") or str(field.annotation)
                kind = str(field.annotation) if "[" in str(field.annotation) else kind
                kind = re.sub(r"[\w.]+\.(?=\w)", "", kind).replace("|", "\\|")
                parts[-1] += f"\n| `{name}` | `{kind}` | {meaning} |"
    return "\n\n".join(parts) + "\n"


def metrics() -> str:
    """Every metric of rows.csv, rows.json and MLflow, as Markdown."""
    from raysuite.records.metrics import METRICS

    lines = [
        "# Metrics",
        "",
        "Each metric of a row in rows.json is an object with `mean`, the ends `low` and `high` of "
        "its 95 % interval, `n`, `values` and `outliers`; in rows.csv these are columns, such as "
        "`epoch_s_mean`. Accuracies and shares are in [0, 1]. A metric that needs the gate is "
        "withheld if the gate was not passed. `report --against` compares the metrics "
        "with a name in the column `--against`. [How each is measured](../explanation/method.md).",
        "",
        "| rows.csv, rows.json | unit | over repeats | needs the gate | MLflow | table | "
        "`--against` | what |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in METRICS:
        gate, mlflow = ("yes" if each.needs_gate else "no"), f"`run/{each.mlflow or each.name}`"
        against = f"`{each.compared}`" if each.compared else ""
        lines.append(
            f"| `{each.column}` | {each.unit or '1'} | {each.reduction} | {gate} | {mlflow} | "
            f"{each.table} | {against} | {each.note} |"
        )
    return "\n".join(lines) + "\n"


def keys() -> str:
    """The keys of a spec as Markdown: a table for all of it, and one for each block of options."""
    from raysuite.spec import spec_schema
    from raysuite.spec.json_schema import SEARCH_BLOCKS, blocks_of, blocks_under

    schema = spec_schema()
    required = {"name", "model", "data", "training"}
    parts = [
        "# All keys of a spec",
        "[How a spec is written](specs.md). `raysuite plan --schema spec` prints the same as JSON "
        "Schema.",
        "## The whole spec",
        _table(schema, required),
    ]
    for key in schema["properties"]:
        parts += _blocks(key, blocks_under(schema, key))
    search = schema["$defs"]["SearchOptions"]["properties"]
    parts += _blocks("search.space.KEY", [schema["$defs"]["Dimension"]])
    for key in SEARCH_BLOCKS:
        parts += _blocks(f"search.{key}", blocks_of(schema, search[key]))
    return "\n\n".join(parts) + "\n"


def _blocks(key: str, blocks: list[dict[str, Any]]) -> list[str]:
    parts = []
    for block in blocks:
        name = block["properties"].get("name", {})
        chosen = len(blocks) > 1 or "const" in name
        title = f"`{key}: {name['const']}`" if chosen else f"`{key}`"
        parts += [f"## {title}", block["description"]]
        parts.append(_table(block, set(block.get("required", []))))
    return parts


def _table(block: dict[str, Any], required: set[str]) -> str:
    rows = ["| key | values | default | meaning |", "| --- | --- | --- | --- |"]
    for key, prop in block["properties"].items():
        if "const" in prop:
            continue  # the title has it
        default = "required" if key in required else _default(prop)
        meaning = " ".join(prop.get("description", "").split())
        cells = (f"`{key}`", _values(prop), default, meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) if len(rows) > 2 else "No further keys."


def _default(prop: dict[str, Any]) -> str:
    value = prop.get("default")
    if isinstance(value, dict) and "name" in value:
        value = value["name"]
    if value is None or value == "" or isinstance(value, dict):
        return ""
    return f"`{json.dumps(value) if not isinstance(value, str) else value}`"


def _values(prop: dict[str, Any]) -> str:
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


def _limits(prop: dict[str, Any]) -> str:
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    limits = [f"{sign} {prop[word]:g}" for word, sign in signs.items() if word in prop]
    return " " + " and ".join(limits) if limits else ""


if __name__ == "__main__":
    for name, content in pages().items():
        (REFERENCE / name).write_text(content, "utf-8")
