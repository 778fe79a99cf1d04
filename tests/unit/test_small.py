"""errors, units, lazy."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from raysuite import lazy
from raysuite.errors import MissingPartError, Mistake, SpecError, UserError, some, unmatched
from raysuite.units import human_bytes, human_seconds


def test_a_mistake_says_place_key_and_message() -> None:
    assert str(Mistake("m", key="a.b", file="f.yaml", line=3)) == "f.yaml:3: a.b: m"
    assert str(Mistake("m", file="f.yaml")) == "f.yaml: m"
    assert str(Mistake("m")) == "m"


def test_a_spec_error_has_each_mistake_once_by_line() -> None:
    later, first = Mistake("b", file="f", line=9), Mistake("a", file="f", line=2)
    error = SpecError([later, first, later])
    assert error.mistakes == (first, later)
    assert str(error) == "f:2: a\nf:9: b"
    lines = [Mistake("m", file="f", line=line) for line in (9, 2, None, 5, 2)]
    merged = SpecError([*lines, Mistake("other", file="f", line=3)])
    assert str(merged) == "f:2, 5, 9: m\nf:3: other"
    assert SpecError(merged.mistakes).mistakes == merged.mistakes
    copy = pickle.loads(pickle.dumps(error))  # as it comes from another process
    assert (copy.mistakes, str(copy)) == (error.mistakes, str(error))


def test_patterns_that_match_nothing_are_named_with_what_there_is() -> None:
    names = ["stem.weight", "stem.bias", *(f"layer{number}.w" for number in range(7))]
    assert unmatched(["stem.*", "layer?.w"], names) == ""
    assert unmatched(["stem", "head.*", "*.bias"], iter(names)) == (
        "no parameter matches 'stem', 'head.*'; the model has stem.weight, stem.bias, layer0.w, "
        "layer1.w, layer2.w, layer3.w, layer4.w, layer5.w and 1 more"
    )
    assert (some(["a", "b"], 2), some(["a", "b", "c", "d"], 2)) == ("a, b", "a, b and 2 more")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1024.0 KiB"),
        (1024**2, "1.0 MiB"),
        (1536 * 1024, "1.5 MiB"),
        (2**30, "1.0 GiB"),
        (2**40, "1024.0 GiB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (4.21, "4.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (61, "1 min 01 s"),
        (3599.6, "1 h 00 min"),
        (3725, "1 h 02 min"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_load() -> None:
    assert lazy.load("pathlib:Path") is Path
    assert lazy.load("pathlib:Path.cwd") == Path.cwd


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("pathlib", "write it as 'module:attribute'"),
        (":x", "write it as 'module:attribute'"),
        ("pathlib:", "write it as 'module:attribute'"),
        ("no_such_module:x", "no module named 'no_such_module'"),
        ("pathlib:Nothing", "no 'Nothing'"),
        ("pathlib:Path.nothing", "has no 'Path.nothing'"),
    ],
)
def test_load_says_what_is_wrong(target: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        lazy.load(target)


def test_load_of_a_module_that_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaks_on_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="breaks_on_import raised ZeroDivisionError"):
        lazy.load("breaks_on_import:x")


def test_load_of_a_script_that_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_on_import.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="ends_on_import ends the process"):
        lazy.load("ends_on_import:x")


def test_load_names_the_package_that_a_users_module_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_that_needs_another.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="no module named 'no_such_package'"):
        lazy.load("mine_that_needs_another:x")


def test_load_of_an_optional_part_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(MissingPartError, match="make setup"):
        lazy.load("horovod.torch:init")
