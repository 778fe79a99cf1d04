"""Image files of every mode, depth and format through every path and loader: seen alike by all, or
refused by all."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from raysuite.data import Slice, header, make_loader, prepare
from raysuite.data.convert import convert, plan_conversion
from raysuite.data.formats import open_source
from raysuite.data.formats.tfrecord import encode_example, write_records
from raysuite.data.loaders import ray_data
from raysuite.data.pixels import decode
from raysuite.data.prepared import Prepared
from raysuite.data.set_check import check, stated, target_of
from raysuite.data.skipping import look
from raysuite.errors import DataError
from raysuite.spec.data_set import DataOptions
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.loaders import (
    DaliOptions,
    LoaderOptions,
    MemoryOptions,
    NativeOptions,
    RayDataOptions,
)
from tests.image_files import SUFFIXES, Kind, drawn, given, kinds, saved
from tests.require import require
from tests.unit.data.photos import records

CPU = torch.device("cpu")
SIDE = 16
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "data.md"
LOADERS: dict[str, LoaderOptions] = {
    "native": NativeOptions(),
    "dali": DaliOptions(),
    "memory": MemoryOptions(),
}
PATHS = ("folder", "own bytes", "own PIL image", "own array", "TFRecord")
Show = Callable[[list[int]], NDArray[np.float64]]
"""Numbers of samples -> their pixels [b, side, side, C] in levels of 255. Raises DataError."""


def written(root: Path, path: str, files: list[tuple[str, bytes]], side: int, channels: int = 3):
    """The set with these files, by their suffix, as one class's training images."""
    facts = DatasetFacts(len(files), len(files), 1, channels=channels, image_size=side)
    more = {"image_size": side, "channels": channels}
    if path.startswith("own"):
        options = {"side": side, "path": path}
        data = DataOptions(name="tests.image_files:Own", options=options, classes=1, **more)
    elif path == "folder":
        for split in ("train", "val"):
            (root / split / "only").mkdir(parents=True)
            for number, (suffix, content) in enumerate(files):
                (root / split / "only" / f"{number:04}{suffix}").write_bytes(content)
        data = stated(root, "image_folder", "folder", **more)
    else:
        root.mkdir()
        for split in ("train", "val"):
            records = [encode_example(content, 0) for _, content in files]
            write_records(root / f"{split}-00000-of-00001", records)
        data = stated(root, "tfrecord", "tfrecord", classes=1, **more)
    return prepare(data, facts, root.parent / "cache")


@contextmanager
def shown_by(loader: str, prepared: Prepared, ray: bool = False) -> Iterator[Show]:
    """What a loader shows. That of `ray_data` without a Ray is what its tasks decode."""
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (prepared.mean, prepared.std))

    def decoded(samples: list[int]) -> NDArray[np.float64]:
        slice_ = Slice(np.array(samples), len(samples), len(samples))
        table = pa.table({ray_data._SLICES: [pickle.dumps([slice_])]})
        (row,) = ray_data._decode_slices(table, str(prepared), prepared, "train").to_pylist()
        if row["error"]:
            raise DataError(row["error"])
        shape = (len(samples), *(2 * [prepared.facts.image_size]), prepared.facts.channels)
        return np.frombuffer(row["images"], np.uint8).reshape(shape).astype(np.float64)

    if loader == "ray_data" and not ray:
        yield decoded
        ray_data._open.pop(str(prepared)).close()
        return
    options = LOADERS.get(loader, RayDataOptions())
    with closing(make_loader(prepared, "train", options, CPU)) as made:

        def loaded(samples: list[int]) -> NDArray[np.float64]:
            (batch,) = made.batches([Slice(np.array(samples), len(samples), len(samples))])
            return ((batch.images.double() * std + mean) * 255).permute(0, 2, 3, 1).numpy()

        yield loaded


def outcome(show: Show, sample: int, levels: NDArray[np.uint8] | None, how: str) -> str:
    try:
        (seen,) = show([sample])
    except DataError:
        return "refused"
    return how if levels is not None and np.abs(seen - levels).max() < 1e-3 else "other pixels"


def test_the_table_of_kinds_is_what_every_loader_does(tmp_path):
    require("dali")
    every = kinds(SIDE)
    cells: dict[tuple[str, str, str], dict[str, str]] = {_name(kind): {} for kind in every}
    for path in PATHS:
        taken = given(every, path)
        files = [(SUFFIXES[kind.form], kind.data) for kind in taken]
        prepared = written(tmp_path / path.replace(" ", "-"), path, files, SIDE)
        outcomes: dict[str, list[str]] = {}
        for loader in (*LOADERS, "ray_data"):
            with shown_by(loader, prepared) as show:
                outcomes[loader] = [
                    outcome(show, number, kind.levels, kind.how)
                    for number, kind in enumerate(taken)
                ]
        for number, kind in enumerate(taken):
            found = {loader: each[number] for loader, each in outcomes.items()}
            same = len(set(found.values())) == 1
            told = found["native"] if same else "; ".join(f"{a}: {b}" for a, b in found.items())
            cells[_name(kind)][path] = told
        refused = {number for number, each in enumerate(outcomes["native"]) if each == "refused"}
        report = check(target_of(prepared.data))
        assert report.splits["train"].unreadable == len(refused), path
        if path == "folder":
            assert_converted(tmp_path / path, tmp_path / "converted", taken, refused)
    assert "other pixels" not in str(cells)
    table = "\n".join(_rows(cells))
    page = PAGE.read_text("utf-8")
    begin, end = "<!-- kinds: RAYSUITE_WRITE_GOLDEN=1 writes this table -->\n", "\n<!-- end -->"
    before, _, rest = page.partition(begin)
    committed, _, after = rest.partition(end)
    if os.environ.get("RAYSUITE_WRITE_GOLDEN"):
        PAGE.write_text(before + begin + table + end + after, "utf-8")
    else:
        assert committed == table


def assert_converted(source: Path, target: Path, every: list[Kind], refused: set[int]) -> None:
    """What is refused is left out by name; the rest has the same pixels, and its channels."""
    summary = convert(plan_conversion(source, target, 1), 1, "skip")
    skipped = {int(Path(bad.path).stem) for bad in summary.skipped if "train" in bad.path}
    assert skipped == refused
    for record in records(target / "train-00000-of-00001"):
        kind, content = every[int(bytes(record["image/filename"])[:4])], record["image/encoded"]
        assert isinstance(content, bytes)
        assert kind.levels is not None
        assert np.array_equal(decode(content, 3, kind.mode), kind.levels)
        if record["image/format"] == b"PNG":
            colour, transparent = content[25], b"tRNS" in content
            channels = {0: 1, 2: 3, 3: 3 + transparent, 4: 2, 6: 4}[colour]
            assert record["image/channels"] == channels


def _name(kind: Kind) -> tuple[str, str, str]:
    return kind.form, kind.mode, kind.bits


def _rows(cells: dict[tuple[str, str, str], dict[str, str]]) -> Iterator[str]:
    """A row for each format and outcome, with the modes and depths that share it."""
    yield "| format | mode and bits | " + " | ".join(PATHS) + " |"
    yield "|---" * (2 + len(PATHS)) + "|"
    shared: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for (form, mode, bits), found in cells.items():
        row = (form, *(found.get(path, "-") for path in PATHS))
        shared.setdefault(row, {}).setdefault(mode, []).append(bits)
    for (form, *row), modes in shared.items():
        told = "; ".join(f"{mode} {', '.join(bits)}" for mode, bits in modes.items())
        yield f"| {form} | {told} | " + " | ".join(row) + " |"


def test_an_image_beyond_the_limit_is_refused_by_all(tmp_path, monkeypatch):
    require("dali")
    picture = Image.new("RGB", (SIDE, SIDE))
    files = [(suffix, saved(picture, form)) for form, suffix in SUFFIXES.items()]
    prepared = written(tmp_path / "set", "folder", files, SIDE)
    monkeypatch.setattr(header, "MOST_PIXELS", SIDE * SIDE - 1)
    with ThreadPoolExecutor(1) as threads, closing(open_source(prepared, "train")) as source:
        faults, _ = look(prepared, source, range(len(files)), threads, tmp_path)
    found = [each.message for each in check(target_of(prepared.data)).findings]
    skipped = convert(plan_conversion(tmp_path / "set", tmp_path / "out", 1), 1, "skip").skipped
    told = [*faults.values(), *found, *(bad.reason for bad in skipped)]
    assert len(told) == 5 * len(files)  # the training images, and twice those of both splits
    for loader in (*LOADERS, "ray_data"):
        with shown_by(loader, prepared) as show:
            for number in range(len(files)):
                with pytest.raises(DataError) as caught:
                    show([number])
                told.append(str(caught.value))
    assert all("16 x 16 pixels exceed the limit of 255" in each for each in told)


EXACT, INSIDE, EDGE, CORNER = 1e-3, 1.001, 255 / 8 + 1, 255 * 15 / 64 + 1
"""Largest differences of `dali` to `native`, as docs/reference/data.md has them."""
SIDES_AND_CHANNELS = [(SIDE, 3), (SIDE, 1), (None, 3), (None, 1)]
THOROUGH = [pytest.mark.thorough, pytest.mark.slow, pytest.mark.integration]


@pytest.mark.parametrize(
    ("count", "side", "channels"),
    [
        (40, SIDE, 3),
        (40, None, 1),
        *(pytest.param(1000, *each, marks=THOROUGH) for each in SIDES_AND_CHANNELS),
    ],
)
def test_random_files_are_shown_alike_or_refused_by_all(count, side, channels, request, tmp_path):
    require("dali")
    ray = count == 1000
    if ray:
        request.getfixturevalue("running_ray")
    files = [drawn(seed, side) for seed in range(count)]
    prepared = written(tmp_path / "set", "folder", files, side or 24, channels)
    report = check(target_of(prepared.data))
    refused = [int(Path(each.place).stem) for each in report.findings if "train" in each.place]
    good = [number for number in range(count) if number not in refused]
    assert count / 2 < len(good) < count
    shown: dict[str, NDArray[np.float64]] = {}
    for loader in (*LOADERS, "ray_data"):
        with shown_by(loader, prepared, ray) as show:
            batches = [show(good[start : start + 50]) for start in range(0, len(good), 50)]
            shown[loader] = np.concatenate(batches)
            # each time, Ray Data takes some tenths of a second to start
            for number in refused[:20] if ray and loader == "ray_data" else refused:
                with pytest.raises(DataError, match=f"{number:04}"):
                    show([number])
    assert np.array_equal(shown["memory"], shown["native"])
    assert np.array_equal(shown["ray_data"].round(), shown["native"].round())
    far = np.abs(shown["dali"] - shown["native"]).max(axis=3)
    bounds = np.full(far.shape[1:], EDGE)
    bounds[1:-1, 1:-1] = INSIDE
    bounds[:: len(bounds) - 1, :: len(bounds) - 1] = CORNER
    if side:
        bounds[:] = EXACT if channels == 3 else INSIDE
    beyond = (far > bounds).any(axis=(1, 2))
    worst = far.max(axis=(1, 2))[beyond].round(1).tolist()
    numbers = np.array(good)[beyond].tolist()
    assert not beyond.any(), {
        number: (files[number][0], value) for number, value in zip(numbers, worst, strict=True)
    }
