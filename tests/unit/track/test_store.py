"""A store that cannot be written is told at once, and nothing fails by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.records import Results
from raysuite.track import sync


@pytest.mark.parametrize("folder", ["missing", "/proc"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, folder: str) -> None:
    results = Results(tmp_path)
    results.write_plans([])
    summary = sync(results, f"sqlite:///{tmp_path / folder / 'mlflow.db'}")
    assert not summary.ok
    # not sqlalchemy's OperationalError, which comes after minutes
    assert summary.error.startswith(("FileNotFoundError", "PermissionError", "OSError"))
