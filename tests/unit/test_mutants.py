"""The seeded defects of tests/mutants: each is described, and still fits the code; and the files
of which `make mutants` makes others."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.one_token import COPIED, TESTS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "mutants"
LISTED: list[dict[str, Any]] = tomllib.loads((FOLDER / "mutants.toml").read_text("utf-8"))["mutant"]


def test_each_patch_is_listed_once() -> None:
    assert [each["name"] for each in LISTED] == sorted(p.stem for p in FOLDER.glob("*.patch"))


def test_the_tests_that_should_notice_are_there() -> None:
    for mutant in LISTED:
        for test in mutant["tests"]:
            file, _, name = test.partition("::")
            assert (ROOT / file).is_file(), test
            for part in name.partition("[")[0].split("::"):
                assert part in (ROOT / file).read_text("utf-8"), test


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git compares with a checkout")
def test_each_patch_applies() -> None:
    started = {
        mutant["name"]: subprocess.Popen(
            ["git", "apply", "--check", str(FOLDER / f"{mutant['name']}.patch")],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for mutant in LISTED
    }
    wrong = {name: said for name, each in started.items() if (said := each.communicate()[1])}
    assert not wrong, "make these patches anew, as tests/mutants/README.md says"


def test_the_modules_and_tests_of_make_mutants_are_there() -> None:
    for module, tests in TESTS.items():
        assert (ROOT / "raysuite" / f"{module}.py").is_file(), module
        for test in tests:
            assert (ROOT / "tests" / "unit" / test).is_file(), test
    assert not [each for each in COPIED if not (ROOT / each).exists()]
