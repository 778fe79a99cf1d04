"""Which raysuite Ray's workers import."""

from __future__ import annotations

from pathlib import Path

import pytest

import raysuite
from raysuite.orchestrate.cluster import job_config


def paths() -> list[str]:
    return list(job_config()._get_proto_job_config().py_driver_sys_path)


def test_another_raysuite_in_the_working_folder_does_not_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not paths()
    (tmp_path / "raysuite").mkdir()
    (tmp_path / "raysuite" / "__init__.py").touch()
    ours = str(Path(raysuite.__file__).resolve().parents[1])
    path: list[str] = []
    for folder in paths():
        path.insert(0, folder)  # as Ray's workers do
    assert path == [ours, str(tmp_path)]
    monkeypatch.chdir(ours)
    assert not paths()
