"""`raysuite bench network`: collectives of two real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.perf.simulator import Network

pytestmark = pytest.mark.integration


def test_collectives_are_timed_and_a_network_is_written(tmp_path: Path) -> None:
    file = tmp_path / "network.yaml"
    words = ["bench", "network", "--kib", "1,4096", "--repeats", "3", "--out", str(file), "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    names = {each["collective"] for each in told["timings"]}
    assert names == {"all_reduce", "all_gather", "broadcast", "send"}
    assert all(len(each["seconds"]) == 3 for each in told["timings"])
    assert all(min(each["seconds"]) > 0 for each in told["timings"])
    assert Network.read(str(file)).all_reduce(2, 2**20) > 0
