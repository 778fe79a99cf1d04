"""C libraries that are compiled on first use."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.compiled import LibraryError, build, library_in, loaded, run
from tests.require import require


def test_a_library_is_compiled_once_for_each_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("compiler")
    source, folder = tmp_path / "two.c", tmp_path / "deep" / "folder"
    source.write_text('__attribute__((visibility("default"))) int two(void) { return TWO; }\n')
    first = library_in(tmp_path, source)
    found = loaded(source, folder, "-DTWO=2")
    assert found is not None
    assert found.two() == 2
    assert [*folder.iterdir()] == [folder / first.name]
    monkeypatch.setenv("PATH", "")  # no compiler: it is there already
    assert loaded(source, folder) is not None
    source.write_text("int three(void) { return 3; }\n")
    assert library_in(tmp_path, source) != first
    assert loaded(source, folder) is None


def test_a_library_that_cannot_be_compiled_leaves_no_file(tmp_path: Path) -> None:
    require("compiler")
    source, folder = tmp_path / "wrong.c", tmp_path / "folder"
    source.write_text("no C\n")
    folder.mkdir()
    with pytest.raises(LibraryError, match=r"cannot compile .*wrong\.c"):
        build(source, folder)
    assert [*folder.iterdir()] == []


def test_a_command_has_its_settings_beside_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "1")
    done = run(["sh", "-c", 'echo "$ONE$TWO"; exit 3'], {"TWO": "2"})
    assert (done.returncode, done.stdout) == (3, "12\n")
    with pytest.raises(LibraryError):
        run(["no-such-program-anywhere"], {})
