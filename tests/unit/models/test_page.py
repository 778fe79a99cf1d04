"""The figures of docs/reference/models.md, counted anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raysuite.cli import app

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "models.md").read_text("utf-8")
EXAMPLES = re.findall(r"^\$ raysuite (models.*)\n((?:.*\n)*?)```", PAGE, re.M)


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def examples() -> list[Any]:
    """Those that list all networks are thorough: their costs take half a minute."""
    marks = {True: [pytest.mark.thorough], False: []}
    every = ("models", "models --size 32 --classes 10")
    return [pytest.param(*each, marks=marks[each[0] in every], id=each[0]) for each in EXAMPLES]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), examples())
def test_the_page_shows_what_the_verb_prints(command: str, shown: str) -> None:
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 0, result.output
    assert words(result.stdout) == words(shown)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) == 3
