"""Lines of JSON as their readers take them: strict JSON, Records by their JSON Schema, and Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from typing import Any

import jsonschema

from raysuite.records.schema import record_schema

NODE = """
const lines = require("fs").readFileSync(0, "utf8").split("\\n").filter(Boolean);
lines.forEach((line) => JSON.parse(line));
console.log(lines.length);
"""


@cache
def schema() -> jsonschema.Draft202012Validator:
    """Of a Record."""
    return jsonschema.Draft202012Validator(record_schema())


def assert_records(lines: Iterable[str]) -> None:
    """Each is valid by the JSON Schema; a journal may hold NaN."""
    for line in lines:
        wrong = next(schema().iter_errors(json.loads(line)), None)
        assert wrong is None, (wrong.json_path, wrong.message)


def strict(line: str) -> Any:
    """The data of a line. Raises ValueError for what JSON does not know, such as NaN."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    return json.loads(line, parse_constant=refuse)


def assert_json(lines: Iterable[str]) -> None:
    """Each is valid JSON, by Python and, where it is installed, by Node."""
    whole = [*lines]
    for line in whole:
        strict(line)
    if node := shutil.which("node"):
        done = subprocess.run(
            [node, "-e", NODE], input="\n".join(whole), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) == len(whole)
