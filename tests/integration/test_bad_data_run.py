"""A bad image on one of two workers under Ray: the run ends and names it, or goes on without it."""

from __future__ import annotations

import json

import pytest

from raysuite.records import EpochFinished, RunFailed, RunFinished, SamplesSkipped
from tests import bad_sets
from tests.integration.workplace import Workplace
from tests.marks import SLOW_MARKS
from tests.small_sets import COUNTS

pytestmark = [*SLOW_MARKS, pytest.mark.thorough, pytest.mark.timeout(900)]

SPEC = """\
name: bad
model: own:Net
data: {name: image_folder, path: images, image_size: 8}
strategy: ddp
training: {epochs: 2, global_batch: 4}
resources: {device: cpu, workers: 2}
matrix: {data.bad_samples: [error, skip]}
"""


def test_a_bad_image(workplace: Workplace, cluster: dict[str, str]) -> None:
    small = bad_sets.photographs(workplace.folder / "images")
    place, _ = bad_sets.spoil_file(small, "cut in the middle")
    workplace.write("bad.yaml", SPEC)
    cache = {"RAYSUITE_CACHE": str(workplace.folder / "cache")}
    done = workplace.run("raysuite", "run", "bad.yaml", code=1, **cluster, **cache)
    assert "Traceback" not in done.stdout + done.stderr
    results = workplace.results()
    failed, finished = (results.records(plan["run_id"]) for plan in results.plans())

    end = failed[-1]
    assert isinstance(end, RunFailed)
    assert end.reason == "error", "not lost: nothing is to be gained by another attempt"
    assert [type(record) for record in failed].count(RunFailed) == 1
    rank = end.message.partition(":")[0]
    assert rank in ("rank 0", "rank 1")
    assert end.message.startswith(f"{rank}: {place}: not a readable image")
    assert f"failed: {end.message}" in done.stdout

    assert isinstance(finished[-1], RunFinished)
    train, val = (record for record in finished if isinstance(record, SamplesSkipped))
    assert (train.skipped, val.skipped) == (1, 0)
    epochs = [record for record in finished if isinstance(record, EpochFinished)]
    assert [epoch.images for epoch in epochs] == [COUNTS["train"] - 1] * 2
    assert f"leaves out 1 of 23 train samples; the first: {place}" in done.stdout

    said = "Left out of image_folder, as they cannot be read: 1 of 23 train samples"
    assert said in (results.folder / "rows.md").read_text("utf-8")
    rows = json.loads((results.folder / "rows.json").read_text("utf-8"))["rows"]
    assert [row["skipped_samples"]["values"] for row in rows] == [[], [1]]
    question = "SELECT value FROM metrics WHERE key = 'run/skipped_samples'"
    assert workplace.query(question) == [(1.0,)]
