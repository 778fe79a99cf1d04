"""A store that cannot be written is told at once, and nothing fails by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.records import Results
from raysuite.track import sync


@pytest.mark.parametrize("file", ["missing/mlflow.db", "/proc/mlflow.db", "a_folder"])
def test_a_store_that_cannot_be_written(tmp_path: Path, file: str) -> None:
    results = Results(tmp_path)
    results.write_plans([])
    (tmp_path / "a_folder").mkdir()
    summary = sync(results, f"sqlite:///{tmp_path / file}")
    assert not summary.ok
    # not sqlalchemy's OperationalError, which comes after minutes
    assert summary.error.startswith(
        ("FileNotFoundError", "PermissionError", "OSError", "IsADirectoryError")
    )
