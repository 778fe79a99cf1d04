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
from raysuite.spec.site import SlurmSite


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


class Looks:
    """A node whose head answers at the n-th look; each look takes ten seconds."""

    def __init__(self, folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.asked, self.answers_at = 1000.0, list[tuple[str, int]](), 10**6
        self.is_closed = False
        self.said: list[tuple[str, ...]] = []
        monkeypatch.setattr("raysuite.cluster.agent.node.time.monotonic", lambda: self.now)
        monkeypatch.setattr(module, "answers", self.answers)
        monkeypatch.setattr(module, "refuses", lambda host, port: self.is_closed)
        node = SimpleNamespace(
            folder=folder,
            cluster=SimpleNamespace(site=SlurmSite(start_timeout_seconds=200)),
            place=SimpleNamespace(incarnation="7-0-0"),
            signals=SimpleNamespace(ended=False, wait=self.wait),
            check_step=lambda: None,
            took=lambda what, since: self.said.append(("took", what, str(since))),
            say=lambda *words: self.said.append(words),
            take_ports=lambda attempt: self.said.append(("ports", str(attempt))),
            environment=lambda mlflow: {"mlflow": mlflow},
            start_ray=lambda gcs, environment: self.said.append((gcs, environment["mlflow"])),
            ray_ended=lambda: self.now > 2000,
            ports=SimpleNamespace(node_manager=5),
        )
        self.worker = WorkerNode(cast(ThisNode, node))

    def wait(self, seconds: float) -> None:
        self.now += 10

    def answers(self, host: str, port: int) -> bool:
        self.asked.append((host, port))
        return len(self.asked) >= self.answers_at


HEAD = Head(host="a", gcs="10.0.0.1:6", dashboard="", mlflow="http://b:8", incarnation="7-0-0")


@pytest.mark.parametrize(
    ("joined", "is_closed", "looks", "words"),
    [
        ("", False, 21, "within 200 s"),  # as the site's start_timeout_seconds
        ("", True, 21, "within 200 s"),
        ("10.0.0.1:6", False, 10, "within 90 s"),
        ("10.0.0.1:6", True, 3, "10.0.0.1:6 is closed"),
        ("10.0.0.9:6", True, 10, "within 90 s"),  # another head is starting
    ],
)
def test_a_node_waits_longer_for_its_first_head_than_for_one_that_it_has_lost(
    folder: ClusterFolder,
    monkeypatch: pytest.MonkeyPatch,
    joined: str,
    is_closed: bool,
    looks: int,
    words: str,
) -> None:
    node = Looks(folder, monkeypatch)
    node.is_closed, node.worker._joined = is_closed, joined
    folder.write(HEAD)
    with pytest.raises(NodeFailedError, match=words):
        node.worker._find_head()
    assert node.asked == [("10.0.0.1", 6)] * (looks + 1)


def test_a_head_is_found_once_that_of_this_start_answers(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Looks(folder, monkeypatch)
    folder.write(HEAD)
    node.answers_at = 3
    assert node.worker._find_head() == folder.head()
    assert (node.now, node.said) == (1020.0, [("took", "head", "1000.0")])
    folder.write(HEAD.model_copy(update={"incarnation": "6-0-0"}))
    with pytest.raises(NodeFailedError, match="no head"):
        node.worker._find_head()
    assert len(node.asked) == 3, "a head of an earlier start is not asked"
    tell(folder, "ended")
    assert node.worker._find_head() is None


@pytest.mark.parametrize("joins", [True, False])
def test_a_node_has_joined_once_its_ray_answers(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch, joins: bool
) -> None:
    node = Looks(folder, monkeypatch)
    node.answers_at = 2 if joins else 10**6
    monkeypatch.setattr(module, "find_address", lambda site, head: f"the route to {head}")
    assert node.worker._join(HEAD, 4) == joins
    assert node.asked[0] == ("the route to 10.0.0.1", 5)
    began = [("ports", "4"), ("10.0.0.1:6", "http://10.0.0.1:8")]
    assert node.said == began + ([("took", "ray", "1000.0"), ("joined",)] if joins else [])
    assert node.worker._joined == ("10.0.0.1:6" if joins else "")
