from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.data import Prepared, prepare
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DIGITS


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of this session's own. Tests that damage files take `tmp_path` instead."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def digits(cache: Path) -> Prepared:
    """The digits as TFRecords."""
    return prepare(DataOptions(name="digits", format="tfrecord"), DIGITS, cache)
