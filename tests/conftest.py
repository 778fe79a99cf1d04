"""Of all tests: no property fails because the machine is busy, and a file's tests stay together."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("raysuite", deadline=None)
settings.load_profile("raysuite")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run in several streams, a file is one stream's; so is the lab, for it is one."""
    for item in items:
        group = "lab" if item.path.parent.name == "lab" else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
