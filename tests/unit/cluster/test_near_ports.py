"""The near ends of what SSH carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from raysuite.cluster.forward import Connection, _near
from raysuite.cluster.state_files import Head
from raysuite.errors import UserError

HEAD = Head(host="a", gcs="a:1", dashboard="http://a:2", mlflow="http://a:3")


class Refusing:
    """A connection whose first ports are taken by somebody else."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked: list[list[int]] = []

    def forward(self, ends: Mapping[int, str]) -> None:
        assert [*ends.values()] == ["a:2", "a:3"]
        self.asked.append([*ends])
        if len(self.asked) <= self.times:
            raise UserError("`ssh site` cannot forward ports: Port forwarding failed")


def test_other_ports_are_taken_where_some_are_gone() -> None:
    connection = Refusing(2)
    near = _near(cast("Connection", connection), HEAD)
    assert len({tuple(ports) for ports in connection.asked}) == 3
    ports = connection.asked[-1]
    assert [near.dashboard, near.mlflow] == [f"http://127.0.0.1:{port}" for port in ports]


def test_who_never_forwards_is_told() -> None:
    connection = Refusing(9)
    with pytest.raises(UserError, match="cannot forward ports"):
        _near(cast("Connection", connection), HEAD)
    assert len(connection.asked) == 3
