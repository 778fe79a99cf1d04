"""What verbs print: tables of texts, without rich where it writes the same characters; JSON."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import subprocess
import sys

import pytest
from rich.console import Console

from raysuite.cli.console import (
    PLAIN_WIDTH,
    print_json,
    print_line,
    print_table,
    stderr,
    stdout,
    table,
)

TABLES = [
    (["run", "workers"], [["ddp · native", "2 x 1 CPU"], ["single", "1"]], {"workers"}),
    (["#"], [["1"]], set()),
    (["#", "run"], [], {"#"}),
    (["run"], [["x" * (PLAIN_WIDTH - 2)]], set()),
    (["run"], [["x" * PLAIN_WIDTH]], set()),
    (["run", "lines"], [["日本語", "1"], ["a\nb", "2"], ["[red]", ""]], {"lines"}),
]


@pytest.mark.parametrize(("headings", "rows", "numbers"), TABLES)
def test_a_table_is_that_of_rich(
    headings: list[str],
    rows: list[list[str]],
    numbers: set[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(headings, rows, numbers)
    written = capsys.readouterr().out
    stdout().print(table(headings, rows, numbers))
    assert written == capsys.readouterr().out


@pytest.mark.parametrize("where", ["FORCE_COLOR", "TTY_COMPATIBLE", "isatty", "ascii"])
def test_a_table_is_rich_s_where_rich_would_write_other_characters(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii" if where == "ascii" else "utf-8")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(where, "1")
    monkeypatch.setattr(stream, "isatty", lambda: where == "isatty")
    monkeypatch.setattr(sys, "stdout", stream)
    print_table(["run"], ([text] for text in ["1st", "2nd"]))
    stream.seek(0)
    written = stream.read()
    assert ("\x1b[1mrun\x1b[0m" in written) == (where != "ascii")
    assert "1st" in written
    assert "2nd" in written


def test_a_narrow_terminal_shows_every_column() -> None:
    numbers = ["parameters", "activations, MiB", "gradients, MiB"]
    made = table(["model", *numbers], [["resnet20", "334,072", "1.4", "1.3"]], numbers)
    console = Console(width=50, file=io.StringIO(), record=True)
    console.print(made)
    assert {"resnet20", "334,072", "1.4", "1.3"} <= {*console.export_text().split()}


@pytest.mark.parametrize("text", ["", "a line", "word " * 60])
def test_a_line_is_that_of_rich(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_line(text)
    written = capsys.readouterr().out
    stdout().print(text)
    assert written == capsys.readouterr().out


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
        print_table(["run"], [["single"]], set())
    assert text.encoding is None
    assert [line.strip() for line in text.getvalue().split("\n")] == [
        "",
        "run",
        "─" * 6,
        "single",
        "",
        "",
    ]


def test_a_table_in_a_pipe_needs_no_rich() -> None:
    code = "import sys; from raysuite.cli.console import print_table\n"
    code += "print_table(['a'], [['b']]); print('rich' in sys.modules)"
    found = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60)
    assert found.splitlines()[-1] == "False"


def test_json_has_null_for_what_is_not_finite_and_keeps_bytes_of_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("é", os.fsdecode(b"caf\xe9")):
        stream = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="surrogateescape")
        monkeypatch.setattr(sys, "stdout", stream)
        print_json({name: [math.nan, -math.inf, 0.1], "": ({"a": []},)})
        stream.seek(0)
        assert json.load(stream) == {name: [None, None, 0.1], "": [{"a": []}]}
