"""Which raysuite Ray's workers import."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import raysuite
from raysuite.orchestrate.ray_cluster import search_path

OURS = str(Path(raysuite.__file__).resolve().parents[1])


def test_another_raysuite_in_the_working_folder_does_not_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.chdir(tmp_path)
    with search_path() as made:
        assert made is None
    (tmp_path / "raysuite").mkdir()
    (tmp_path / "raysuite" / "__init__.py").touch()
    with search_path() as made:
        assert made is not None
        assert made["env_vars"] == {"PYTHONPATH": f"{OURS}{os.pathsep}/elsewhere"}
        assert not list(Path(made["working_dir"]).rglob("*.py"))
    monkeypatch.delenv("PYTHONPATH")
    with search_path() as made:
        assert made is not None
        assert made["env_vars"] == {"PYTHONPATH": OURS}, "no empty entry, the working folder"
    monkeypatch.chdir(OURS)
    with search_path() as made:
        assert made is None
