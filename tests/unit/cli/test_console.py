"""What verbs print: tables and lines, coloured where the terminal allows it; JSON."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys

import pytest
from rich.console import Console

from raysuite.cli.console import print_json, stderr, stdout, table


def test_a_narrow_terminal_shows_every_column() -> None:
    numbers = ["parameters", "activations, MiB", "gradients, MiB"]
    made = table(["model", *numbers], [["resnet20", "334,072", "1.4", "1.3"]], numbers)
    console = Console(width=50, file=io.StringIO(), record=True)
    console.print(made)
    assert {"resnet20", "334,072", "1.4", "1.3"} <= {*console.export_text().split()}


def test_texts_are_neither_coloured_nor_replaced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    stdout().print("12.5 s [red] :smile: /a/b")
    stderr().print("12.5 s [red] :smile: /a/b")
    assert capsys.readouterr() == ("12.5 s [red] :smile: /a/b\n",) * 2


@pytest.mark.integration
def test_a_table_can_be_printed_into_a_stream_of_text() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        stdout().print(table(["run"], [["single"]]))
    assert text.encoding is None
    assert [line.strip() for line in text.getvalue().split("\n")] == [
        "",
        "run",
        "─" * 6,
        "single",
        "",
        "",
    ]


def test_json_has_null_for_what_is_not_finite_and_keeps_bytes_of_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("é", os.fsdecode(b"caf\xe9")):
        stream = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="surrogateescape")
        monkeypatch.setattr(sys, "stdout", stream)
        print_json({name: [math.nan, -math.inf, 0.1], "": ({"a": []},)})
        stream.seek(0)
        assert json.load(stream) == {name: [None, None, 0.1], "": [{"a": []}]}
