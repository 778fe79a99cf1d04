"""Loaders as the parameters of tests, and what they need to be there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.require import require


def params(names: Iterable[str]) -> list[Any]:
    """A parameter for each loader's name.

    A stream of Ray Data takes seconds to start: CI has those of tests/contract/test_ray_data.py.
    """
    slow = [pytest.mark.integration, pytest.mark.thorough]
    return [pytest.param(name, marks=slow if name == "ray_data" else []) for name in names]


def ready(request: pytest.FixtureRequest) -> str:
    """The name that `request` has as its parameter, once that loader can be made."""
    name: str = request.param
    if name.startswith("dali"):
        require("dali")
    if name.startswith("ray_data"):
        request.getfixturevalue("running_ray")
    return name
