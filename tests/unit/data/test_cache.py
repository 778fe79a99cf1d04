"""The cache: many writers at once, writers that die, files that are damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from raysuite.data import cache, node_share, prepare
from raysuite.data.cache import converted, publish, verify
from raysuite.data.formats import image_folder as folders
from raysuite.data.formats import tfrecord
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DIGITS, cache_dir
from tests import small_sets

PREPARE = """
import sys
from pathlib import Path
from raysuite.data import prepare
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DIGITS
sys.stdin.readline()
print(prepare(DataOptions(name="digits"), DIGITS, Path(sys.argv[1])).files)
"""

DIE = """
import os, signal, sys
from pathlib import Path
from raysuite.data import prepare
from raysuite.data import digits
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DIGITS
digits._write_shards = lambda *rest: os.kill(os.getpid(), signal.SIGKILL)
prepare(DataOptions(name="digits"), DIGITS, Path(sys.argv[1]))
"""


def start(code: str, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(cache)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.integration
def test_three_processes_prepare_at_once(tmp_path):
    processes = [start(PREPARE, tmp_path) for _ in range(3)]
    for process in processes:  # all have imported what they need, and now begin together
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    told = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], told
    assert len({out for out, _ in told}) == 1
    assert os.listdir(tmp_path / "data") == ["digits-8-v1"]
    verify(tmp_path / "data" / "digits-8-v1", ("folder", "tfrecord", "arrays", "listing"))


@pytest.mark.integration
def test_a_writer_that_is_killed_leaves_nothing_that_counts(tmp_path):
    process = start(DIE, tmp_path)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    left = os.listdir(tmp_path / "data")
    assert left
    assert all(name.startswith(".digits-8-v1.") for name in left)
    prepared = prepare(DataOptions(name="digits"), DIGITS, tmp_path)
    assert len([name for name in tree(prepared.files) if name.endswith(".png")]) == 1797


def write_two(folder: Path) -> None:
    for part in ("a", "b"):
        (folder / part).mkdir()
        (folder / part / "x").write_text(part)


def test_a_writer_that_raises_leaves_nothing(tmp_path):
    def write(folder: Path) -> None:
        write_two(folder)
        raise DataError("stop")

    with pytest.raises(DataError, match="stop"):
        publish(tmp_path / "set", write)
    assert os.listdir(tmp_path) == []


def test_what_is_there_is_not_written_again(tmp_path):
    publish(tmp_path / "set", write_two)
    publish(tmp_path / "set", lambda folder: pytest.fail("written twice"))
    assert tree(tmp_path / "set") == {"a/x", "b/x", "manifest.json"}
    assert (tmp_path / "set").stat().st_mode & 0o777 == 0o755


def test_the_loser_of_a_race_takes_the_winners_folder(tmp_path):
    def write(folder: Path) -> None:
        write_two(folder)
        if not (tmp_path / "set").exists():
            publish(tmp_path / "set", write_two)
            (tmp_path / "set" / "winner").touch()

    publish(tmp_path / "set", write)
    assert (tmp_path / "set" / "winner").exists()
    assert os.listdir(tmp_path) == ["set"]


def test_an_incomplete_folder_in_the_way_is_named(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "something").touch()
    with pytest.raises(DataError, match="is not a complete data set"):
        publish(tmp_path / "set", write_two)


def test_damage_is_named_in_the_parts_that_are_asked_for(tmp_path):
    folder = tmp_path / "set"
    publish(folder, write_two)
    verify(folder, ("a", "b"))
    (folder / "b" / "x").write_text("c")
    verify(folder, ("a",))
    with pytest.raises(DataError, match=r"b/x is damaged.*delete"):
        verify(folder, ("a", "b"))
    (folder / "b" / "x").unlink()
    with pytest.raises(DataError, match=r"b/x is missing.*delete"):
        verify(folder, ("b",))
    (folder / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest.json is damaged; delete"):
        verify(folder, ("a",))


def test_what_was_found_whole_is_read_again_only_where_it_changed(tmp_path, monkeypatch):
    folder = tmp_path / "set"
    publish(folder, write_two)
    os.utime(folder / "a" / "x", (10**9, 10**9))
    verify(folder, ("a", "b"))
    read: list[Path] = []
    digest = cache._digest
    monkeypatch.setattr(cache, "_digest", lambda path: read.append(path) or digest(path))
    verify(folder, ("a", "b"))
    assert read == [folder / "b" / "x"]  # just written: it may change without another time
    (folder / "a" / "x").write_text("c")
    with pytest.raises(DataError, match=r"a/x is damaged"):
        verify(folder, ("a",))


def test_a_conversion_is_of_the_content_and_the_order_of_its_sources(tmp_path):
    sources = [tmp_path / name for name in ("one", "two")]
    for path in sources:
        path.write_text(path.name)
    written: list[Path] = []

    def write(folder: Path) -> None:
        written.append(folder)
        (folder / "x").write_text("x")

    def made(paths: list[Path], name: str = "set") -> Path:
        return converted(tmp_path / "cache", name, paths, write)

    first = made(sources)
    os.utime(sources[0], (1, 1))
    assert made(sources) == first
    assert len(written) == 1
    others = [made(sources[::-1]), made(sources[:1]), made(sources, "other")]
    sources[1].write_text("owt")
    folders = {first, *others, made(sources)}
    assert len(folders) == len(written) == 5
    assert all((folder / "x").read_text() == "x" for folder in folders)
    (first / "x").write_text("y")
    sources[1].write_text("two")
    with pytest.raises(DataError, match="files/x is damaged"):
        made(sources)


def test_of_two_parts_with_one_beginning_one_is_checked(tmp_path):
    def write(folder: Path) -> None:
        for part in ("a", "ab"):
            (folder / part).mkdir()
            (folder / part / "x").write_text(part)

    publish(tmp_path / "set", write)
    (tmp_path / "set" / "ab" / "x").write_text("c")
    verify(tmp_path / "set", ("a",))


@pytest.mark.parametrize(
    ("kind", "module", "looks"),
    [
        ("image_folder-folder", folders, "folder_state"),
        ("tfrecord-tfrecord", tfrecord, "find"),
    ],
)
def test_one_rank_of_a_node_looks_in_each_run(
    kind: str, module: ModuleType, looks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = small_sets.write(kind, tmp_path / "set")
    asking: list[object] = []
    looked: list[object] = []
    lock, look = node_share.lock, getattr(module, looks)

    def looking(data: DataOptions) -> object:
        looked.append(data)
        until = time.monotonic() + 5
        while len(asking) < 3 and time.monotonic() < until:
            time.sleep(0.001)
        return look(data)

    monkeypatch.setattr(node_share, "lock", lambda *given: asking.append(given) or lock(*given))
    monkeypatch.setattr(module, looks, looking)
    with ThreadPoolExecutor(3) as ranks:
        first, *others = ranks.map(lambda _: prepare(small.data, small.facts, tmp_path), range(3))
    assert others == [first, first]
    assert len(looked) == 1
    assert prepare(small.data, small.facts, tmp_path) == first
    assert len(looked) == 2


@pytest.mark.parametrize("kind", ["image_folder-folder", "tfrecord-tfrecord"])
def test_a_damaged_listing_is_not_used(kind, tmp_path):
    small = small_sets.write(kind, tmp_path / "set")
    listing = prepare(small.data, small.facts, tmp_path).listing
    for path in listing.glob("val-*.npy"):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"x")
        with pytest.raises(DataError, match=rf"{path.name} is damaged"):
            prepare(small.data, small.facts, tmp_path)
        path.write_bytes(content)


def test_a_cache_that_cannot_be_written_is_told_with_the_way_out(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="set RAYSUITE_CACHE"):
        publish(tmp_path / "file" / "set", write_two)


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("RAYSUITE_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("RAYSUITE_CACHE")
    assert cache_dir() == Path.home() / ".cache" / "raysuite"
