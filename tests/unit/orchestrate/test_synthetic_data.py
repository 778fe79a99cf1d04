"""What one node does of a synthetic data set that every node makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raysuite.errors import DataError
from raysuite.orchestrate import synthetic_data
from raysuite.spec.datasets import default_path


@pytest.mark.parametrize(
    ("folder", "workers", "force", "expected"),
    [
        (None, None, False, (default_path("mnist", "idx"), 3, False)),
        (Path("/data/x"), 2, True, (Path("/data/x"), 2, True)),
    ],
)
def test_a_node_uses_its_own_folder_and_all_its_cpus_unless_others_are_given(
    folder: Path | None,
    workers: int | None,
    force: bool,
    expected: tuple[Path, int, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    synthetic: Any = type("Named", (), {"name": "mnist", "form": "idx"})()
    made: list[object] = []
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 5})
    monkeypatch.setattr(synthetic_data, "make", lambda *given: made.append(given) or "made")
    assert synthetic_data._make_here(synthetic, folder, workers, force) == ("made", "")
    assert made == [(synthetic, *expected)]

    def full(*_: object) -> None:
        raise DataError("no space")

    monkeypatch.setattr(synthetic_data, "make", full)
    found = synthetic_data._make_here(synthetic, folder, workers, force)
    assert found == (None, "no space")
