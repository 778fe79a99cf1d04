"""Image folders become TFRecord shards: bytes, labels, and what a kill in the middle leaves."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from raysuite.data.convert import Conversion, Options, Summary, convert, plan_conversion
from raysuite.data.formats.example import IMAGE, LABEL, _Example
from raysuite.data.formats.tfrecord import read_index, read_record
from raysuite.errors import DataError
from tests.require import require

SYNSETS = ("n01440764", "n01443537", "n02084071")


def image(seed: int, width: int = 20, height: int = 12, kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def write_folder(root: Path, classes: tuple[str, ...] = SYNSETS, train: int = 9) -> Path:
    for split, count in (("train", train), ("val", 3)):
        for label, name in enumerate(classes):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                data = image(1000 * label + number + 500 * (split == "val"))
                (root / split / name / f"{name}_{number}.JPEG").write_bytes(data)
    return root


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "source")


def run(source: Path, target: Path, options: Options | None = None, **settings: object) -> Summary:
    force = bool(settings.get("force"))
    conversion = plan_conversion(source, target, options or Options(shards=4), force)
    return convert(conversion, workers=1, **settings)  # type: ignore[arg-type]


def records(path: Path) -> list[dict[str, bytes | int]]:
    """The features of every record of a shard, read by its index."""
    found = []
    descriptor = os.open(path, os.O_RDONLY)
    for offset, size in read_index(path.with_suffix(".idx")).tolist():
        example = _Example.FromString(read_record(descriptor, offset, size, str(path)))
        found.append(
            {
                name: (value.bytes_list.value or value.int64_list.value)[0]
                for name, value in example.features.feature.items()
            }
        )
    os.close(descriptor)
    return found


def shards(target: Path, split: str) -> list[Path]:
    return sorted(path for path in target.glob(f"{split}-*") if path.suffix != ".idx")


def test_every_image_comes_once_with_its_bytes_and_its_label(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    summary = run(source, target)
    assert [path.name for path in shards(target, "train")] == [
        f"train-{shard:05d}-of-00004" for shard in range(4)
    ]
    assert (summary.train, summary.val, summary.shards, summary.shrunk) == (27, 9, 6, 0)
    for split in ("train", "val"):
        found = [record for path in shards(target, split) for record in records(path)]
        expected = {
            path.name.encode(): path.read_bytes() for path in source.glob(f"{split}/*/*.JPEG")
        }
        assert Counter(record["image/filename"] for record in found) == Counter(list(expected))
        for record in found:
            assert record[IMAGE] == expected[record["image/filename"]]  # type: ignore[index]
            synset = record["image/class/synset"]
            assert isinstance(synset, bytes)
            # TensorFlow's ImageNet counts from 1
            assert record[LABEL] == SYNSETS.index(synset.decode()) + 1
            assert (record["image/height"], record["image/width"]) == (12, 20)
            assert (record["image/format"], record["image/channels"]) == (b"JPEG", 3)
    assert (target / "classes.txt").read_text().split() == list(SYNSETS)


def test_the_manifest_holds_the_checksums(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    manifest = json.loads((tmp_path / "target" / "manifest.json").read_text())
    assert len(manifest["files"]) == 6
    for name, told in manifest["files"].items():
        content = (tmp_path / "target" / name).read_bytes()
        assert told["sha256"] == hashlib.sha256(content).hexdigest()
        assert told["bytes"] == len(content)
        assert told["records"] == len(read_index(tmp_path / "target" / f"{name}.idx"))
    assert not list((tmp_path / "target").glob(".*"))


def test_ones_own_classes_count_from_0_and_sorted_is_sorted(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", ("ant", "bee"))
    run(source, tmp_path / "target", Options(shards=2, order="sorted"))
    found = [each for path in shards(tmp_path / "target", "train") for each in records(path)]
    assert [each[LABEL] for each in found] == [0] * 9 + [1] * 9
    assert found[0]["image/class/text"] == b"ant"
    assert [each["image/filename"] for each in found[:2]] == [b"ant_0.JPEG", b"ant_1.JPEG"]


def test_labels_may_count_from_1(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", ("ant", "bee"))
    run(source, tmp_path / "target", Options(first_label=1))
    (path,) = shards(tmp_path / "target", "train")
    assert {each[LABEL] for each in records(path)} == {1, 2}


def test_shuffled_shards_hold_all_classes_and_depend_on_the_seed(
    source: Path, tmp_path: Path
) -> None:
    names = {}
    for seed in (0, 1):
        run(source, tmp_path / str(seed), Options(shards=1, seed=seed))
        (path,) = shards(tmp_path / str(seed), "train")
        names[seed] = [each["image/filename"] for each in records(path)]
    assert names[0] != names[1]
    assert len({bytes(name)[:9] for name in names[0][:9]}) > 1  # type: ignore[arg-type]


def test_shards_by_size(source: Path, tmp_path: Path) -> None:
    each = len(image(0))
    conversion = plan_conversion(source, tmp_path / "x", Options(shard_mb=each * 7 / 1e6))
    counts = conversion.document["shards"]
    assert counts["train"] in (4, 5)  # 27 images, 7 a shard, each of about that size
    assert not (tmp_path / "x").exists()


def test_more_shards_than_images_are_not_made(source: Path, tmp_path: Path) -> None:
    conversion = plan_conversion(source, tmp_path / "x", Options(shards=1000))
    assert conversion.document["shards"] == {"train": 27, "val": 9}


def test_the_shorter_side_is_shrunk_and_never_enlarged(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", ("ant", "bee"))
    (source / "train" / "ant" / "large.jpg").write_bytes(image(1, 90, 64))
    (source / "train" / "ant" / "tall.png").write_bytes(image(2, 16, 48, "PNG"))
    summary = run(source, tmp_path / "target", Options(shorter_side=12))
    assert summary.shrunk == 2
    found = {
        bytes(each["image/filename"]): each  # type: ignore[arg-type]
        for each in records(shards(tmp_path / "target", "train")[0])
    }
    for name, size, kind in ((b"large.jpg", (17, 12), "JPEG"), (b"tall.png", (12, 36), "PNG")):
        shown = Image.open(io.BytesIO(found[name][IMAGE]))  # type: ignore[arg-type]
        assert (shown.size, shown.format) == (size, kind)
        assert (found[name]["image/width"], found[name]["image/height"]) == size
    same = source / "train" / "ant" / "ant_0.JPEG"  # 12 pixels high already
    assert found[b"ant_0.JPEG"][IMAGE] == same.read_bytes()


def test_bad_images_are_all_listed(source: Path, tmp_path: Path) -> None:
    for number, content in enumerate((b"text", b"", image(3)[:-40])):
        (source / "train" / SYNSETS[0] / f"{SYNSETS[0]}_{number}.JPEG").write_bytes(content)
    with pytest.raises(DataError) as raised:
        run(source, tmp_path / "target", Options(shards=9))
    told = str(raised.value)
    assert told.startswith("3 images cannot be read; the shards without them are kept:")
    for number in range(3):
        assert f"{source}/train/{SYNSETS[0]}/{SYNSETS[0]}_{number}.JPEG: " in told
    assert "neither JPEG nor PNG" in told
    assert "--bad skip" in told
    left = len(shards(tmp_path / "target", "train"))
    assert 6 <= left <= 8
    assert not (tmp_path / "target" / "manifest.json").exists()

    summary = run(source, tmp_path / "target", Options(shards=9), bad="skip")
    assert (summary.train, summary.written) == (24, 9 - left)
    assert {os.path.basename(each.path) for each in summary.skipped} == {
        f"{SYNSETS[0]}_{number}.JPEG" for number in range(3)
    }
    assert len(json.loads((tmp_path / "target" / "manifest.json").read_text())["skipped"]) == 3

    (source / "train" / SYNSETS[0] / f"{SYNSETS[0]}_1.JPEG").write_bytes(image(9))
    assert run(source, tmp_path / "target", Options(shards=9), bad="skip").train == 25


def test_a_complete_conversion_is_left_alone(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    before = digests(tmp_path / "target")
    assert run(source, tmp_path / "target").written == 0
    assert digests(tmp_path / "target") == before


def test_changed_images_are_noticed(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    path = source / "train" / SYNSETS[1] / f"{SYNSETS[1]}_4.JPEG"
    path.write_bytes(image(77))
    assert run(source, tmp_path / "target").written == 1
    found = [each for path in shards(tmp_path / "target", "train") for each in records(path)]
    assert [each[IMAGE] for each in found if each["image/filename"] == path.name.encode()] == [
        image(77)
    ]


def test_images_that_came_or_went_are_noticed(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    (source / "train" / SYNSETS[1] / "new.jpg").write_bytes(image(78))
    with pytest.raises(DataError, match=r"27 \+ 9 images of 3 classes.*28 \+ 9.*--force"):
        run(source, tmp_path / "target")
    assert run(source, tmp_path / "target", force=True).train == 28


def test_other_options_are_refused(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    with pytest.raises(DataError, match="shards 4 then, 2 now"):
        run(source, tmp_path / "target", Options(shards=2))
    run(source, tmp_path / "target", Options(shards=2), force=True)
    assert len(shards(tmp_path / "target", "train")) == 2


def test_an_image_that_changes_meanwhile_is_noticed(source: Path, tmp_path: Path) -> None:
    conversion = plan_conversion(source, tmp_path / "target", Options())
    (source / "val" / SYNSETS[0] / f"{SYNSETS[0]}_0.JPEG").write_bytes(image(5))
    with pytest.raises(DataError, match=f"{SYNSETS[0]}_0.JPEG was changed since"):
        convert(conversion, workers=1)


@pytest.mark.parametrize("force", [False, True])
def test_foreign_folders_are_left_alone(source: Path, tmp_path: Path, force: bool) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match="holds files, and no conversion"):
        plan_conversion(source, tmp_path / "target", Options(), force)
    with pytest.raises(DataError, match="is a file"):
        plan_conversion(source, tmp_path / "target" / "thesis.txt", Options(), force)
    with pytest.raises(DataError, match="no conversion"):
        plan_conversion(source, source, Options(), force)


def test_a_torn_journal_costs_a_shard(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "target")
    journal = tmp_path / "target" / "shards.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9])
    assert run(source, tmp_path / "target").written == 1
    assert run(source, tmp_path / "target").written == 0


def test_names_of_any_bytes_are_converted(source: Path, tmp_path: Path) -> None:
    name = b"\xff\xfe \xe2\x82\xac.jpg"
    folder = os.fsencode(source / "train" / SYNSETS[0])
    with open(os.path.join(folder, name), "wb") as file:
        file.write(image(4))
    run(source, tmp_path / "target")
    found = [each for path in shards(tmp_path / "target", "train") for each in records(path)]
    assert [each["image/filename"] for each in found].count(name) == 1


def digests(folder: Path) -> dict[str, str]:
    """Of shards and indices."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if "-of-" in path.name
    }


KILLED = """
import os, signal, sys
from pathlib import Path
import psutil
from raysuite.data.convert import Options, convert, plan_conversion

killed = []

def finished(shard):
    if sys.argv[3] == "parent":
        print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if killed:
        return
    killed.append(shard)
    fork_servers = [child for child in psutil.Process().children() if child.children()]
    fork_servers[0].children()[0].kill()

if __name__ == "__main__":
    conversion = plan_conversion(Path(sys.argv[1]), Path(sys.argv[2]), Options(shards=27))
    convert(conversion, workers=2, finished=finished)
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
        left = [
            psutil.Process(int(pid)) for pid in ended.stdout.split() if psutil.pid_exists(int(pid))
        ]
        assert psutil.wait_procs(left, timeout=60)[1] == []  # nobody outlives the parent
    else:
        assert ended.returncode == 1
        assert "a process was killed while it worked" in ended.stderr
    # files without a name of their own yet are hidden; those that have one are complete
    some = {name: digest for name, digest in digests(target).items() if name[0] != "."}
    assert 1 <= len(some) < 2 * 36
    conversion = plan_conversion(source, target, Options(shards=27))
    summary = convert(conversion, workers=2)
    assert 0 < summary.written < 36
    run(source, tmp_path / "whole", Options(shards=27))
    whole = digests(tmp_path / "whole")
    assert digests(target) == whole
    assert some.items() <= whole.items()
    manifests = [
        json.loads((folder / "manifest.json").read_text())
        for folder in (target, tmp_path / "whole")
    ]
    assert manifests[0] == manifests[1]


def test_processes_do_what_one_does(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "one")
    conversion: Conversion = plan_conversion(source, tmp_path / "two", Options(shards=4))
    done: list[int] = []
    convert(conversion, workers=2, count=done.append)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert sum(done) == 36


def test_dalis_own_reader_reads_the_shards(source: Path, tmp_path: Path) -> None:
    require("dali")
    from nvidia.dali import fn, tfrecord
    from nvidia.dali.pipeline import Pipeline

    run(source, tmp_path / "target")
    paths = shards(tmp_path / "target", "train")
    pipeline = Pipeline(batch_size=27, num_threads=1, device_id=None)
    with pipeline:
        features = fn.readers.tfrecord(
            path=[str(path) for path in paths],
            index_path=[str(path.with_suffix(".idx")) for path in paths],
            features={
                IMAGE: tfrecord.FixedLenFeature((), tfrecord.string, ""),
                LABEL: tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
            },
        )
        pipeline.set_outputs(features[IMAGE], features[LABEL])
    images, labels = pipeline.run()
    found = sorted((int(labels.at(i)[0]), bytes(images.at(i))) for i in range(27))
    assert found == sorted(
        (SYNSETS.index(path.parent.name) + 1, path.read_bytes())
        for path in source.glob("train/*/*")
    )
