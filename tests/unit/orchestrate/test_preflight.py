"""What is reported of the process that tries one batch of each plan."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysuite.errors import SpecError
from raysuite.orchestrate.preflight import _FOUND, _OUTPUT, _raise_what_was_found
from raysuite.plan import make_plans
from raysuite.spec import parse_document

SPEC = """\
name: x
data: digits
training: {epochs: 1, global_batch: 8}
matrix:
  model: [resnet20, resnet32, resnet44]
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([[], [], []], []),
        ([[], [["training.global_batch", "too small"]], []], [("training.global_batch", 3)]),
        ([[["model.name", "no such"]]], [("model.name", 5), ("model.name", 5)]),
    ],
    ids=["none", "one", "the process ended at the second"],
)
def test_mistakes_have_their_lines_also_where_a_network_ends_the_process(
    tmp_path: Path, lines: list[Any], expected: list[tuple[str, int]]
) -> None:
    document = parse_document(SPEC, "x.yaml")
    (tmp_path / _FOUND).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / _OUTPUT).write_text("1\n2\n3\nkilled\n")
    process: Any = SimpleNamespace(wait=lambda: -9)
    given = (process, make_plans(document, gpus=0), tmp_path, document)
    if not expected:
        _raise_what_was_found(*given)
        return
    with pytest.raises(SpecError) as raised:
        _raise_what_was_found(*given)
    assert [(each.key, each.line) for each in raised.value.mistakes] == expected
    assert ("ended with -9: 2 | 3 | killed" in str(raised.value)) == (len(lines) < 3)
