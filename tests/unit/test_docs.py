"""Commands, specs and links in the documentation. The site itself: `make docs`."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from raysuite.cli import app
from raysuite.plan import make_plans
from raysuite.spec import parse_document

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def commands(page: Path) -> list[str]:
    """Every command of raysuite in a page's blocks of code."""
    found = []
    for language, code in BLOCK.findall(page.read_text("utf-8")):
        if language not in ("bash", "console", ""):
            continue
        for line in code.replace("\\\n", " ").splitlines():
            match = re.match(r"(?:\$ )?(?:ray job submit .*-- )?(raysuite [^#|>;&]*)", line.strip())
            if match and not re.search(r"\.\.\.|VERB|\[OPTIONS\]", line):
                found.append(match[1].strip())
    return found


VERBS: Any = typer.main.get_command(app)


def parse(arguments: list[str]) -> None:
    """Parse a command line as far as its verb's own options; nothing is run."""
    command = VERBS
    context = command.make_context("raysuite", list(arguments))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_valid(page: Path) -> None:
    for line in commands(page):
        words = shlex.split(line)[1:]
        if not words or {"--help", "-h", "--version", "--install-completion"} & set(words):
            continue
        try:
            parse(words)
        except Exception as error:
            pytest.fail(f"{line}: {type(error).__name__} {error}")


def test_pages_that_are_made_from_the_code_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generated.py"))["pages"]()
    for name, text in made.items():
        file = ROOT / "docs" / "reference" / name
        assert file.read_text("utf-8") == text, f"{name}: run `python docs/generated.py`"


def test_a_wrong_option_is_noticed() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 40
    for words in (["plan", "x.yaml", "--gpuz", "1"], ["plam", "x.yaml"], ["cluster", "upp"]):
        with pytest.raises(Exception, match=r"No such"):
            parse(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(BLOCK.sub("", page.read_text("utf-8"))):
        path = target.partition("#")[0]
        if path and not re.match(r"[a-z]+:", path):
            wanted = (page.parent / path).resolve()
            assert wanted.exists(), target


def test_the_study_of_the_tutorial_can_be_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = dict(BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text("utf-8")))
    (tmp_path / "my_models.py").write_text(blocks["python"], "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    plans = make_plans(parse_document(blocks["yaml"], "my_study.yaml"), gpus=0)
    assert len(plans) == 12
    assert yaml.safe_load(blocks["yaml"])["repeats"] == 3
