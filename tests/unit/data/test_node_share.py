"""One folder for all processes of a node: made once, removed by the last, also after a kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from raysuite.data import node_share
from raysuite.data.node_share import NodeShare, found_once, free_memory
from raysuite.errors import DataError

CONTEXT = multiprocessing.get_context("spawn")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of /dev/shm's folder, which other runs of this machine may use."""
    monkeypatch.setattr(node_share, "memory_root", partial(_root, tmp_path))
    monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path / "cache"))
    return _root(tmp_path)


def _root(folder: Path) -> Path:
    return folder / "memory"


def write(text: str, folder: Path) -> None:
    (folder / "it").write_text(text)


def share(text: str = "x", key: str = "key", size: int = 10) -> NodeShare:
    return NodeShare(key, lambda: size, partial(write, text))


def test_the_first_makes_it_and_the_last_removes_it(root):
    first, second = share("first"), share("second")
    assert first.path == second.path == root / "key"
    assert (second.path / "it").read_text() == "first"
    first.close()
    first.close()
    assert (second.path / "it").read_text() == "first"
    second.close()
    assert list(root.iterdir()) == []
    third = share("third")
    assert (third.path / "it").read_text() == "third"
    third.close()


def test_keys_do_not_meet(root):
    one, other = share("one", "a"), share("other", "b")
    assert [(each.path / "it").read_text() for each in (one, other)] == ["one", "other"]
    one.close()
    assert (other.path / "it").read_text() == "other"
    other.close()
    assert list(root.iterdir()) == []


def test_what_is_forgotten_is_removed(root):
    share()
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("kind", [DataError, KeyboardInterrupt, SystemExit])
def test_an_error_while_writing_leaves_nothing(root, kind):
    """Also Ctrl-C, and a signal that ends the process."""

    def fail(folder: Path) -> None:
        write("half", folder)
        raise kind("no")

    with pytest.raises(kind, match=r"^no$"):
        NodeShare("key", lambda: 1, fail)
    assert list(root.iterdir()) == []


def test_a_full_memory_leaves_nothing(root):
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match=r"cannot be kept in .* No space left"):
        NodeShare("key", lambda: 1, full)
    assert list(root.iterdir()) == []


def _worker(folder: Path, pipe: Connection, dies: str) -> None:
    node_share.memory_root = partial(_root, folder)
    os.environ["RAYSUITE_CACHE"] = str(folder / "cache")

    def slowly(target: Path) -> None:
        pipe.send("writing")
        if dies == "writing":
            write("half", target)
            pipe.recv()
            os.kill(os.getpid(), signal.SIGKILL)
        pipe.recv()
        write("whole", target)

    made = NodeShare("key", lambda: 10, slowly)
    pipe.send((made.path / "it").read_text())
    pipe.recv()
    if dies == "using":
        os.kill(os.getpid(), signal.SIGKILL)
    if dies == "":
        made.close()  # otherwise when the interpreter ends


class Workers:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[tuple[Any, Connection]] = []

    def start(self, dies: str = "") -> Connection:
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_worker, args=(self.folder, theirs, dies))
        process.start()
        theirs.close()
        self.processes.append((process, ours))
        return ours

    def join(self, index: int) -> int | None:
        self.processes[index][0].join(100)
        return self.processes[index][0].exitcode


@pytest.fixture
def workers(tmp_path: Path) -> Any:
    made = Workers(tmp_path)
    yield made
    for process, pipe in made.processes:
        process.kill()
        process.join()
        pipe.close()


def told(pipe: Connection) -> Any:
    assert pipe.poll(100)
    return pipe.recv()


@pytest.mark.integration
def test_processes_wait_for_the_one_that_makes_it(root, workers):
    first = workers.start()
    assert told(first) == "writing"
    second = workers.start("")
    assert not second.poll(1)
    first.send("go on")
    assert told(first) == told(second) == "whole"
    first.send("end")
    assert workers.join(0) == 0
    assert (root / "key" / "it").read_text() == "whole"
    second.send("end")
    assert workers.join(1) == 0
    assert list(root.iterdir()) == []


@pytest.mark.integration
def test_a_killed_maker_is_followed_by_another(root, workers):
    first = workers.start("writing")
    assert told(first) == "writing"
    second = workers.start("never")
    assert not second.poll(1)
    first.send("die")
    assert workers.join(0) == -signal.SIGKILL
    assert told(second) == "writing"
    second.send("go on")
    assert told(second) == "whole"
    second.send("end")
    assert workers.join(1) == 0
    assert list(root.iterdir()) == []


@pytest.mark.integration
def test_what_a_killed_user_left_is_removed_at_the_next_start(root, workers):
    first = workers.start("using")
    told(first)
    first.send("go on")
    told(first)
    first.send("die")
    assert workers.join(0) == -signal.SIGKILL
    assert (root / "key").is_dir()
    other = share(key="other")
    assert not (root / "key").exists()
    other.close()
    assert list(root.iterdir()) == []


def test_short_memory_is_told_in_bytes(root, monkeypatch):
    monkeypatch.setattr(node_share, "free_memory", lambda: 2048)
    with pytest.raises(DataError, match=r"need 1\.0 GiB, but only 1\.6 KiB may be used"):
        share(size=2**30)
    assert list(root.iterdir()) == []


def test_free_memory_is_at_most_what_the_machine_has():
    assert 0 < free_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_what_is_not_ones_own_folder_is_not_used(root, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    root.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="not your folder"):
        share()
    root.unlink()
    share().close()
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(DataError, match="not your folder"):
        share()


def test_one_finds_for_all_that_wait_and_later_ones_look_anew(root):
    calls: list[int] = []
    began = threading.Event()

    def find() -> str:
        calls.append(len(calls))
        began.set()
        while len(asking) < 4:
            time.sleep(0.001)
        time.sleep(0.05)  # the last to ask is in the midst of asking
        return f"found {len(calls)}"

    earlier = "a result that is longer than the next one"
    assert found_once("name", lambda: earlier) == earlier
    asking: list[int] = []

    def ask(number: int) -> str:
        asking.append(number)
        return found_once("name", find)

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, 0)
        began.wait()
        others = [pool.submit(ask, number) for number in range(1, 4)]
        assert {each.result() for each in [first, *others]} == {"found 1"}
    assert found_once("name", find) == "found 2"
    assert [path.name for path in root.iterdir()] == ["name.found"]
    share().close()
    assert list(root.iterdir()) == []


def test_a_result_from_before_a_reboot_is_not_used(root):
    root.mkdir()
    (root / "name.found").write_text(f"{time.monotonic() + 1e6} before")
    assert found_once("name", lambda: "after") == "after"
