"""A bad image on one of several ranks: either all leave it out alike, or all end, and the reason
that is told is that rank's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.records import (
    EpochFinished,
    Record,
    Results,
    RunFailed,
    RunFinished,
    SamplesSkipped,
)
from tests.ranks import ranks
from tests.require import require
from tests.small_sets import COUNTS, write

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SPEC = """
name: bad
model: tests.tiny_model:Tiny
data: {name: image_folder, path: FOLDER, image_size: 8}
strategy: ddp
training: {epochs: 2, global_batch: 6}
resources: {device: cpu}
"""
BAD = 5
"""A training sample of the first epoch's third step; which rank has it depends on their number."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, as the gate's verdicts are kept there."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def spec(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its data set has a JPEG that is cut short."""
    monkeypatch.setenv("RAYSUITE_CACHE", str(cache))
    write("image_folder-folder", tmp_path / "set")
    bad = sorted(tmp_path.glob("set/train/*/*"))[BAD]
    bad.write_bytes(bad.read_bytes()[:-300])
    file = tmp_path / "spec.yaml"
    file.write_text(SPEC.replace("FOLDER", str(tmp_path / "set")))
    return file


def told(folder: Path) -> list[Record]:
    results = Results.open(folder)
    (plan,) = results.plans()
    return results.records(plan["run_id"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "overrides"),
    [
        (2, ["loader=native"]),
        pytest.param(3, ["strategy=horovod", "loader=dali"], marks=pytest.mark.thorough),
    ],
)
def test_a_bad_image_ends_all_ranks_and_is_named(spec, tmp_path, workers, overrides):
    if "loader=dali" in overrides:
        require("horovod")
        require("dali")
    given = [spec, f"resources.workers={workers}", *overrides, "--results", tmp_path / "out"]
    said = ranks(workers, "raysuite.train", *given, fails=True)
    name = sorted(tmp_path.glob("set/train/*/*"))[BAD]
    assert f"error: {name}: not a readable image" in said
    *before, last = told(tmp_path / "out")
    assert not any(isinstance(record, EpochFinished | RunFailed) for record in before)
    assert isinstance(last, RunFailed)
    assert last.reason == "error"
    rank = workers - 1
    assert last.message.startswith(f"rank {rank}: {name}: not a readable image (ValueError: a JPEG")


@pytest.mark.slow
def test_all_ranks_leave_it_out_alike_and_remember_it(spec, tmp_path):
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        given = ["data.bad_samples=skip", "resources.workers=2", "--results", folder]
        ranks(2, "raysuite.train", spec, *given)
    name = sorted(tmp_path.glob("set/train/*/*"))[BAD]
    losses = []
    for folder, known in zip(folders, (0, COUNTS["train"]), strict=True):
        records = told(folder)
        assert isinstance(records[-1], RunFinished)
        train, val = (record for record in records if isinstance(record, SamplesSkipped))
        epochs = [record for record in records if isinstance(record, EpochFinished)]
        assert (train.samples, train.skipped, train.known) == (COUNTS["train"], 1, known)
        assert (val.samples, val.skipped) == (COUNTS["val"], 0)
        assert train.places == [
            f"{name}: not a readable image (ValueError: a JPEG cut short: it has no end)"
        ]
        assert [epoch.images for epoch in epochs] == [COUNTS["train"] - 1] * 2
        assert [len(epoch.losses) for epoch in epochs] == [4, 4]
        losses.append([epoch.losses for epoch in epochs])
    assert losses[0] == losses[1]
