"""One lab of three hosts for all tests of this folder, apart from any that `make lab-up` made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import apptainer
from lab.layout import LabError, load

from tests.lab.place import LabPlace, lab_command
from tests.require import give_up, require

FOLDER = Path(f"/var/lib/raysuite-lab-test-{os.getpid()}")


@pytest.fixture(scope="session")
def whole_lab() -> Iterator[LabPlace]:
    """The lab, for the whole session; it is taken down however the session ends."""
    require("lab")
    try:
        done = lab_command(FOLDER, "up", "--nodes", "3", "--no-apptainer")
        assert done.returncode == 0, done.stderr
        place = load(FOLDER)
        assert place is not None
        yield LabPlace(place)
    finally:
        done = lab_command(FOLDER, "down")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def lab(whole_lab: LabPlace) -> Iterator[LabPlace]:
    """The lab with mended cables and no jobs, before and after each test."""
    yield whole_lab
    whole_lab.fix()


@pytest.fixture(scope="session")
def tools() -> Path:
    """Apptainer, installed on first use."""
    require("apptainer")
    try:
        return apptainer.install()
    except LabError as error:
        print(error)
        give_up("apptainer")
