"""Conversions that are called again: after a kill, after a change, with other options."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from raysuite.data import convert as converting
from raysuite.data.convert import Conversion, convert, plan_conversion
from raysuite.data.formats.tfrecord import IMAGE
from raysuite.errors import DataError
from tests.unit.data.photos import SYNSETS, digests, image, records, run, shards, write_folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "source")


def test_a_complete_conversion_is_left_alone(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    before = digests(tmp_path / "target")
    assert run(source, tmp_path / "target").written == 0
    assert digests(tmp_path / "target") == before


def test_what_is_left_to_write_needs_free_space_and_no_more(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(source, tmp_path / "target")
    [first, *_] = shards(tmp_path / "target", "train")
    free = first.stat().st_size  # images, and what stands around them
    first.unlink()

    def is_full(bytes_free: int) -> None:
        usage = shutil.disk_usage(tmp_path)._replace(free=bytes_free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    is_full(free // 2)
    with pytest.raises(DataError, match=f"{tmp_path}/target: .* GB are needed"):
        run(source, tmp_path / "target")
    is_full(free)
    assert run(source, tmp_path / "target").written == 1
    with pytest.raises(DataError, match="--shorter-side"):
        run(source, tmp_path / "new")
    assert run(source, tmp_path / "small", shorter_side=4).written == 6


def test_changed_images_are_noticed(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    path = source / "train" / SYNSETS[1] / f"{SYNSETS[1]}_4.JPEG"
    path.write_bytes(image(77))
    assert run(source, tmp_path / "target").written == 1
    found = [each for path in shards(tmp_path / "target", "train") for each in records(path)]
    assert [each[IMAGE] for each in found if each["image/filename"] == path.name.encode()] == [
        image(77)
    ]


def test_an_image_of_another_time_or_of_another_size_alone_has_changed(
    source: Path, tmp_path: Path
) -> None:
    run(source, tmp_path / "target")
    path = source / "train" / SYNSETS[1] / f"{SYNSETS[1]}_4.JPEG"
    when = path.stat()
    os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns + 1))
    assert run(source, tmp_path / "target").written == 1
    path.write_bytes(image(77))
    assert path.stat().st_size != when.st_size
    os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns + 1))
    assert run(source, tmp_path / "target").written == 1
    assert run(source, tmp_path / "target").written == 0


def test_images_that_came_or_went_are_noticed(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    (source / "train" / SYNSETS[1] / "new.jpg").write_bytes(image(78))
    with pytest.raises(DataError, match=r"images .*27.* then, .*28.* now.*remove the folder"):
        run(source, tmp_path / "target")


def test_an_image_of_another_name_is_noticed(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    path = source / "val" / SYNSETS[1] / f"{SYNSETS[1]}_1.JPEG"
    path.rename(path.with_name("other.JPEG"))
    with pytest.raises(DataError, match=r"listing .* then, .* now"):
        run(source, tmp_path / "target")


@pytest.mark.parametrize("damage", ["missing", "no index", "shorter"])
def test_a_shard_that_is_not_whole_is_written_again_and_its_images_alone_are_counted_anew(
    damage: str, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    run(source, target)
    before = digests(target)
    shard = shards(target, "train")[2]
    if damage == "missing":
        shard.unlink()
    elif damage == "no index":
        shard.with_suffix(".idx").unlink()
    else:
        os.truncate(shard, shard.stat().st_size - 1)
    for name in (".train-00001-of-00004.9.part", ".train-00001-of-00004.9.idx"):
        (target / name).touch()  # left by a killed process
    done: list[int] = []
    summary = convert(plan_conversion(source, target, 4), workers=1, count=done.append)
    assert (summary.written, summary.train, done) == (1, 27, [29, *[1] * 7])
    assert digests(target) == before
    assert not list(target.glob(".*"))


def test_the_number_of_shards_stays_if_sizes_change(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converting, "SHARD_BYTES", 2000)
    first = run(source, tmp_path / "target", shards=None)
    assert first.shards > 4
    monkeypatch.setattr(converting, "SHARD_BYTES", 10**9)
    again = run(source, tmp_path / "target", shards=None)
    assert (again.shards, again.written) == (first.shards, 0)


def test_other_options_are_refused(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    with pytest.raises(DataError, match="shorter_side None then, 4 now"):
        run(source, tmp_path / "target", shorter_side=4)
    with pytest.raises(DataError, match="shards_wanted 4 then, 2 now"):
        run(source, tmp_path / "target", shards=2)


def test_a_torn_journal_costs_a_shard(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    journal = tmp_path / "target" / "shards.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])
    assert run(source, tmp_path / "target").written == 1
    assert run(source, tmp_path / "target").written == 0


def test_processes_do_what_one_does(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "one")
    conversion: Conversion = plan_conversion(source, tmp_path / "two", shards=4)
    done: list[int] = []
    convert(conversion, workers=2, count=done.append)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert sum(done) == 36


KILLED = """
import os, signal, sys
from pathlib import Path
import psutil
from raysuite.data.convert import convert, plan_conversion

killed = []
journal = Path(sys.argv[2], "shards.jsonl")

def count(images):
    if not journal.is_file() or not journal.stat().st_size:
        return
    if sys.argv[3] == "parent":
        print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if killed:
        return
    killed.append(images)
    fork_servers = [child for child in psutil.Process().children() if child.children()]
    fork_servers[0].children()[0].kill()

if __name__ == "__main__":
    conversion = plan_conversion(Path(sys.argv[1]), Path(sys.argv[2]), shards=27)
    convert(conversion, workers=2, count=count)
"""


@pytest.mark.integration
@pytest.mark.parametrize("who", ["parent", "worker"])
def test_a_killed_conversion_is_gone_on_with(source: Path, tmp_path: Path, who: str) -> None:
    script, target = tmp_path / "killed.py", tmp_path / "target"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(source), str(target), who]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if who == "parent":
        assert ended.returncode == -9
        left = []
        for pid in ended.stdout.split():
            with contextlib.suppress(psutil.NoSuchProcess):
                left.append(psutil.Process(int(pid)))
        assert psutil.wait_procs(left, timeout=60)[1] == []  # nobody outlives the parent
    else:
        assert ended.returncode == 1
        assert "process was killed" in ended.stderr
    # files without a name of their own yet are hidden; those that have one are complete
    some = {name: digest for name, digest in digests(target).items() if name[0] != "."}
    assert 1 <= len(some) < 2 * 36
    conversion = plan_conversion(source, target, shards=27)
    summary = convert(conversion, workers=2)
    assert 0 < summary.written < 36
    run(source, tmp_path / "whole", shards=27)
    whole = digests(tmp_path / "whole")
    assert digests(target) == whole
    assert some.items() <= whole.items()
    manifests = [
        json.loads((folder / "manifest.json").read_text())
        for folder in (target, tmp_path / "whole")
    ]
    assert manifests[0] == manifests[1]
