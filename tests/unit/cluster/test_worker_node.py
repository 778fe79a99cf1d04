"""A node that is not the head leaves once the head of its start has ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from raysuite.cluster.agent import node as module
from raysuite.cluster.agent.node import NodeFailedError, ThisNode, WorkerNode
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.state_files import Head, Node, NodeState


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    (tmp_path / "nodes").mkdir()
    return ClusterFolder(tmp_path)


def head_ended(folder: ClusterFolder) -> bool:
    place = SimpleNamespace(incarnation="7-0-0")
    node = SimpleNamespace(folder=folder, place=place, check_step=lambda: None)
    return WorkerNode(cast(ThisNode, node))._head_ended()


def tell(folder: ClusterFolder, state: NodeState, incarnation: str = "7-0-0") -> None:
    folder.write(Node(host="a", state=state, index=0, incarnation=incarnation, message="why"))


@pytest.mark.parametrize(
    ("state", "ended"), [("starting", False), ("joined", False), ("ended", True)]
)
def test_what_the_head_says(folder: ClusterFolder, state: NodeState, ended: bool) -> None:
    tell(folder, state)
    assert head_ended(folder) == ended


def test_a_head_that_failed_is_a_failure_here(folder: ClusterFolder) -> None:
    tell(folder, "failed")
    with pytest.raises(NodeFailedError, match="the head a failed: why"):
        head_ended(folder)


def test_another_starts_head_says_nothing(folder: ClusterFolder) -> None:
    tell(folder, "failed", incarnation="6-0-0")
    assert not head_ended(folder)


def test_a_head_that_was_killed_is_seen_by_its_file(folder: ClusterFolder) -> None:
    tell(folder, "joined")
    folder.over.touch()
    with pytest.raises(NodeFailedError, match="agent has ended"):
        head_ended(folder)


def test_one_that_ended_in_order_is_no_failure(folder: ClusterFolder) -> None:
    tell(folder, "ended")
    folder.over.touch()
    assert head_ended(folder)


def test_a_head_that_refuses_three_times_in_a_row_is_gone(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KNOCK_EACH_S", -1.0)
    asked: list[tuple[str, int]] = []
    answers = iter([True, True, False, True, False, True, True, True])

    def refuses(host: str, port: int) -> bool:
        asked.append((host, port))
        return next(answers)

    monkeypatch.setattr(module, "refuses", refuses)
    node = SimpleNamespace(
        folder=folder,
        place=SimpleNamespace(incarnation="7-0-0"),
        signals=SimpleNamespace(ended=False, wait=lambda seconds: None),
        children=SimpleNamespace(reap=lambda: None),
        ray_ended=lambda: False,
        check_step=lambda: None,
    )
    WorkerNode(cast(ThisNode, node))._stay(cast(Head, SimpleNamespace(gcs="10.0.0.1:6379")))
    assert asked == [("10.0.0.1", 6379)] * 8
