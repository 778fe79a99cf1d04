"""A cluster's head whose Ray does not start: how often it is tried, and what its user is shown."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from raysuite.cluster.agent import node as module
from raysuite.cluster.agent.head import HeadNode
from raysuite.cluster.agent.node import NodeFailedError, Signals, ThisNode
from raysuite.cluster.agent.place import Place
from raysuite.cluster.folder import ClusterFolder
from tests.living import living

FAILS = """
import pathlib, sys
logs = pathlib.Path(sys.argv[1]) / "session_latest" / "logs"
logs.mkdir(parents=True)
if sys.argv[2]:
    (logs / "raylet.err").write_text(sys.argv[2] + "\\nframe" * 500)
sys.exit("the node timed out")
"""


@pytest.mark.parametrize(
    ("error", "shown"),
    [("[T C 1 1] (raylet) a.cc:1:  no file", "raylet: no file"), ("", "the node timed out")],
)
def test_a_head_that_does_not_start_fails_with_rays_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, shown: str
) -> None:
    starts: list[Path] = []

    def words(place: Place, address: str, ports: object, gcs: str, temp: Path) -> list[str]:
        starts.append(temp)
        return [sys.executable, "-c", FAILS, str(temp), error]

    monkeypatch.setattr(module, "start_words", words)
    for name in ("nodes", "logs", "temp"):
        (tmp_path / name).mkdir()
    (tmp_path / "token").write_text("secret")
    cluster = living().model_copy(update={"working_folder": str(tmp_path)})
    signals = SimpleNamespace(pid=os.getpid(), ended=False, wait=lambda seconds: time.sleep(0.05))
    node = ThisNode(
        ClusterFolder(tmp_path),
        cluster,
        Place("here", 0, 0, "pid-2", None, None, None),
        tmp_path / "temp",
        cast(Signals, signals),
    )
    head = HeadNode(node)
    with pytest.raises(NodeFailedError, match=f"in 3 attempts: {shown}$"):
        head.run()
    node.end()
    assert len(starts) == 3
