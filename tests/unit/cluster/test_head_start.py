"""A cluster's head whose Ray does not start: how often it is tried, and what its user is shown."""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from raysuite.cluster import ports
from raysuite.cluster.agent import node as module
from raysuite.cluster.agent.head import HeadNode
from raysuite.cluster.agent.node import NodeFailedError, Signals, ThisNode
from raysuite.cluster.agent.place import Place
from raysuite.cluster.dashboard import NoAnswerError, RayNode
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.state_files import Stop, StopReason
from tests.living import living

FAILS = """
import pathlib, sys
logs = pathlib.Path(sys.argv[1]) / "session_latest" / "logs"
logs.mkdir(parents=True)
if sys.argv[2]:
    (logs / "raylet.err").write_text(sys.argv[2] + "\\nframe" * 500)
sys.exit("the node timed out")
"""


def node_without_ray(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: str, signals: SimpleNamespace
) -> tuple[ThisNode, list[Path]]:
    """A node whose Ray fails at each start, and the starts that were tried."""
    starts: list[Path] = []

    def words(place: Place, address: str, ports: object, gcs: str, temp: Path) -> list[str]:
        starts.append(temp)
        return [sys.executable, "-c", FAILS, str(temp), error]

    monkeypatch.setattr(module, "start_words", words)
    for name in ("nodes", "logs", "temp"):
        (folder / name).mkdir()
    (folder / "token").write_text("secret")
    cluster = living().model_copy(update={"working_folder": str(folder)})
    place = Place("here", 0, "pid-2", None, None, None)
    given = cast(Signals, signals)
    return ThisNode(ClusterFolder(folder), cluster, place, folder / "temp", given), starts


@pytest.mark.parametrize(
    ("error", "shown"),
    [("[T C 1 1] (raylet) a.cc:1:  no file", "raylet: no file"), ("", "the node timed out")],
)
def test_a_head_that_does_not_start_fails_with_rays_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, shown: str
) -> None:
    signals = SimpleNamespace(pid=os.getpid(), ended=False, wait=lambda seconds: time.sleep(0.05))
    node, starts = node_without_ray(tmp_path, monkeypatch, error, signals)
    head = HeadNode(node)
    with pytest.raises(NodeFailedError, match=f"in 3 attempts: {shown}$"):
        head.run()
    node.end()
    assert len(starts) == 3


def test_a_signal_while_ray_starts_ends_the_head_without_another_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = SimpleNamespace(pid=os.getpid(), ended=False)
    signals.wait = lambda seconds: setattr(signals, "ended", True)
    node, starts = node_without_ray(tmp_path, monkeypatch, "", signals)
    HeadNode(node).run()
    node.end()
    assert len(starts) == 1


def test_mlflows_database_is_saved_after_the_last_process_has_written_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    folder = ClusterFolder(tmp_path)
    node = SimpleNamespace(folder=folder, end=lambda: done.append("processes end"))
    head = HeadNode(cast(ThisNode, node))
    saved = SimpleNamespace(save=lambda: done.append(f"saved, over: {folder.over.exists()}"))
    monkeypatch.setattr(head, "_mlflow", saved)
    head.end()
    assert done == ["processes end", "saved, over: False"]
    assert folder.over.exists()


def test_which_nodes_are_alive_is_written_again_once_the_disk_has_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ClusterFolder(tmp_path)
    node = SimpleNamespace(folder=folder, place=SimpleNamespace(incarnation="now"))
    head = HeadNode(cast(ThisNode, node))
    two = [RayNode("1.0", True, 4.0, 1.0), RayNode("1.1", True, 4.0, 0.0)]
    dashboard = SimpleNamespace(nodes=lambda: [*two, RayNode("1.2", False, 4.0, 0.0)])
    monkeypatch.setattr(head, "_dashboard", lambda: dashboard)

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(folder, "write", full)
        head._count()
    assert folder.alive() is None
    head._count()
    found = folder.alive()
    assert found is not None
    assert (found.addresses, found.cpus, found.gpus) == (("1.0", "1.1"), 8.0, 1.0)
    written = (folder.path / "nodes.json").stat().st_ino
    head._count()
    assert (folder.path / "nodes.json").stat().st_ino == written, "a change alone is written"
    dashboard.nodes = lambda: two[:1]
    head._count()
    assert (found := folder.alive()) is not None
    assert (found.addresses, found.incarnation) == (("1.0",), "now")


def test_a_warning_of_the_scheduler_is_written_once_with_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = ClusterFolder(tmp_path), list[str]()
    node = SimpleNamespace(
        folder=folder,
        cluster=SimpleNamespace(site=SimpleNamespace(warn_seconds=100), nodes=0),
        signals=SimpleNamespace(take_warning=lambda: True),
        check_step=lambda: None,
        ray_ended=lambda: False,
        ports=SimpleNamespace(dashboard=1),
        address="127.0.0.1",
        children=SimpleNamespace(reap=lambda: None),
        say=said.append,
        took=lambda part, began: said.append(part),
    )
    head = HeadNode(cast(ThisNode, node))
    for name in ("_count", "_tell_where"):
        monkeypatch.setattr(head, name, lambda name=name: said.append(name))
    monkeypatch.setattr(head, "_resuming", SimpleNamespace(look=lambda url: None))
    head._watch()
    stop = folder.stop()
    assert stop is not None
    assert stop.reason == "time_limit"
    assert 90 < stop.deadline - time.time() <= 100
    monkeypatch.setattr(head, "_mlflow", SimpleNamespace(look=lambda: True, answers=True, began=0))
    head._watch()
    assert folder.stop() == stop
    assert said == ["mlflow", "_tell_where", "joined"]


def test_clients_and_nodes_are_given_the_heads_addresses_on_their_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ClusterFolder(tmp_path)
    node = SimpleNamespace(
        folder=folder,
        address="10.0.0.1",
        ports=ports.Ports(20_000, 128),
        place=SimpleNamespace(host="n1", incarnation="7-0-0"),
    )
    head = HeadNode(cast(ThisNode, node))
    monkeypatch.setattr(head, "_outside", "10.1.0.1")
    monkeypatch.setattr(head, "_mlflow", SimpleNamespace(answers=True, error=""))
    head._tell_where()
    found = folder.head()
    assert found is not None
    assert found.model_dump() == {
        "host": "n1",
        "gcs": "10.0.0.1:20000",
        "client": "ray://10.1.0.1:20009",
        "dashboard": "http://10.1.0.1:20003",
        "mlflow": "http://10.1.0.1:20008",
        "mlflow_inside": "http://10.0.0.1:20008",
        "mlflow_answers": True,
        "mlflow_error": "",
        "incarnation": "7-0-0",
    }
    assert head._dashboard_url == "http://10.0.0.1:20003"
    monkeypatch.setattr(head, "_mlflow", SimpleNamespace(answers=False, error="no port"))
    head._tell_where()
    found = folder.head()
    assert found is not None
    assert (found.mlflow, found.mlflow_answers, found.mlflow_error) == ("", False, "no port")


@pytest.mark.parametrize("before", [None, "time_limit"])
def test_a_head_that_a_signal_ends_was_preempted_unless_the_reason_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: StopReason | None
) -> None:
    folder = ClusterFolder(tmp_path)
    if before:
        folder.write(Stop(reason=before, deadline=1.0))
    node = SimpleNamespace(folder=folder, signals=SimpleNamespace(ended=True))
    head = HeadNode(cast(ThisNode, node))
    monkeypatch.setattr(head, "_start", lambda: None)
    head.run()
    assert getattr(folder.stop(), "reason", None) == (before or "preempted")


def test_ray_is_there_once_its_dashboard_counts_a_node_as_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = RayNode("1.0", False, 4.0, 1.0)
    answers: list[list[RayNode] | None] = [None, [], [dead], [dead, RayNode("1.1", True, 4.0, 0.0)]]
    signals = SimpleNamespace(ended=False, wait=lambda seconds: None)
    node = SimpleNamespace(
        folder=ClusterFolder(tmp_path), signals=signals, ray_ended=lambda: not answers
    )
    head = HeadNode(cast(ThisNode, node))

    def nodes() -> list[RayNode]:
        answer = answers.pop(0)
        if answer is None:
            raise NoAnswerError("not yet")
        return answer

    monkeypatch.setattr(head, "_dashboard", lambda: SimpleNamespace(nodes=nodes))
    assert (head._wait_for_ray(), answers) == (True, [])
    assert not head._wait_for_ray(), "Ray has ended"


def test_a_node_takes_ports_for_a_worker_on_each_of_its_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(ports, "take", lambda seed, size: (sizes.append(size), ExitStack()))
    for place in (Place("here", 0, "1", 1000, 2, None), Place("here", 0, "1", None, None, None)):
        node = SimpleNamespace(
            place=place, folder=SimpleNamespace(path=tmp_path), release_ports=lambda: None
        )
        ThisNode.take_ports(cast(ThisNode, node), 1)
    assert sizes == [ports.block_size(1000), ports.block_size(0)]
    assert sizes[0] > 1000 > sizes[1]
